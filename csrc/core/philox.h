// Random numbers of dropout: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// 2011). The RNG offset of an element is its index in the sequence of random numbers of a seed: its row-major index in
// the whole tensor, or what the caller says. The key is the seed and the counter is the RNG offset / 8. A mask depends
// on (seed, RNG offset, drop threshold) only, not on threads, batch split or device, and is not stored.
#pragma once

#include "core/vec.h"

namespace sinpe {

constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9, kPhiloxWeyl1 = 0xBB67AE85;  // added to the key after each round

constexpr int64_t kLanesPerCounter = 8;  // elements per Philox block of four words, 16 bits each
constexpr int64_t kDropAll = 65536;      // the threshold that drops every element; thresholds are in units of 1/65536

// Four 32-bit words, each in the low half of V's 64-bit lanes. The high halves are undefined.
template <class V>
struct PhiloxBlock {
  V x0, x1, x2, x3;
};

template <class V>
SINPE_HD PhiloxBlock<V> philox_round(PhiloxBlock<V> x, uint32_t key0, uint32_t key1) {
  const V p0 = multiply_low(x.x0, kPhiloxMultiplier0), p1 = multiply_low(x.x2, kPhiloxMultiplier1);
  return {exclusive_or(p1 >> 32, x.x1, key0), p1, exclusive_or(p0 >> 32, x.x3, key1), p0};
}

// The key of a round. The initial key is the low and the high half of the seed.
struct PhiloxKey {
  uint32_t low, high;
};
SINPE_HD PhiloxKey philox_key(uint64_t seed, int round) {
  const uint32_t n = static_cast<uint32_t>(round);
  return {static_cast<uint32_t>(seed) + n * kPhiloxWeyl0, static_cast<uint32_t>(seed >> 32) + n * kPhiloxWeyl1};
}
// The keys of all rounds, computed once per block of threads.
struct alignas(16) PhiloxKeys {
  PhiloxKey of[kPhiloxRounds];
};
SINPE_HD PhiloxKey philox_key(const PhiloxKeys& keys, int round) { return keys.of[round]; }

// Rounds [from, kPhiloxRounds). Keys: a seed or its PhiloxKeys.
template <class V, class Keys>
SINPE_HD PhiloxBlock<V> philox_rounds(PhiloxBlock<V> x, const Keys& keys, int from) {
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int r = from; r < kPhiloxRounds; ++r) {
    const PhiloxKey key = philox_key(keys, r);
    x = philox_round(x, key.low, key.high);
  }
  return x;
}

// Philox 4x32-10 of any counter.
//   Types: V = uint64_t or Uint64s, lane by lane   Error: 0, Random123's words   Valid range: every counter and seed
template <class V>
SINPE_HD PhiloxBlock<V> philox(PhiloxBlock<V> counter, uint64_t seed) {
  return philox_rounds(counter, seed, 0);
}

// Philox of the counter (low half, high half, 0, 0). The first round needs only one product.
template <class V, class Keys>
SINPE_HD PhiloxBlock<V> philox_counted(V counter, const Keys& keys) {
  const PhiloxKey first = philox_key(keys, 0);
  const V p0 = multiply_low(counter, kPhiloxMultiplier0);
  return philox_rounds<V>({counter >> 32 ^ first.low, V{}, p0 >> 32 ^ first.high, p0}, keys, 1);
}

// The 16 random bits of one element.
//   Valid range: every RNG offset and seed
SINPE_HD uint32_t philox_lane(uint64_t rng_offset, uint64_t seed) {
  const PhiloxBlock<uint64_t> x = philox_counted<uint64_t>(rng_offset >> 3, seed);
  const uint64_t pair =
      (rng_offset & 4) != 0 ? ((rng_offset & 2) != 0 ? x.x3 : x.x2) : ((rng_offset & 2) != 0 ? x.x1 : x.x0);
  return static_cast<uint32_t>(pair >> (rng_offset & 1) * 16) & 0xffff;
}

// Whether dropout keeps an element: probability (65536 - drop) / 65536.
//   Valid range: drop 0 .. 65536
SINPE_HD bool is_kept(uint64_t rng_offset, uint64_t seed, uint32_t drop_threshold) {
  return philox_lane(rng_offset, seed) >= drop_threshold;
}

// The factor for the elements that are not dropped, 1 / (1 - p), which preserves the mean; 0 if all are dropped.
//   Error: half an ULP of double   Valid range: drop 0 .. 65536
SINPE_HD double dropout_scale(uint32_t drop_threshold) {
  return drop_threshold >= kDropAll ? 0.0
                                    : 65536.0 / static_cast<double>(kDropAll - static_cast<int64_t>(drop_threshold));
}

// Dropout parameters of one kernel call. If the first element of a slice has RNG offset e, the i-th has e + i * step.
struct Dropout {
  uint64_t seed;
  uint64_t step;
  uint32_t drop_threshold;  // in units of 1/65536; 0: no dropout
  double scale;             // factor of the elements that are not dropped: dropout_scale(drop)
};

}  // namespace sinpe
