// An out that overlaps an operand other than x is rejected and nothing is written: kernels read the packed plan or
// grid, positions, ids, padding and element numbers again after the checks, and while they write.
#include <functional>

#include "check.h"
#include "core/grid.h"
#include "plans.h"
#include "sinpe/sinpe.h"

namespace {

constexpr int64_t kBatch = 2, kRows = 3, kDim = 4, kWords = 512;  // in units of 8 bytes
constexpr int64_t kOut = kBatch * kRows * kDim * 4, kTable = kRows * kDim * 4;

using Bytes = std::vector<char>;
using Pointers = std::vector<const void*>;

template <class T>
Bytes bytes(const std::vector<T>& values) {
  const char* from = reinterpret_cast<const char*>(values.data());
  return Bytes(from, from + values.size() * sizeof(T));
}

// A call, its operands, and the range of its out in bytes from the pointer.
struct Call {
  const char* name;
  std::vector<Bytes> operands;
  int64_t begin, end, item;
  std::function<sinpe_status(const Pointers&, void*)> run;
};

// Calls with the operand in the middle of a memory, and out before it, over its first byte, over its last byte, and
// after it.
void test(const Call& call, size_t operand) {
  std::vector<int64_t> memory(kWords, 0);
  char* const first = reinterpret_cast<char*>(memory.data() + kWords / 2);
  const Bytes& value = call.operands[operand];
  char* const last = first + value.size();
  std::memcpy(first, value.data(), value.size());
  Pointers pointers;
  for (const Bytes& other : call.operands) pointers.push_back(other.data());
  pointers[operand] = first;
  char* const places[] = {first - call.end, first - call.end + call.item, first - call.begin,
                          last - call.begin - call.item, last - call.begin};
  const std::vector<int64_t> before = memory;
  const int failures = check::failures;
  for (const int k : {1, 2, 3}) {
    CHECK(call.run(pointers, places[k]) == SINPE_BAD_ARGUMENT);
    CHECK(memory == before);
  }
  for (const int k : {0, 4}) {
    CHECK(call.run(pointers, places[k]) == SINPE_OK);
    CHECK(std::memcmp(first, value.data(), value.size()) == 0 && memory != before);
    memory = before;
  }
  if (check::failures != failures) std::printf("  %s, operand %zu\n", call.name, operand);
}

const std::vector<float> x(kBatch* kRows* kDim, 1.0f);
const TestPlan plan = make_plan(kDim, 0, false);
const int64_t words = static_cast<int64_t>(plan.words.size());
const std::vector<int64_t> grid = {sinpe::kGridMagic, 14, 0, 1, 1, kDim, kRows* kDim, 0, kRows, 0, 0, 1, kDim, 0};
// What several functions have: padding mask, RNG offsets, positions, the plan.
const Bytes mask = bytes<uint8_t>({0, 1, 0, 0, 0, 0, 1, 0}), elements = bytes<int64_t>({0, 12, 4, 1}),
            positions = bytes<int64_t>({5, 6, 7, 1, 2, 3}), ids = bytes<int64_t>({0, 1, 4, 3, 2, 1});

sinpe_add_arguments arguments(void* out, const void* padding, const void* offsets, const void* at = nullptr) {
  sinpe_add_arguments a{};
  a.rank = 3;
  const int64_t sizes[] = {kBatch, kRows, kDim}, strides[] = {kRows * kDim, kDim, 1};
  std::memcpy(a.sizes, sizes, sizeof sizes);
  std::memcpy(a.x_strides, strides, sizeof strides);
  std::memcpy(a.out_strides, strides, sizeof strides);
  a.x = x.data();
  a.out = out;
  a.dtype = SINPE_FLOAT32;
  a.scale = a.alpha = 1.0;
  a.padding_mask = static_cast<const uint8_t*>(padding);
  a.mask_strides[0] = 5;
  a.mask_strides[1] = 1;
  a.dropout = {9000, 0, static_cast<const int64_t*>(offsets)};
  a.positions = at;
  a.position_dtype = SINPE_INT64;
  a.position_strides[0] = kRows;
  a.position_strides[1] = 1;
  return a;
}

const int64_t* integers(const void* p) { return static_cast<const int64_t*>(p); }

const Call kCalls[] = {
    {"table",
     {bytes(plan.words)},
     0,
     kTable,
     4,
     [](const Pointers& p, void* out) {
       return sinpe_table(integers(p[0]), words, 0, kRows, SINPE_FLOAT32, out, kDim);
     }},
    {"table with gaps, which count",
     {bytes(plan.words)},
     0,
     kTable + 2 * 4 * 10,
     4,
     [](const Pointers& p, void* out) {
       return sinpe_table(integers(p[0]), words, 0, kRows, SINPE_FLOAT32, out, kDim + 10);
     }},
    {"encode",
     {bytes(plan.words), bytes<double>({1.0, 2.5, 3.0})},
     0,
     kTable,
     4,
     [](const Pointers& p, void* out) {
       return sinpe_encode(integers(p[0]), words, p[1], SINPE_FLOAT64, kRows, SINPE_FLOAT32, out, kDim);
     }},
    {"add",
     {bytes(plan.words), mask, elements, positions},
     0,
     kOut,
     4,
     [](const Pointers& p, void* out) {
       const sinpe_add_arguments a = arguments(out, p[1], p[2], p[3]);
       return sinpe_add(integers(p[0]), words, &a);
     }},
    {"add, all backwards",
     {mask, elements, bytes<float>({1, 2, 3, 4, 5, 6})},
     4 - kOut,
     4,
     4,
     [](const Pointers& p, void* out) {
       sinpe_add_arguments a = arguments(out, p[0], p[1], static_cast<const float*>(p[2]) + 5);
       for (int d = 0; d < 3; ++d) a.out_strides[d] *= -1;
       a.position_dtype = SINPE_FLOAT32;
       a.position_strides[0] = -3;
       a.position_strides[1] = -1;
       return sinpe_add(plan.words.data(), words, &a);
     }},
    {"add, starts",
     {bytes<int64_t>({3, 9})},
     0,
     kOut,
     4,
     [](const Pointers& p, void* out) {
       sinpe_add_arguments a = arguments(out, nullptr, nullptr, p[0]);
       a.positions_are_starts = 1;
       a.position_strides[0] = 1;
       a.position_strides[1] = 1000;  // never used
       return sinpe_add(plan.words.data(), words, &a);
     }},
    {"dropout",
     {elements},
     0,
     kOut,
     4,
     [](const Pointers& p, void* out) {
       const sinpe_add_arguments a = arguments(out, nullptr, p[0]);
       return sinpe_dropout(&a);
     }},
    {"row_dots",
     {bytes(plan.words), mask, elements, positions, bytes(x), bytes(std::vector<double>(kDim, 2.0))},
     0,
     kBatch* kRows * 8,
     8,
     [](const Pointers& p, void* out) {
       sinpe_add_arguments a = arguments(out, p[1], p[2], p[3]);
       a.x = p[4];
       return sinpe_row_dots(integers(p[0]), words, &a, static_cast<const double*>(p[5]));
     }},
    {"embed",
     {bytes(plan.words), mask, elements, positions, ids, bytes(std::vector<float>(5 * kDim, 0.5f))},
     0,
     kOut,
     4,
     [](const Pointers& p, void* out) {
       sinpe_embed_arguments e{};
       e.add = arguments(out, p[1], p[2], p[3]);
       e.add.x = p[5];
       e.ids = integers(p[4]);
       e.id_strides[0] = kRows;
       e.id_strides[1] = 1;
       e.num_embeddings = 5;
       e.weight_stride = kDim;
       return sinpe_embed(integers(p[0]), words, &e);
     }},
    {"embed_backward",
     {bytes(x), ids, elements},
     0,
     5 * kDim * 4,
     4,
     [](const Pointers& p, void* out) {
       const sinpe_add_arguments a = arguments(out, nullptr, p[2]);
       sinpe_embed_backward_arguments b{};
       b.rank = a.rank;
       std::memcpy(b.sizes, a.sizes, sizeof b.sizes);
       std::memcpy(b.grad_strides, a.x_strides, sizeof b.grad_strides);
       b.id_strides[0] = kRows;
       b.id_strides[1] = 1;
       b.grad = p[0];
       b.ids = integers(p[1]);
       b.out = out;
       b.num_embeddings = 5;
       b.padding_idx = -1;
       b.scale = 1.0;
       b.dropout = a.dropout;
       return sinpe_embed_backward(&b);
     }},
    {"add_grid",
     {bytes(grid), bytes(std::vector<float>(kRows* kDim, 0.25f)), mask, elements},
     0,
     kOut,
     4,
     [](const Pointers& p, void* out) {
       const sinpe_add_arguments a = arguments(out, p[2], p[3]);
       return sinpe_add_grid(integers(p[0]), 14, p[1], kRows * kDim, &a);
     }},
};

// The decoded grid is a copy.
void test_decoded_grid() {
  std::vector<int64_t> changing = grid;
  sinpe::Grid decoded{};
  CHECK(sinpe::decode_grid(changing.data(), 14, kRows * kDim, &decoded));
  changing.assign(changing.size(), INT64_MAX);
  int64_t channel = -1;
  CHECK(decoded.channel_group(2, &channel) == 0 && channel == 2 && decoded.at(decoded.groups[0], 1, 2) == kDim + 2);
}

}  // namespace

int main() {
  for (const Call& call : kCalls) {
    for (size_t operand = 0; operand < call.operands.size(); ++operand) test(call, operand);
  }
  test_decoded_grid();
  return check::finish("test_overlap");
}
