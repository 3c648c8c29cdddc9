#include "cpu/populate.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace sinpe {
namespace {

constexpr int64_t kSmallestOutput = int64_t{4} << 20;
[[maybe_unused]] constexpr uintptr_t kSmallestRange = 1 << 16;

struct Range {
  uintptr_t begin = 0, end = 0;
};
thread_local Range new_output;

std::atomic<int64_t> populated{0};

// Whether to request population; set to false permanently once the system has reported that it does not support it.
std::atomic<bool>& is_wanted() {
  static std::atomic<bool> wanted{[] {
    const char* text = std::getenv("SINPE_EXT_POPULATE");
    return text == nullptr || std::strcmp(text, "0") != 0;
  }()};
  return wanted;
}

#ifdef __linux__
uintptr_t page_size() {
  static const uintptr_t size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

bool is_mapped(uintptr_t at) {
  unsigned char residence = 0;
  void* const page = reinterpret_cast<void*>(at / page_size() * page_size());
  return mincore(page, page_size(), &residence) == 0 && (residence & 1) != 0;
}
#else
bool is_mapped(uintptr_t) { return true; }
#endif

}  // namespace

NewOutput::NewOutput(const void* out, int64_t bytes) {
  if (bytes < kSmallestOutput) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(out), size = static_cast<uintptr_t>(bytes);
  if (is_mapped(begin + size / 2)) return;  // the allocator reused memory that is already mapped
  new_output.begin = begin;
  new_output.end = begin + size;
}

NewOutput::~NewOutput() { new_output = Range(); }

NewPages::NewPages() : begin_(new_output.begin), end_(new_output.end) {}

void NewPages::populate_range(uintptr_t from, uintptr_t bytes) const {
#ifdef __linux__
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
  const uintptr_t page = page_size();
  if (bytes < kSmallestRange || from < begin_ || from >= end_) return;
  const uintptr_t begin = (from + page - 1) / page * page;
  // The last page of the output may contain other objects.
  const uintptr_t end = std::min((from + bytes + page - 1) / page * page, end_ / page * page);
  if (begin >= end || !is_wanted()) return;
  // A large page is mapped completely with its first part, and populating it again takes time. The first and the last
  // page may be mapped because of neighbouring objects, so the middle is tested.
  if (is_mapped(begin + (end - begin) / 2)) return;
  if (madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateWrite) == 0) {
    populated.fetch_add(static_cast<int64_t>((end - begin) / page), std::memory_order_relaxed);
  } else if (errno == EINVAL) {
    is_wanted() = false;
  }
#else
  (void)from, (void)bytes;
#endif
}

}  // namespace sinpe

extern "C" int64_t sinpe_populated_pages(void) { return sinpe::populated.load(std::memory_order_relaxed); }
