// One fault per sanitizer, to check that it is detected.
#include <cstdlib>
#include <cstring>
#include <thread>

static volatile int number = 0;

static int overrun(int count) {
  int* volatile array = static_cast<int*>(std::malloc(count * sizeof(int)));  // volatile: hides the size from UBSan
  array[count] = count;
  const int value = array[count];
  std::free(array);
  return value;
}

static int overflow(int count) { return count * 65536; }

static int race(int count) {
  std::thread other([count] {
    for (int k = 0; k < count; ++k) number = number + 1;
  });
  for (int k = 0; k < count; ++k) number = number + 1;
  other.join();
  return number;
}

int main(int arguments, char** words) {
  const int count = 40000;
  if (arguments != 2) return 2;
  if (!std::strcmp(words[1], "overrun")) return overrun(count) == 1;
  if (!std::strcmp(words[1], "overflow")) return overflow(count) == 1;
  return race(count) == 1;
}
