// Minimal test framework: CHECK counts failures and prints the first few, finish() returns the exit status.
#pragma once

#include <atomic>
#include <cinttypes>
#include <cstdint>
#include <cstdio>

namespace check {

inline std::atomic<int> failures{0};
inline std::atomic<int64_t> checks{0};

inline void that(bool ok, const char* text, const char* file, int line) {
  checks.fetch_add(1, std::memory_order_relaxed);
  if (ok) return;
  if (++failures <= 20) std::printf("FAILED %s:%d: %s\n", file, line, text);
}

inline int finish(const char* name) {
  std::printf("%s: %" PRId64 " checks, %d failures\n", name, checks.load(), failures.load());
  return failures == 0 && checks > 0 ? 0 : 1;
}

// xorshift64*: random numbers that are the same on all platforms.
struct Random {
  uint64_t state = 0x9E3779B97F4A7C15u;
  uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Du;
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
};

}  // namespace check

#define CHECK(condition) ::check::that((condition), #condition, __FILE__, __LINE__)
