// Pages of an output that was allocated for this call. The system maps memory that it hands out anew page by page, as it
// is written, which takes longer than writing it. Linux 5.14 and newer map a whole piece at once where they are asked to,
// in less time (docs/performance.md). SINPE_EXT_POPULATE=0 switches it off.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sinpe/sinpe.h"

namespace sinpe {

// As long as it lives, a kernel that this thread calls may assume that nobody has written this memory yet. Only who
// allocated it can say so: a caller's `out` is never named here.
class NewOutput {
 public:
  NewOutput(const void* out, int64_t bytes);
  ~NewOutput();
  NewOutput(const NewOutput&) = delete;
  NewOutput& operator=(const NewOutput&) = delete;
};

// The new output, if any, as the kernel's threads use it. Constructed in the thread that called the kernel.
class NewPages {
 public:
  NewPages();

  // Before this thread writes a piece of memory: maps the pages that begin in it, those of the new output only. Does
  // nothing where they are mapped already, where the piece is too small to pay, or where the system refuses.
  void populate(const void* from, int64_t bytes) const {
    if (begin_ != end_) populate_part(reinterpret_cast<uintptr_t>(from), static_cast<uintptr_t>(bytes));
  }

 private:
  void populate_part(uintptr_t from, uintptr_t bytes) const;
  uintptr_t begin_, end_;
};

// The same for a thread that writes from `begin` to `end` in small steps: pieces of some 256 KiB.
class PagesAhead {
 public:
  PagesAhead(const NewPages& pages, const void* begin, const void* end)
      : pages_(pages), reached_(static_cast<const char*>(begin)), end_(static_cast<const char*>(end)) {}

  // Before anything in front of `next` is written.
  void until(const void* next) {
    const int64_t missing = static_cast<const char*>(next) - reached_;
    if (missing <= 0 || reached_ == end_) return;
    const int64_t left = end_ - reached_, piece = std::max<int64_t>(missing, kPiece);
    const int64_t bytes = left < piece + kPiece / 2 ? left : piece;
    pages_.populate(reached_, bytes);
    reached_ += bytes;
  }

 private:
  static constexpr int64_t kPiece = 1 << 18;
  const NewPages& pages_;
  const char *reached_, *end_;
};

}  // namespace sinpe

// Pages that the process has populated so far, for tests.
extern "C" SINPE_API int64_t sinpe_populated_pages(void);
