#include "cpu/own_threads.h"

#include <exception>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#endif

namespace sinpe {
namespace {

thread_local bool made_by_fork = false;

#if defined(__unix__) || defined(__APPLE__)
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { made_by_fork = true; });
#endif

#if defined(__linux__)
// If fork came before this library was loaded: the kernel records "forked, no exec since" for the first thread of the
// process, which is the one that fork created.
bool first_thread_made_by_fork() {
  constexpr unsigned long kForkedWithoutExec = 0x40;  // PF_FORKNOEXEC; flags are field 9 of proc(5)'s stat
  char text[1024];
  std::FILE* file = std::fopen("/proc/self/stat", "r");
  if (file == nullptr) return false;
  text[std::fread(text, 1, sizeof text - 1, file)] = '\0';
  std::fclose(file);
  const char* name_end = std::strrchr(text, ')');  // the name, field 2, may contain any characters
  unsigned long flags = 0;
  return name_end != nullptr && std::sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %lu", &flags) == 1 &&
         (flags & kForkedWithoutExec) != 0;
}

const bool loaded_after_fork = first_thread_made_by_fork();
#endif

}  // namespace

bool created_by_fork() {
#if defined(__linux__)
  if (loaded_after_fork && syscall(SYS_gettid) == getpid()) return true;
#endif
  return made_by_fork;
}

void own_thread_ranges(int64_t n, int64_t parts, RangeFunction fn, void* context) {
  std::vector<std::thread> threads;
  int64_t started = 1;  // the caller runs part 0
  try {
    threads.reserve(static_cast<size_t>(parts));
    for (; started < parts; ++started) {
      threads.emplace_back(fn, n * started / parts, n * (started + 1) / parts, context);
    }
  } catch (const std::exception&) {
    // The system refuses more threads, or their memory: the caller runs the remaining parts.
  }
  fn(0, n / parts, context);
  for (int64_t k = started; k < parts; ++k) fn(n * k / parts, n * (k + 1) / parts, context);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace sinpe
