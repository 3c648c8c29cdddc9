// Vectors of doubles, as wide as the instruction set of the translation unit. Core functions are templates over V =
// double or V = Doubles, so that each formula is written once for scalars, every vector width and CUDA.
#pragma once

#include <type_traits>

#include "core/macros.h"

#if defined(SINPE_LANES) && defined(__x86_64__)
#include <immintrin.h>
#elif defined(SINPE_LANES) && defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace sinpe {

// The unsigned integer type with the bits of V, and the position of the sign bit.
template <class V>
struct Bits;
template <>
struct Bits<double> {
  using type = uint64_t;
  static constexpr int kSign = 63;
  static constexpr uint64_t kSignBit = uint64_t{1} << 63;
};
template <>
struct Bits<float> {
  using type = uint32_t;
  static constexpr int kSign = 31;
  static constexpr uint32_t kSignBit = uint32_t{1} << 31;
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

// a if the number is odd, else b, without a branch.
SINPE_HD double where_odd(uint64_t number, double a, double b) {
  const uint64_t mask = 0 - (number & 1);
  return bit_cast<double>((bit_cast<uint64_t>(a) & mask) | (bit_cast<uint64_t>(b) & ~mask));
}
SINPE_HD float where_odd(uint32_t number, float a, float b) {
#if defined(__CUDA_ARCH__)
  float odd;
  asm("{.reg .pred p; .reg .b32 low; and.b32 low, %3, 1; setp.ne.b32 p, low, 0; selp.f32 %0, %1, %2, p;}"
      : "=f"(odd)
      : "f"(a), "f"(b), "r"(number));
  return odd;
#else
  const uint32_t mask = 0 - (number & 1);
  return bit_cast<float>((bit_cast<uint32_t>(a) & mask) | (bit_cast<uint32_t>(b) & ~mask));
#endif
}

// The low half. Inline assembly, because a GPU compiler would widen it again for comparisons.
SINPE_HD uint32_t low_half(uint64_t x) {
#if defined(__CUDA_ARCH__)
  uint32_t low;
  asm("{.reg .b32 high; mov.b64 {%0, high}, %1;}" : "=r"(low) : "l"(x));
  return low;
#else
  return static_cast<uint32_t>(x);
#endif
}

// The 64-bit product of the low 32 bits of x and m.
SINPE_HD uint64_t multiply_low(uint64_t x, uint32_t m) {
#if defined(__CUDA_ARCH__)
  uint64_t product;  // the compiler would generate two products and a sum
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(static_cast<uint32_t>(x)), "r"(m));
  return product;
#else
  return (x & 0xffffffff) * m;
#endif
}

SINPE_HD uint64_t exclusive_or(uint64_t a, uint64_t b, uint32_t c) { return a ^ b ^ c; }

#if defined(SINPE_LANES)  // 8, 4 or 2: set by cpu/rows_*.cpp

using Doubles = double __attribute__((vector_size(8 * SINPE_LANES)));
using Floats = float __attribute__((vector_size(4 * SINPE_LANES)));
using Uint64s = uint64_t __attribute__((vector_size(8 * SINPE_LANES)));
using Uint32s = uint32_t __attribute__((vector_size(4 * SINPE_LANES)));
using FloatPairs = float __attribute__((vector_size(8 * SINPE_LANES)));
using Uint32Pairs = uint32_t __attribute__((vector_size(8 * SINPE_LANES)));
using Uint16Pairs = uint16_t __attribute__((vector_size(4 * SINPE_LANES)));
using Uint16Quads = uint16_t __attribute__((vector_size(8 * SINPE_LANES)));  // two per element of Uint32Pairs
using Masks = int64_t __attribute__((vector_size(8 * SINPE_LANES)));

template <>
struct Bits<Doubles> {
  using type = Uint64s;
  static constexpr int kSign = 63;
  static constexpr uint64_t kSignBit = uint64_t{1} << 63;
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

SINPE_HD Doubles where_odd(Uint64s number, Doubles a, Doubles b) { return (number & 1) != 0 ? a : b; }

SINPE_HD Uint64s multiply_low(Uint64s x, uint32_t m) {
#if defined(__x86_64__) && SINPE_LANES == 8
  return (Uint64s)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64(m));
#elif defined(__x86_64__) && SINPE_LANES == 4
  return (Uint64s)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x(m));
#elif defined(__x86_64__)
  return (Uint64s)_mm_mul_epu32((__m128i)x, _mm_set1_epi64x(m));
#elif defined(__aarch64__)
  return (Uint64s)vmull_u32(vmovn_u64((uint64x2_t)x), vdup_n_u32(m));
#else
  return (x & 0xffffffff) * m;
#endif
}

SINPE_HD Uint64s exclusive_or(Uint64s a, Uint64s b, uint32_t c) {
#if defined(__x86_64__) && SINPE_LANES == 8
  return (Uint64s)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, _mm512_set1_epi64(c), 0x96);
#else
  return a ^ b ^ c;
#endif
}

// Two vectors whose operations alternate; Two<Two<V>> has four. In the core formulas most operations wait for the result
// of the one before, so that the operations of a single vector leave pipes of the processor idle.
template <class V>
struct Two {
  V a, b;
};
template <class V>
SINPE_HD Two<V> make_two(V a, V b) {
  return {a, b};
}
template <class V>
struct Bits<Two<V>> {
  using type = Two<bits_t<V>>;
  static constexpr int kSign = Bits<V>::kSign;
  static constexpr uint64_t kSignBit = Bits<V>::kSignBit;
};

// The operand of either operation: one that is not Two takes part in both.
template <class V>
SINPE_HD V first(Two<V> x) {
  return x.a;
}
template <class V>
SINPE_HD V second(Two<V> x) {
  return x.b;
}
SINPE_HD double first(double x) { return x; }
SINPE_HD double second(double x) { return x; }

// An operand of a vector V. A number is converted to the type of V's elements: clang rejects, for example, a vector of
// unsigned long and an unsigned long long. A vector is unchanged.
template <class V>
struct Element {
  using type = typename std::decay<decltype(V{}[0])>::type;
};
template <class V>
struct Element<Two<V>> : Element<V> {};
template <class V, class W>
using operand_t = typename std::conditional<std::is_arithmetic<W>::value, typename Element<V>::type, W>::type;
template <class V, class W>
SINPE_HD operand_t<V, W> operand(W y) {
  return static_cast<operand_t<V, W>>(y);
}

#define SINPE_ALTERNATE(op)                                                       \
  template <class V>                                                              \
  SINPE_HD auto operator op(Two<V> x, Two<V> y)->Two<decltype(x.a op y.a)> {      \
    return {x.a op y.a, x.b op y.b};                                              \
  }                                                                               \
  template <class V, class W>                                                     \
  SINPE_HD auto operator op(Two<V> x, W y)->Two<decltype(x.a op operand<V>(y))> { \
    return {x.a op operand<V>(y), x.b op operand<V>(y)};                          \
  }                                                                               \
  template <class V, class W>                                                     \
  SINPE_HD auto operator op(W x, Two<V> y)->Two<decltype(operand<V>(x) op y.a)> { \
    return {operand<V>(x) op y.a, operand<V>(x) op y.b};                          \
  }
SINPE_ALTERNATE(+)
SINPE_ALTERNATE(-)
SINPE_ALTERNATE(*)
SINPE_ALTERNATE(&)
SINPE_ALTERNATE(|)
SINPE_ALTERNATE(^)
SINPE_ALTERNATE(<<)
SINPE_ALTERNATE(>>)
SINPE_ALTERNATE(<)
SINPE_ALTERNATE(>=)
SINPE_ALTERNATE(==)
#undef SINPE_ALTERNATE
template <class V>
SINPE_HD Two<V> operator-(Two<V> x) {
  return {-x.a, -x.b};
}
template <class V, class W>
SINPE_HD Two<V>& operator+=(Two<V>& x, W y) {
  return x = x + y;
}
template <class V, class W>
SINPE_HD Two<V>& operator*=(Two<V>& x, W y) {
  return x = x * y;
}
template <class V>
SINPE_HD Two<V>& operator&=(Two<V>& x, Two<V> y) {
  return x = x & y;
}

template <class To, class V>
SINPE_HD To bit_cast(Two<V> x) {
  return {bit_cast<decltype(To::a)>(x.a), bit_cast<decltype(To::a)>(x.b)};
}
template <class V, class B, class C>
SINPE_HD Two<V> fma(Two<V> a, B b, C c) {
  return {fma(a.a, first(b), first(c)), fma(a.b, second(b), second(c))};
}
template <class M, class V, class W>
SINPE_HD Two<V> select(Two<M> condition, Two<V> a, W b) {
  return {select(condition.a, a.a, first(b)), select(condition.b, a.b, second(b))};
}
template <class U, class V>
SINPE_HD Two<V> where_odd(Two<U> number, Two<V> a, Two<V> b) {
  return {where_odd(number.a, a.a, b.a), where_odd(number.b, a.b, b.b)};
}
template <class V>
SINPE_HD Two<V> multiply_low(Two<V> x, uint32_t m) {
  return {multiply_low(x.a, m), multiply_low(x.b, m)};
}
template <class V>
SINPE_HD Two<V> exclusive_or(Two<V> x, Two<V> y, uint32_t z) {
  return {exclusive_or(x.a, y.a, z), exclusive_or(x.b, y.b, z)};
}

#endif

// |x|.
template <class V>
SINPE_HD V magnitude(V x) {
#if defined(__CUDA_ARCH__)
  return ::fabs(x);  // a modifier of the instruction that reads the result
#else
  return bit_cast<V>(bit_cast<bits_t<V>>(x) & 0x7fffffffffffffffULL);
#endif
}

SINPE_HD float magnitude(float x) {
#if defined(__CUDA_ARCH__)
  return ::fabsf(x);
#else
  return bit_cast<float>(bit_cast<uint32_t>(x) & 0x7fffffff);
#endif
}

}  // namespace sinpe
