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

int64_t largest_cached_output() {
  if (const char* text = std::getenv("SINPE_EXT_NON_TEMPORAL_BYTES")) {
    const size_t digits = std::strspn(text, "0123456789");
    if (digits >= 1 && digits <= 18 && text[digits] == '\0') return std::strtoll(text, nullptr, 10);
  }
  const int64_t cache = last_level_cache();
  return cache != 0 ? cache : INT64_MAX;
}

}  // namespace

Stores stores_for(int64_t bytes) {
  static const int64_t largest_cached = largest_cached_output();
  return bytes > largest_cached ? Stores::kNonTemporal : Stores::kCached;
}

}  // namespace sinpe
