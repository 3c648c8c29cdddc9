// How an output is written. Non-temporal stores go to memory without reading the cache lines first, which saves a third
// to a half of the memory traffic, but a cache does not have these lines afterwards. Therefore only an output of which
// the cache would hold little afterwards is written in this way (docs/performance.md).
#pragma once

#include <cstdint>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#endif

namespace sinpe {

enum class Stores { kCached, kNonTemporal };

// A cache that is shared with other processes or virtual machines rarely holds more of a process's data: on a virtual
// machine with two cores whose processor reports 260 MiB, non-temporal stores are faster from somewhere between 64 and 128
// MiB on, even if the output is read at once.
constexpr int64_t kMostTraffic = int64_t{96} << 20;

// The largest output that is written by cached stores, and the most bytes that such a call writes and reads together.
struct CachedLimits {
  int64_t written, traffic;
  bool allow(int64_t write, int64_t read) const { return write <= written && write <= traffic - read; }
};

// The limits for a last-level cache of so many bytes: its size, and kMostTraffic; none if it is 0, unknown. If `setting`
// (null if it is not set) is a number, it is the limit of the output instead, and there is no other.
CachedLimits cached_limits(int64_t cache, const char* setting);

// The stores for an output of `written` bytes by a call that reads `read` other bytes, by the limits for this machine and
// SINPE_EXT_NON_TEMPORAL_BYTES. Kernels that have no non-temporal stores ignore this.
Stores stores_for(int64_t written, int64_t read);

// To be constructed by each thread that writes an output: its stores are complete when this is destroyed. Processors
// do not order non-temporal stores with those that tell another thread that the work is done.
class StoreFence {
 public:
  explicit StoreFence(Stores stores) : stores_(stores) {}
  ~StoreFence() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    if (stores_ == Stores::kNonTemporal) _mm_sfence();
#else
    (void)stores_;
#endif
  }
  StoreFence(const StoreFence&) = delete;
  StoreFence& operator=(const StoreFence&) = delete;

 private:
  Stores stores_;
};

}  // namespace sinpe
