// An out that overlaps an operand other than x is rejected and nothing is written: kernels read the packed plan or
// grid, positions, ids, padding and element numbers again after the checks, and while they write.
#include "every_call.h"

namespace {

using namespace every_call;

// Calls with the operand in the middle of a memory, and out before it, over its first byte, over its last byte, and
// after it.
void test(const Call& call, size_t operand) {
  std::vector<int64_t> memory(4096, 0);
  char* const first = reinterpret_cast<char*>(memory.data() + memory.size() / 2);
  const Bytes& value = call.operands[operand];
  const size_t item = static_cast<size_t>(call.item);
  char* const last = first + (value.size() + item - 1) / item * item;  // aligned for elements of the result
  std::memcpy(first, value.data(), value.size());
  Pointers pointers = call.pointers();
  pointers[operand] = first;
  const std::vector<int64_t> before = memory;
  const int failures = check::failures;
  for (char* out : {first - call.end + call.item, first - call.begin, last - call.begin - call.item}) {
    CHECK(call.run(pointers, out) == SINPE_BAD_ARGUMENT);
    CHECK(memory == before);
  }
  for (char* out : {first - call.end, last - call.begin}) {
    CHECK(call.run(pointers, out) == SINPE_OK);
    CHECK(std::memcmp(first, value.data(), value.size()) == 0 && memory != before);
    memory = before;
  }
  if (check::failures != failures) std::printf("  %s, operand %zu\n", call.name, operand);
}

}  // namespace

int main() {
  for (const Call& call : every_call::every_call(2, 3, 4)) {
    for (size_t operand = 0; operand < call.operands.size(); ++operand) test(call, operand);
  }
  // The decoded grid is a copy.
  std::vector<int64_t> words = {sinpe::kGridMagic, 14, 0, 1, 1, 4, 12, 0, 3, 0, 0, 1, 4, 0};
  sinpe::Grid grid{};
  CHECK(sinpe::decode_grid(words.data(), 14, 12, &grid));
  words.assign(words.size(), INT64_MAX);
  int64_t channel = -1;
  CHECK(grid.channel_group(2, &channel) == 0 && channel == 2 && grid.at(grid.groups[0], 1, 2) == 6);
  return check::finish("test_overlap");
}
