#include "cpu/kept_rows.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cpu/row_maker.h"

namespace sinpe {
namespace {

// Which block of rows: that with this index of a plan, whose header has a digest of its arrays.
struct Key {
  int64_t index;
  int64_t header[kPlanHeaderWords];
  bool operator==(const Key& other) const { return std::memcmp(this, &other, sizeof(Key)) == 0; }
};

struct Block {
  Key key;
  bool is_made;
  uint64_t last_use;
  std::atomic<int> users;  // calls that read or write the rows
};

// A block that was asked for and not found. Two blocks that share a tag only share their count.
struct Wanted {
  uint64_t tag;
  int64_t rows;  // asked for so far
};

// Not at the start of a page, as large tensors are: a processor takes a load for one of what was just stored at the same
// place of another page (a sixth of a sum's time, Zen 4).
constexpr int64_t kFromPage = 512;
alignas(4096) float memory[kFromPage + kKeptBlocks * kBlockValues];
float* const values = memory + kFromPage;

// Everything below is read and written by the thread that holds the lock, except `users`, which any thread decrements.
std::atomic_flag is_locked = ATOMIC_FLAG_INIT;
Block blocks[kKeptBlocks];
Wanted wanted[2 * kKeptBlocks];
unsigned next_wanted = 0;
uint64_t uses = 0;
std::atomic<int64_t> calls_with_kept_rows{0};

// The lock, if it is free within some hundred nanoseconds.
class Lock {
 public:
  Lock() {
    for (int k = 0; k < 64 && !held_; ++k) held_ = !is_locked.test_and_set(std::memory_order_acquire);
  }
  ~Lock() {
    if (held_) is_locked.clear(std::memory_order_release);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  bool is_held() const { return held_; }

 private:
  bool held_ = false;
};

int most_blocks() {
  static const int most = [] {
    const char* text = std::getenv("SINPE_EXT_KEPT_BYTES");
    char* end = nullptr;
    const int64_t bytes = text == nullptr ? kKeptBytes : std::strtoll(text, &end, 10);
    const bool is_number = text != nullptr && end != text && *end == 0 && bytes >= 0;
    return static_cast<int>((is_number ? std::min<int64_t>(bytes, kKeptBytes) : kKeptBytes) / (4 * kBlockValues));
  }();
  return most;
}

// The block with a key, -1 if there is none; `likely` is looked at first.
int find_block(const Key& key, int likely) {
  for (int k = 0; k < most_blocks(); ++k) {
    const int slot = (likely + k) % most_blocks();
    if (blocks[slot].is_made && blocks[slot].key == key) return slot;
  }
  return -1;
}

// Whether a block is to be made now: calls have asked for half of its rows before. A call counts for eight rows more,
// about what a row alone, or the first of several, costs.
bool is_due(const Key& key, int64_t rows, int64_t block_rows) {
  uint64_t tag = static_cast<uint64_t>(key.index) * 0x9E3779B97F4A7C15;
  for (const int64_t word : key.header) tag = (tag ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15;
  for (Wanted& w : wanted) {
    if (w.tag != tag || w.rows == 0) continue;
    if (2 * w.rows >= block_rows) return true;
    w.rows += rows + 8;
    return false;
  }
  wanted[next_wanted++ % (2 * kKeptBlocks)] = {tag, rows + 8};
  return false;
}

// A block for new rows: one that is free, or the least recently used one if kMostRecent lookups have passed since, so that
// calls that take turns with more rows than fit do not make all of them each time. -1: none.
constexpr uint64_t kMostRecent = 64;
int reserve() {
  int oldest = -1;
  for (int slot = 0; slot < most_blocks(); ++slot) {
    if (blocks[slot].users.load(std::memory_order_acquire) != 0) continue;
    if (!blocks[slot].is_made) return slot;
    if (oldest < 0 || blocks[slot].last_use < blocks[oldest].last_use) oldest = slot;
  }
  return oldest >= 0 && uses - blocks[oldest].last_use > kMostRecent ? oldest : -1;
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

}  // namespace

bool KeptRows::find(const Plan& plan, int64_t first, int64_t last, int64_t rows) {
  constexpr int64_t kFar = int64_t{1} << 61;  // the positions of whole blocks, and their number, fit int64
  if (most_blocks() == 0 || plan.header == nullptr || plan.dim > kBlockValues || first < -kFar || last > kFar)
    return false;
  Key key;
  std::memcpy(key.header, plan.header, sizeof key.header);
  int64_t digest = 0;
  for (int k = 0; k < kPlanDigestWords; ++k) digest |= key.header[kPlanDigestAt + k];
  values_ = values;
  dim_ = plan.dim;
  block_rows_ = kBlockValues / dim_;
  const int64_t first_block = floor_div(first, block_rows_), count = floor_div(last, block_rows_) - first_block + 1;
  if (digest == 0 || key.header[2] != dim_ || count > most_blocks()) return false;
  base_ = first_block * block_rows_;

  int missing[kKeptBlocks], n_missing = 0;
  {
    const Lock lock;
    if (!lock.is_held()) return false;
    const uint64_t now = ++uses;
    bool are_due = true;
    for (int k = 0, found = -1; k < count; ++k) {
      key.index = first_block + k;
      found = find_block(key, found + 1);
      blocks_[k] = found;
      if (found < 0) {
        missing[n_missing++] = k;
        are_due &= is_due(key, std::min(block_rows_, rows / count + 1), block_rows_);
      }
    }
    if (!are_due) return false;
    for (int k = 0; k < count; ++k) {
      if (blocks_[k] < 0) continue;
      blocks[blocks_[k]].last_use = now;
      blocks[blocks_[k]].users.fetch_add(1, std::memory_order_relaxed);
    }
    count_ = static_cast<int>(count);
    for (int k = 0; k < n_missing; ++k) {
      const int slot = reserve();
      blocks_[missing[k]] = slot;
      if (slot < 0) return release();
      blocks[slot].is_made = false;
      blocks[slot].users.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (n_missing > 0) {
    try {
      RowState steps(plan);
      steps.compute_steps();
      RowMaker maker(plan, &steps);
      for (int k = 0; k < n_missing; ++k) {
        float* to = values + blocks_[missing[k]] * kBlockValues;
        maker.consecutive(base_ + missing[k] * block_rows_, block_rows_, to, dim_);
      }
    } catch (const std::bad_alloc&) {
      return release();
    }
    const Lock lock;
    for (int k = 0; k < n_missing && lock.is_held(); ++k) {
      key.index = first_block + missing[k];
      if (find_block(key, 0) >= 0) continue;  // another thread has made it, too
      Block& block = blocks[blocks_[missing[k]]];
      block.key = key;
      block.is_made = true;
      block.last_use = uses;
    }
  }
  calls_with_kept_rows.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool KeptRows::release() {
  for (int k = 0; k < count_; ++k)
    if (blocks_[k] >= 0) blocks[blocks_[k]].users.fetch_sub(1, std::memory_order_release);
  count_ = 0;
  return false;
}

}  // namespace sinpe

extern "C" int64_t sinpe_kept_rows_uses(void) { return sinpe::calls_with_kept_rows.load(); }
