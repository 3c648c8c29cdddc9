// Pages of an output that was allocated for this call. The operating system maps new memory page by page at the first
// write, which takes longer than the writes themselves. Linux 5.14 and newer can map a whole range at once, which is
// faster (docs/performance.md). SINPE_EXT_POPULATE=0 disables it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sinpe/sinpe.h"

namespace sinpe {

// During the lifetime of this object, a kernel called by this thread may assume that the memory has never been written.
// Only the code that allocated it can know that, so it is never used for an `out` given by the caller.
class NewOutput {
 public:
  NewOutput(const void* out, int64_t bytes);
  ~NewOutput();
  NewOutput(const NewOutput&) = delete;
  NewOutput& operator=(const NewOutput&) = delete;
};

// The new output, if any, as the kernel's threads use it. Must be constructed in the thread that called the kernel.
class NewPages {
 public:
  NewPages();
  bool is_empty() const { return begin_ == end_; }

  // To be called before this thread writes a range of memory: maps the pages that begin in it, if they belong to the
  // new output. Does nothing if they are mapped already, the range is too small to be worth it, or the system refuses.
  void populate(const void* from, int64_t bytes) const {
    if (!is_empty()) populate_range(reinterpret_cast<uintptr_t>(from), static_cast<uintptr_t>(bytes));
  }

 private:
  void populate_range(uintptr_t from, uintptr_t bytes) const;
  uintptr_t begin_, end_;
};

// The same for a thread that writes from `begin` to `end` in small steps: populates about 256 KiB at a time.
class PagesAhead {
 public:
  PagesAhead(const NewPages& pages, const void* begin, const void* end)
      : pages_(pages), reached_(static_cast<const char*>(begin)), end_(static_cast<const char*>(end)) {}

  // To be called before memory below `next` is written.
  void until(const void* next) {
    const int64_t missing = static_cast<const char*>(next) - reached_;
    if (missing <= 0 || reached_ >= end_) return;
    const int64_t left = end_ - reached_, chunk = std::max<int64_t>(missing, kChunk);
    const int64_t bytes = left < chunk + kChunk / 2 ? left : chunk;
    pages_.populate(reached_, bytes);
    reached_ += bytes;
  }

 private:
  static constexpr int64_t kChunk = 1 << 18;
  const NewPages& pages_;
  const char *reached_, *end_;
};

}  // namespace sinpe

// Pages that the process has populated so far, for tests.
extern "C" SINPE_API int64_t sinpe_populated_pages(void);
