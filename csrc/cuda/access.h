// Access to elements in memory, 16 bytes at a time if they are aligned and contiguous, otherwise one by one; and the
// device's conversion instructions.
#pragma once

#include <type_traits>

#include "core/round.h"

namespace sinpe {
namespace cuda {

template <int kBytes>
struct alignas(kBytes) Bytes {
  uint32_t w[kBytes / 4];
};
using Bytes16 = Bytes<16>;

SINPE_HD bool is_aligned(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

// n / d by a multiplication, for n < 2^31 and d > 0: the divisors of tile indices are known only at run time.
struct Divisor {
  uint32_t d, magic, shift;
  Divisor() : Divisor(1) {}
  explicit Divisor(uint32_t divisor) : d(divisor), magic(0), shift(0) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    magic = static_cast<uint32_t>((uint64_t{1} << (31 + shift)) / divisor + 1);
    if (divisor == 1) magic = uint32_t{1} << 31;
  }
  SINPE_HD uint32_t quotient(uint32_t n) const {
    return static_cast<uint32_t>((static_cast<uint64_t>(n << 1) * magic) >> 32) >> shift;
  }
};

// Index of the lowest bit that is set; n must not be 0.
SINPE_HD int lowest_bit(uint32_t n) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(n)) - 1;
#else
  int at = 0;
  while ((n >> at & 1) == 0) ++at;
  return at;
#endif
}

// Starts to load the 128 bytes at an address into the L2 cache.
SINPE_HD void prefetch(const void* p) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
  (void)p;
#endif
}

template <class T>
SINPE_HD void unpack_word(uint32_t word, float* v) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same<T, float16>::value) {
    asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
        : "=f"(v[0]), "=f"(v[1])
        : "r"(word));
    return;
  }
#endif
  v[0] = to_float(T{static_cast<uint16_t>(word & 0xffff)});
  v[1] = to_float(T{static_cast<uint16_t>(word >> 16)});
}

template <class T>
SINPE_HD uint32_t pack_word(const float* v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t word;
  if constexpr (std::is_same<T, float16>::value) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(v[1]), "f"(v[0]));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(v[1]), "f"(v[0]));
  }
  return word;
#else
  T low, high;
  round_store(&low, v[0]);
  round_store(&high, v[1]);
  return low.bits | static_cast<uint32_t>(high.bits) << 16;
#endif
}

// A word with a sine in its lower half and a cosine in its upper half, turned by a number of quarters (apply_quarter in
// core/sincos.h). The lower two bytes of the result are two of the eight bytes of the word and the negated word, and
// the upper two those behind them, cyclically: of sine, cosine, -sine, -cosine.
SINPE_HD uint32_t turn_word(uint32_t word, uint32_t quarter) {
  const uint32_t negated = word ^ 0x80008000u;
#if defined(__CUDA_ARCH__)
  return __byte_perm(word, negated, __funnelshift_r(0x76543210u, 0x76543210u, quarter * 8));
#else
  const uint64_t bytes = static_cast<uint64_t>(negated) << 32 | word;
  const uint32_t shift = (quarter & 3) * 16;
  return static_cast<uint32_t>(shift == 0 ? bytes : bytes >> shift | bytes << (64 - shift));
#endif
}

// Conversion between values and 16 (or 8) bytes.
template <class T, int kBytes>
SINPE_HD void unpack(const Bytes<kBytes>& b, accumulate_t<T>* v) {
  SINPE_UNROLLED
  for (int k = 0; k < kBytes / 4; ++k) {
    if constexpr (sizeof(T) == 2) {
      unpack_word<T>(b.w[k], v + 2 * k);
    } else if constexpr (sizeof(T) == 4) {
      v[k] = bit_cast<float>(b.w[k]);
    } else if (k % 2 == 0) {
      v[k / 2] = bit_cast<double>(static_cast<uint64_t>(b.w[k + 1]) << 32 | b.w[k]);
    }
  }
}

template <class T, int kBytes = 16>
SINPE_HD Bytes<kBytes> pack(const accumulate_t<T>* v) {
  Bytes<kBytes> b;
  SINPE_UNROLLED
  for (int k = 0; k < kBytes / 4; ++k) {
    if constexpr (sizeof(T) == 2) {
      b.w[k] = pack_word<T>(v + 2 * k);
    } else if constexpr (sizeof(T) == 4) {
      b.w[k] = bit_cast<uint32_t>(v[k]);
    } else {
      b.w[k] = static_cast<uint32_t>(bit_cast<uint64_t>(v[k / 2]) >> k % 2 * 32);
    }
  }
  return b;
}

// Which of N consecutive channels, starting at channel `first`, exist: those in [from, to).
struct Range {
  int from, to;
};

// N consecutive elements as raw bytes.
template <class T, int N>
struct Raw {
  static constexpr int kEach = 16 / static_cast<int>(sizeof(T));
  Bytes16 b[N / kEach];

  SINPE_HD void fill(uint32_t word) {
    SINPE_UNROLLED
    for (int k = 0; k < N / kEach; ++k) b[k] = {{word, word, word, word}};
  }
  SINPE_HD void set(int k, T value) {
    uint32_t* w = b[k / kEach].w;
    const int i = k % kEach;
    if constexpr (sizeof(T) == 2) {
      const uint32_t bits = value.bits;
      w[i >> 1] = (i & 1) != 0 ? (w[i >> 1] & 0xffff) | bits << 16 : bits;
    } else if constexpr (sizeof(T) == 4) {
      w[i] = bit_cast<uint32_t>(value);
    } else {
      w[2 * i] = static_cast<uint32_t>(bit_cast<uint64_t>(value));
      w[2 * i + 1] = static_cast<uint32_t>(bit_cast<uint64_t>(value) >> 32);
    }
  }
  SINPE_HD void values(accumulate_t<T>* v) const {
    SINPE_UNROLLED
    for (int k = 0; k < N / kEach; ++k) unpack<T>(b[k], v + k * kEach);
  }
};

// Loads N channels of a row, from channel `first`, with stride `step`: 16 bytes at a time if all N exist, are
// contiguous and are aligned, which kAligned guarantees. Channels that do not exist are 0.
template <class T, int N, bool kAligned = false>
SINPE_HD void load(const T* row, int64_t first, int64_t step, Range range, Raw<T, N>* raw) {
  constexpr int kEach = Raw<T, N>::kEach;
  const T* p = row + (kAligned ? first : first * step);
  if (kAligned || (range.from == 0 && range.to == N && step == 1 && is_aligned(p))) {
    SINPE_UNROLLED
    for (int k = 0; k < N / kEach; ++k) raw->b[k] = reinterpret_cast<const Bytes16*>(p)[k];
  } else if constexpr (!kAligned) {
    SINPE_UNROLLED
    for (int k = 0; k < N; ++k) raw->set(k, k >= range.from && k < range.to ? p[k * step] : T{});
  }
}

// The same as values, from contiguous elements.
template <bool kAligned, int N, class Real>
SINPE_HD void load_values(const Real* from, Range range, Real (&v)[N]) {
  Raw<Real, N> raw;
  load<Real, N, kAligned>(from, 0, 1, range, &raw);
  raw.values(v);
}

template <class T, int N, bool kAligned = false>
SINPE_HD void store(T* row, int64_t first, int64_t step, Range range, const accumulate_t<T>* v) {
  constexpr int kEach = 16 / static_cast<int>(sizeof(T));
  T* p = row + (kAligned ? first : first * step);
  if (kAligned || (range.from == 0 && range.to == N && step == 1 && is_aligned(p))) {
    SINPE_UNROLLED
    for (int k = 0; k < N / kEach; ++k) reinterpret_cast<Bytes16*>(p)[k] = pack<T>(v + k * kEach);
  } else if constexpr (!kAligned) {
    SINPE_UNROLLED
    for (int k = 0; k < N; ++k) {
      if (k >= range.from && k < range.to) round_store(p + k * step, v[k]);
    }
  }
}

}  // namespace cuda
}  // namespace sinpe
