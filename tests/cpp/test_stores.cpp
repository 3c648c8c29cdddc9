// Non-temporal stores give the bits of cached ones, and nothing beside the output is written. Memory that does not
// begin a cache line is written with cached stores.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"
#include "cpu/stores.h"
#include "plans.h"
#include "sinpe/sinpe.h"

namespace {

int64_t size_of(sinpe_dtype dtype) { return dtype == SINPE_FLOAT64 ? 8 : dtype == SINPE_FLOAT32 ? 4 : 2; }

constexpr int64_t kLine = 64, kRows = 150;
constexpr unsigned char kPoison = 0xfe;  // a NaN in every type

// `bytes` bytes that begin `offset` bytes after the start of a cache line, between lines that must stay unchanged.
class Memory {
 public:
  Memory(int64_t bytes, int64_t offset) : bytes_(bytes), all_(static_cast<size_t>(bytes + 4 * kLine), kPoison) {
    begin_ = static_cast<size_t>(2 * kLine - reinterpret_cast<intptr_t>(all_.data()) % kLine + offset);
  }
  unsigned char* data() { return all_.data() + begin_; }
  std::vector<unsigned char> written() const {
    const auto from = all_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::vector<unsigned char>(from, from + bytes_);
  }
  bool is_intact() const {
    const auto is_poison = [](unsigned char byte) { return byte == kPoison; };
    const auto from = all_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(all_.begin(), from, is_poison) && std::all_of(from + bytes_, all_.end(), is_poison);
  }

 private:
  int64_t bytes_;
  size_t begin_;
  std::vector<unsigned char> all_;
};

// The output of write(out) in memory at the start of a line, and in memory in the middle of one: rows of `width` bytes,
// each followed by `gap` bytes that must not be written.
template <class Write>
void compare(int64_t rows, int64_t width, int64_t gap, int64_t element, const Write& write) {
  Memory line(rows * (width + gap), 0), middle(rows * (width + gap), element);
  CHECK(write(line.data()) == SINPE_OK);
  CHECK(write(middle.data()) == SINPE_OK);
  const std::vector<unsigned char> got = line.written();
  CHECK(got == middle.written());
  CHECK(line.is_intact() && middle.is_intact());
  const std::vector<unsigned char> poison(static_cast<size_t>(gap), kPoison);
  for (int64_t r = 0; r < rows; ++r) {
    CHECK(std::equal(poison.begin(), poison.end(), got.begin() + (r * (width + gap) + width)));
  }
}

void test_table(const TestPlan& made, sinpe_dtype dtype, int64_t start) {
  const int64_t dim = made.plan.dim, element = size_of(dtype);
  compare(kRows, dim * element, 0, element, [&](void* out) {
    return sinpe_table(made.words.data(), static_cast<int64_t>(made.words.size()), start, kRows, dtype, out, dim);
  });
}

// Rows that begin lines, with elements between them that are not written.
void test_stride(const TestPlan& made, sinpe_dtype dtype) {
  const int64_t dim = made.plan.dim, element = size_of(dtype), stride = (dim + 63) / 64 * 64;
  compare(kRows, dim * element, (stride - dim) * element, element, [&](void* out) {
    return sinpe_table(made.words.data(), static_cast<int64_t>(made.words.size()), 5, kRows, dtype, out, stride);
  });
}

// gap: elements between the rows of the output.
void test_add(const TestPlan& made, sinpe_dtype dtype, int64_t batch, double alpha, int64_t gap, const uint8_t* mask) {
  const int64_t dim = made.plan.dim, element = size_of(dtype), n = batch * kRows * dim;
  std::vector<unsigned char> x(static_cast<size_t>(n * element));
  check::Random random;
  for (size_t i = 0; i < x.size(); i += static_cast<size_t>(element)) {  // any bits but large exponents
    const uint64_t bits = random.next() & 0x3fff3fff3fff3fffu;
    std::memcpy(x.data() + i, &bits, static_cast<size_t>(element));
  }
  sinpe_add_arguments a{};
  a.rank = 3;
  const int64_t sizes[] = {batch, kRows, dim}, strides[] = {kRows * dim, dim, 1};
  const int64_t out_strides[] = {kRows * (dim + gap), dim + gap, 1};
  std::copy(sizes, sizes + 3, a.sizes);
  std::copy(strides, strides + 3, a.x_strides);
  std::copy(out_strides, out_strides + 3, a.out_strides);
  a.padding_mask = mask;
  a.mask_strides[1] = 1;
  a.x = x.data();
  a.dtype = dtype;
  a.scale = 1.5;
  a.alpha = alpha;
  a.start = 70;
  compare(batch * kRows, dim * element, gap * element, element, [&](void* out) {
    a.out = out;
    return sinpe_add(made.words.data(), static_cast<int64_t>(made.words.size()), &a);
  });
}

void test_limits() {
  constexpr int64_t kMiB = 1 << 20;
  const sinpe::CachedLimits small = sinpe::cached_limits(32 * kMiB, nullptr);
  CHECK(small.allow(32 * kMiB, 0) && small.allow(32 * kMiB, 32 * kMiB) && !small.allow(32 * kMiB + 1, 0));
  const sinpe::CachedLimits large = sinpe::cached_limits(260 * kMiB, "64M");  // not a number
  CHECK(large.allow(96 * kMiB, 0) && !large.allow(96 * kMiB + 1, 0));
  CHECK(large.allow(48 * kMiB, 48 * kMiB) && !large.allow(48 * kMiB, 48 * kMiB + 1));
  const sinpe::CachedLimits given = sinpe::cached_limits(32 * kMiB, "1000");
  CHECK(given.allow(1000, 1000 * kMiB) && !given.allow(1001, 0));
  CHECK(sinpe::cached_limits(0, nullptr).allow(int64_t{1} << 61, int64_t{1} << 61));
}

}  // namespace

int main() {
  test_limits();
  setenv("SINPE_EXT_NON_TEMPORAL_BYTES", "1000", 1);
  CHECK(sinpe::stores_for(1000, sinpe::kMostTraffic) == sinpe::Stores::kCached);
  CHECK(sinpe::stores_for(1001, 0) == sinpe::Stores::kNonTemporal);
  std::vector<uint8_t> mask(kRows);
  for (size_t r = 0; r < mask.size(); ++r) mask[r] = r % 3 == 0;
  for (const int64_t dim : {192, 160, 96, 48, 33}) {
    for (int layout = 0; layout < 3; ++layout) {
      for (const bool own : {false, true}) {
        const TestPlan made = make_plan(dim, layout, own, own ? 0.75 : 1.0);
        for (const sinpe_dtype dtype : {SINPE_FLOAT32, SINPE_FLOAT64, SINPE_BFLOAT16, SINPE_FLOAT16}) {
          test_table(made, dtype, own ? -3 : int64_t{1} << 40);
          test_stride(made, dtype);
          test_add(made, dtype, 1, 1.0, own ? 32 : 0, nullptr);
          test_add(made, dtype, 3, own ? 0.3 : 1.0, own ? 0 : 32, nullptr);
          test_add(made, dtype, 2, 1.0, 0, mask.data());
        }
      }
    }
  }
  return check::finish("test_stores");
}
