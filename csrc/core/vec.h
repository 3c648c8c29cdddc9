// Vectors of doubles as wide as the instruction set that a translation unit is compiled for. Core functions are templates
// over V = double or V = Doubles, so that each formula stands once for scalars, every vector width and CUDA.
#pragma once

#include "core/macros.h"

#if defined(SINPE_LANES) && defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sinpe {

// The unsigned integers that hold V's bits.
template <class V>
struct Bits;
template <>
struct Bits<double> {
  using type = uint64_t;
};
template <class V>
using bits_t = typename Bits<V>::type;

// x in every lane.
template <class V>
SINPE_HD V splat(double x) {
  return V{} + x;
}
template <>
SINPE_HD double splat<double>(double x) {
  return x;
}

// Explicit fused multiply-add. Contraction is off in every build, so this is the only place where a*b+c is fused.
SINPE_HD double fma(double a, double b, double c) {
#if defined(__CUDACC__)
  return ::fma(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

SINPE_HD double select(bool condition, double a, double b) { return condition ? a : b; }

#if defined(SINPE_LANES)  // 8, 4 or 2: set by cpu/rows_*.cpp

using Doubles = double __attribute__((vector_size(8 * SINPE_LANES)));
using Floats = float __attribute__((vector_size(4 * SINPE_LANES)));
using Words = uint64_t __attribute__((vector_size(8 * SINPE_LANES)));
using HalfWords = uint32_t __attribute__((vector_size(4 * SINPE_LANES)));
using FloatPairs = float __attribute__((vector_size(8 * SINPE_LANES)));
using PairWords = uint32_t __attribute__((vector_size(8 * SINPE_LANES)));
using PairHalves = uint16_t __attribute__((vector_size(4 * SINPE_LANES)));
using Masks = int64_t __attribute__((vector_size(8 * SINPE_LANES)));

template <>
struct Bits<Doubles> {
  using type = Words;
};

SINPE_HD Doubles fma(Doubles a, Doubles b, Doubles c) {
#if defined(__x86_64__) && SINPE_LANES == 8
  return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__x86_64__) && SINPE_LANES == 4
  return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  Doubles r;
  for (int k = 0; k < SINPE_LANES; ++k) r[k] = __builtin_fma(a[k], b[k], c[k]);
  return r;
#endif
}
SINPE_HD Doubles fma(Doubles a, Doubles b, double c) { return fma(a, b, splat<Doubles>(c)); }
SINPE_HD Doubles fma(Doubles a, double b, double c) { return fma(a, splat<Doubles>(b), splat<Doubles>(c)); }
SINPE_HD Doubles fma(Doubles a, double b, Doubles c) { return fma(a, splat<Doubles>(b), c); }

SINPE_HD Doubles select(Masks condition, Doubles a, Doubles b) { return condition ? a : b; }
SINPE_HD Doubles select(Masks condition, Doubles a, double b) { return condition ? a : splat<Doubles>(b); }

#endif

// |x|.
template <class V>
SINPE_HD V magnitude(V x) {
  return bit_cast<V>(bit_cast<bits_t<V>>(x) & 0x7fffffffffffffffULL);
}

}  // namespace sinpe
