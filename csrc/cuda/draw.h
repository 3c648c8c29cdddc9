// Random numbers of dropout, eight elements at a time.
#pragma once

#include "core/philox.h"

namespace sinpe {
namespace cuda {

// The 16 random bits of eight elements, two per word.
struct Draw {
  uint32_t words[4];
  // Whether the k-th element is kept. limit: drop_limit(). The upper 16 bits are compared; the lower ones do not affect
  // the result.
  SINPE_HD bool keeps(int k, uint32_t limit) const {
    return ((k & 1) != 0 ? words[k >> 1] : words[k >> 1] << 16) > limit;
  }
};
// The largest random number of a dropped element, in the upper half of a word (lower half all ones): random numbers
// below drop are dropped.
//   Valid range: drop 1 .. 65536
SINPE_HD uint32_t drop_limit(uint32_t drop_threshold) { return (drop_threshold << 16) - 1; }

// The elements e, e + 1, ... of one counter (e is a multiple of 8): one call of Philox.
template <class Keys>
SINPE_HD Draw draw_counter(uint64_t e, const Keys& keys) {
  const PhiloxBlock<uint64_t> x = philox_counted<uint64_t>(e >> 3, keys);
  return {{static_cast<uint32_t>(x.x0), static_cast<uint32_t>(x.x1), static_cast<uint32_t>(x.x2),
           static_cast<uint32_t>(x.x3)}};
}

SINPE_HD_RARE Draw draw_one_by_one(uint64_t e, uint64_t step, uint64_t seed) {
  uint64_t half[2] = {0, 0};
  SINPE_ROLLED
  for (int k = 0; k < 4; ++k, e += step) {
    half[0] |= static_cast<uint64_t>(philox_lane(e, seed)) << 16 * k;
    half[1] |= static_cast<uint64_t>(philox_lane(e + 4 * step, seed)) << 16 * k;
  }
  return {{static_cast<uint32_t>(half[0]), static_cast<uint32_t>(half[0] >> 32), static_cast<uint32_t>(half[1]),
           static_cast<uint32_t>(half[1] >> 32)}};
}

// The elements e, e + 1, ... across two counters.
SINPE_HD_RARE Draw draw_across(uint64_t e, uint64_t seed) {
  const Draw low = draw_counter(e, seed), high = draw_counter(e + 8, seed);
  uint32_t w[8] = {low.words[0],  low.words[1],  low.words[2],  low.words[3],
                   high.words[0], high.words[1], high.words[2], high.words[3]};
  const uint32_t first = static_cast<uint32_t>(e >> 1) & 3;
  SINPE_UNROLLED
  for (int k = 0; k < 6; ++k) w[k] = (first & 2) != 0 ? w[k + 2] : w[k];
  SINPE_UNROLLED
  for (int k = 0; k < 5; ++k) w[k] = (first & 1) != 0 ? w[k + 1] : w[k];
  Draw d;
  SINPE_UNROLLED
  for (int k = 0; k < 4; ++k) d.words[k] = (e & 1) != 0 ? w[k] >> 16 | w[k + 1] << 16 : w[k];
  return d;
}

// The seed and its round keys, shared by the threads of a block: in shared memory the keys need no registers.
struct Draws {
  uint64_t seed;
  PhiloxKeys keys;

  // Executed by the last threads of a block; a barrier must follow before the first draw. device_seed: pointer to the
  // seed in device memory, or null.
  SINPE_HD void begin(uint64_t host_seed, const int64_t* device_seed, int thread, int threads) {
    const int round = thread - (threads - kPhiloxRounds);
    if (round < 0) return;
    const uint64_t s = device_seed == nullptr ? host_seed : static_cast<uint64_t>(*device_seed);
    keys.of[round] = philox_key(s, round);
    if (round == 0) seed = s;
  }
  // The elements e, e + 1, ..., where e is a multiple of 8.
  SINPE_HD Draw counter(uint64_t e) const { return draw_counter(e, keys); }
  // The elements e, e + step, ...
  SINPE_HD Draw of(uint64_t e, uint64_t step) const {
    if (step != 1) return draw_one_by_one(e, step, seed);
    return (e & 7) == 0 ? counter(e) : draw_across(e, seed);
  }
};

}  // namespace cuda
}  // namespace sinpe
