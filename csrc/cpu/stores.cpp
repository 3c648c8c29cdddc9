#include "cpu/stores.h"

#include <cstdlib>
#include <cstring>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <cpuid.h>
#endif

namespace sinpe {
namespace {

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
// The size in bytes of the largest cache that one leaf of cpuid describes, 0 if it describes none.
int64_t largest_cache(unsigned leaf) {
  int64_t largest = 0;
  unsigned a, b, c, d;
  for (unsigned index = 0; index < 16 && __get_cpuid_count(leaf, index, &a, &b, &c, &d) != 0; ++index) {
    if ((a & 0x1f) == 0) break;  // the type: no more caches
    const int64_t ways = (b >> 22) + 1, partitions = (b >> 12 & 0x3ff) + 1, line = (b & 0xfff) + 1;
    const int64_t size = ways * partitions * line * (static_cast<int64_t>(c) + 1);
    if (size > largest) largest = size;
  }
  return largest;
}

// 0 if unknown. sysconf(_SC_LEVEL3_CACHE_SIZE) of glibc is too large by a factor of ten on some virtual machines.
int64_t last_level_cache() {
  const int64_t intel = largest_cache(4);
  return intel != 0 ? intel : largest_cache(0x8000001d);  // AMD's leaf has the same format
}
#else
int64_t last_level_cache() { return 0; }
#endif

}  // namespace

CachedLimits cached_limits(int64_t cache, const char* setting) {
  if (setting != nullptr) {
    const size_t digits = std::strspn(setting, "0123456789");
    if (digits >= 1 && digits <= 18 && setting[digits] == '\0') return {std::strtoll(setting, nullptr, 10), INT64_MAX};
  }
  return cache != 0 ? CachedLimits{cache, kMostTraffic} : CachedLimits{INT64_MAX, INT64_MAX};
}

Stores stores_for(int64_t written, int64_t read) {
  static const CachedLimits limits = cached_limits(last_level_cache(), std::getenv("SINPE_EXT_NON_TEMPORAL_BYTES"));
  return limits.allow(written, read) ? Stores::kCached : Stores::kNonTemporal;
}

}  // namespace sinpe
