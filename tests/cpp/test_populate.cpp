// Pages of a new output: each is populated once, other memory never is, and no bit of a result depends on it.
#include <cstdlib>
#include <functional>
#include <memory>

#include "check.h"
#include "core/parallel.h"
#include "cpu/populate.h"
#include "plans.h"
#include "sinpe/sinpe.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr int64_t kBeside = 64;  // bytes from the start of a page to out, like an allocator's header

int64_t page_size() { return static_cast<int64_t>(sysconf(_SC_PAGESIZE)); }

// Memory without mapped pages, never with huge pages, and `out` at a small offset in it.
class Fresh {
 public:
  explicit Fresh(int64_t bytes) : size_(static_cast<size_t>(bytes + 2 * kBeside)) {
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) std::abort();
    madvise(memory_, size_, MADV_NOHUGEPAGE);
  }
  ~Fresh() { munmap(memory_, size_); }
  Fresh(const Fresh&) = delete;
  Fresh& operator=(const Fresh&) = delete;
  char* out() const { return static_cast<char*>(memory_) + kBeside; }

 private:
  size_t size_;
  void* memory_;
};

// Whether the kernel supports the request and it is enabled for this process.
bool is_served() {
  const char* text = std::getenv("SINPE_EXT_POPULATE");
  if (text != nullptr && std::strcmp(text, "0") == 0) return false;
  const Fresh memory(page_size());
  return madvise(memory.out() - kBeside, static_cast<size_t>(page_size()), 23) == 0;
}

// The pages within `bytes` from out on, except the first one, which starts before it.
int64_t pages_of(int64_t bytes) { return (kBeside + bytes) / page_size() - 1; }

template <class F>
int64_t counted(const F& f) {
  const int64_t before = sinpe_populated_pages();
  f();
  return sinpe_populated_pages() - before;
}

struct Case {
  const char* name;
  int64_t bytes;  // of out
  std::function<sinpe_status(void*)> call;
};

void check(const Case& c, bool served) {
  const size_t bytes = static_cast<size_t>(c.bytes);
  const Fresh mine(c.bytes), fresh(c.bytes), part(c.bytes), other(c.bytes);
  // An out passed by the caller.
  CHECK(counted([&] { CHECK(c.call(mine.out()) == SINPE_OK); }) == 0);
  // A new output: all pages but the first are populated once.
  const int64_t all = counted([&] {
    const sinpe::NewOutput output(fresh.out(), c.bytes);
    CHECK(c.call(fresh.out()) == SINPE_OK);
  });
  if (served && page_size() == 4096 && sinpe::parallel_threads() <= 8) {  // pieces are large enough
    CHECK(all == pages_of(c.bytes));
  } else {
    CHECK(all <= (served ? pages_of(c.bytes) : 0));
  }
  CHECK(std::memcmp(mine.out(), fresh.out(), bytes) == 0);
  // The same memory, already mapped.
  CHECK(counted([&] {
          const sinpe::NewOutput output(fresh.out(), c.bytes);
          CHECK(c.call(fresh.out()) == SINPE_OK);
        }) == 0);
  // The mark of a new output has been removed.
  CHECK(counted([&] { CHECK(c.call(part.out()) == SINPE_OK); }) == 0);
  // The marked new memory is not the memory that the kernel writes.
  CHECK(counted([&] {
          const sinpe::NewOutput output(other.out(), c.bytes);
          CHECK(c.call(mine.out()) == SINPE_OK);
        }) == 0);
}

constexpr int64_t kDim = 1000, kRows = 1111;  // neither a tile nor a row is a multiple of a page
const TestPlan plan = make_plan(kDim, 0, false);
const int64_t* const words = plan.words.data();
const int64_t n_words = static_cast<int64_t>(plan.words.size());

// (batch, kRows, kDim), with out in the same order of dimensions or, if turned, the batch inside the rows.
sinpe_add_arguments arguments(int64_t batch, const float* x, void* out, bool is_turned = false) {
  sinpe_add_arguments a{};
  a.rank = 3;
  const int64_t sizes[] = {batch, kRows, kDim}, strides[] = {kRows * kDim, kDim, 1}, turned[] = {kDim, batch * kDim, 1};
  std::memcpy(a.sizes, sizes, sizeof sizes);
  std::memcpy(a.x_strides, strides, sizeof strides);
  std::memcpy(a.out_strides, is_turned ? turned : strides, sizeof strides);
  a.x = x;
  a.out = out;
  a.dtype = SINPE_FLOAT32;
  a.scale = a.alpha = 1.0;
  return a;
}

// tests/functional/test_new_outputs.py has every function.
void every_kind(bool served) {
  constexpr int64_t kBatch = 3, kBytes = kRows * kDim * 4;
  const std::vector<float> x(kBatch * kRows * kDim, 0.5f);
  std::vector<int64_t> ids(kBatch * kRows);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i % kRows);
  const auto add = [&](int64_t batch, int32_t drop) {
    return [=, &x](void* out) {
      sinpe_add_arguments a = arguments(batch, x.data(), out);
      a.dropout.drop_threshold = drop;
      return sinpe_add(words, n_words, &a);
    };
  };
  const Case cases[] = {
      {"table", kBytes, [](void* out) { return sinpe_table(words, n_words, 3, kRows, SINPE_FLOAT32, out, kDim); }},
      {"add, streamed", kBytes, add(1, 0)},
      {"add, dropout", kBatch * kBytes, add(kBatch, 6554)},
      {"embed_backward", kBytes,
       [&](void* out) {
         sinpe_embed_backward_arguments b{};
         b.rank = 3;
         const sinpe_add_arguments a = arguments(kBatch, x.data(), out);
         std::memcpy(b.sizes, a.sizes, sizeof a.sizes);
         std::memcpy(b.grad_strides, a.x_strides, sizeof a.x_strides);
         b.id_strides[0] = kRows;
         b.id_strides[1] = 1;
         b.grad = x.data();
         b.ids = ids.data();
         b.out = out;
         b.num_embeddings = kRows;
         b.padding_idx = -1;
         b.scale = 1.0;
         return sinpe_embed_backward(&b);
       }},
  };
  for (const Case& c : cases) {
    const int before = ::check::failures;
    check(c, served);
    if (::check::failures != before) std::printf("  in %s\n", c.name);
  }
}

// Non-contiguous rows of out and small outputs are not populated.
void left_alone() {
  const std::vector<float> x(4 * kRows * kDim, 0.5f);
  const int64_t bytes = 4 * kRows * kDim * 4;
  const Fresh turned(bytes), straight(bytes);
  CHECK(counted([&] {
          const sinpe::NewOutput output(turned.out(), bytes);
          const sinpe_add_arguments a = arguments(4, x.data(), turned.out(), true);
          CHECK(sinpe_add(words, n_words, &a) == SINPE_OK);
        }) == 0);
  const sinpe_add_arguments a = arguments(4, x.data(), straight.out());
  CHECK(sinpe_add(words, n_words, &a) == SINPE_OK);
  const char *from = turned.out(), *to = straight.out();
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t b = 0; b < 4; ++b) {
      CHECK(std::memcmp(from + (r * 4 + b) * kDim * 4, to + (b * kRows + r) * kDim * 4, kDim * 4) == 0);
    }
  }
  const int64_t rows = (1 << 20) / kDim - 1;  // below 4 MiB
  const Fresh small(rows * kDim * 4);
  CHECK(counted([&] {
          const sinpe::NewOutput output(small.out(), rows * kDim * 4);
          CHECK(sinpe_table(words, n_words, 0, rows, SINPE_FLOAT32, small.out(), kDim) == SINPE_OK);
        }) == 0);
}

}  // namespace

int main() {
  every_kind(is_served());
  left_alone();
  return check::finish("populate");
}

#else

int main() {
  CHECK(sinpe_populated_pages() == 0);
  return check::finish("populate");
}

#endif
