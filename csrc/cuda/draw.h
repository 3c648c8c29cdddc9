// Dropout's random numbers, eight elements at a time.
#pragma once

#include "core/philox.h"

namespace sinpe {
namespace cuda {

// The 16 random bits of eight elements, two in a word.
struct Draw {
  uint32_t words[4];
  // Whether the k-th of them is kept, by drop_limit(): compared in the upper half of a word, whatever the lower one holds.
  SINPE_HD bool keeps(int k, uint32_t limit) const {
    return ((k & 1) != 0 ? words[k >> 1] : words[k >> 1] << 16) > limit;
  }
};
// Of random numbers that are dropped, in the upper half of a word, the last one: none below drop is kept.
//   Valid range: drop 1 .. 65536
SINPE_HD uint32_t drop_limit(uint32_t drop) { return (drop << 16) - 1; }

// Of the elements e, e + 1, ... that are a counter's own: one call of Philox.
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

// Of the elements e, e + 1, ...: the end of one counter's and the beginning of the next one's.
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

// What the threads of a block draw from: the seed, and its keys, which in shared memory cost no registers.
struct Draws {
  uint64_t seed;
  PhiloxKeys keys;

  // Written by the last threads of a block, a barrier before the first draw. device_seed: null, or where the seed is.
  SINPE_HD void begin(uint64_t host_seed, const int64_t* device_seed, int thread, int threads) {
    const int round = thread - (threads - kPhiloxRounds);
    if (round < 0) return;
    const uint64_t s = device_seed == nullptr ? host_seed : static_cast<uint64_t>(*device_seed);
    keys.of[round] = philox_key(s, round);
    if (round == 0) seed = s;
  }
  // Of the elements e, e + 1, ... where e is a counter's first.
  SINPE_HD Draw counter(uint64_t e) const { return draw_counter(e, keys); }
  // Of the elements e, e + step, ...
  SINPE_HD Draw of(uint64_t e, uint64_t step) const {
    if (step != 1) return draw_one_by_one(e, step, seed);
    return (e & 7) == 0 ? counter(e) : draw_across(e, seed);
  }
};

}  // namespace cuda
}  // namespace sinpe
