// Random numbers of dropout, eight elements at a time.
#pragma once

#include "core/phase.h"
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

SINPE_HD uint128 bits_of(const Draw& d) {
  const uint32_t* w = d.words;
  return static_cast<uint128>(uint64_t{w[3]} << 32 | w[2]) << 64 | (uint64_t{w[1]} << 32 | w[0]);
}
SINPE_HD Draw draw_from(uint128 bits) {
  return {{static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(bits >> 64),
           static_cast<uint32_t>(bits >> 96)}};
}

SINPE_HD_RARE Draw draw_one_by_one(uint64_t e, uint64_t step, uint64_t seed) {
  uint128 bits = 0;
  SINPE_ROLLED
  for (int k = 0; k < 8; ++k)
    bits = bits >> 16 | static_cast<uint128>(philox_lane(e + static_cast<uint64_t>(k) * step, seed)) << 112;
  return draw_from(bits);
}

// The elements e, e + 1, ... across two counters.
SINPE_HD_RARE Draw draw_across(uint64_t e, uint64_t seed) {
  const int low = static_cast<int>(e & 7) * 16;
  return draw_from(bits_of(draw_counter(e, seed)) >> low | bits_of(draw_counter(e + 8, seed)) << (128 - low));
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
