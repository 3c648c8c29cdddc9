// Pages of a new output of 4 MiB and more: each is populated once, other memory never is, and no bit of a
// result depends on it.
#include <cstdlib>
#include <string>

#include "core/parallel.h"
#include "cpu/populate.h"
#include "every_call.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace every_call;

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

void test(const Call& c, bool served) {
  const size_t bytes = static_cast<size_t>(c.end);
  const Fresh mine(c.end), fresh(c.end), part(c.end), other(c.end);
  const Pointers operands = c.pointers();
  // An out passed by the caller.
  CHECK(counted([&] { CHECK(c.run(operands, mine.out()) == SINPE_OK); }) == 0);
  // A new output: all pages but the first are populated once.
  const int64_t all = counted([&] {
    const sinpe::NewOutput output(fresh.out(), c.end);
    CHECK(c.run(operands, fresh.out()) == SINPE_OK);
  });
  if (served && page_size() == 4096 && sinpe::parallel_threads() <= 2) {  // pieces are large enough
    CHECK(all == pages_of(c.end));
  } else {
    CHECK(all <= (served ? pages_of(c.end) : 0));
  }
  CHECK(std::memcmp(mine.out(), fresh.out(), bytes) == 0);
  // The same memory, already mapped.
  CHECK(counted([&] {
          const sinpe::NewOutput output(fresh.out(), c.end);
          CHECK(c.run(operands, fresh.out()) == SINPE_OK);
        }) == 0);
  // The mark of a new output has been removed.
  CHECK(counted([&] { CHECK(c.run(operands, part.out()) == SINPE_OK); }) == 0);
  // The marked new memory is not the memory that the kernel writes.
  CHECK(counted([&] {
          const sinpe::NewOutput output(other.out(), c.end);
          CHECK(c.run(operands, mine.out()) == SINPE_OK);
        }) == 0);
}

}  // namespace

int main() {
  constexpr int64_t kDim = 1000, kLeast = 4 << 20;  // neither a tile nor a row is a multiple of a page
  for (const int64_t batch : {1, 2}) {              // of a single sequence, rows are streamed
    for (const Call& call : every_call::every_call(batch, 1110 / batch, kDim)) {
      const int before = ::check::failures;
      const std::string name = call.name;
      const bool is_left_alone = call.end < kLeast || (name == "add_grid" && batch > 1);
      if (call.begin == 0) test(call, is_served() && !is_left_alone);
      if (::check::failures != before) std::printf("  in %s\n", call.name);
    }
  }
  return check::finish("populate");
}

#else

int main() {
  CHECK(sinpe_populated_pages() == 0);
  return check::finish("populate");
}

#endif
