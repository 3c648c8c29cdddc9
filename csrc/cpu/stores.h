// How an output is written. Non-temporal stores go to memory without reading the cache lines first, which saves a third
// to a half of the memory traffic, but a cache does not have these lines afterwards. Therefore only an output that is
// larger than the cache is written in this way (docs/performance.md).
#pragma once

#include <cstdint>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#endif

namespace sinpe {

enum class Stores { kCached, kNonTemporal };

// The stores for an output of this many bytes, of which none is read: kNonTemporal if it is larger than the last-level
// cache, or than SINPE_EXT_NON_TEMPORAL_BYTES. Kernels that have no such stores ignore this.
Stores stores_for(int64_t bytes);

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
