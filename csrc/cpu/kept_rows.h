// Rows of encodings that small calls use again. Inside a cache, computing a row takes two to four times as long as adding
// one that is stored. So float32 rows are kept, at most kKeptBytes for all encodings of the process, in blocks of
// consecutive positions. They are made by RowMaker, so that a call's result has the same bits with and without them.
//
// A block is made when calls have asked for half of its rows before, which a call for all of them does at its second time:
// one that is made once costs no more than without. A block that was not used for long makes room. Nobody waits: while
// another thread holds the lock, and in a child process that was forked while one did, a call computes its rows.
// SINPE_EXT_KEPT_BYTES sets the limit, 0: none.
#pragma once

#include <cstdint>

#include "core/plan.h"
#include "sinpe/sinpe.h"

namespace sinpe {

constexpr int64_t kKeptBytes = 1 << 20;
constexpr int kKeptBlocks = 16;
constexpr int64_t kBlockValues = kKeptBytes / 4 / kKeptBlocks;

// The kept rows of one call. While it exists, they stay where they are.
class KeptRows {
 public:
  KeptRows() = default;
  ~KeptRows() { release(); }
  KeptRows(const KeptRows&) = delete;
  KeptRows& operator=(const KeptRows&) = delete;

  // Looks for the rows of all positions from `first` to `last`, of which the call uses `rows`; makes those that are asked
  // for often enough. Returns whether it has them; if not, the call has to compute its rows.
  bool find(const Plan& plan, int64_t first, int64_t last, int64_t rows);
  bool found() const { return count_ > 0; }

  // The row of a position from `first` to `last`; *n: for how many positions, this one included, rows follow each other.
  const float* at(int64_t position, int64_t* n) const {
    const auto from_base = static_cast<uint32_t>(position - base_), rows = static_cast<uint32_t>(block_rows_);
    const uint32_t block = from_base / rows, row = from_base - block * rows;
    *n = rows - row;
    return values_ + blocks_[block] * kBlockValues + row * dim_;
  }

 private:
  bool release();

  const float* values_ = nullptr;  // of all blocks
  int64_t base_ = 0, block_rows_ = 1, dim_ = 0;
  int count_ = 0;  // blocks of this call, and which of all they are
  int blocks_[kKeptBlocks];
};

}  // namespace sinpe

// How many calls of this process have used kept rows so far, for tests.
extern "C" SINPE_API int64_t sinpe_kept_rows_uses(void);
