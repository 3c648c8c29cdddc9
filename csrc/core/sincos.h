// Sine and cosine of a reduced phase t, in turns, |t| <= 1/8: a fast pair of polynomials in double, the same with a low
// part for float64 results, and a pair in double-double that decides roundings.
#pragma once

#include "core/dd.h"

namespace sinpe {

// 2*pi = kTwoPi.hi + kTwoPi.lo with an error below 2^-108.
constexpr double kTwoPiHigh = 0x1.921fb54442d18p+2;
constexpr DD kTwoPi = {kTwoPiHigh, 0x1.1a62633145c07p-52};

// Minimax coefficients of sin(y)/y and cos(y) on [-pi/4, pi/4] (the fdlibm set). In units of u = 2^-53, the sine is
// within 0.04 (relative) for |t| <= 0.1251 and within 1.28 for |t| <= 0.131, the cosine within 0.02 (absolute).
constexpr double kS1 = -0x1.5555555555549p-3, kS2 = 0x1.111111110f8a6p-7, kS3 = -0x1.a01a019c161d5p-13;
constexpr double kS4 = 0x1.71de357b1fe7dp-19, kS5 = -0x1.ae5e68a2b9cebp-26, kS6 = 0x1.5d93a5acfd57cp-33;
constexpr double kC1 = 0x1.555555555554cp-5, kC2 = -0x1.6c16c16c15177p-10, kC3 = 0x1.a01a019cb1590p-16;
constexpr double kC4 = -0x1.27e4f809c52adp-22, kC5 = 0x1.1ee9ebdb4b1c4p-29, kC6 = -0x1.8fae9be8838d4p-37;

// The same in constant memory, which GPU instructions read directly: a literal double, or an element of a const array,
// costs two instructions more.
#if defined(__CUDACC__)
static __constant__ double kSinCos[] = {kS1, kS2, kS3, kS4, kS5, kS6, kC1, kC2, kC3, kC4, kC5, kC6, kTwoPiHigh};
#endif
#if defined(__CUDA_ARCH__)
#define SINPE_SIN(k) kSinCos[k - 1]
#define SINPE_COS(k) kSinCos[k + 5]
#define SINPE_TWO_PI kSinCos[12]
#else
#define SINPE_SIN(k) kS##k
#define SINPE_COS(k) kC##k
#define SINPE_TWO_PI kTwoPiHigh
#endif

// (sin(y) - y) / y^3 and (cos(y) - 1 + y^2/2) / y^4 from z = y*y.
template <class V>
SINPE_HD V sin_tail(V z) {
  return fma(z, fma(z, fma(z, fma(z, fma(z, SINPE_SIN(6), SINPE_SIN(5)), SINPE_SIN(4)), SINPE_SIN(3)), SINPE_SIN(2)),
             SINPE_SIN(1));
}
template <class V>
SINPE_HD V cos_tail(V z) {
  return fma(z, fma(z, fma(z, fma(z, fma(z, SINPE_COS(6), SINPE_COS(5)), SINPE_COS(4)), SINPE_COS(3)), SINPE_COS(2)),
             SINPE_COS(1));
}

// sin and cos of 2*pi*t.
//   Types: V   Max error: 4u relative (sin), absolute (cos), u = 2^-53   Valid range: |t| <= 0.131
// The sum of (in u):
//   sin: y, 1.36 (its rounding, and that of 2*pi); y*z*tail, at most 0.123 of the sine, relative error 3.2 (z, y*z and the
//        tail): 0.39; the last rounding, 1; the polynomial, 0.04. Together 2.8. For |t| > 0.1251 the polynomial has 1.28,
//        but y affects the sine by y*cot(y) <= 0.79 times its error, and the last rounding is 0.5 / sin(y) <= 0.71: 3.5.
//   cos: y, 1.36 * y*sin(y) = 0.83; z, 0.30; the roundings of z*tail - 0.5, 0.2; the last rounding, 0.5; the polynomial,
//        0.02. Together 1.9.
template <class V>
SINPE_HD void sincos_fast(V t, V* s, V* c) {
  const V y = t * SINPE_TWO_PI;
  const V z = y * y;
  *s = fma(y * z, sin_tail(z), y);
  *c = fma(z, fma(z, cos_tail(z), -0.5), 1.0);
}

// Error bound, 8u, of amplitude * sincos_fast(t) with t from fast_phase (core/rotate.h), relative to the amplitude, for
// sines to the amplitude times min(1, |angle|) (sine_bound): 4u, 1u of t, 0.1u of its |p*f| * 2^-104, 1u of the
// product, and a margin of 1.9u, of which ends_differ (core/round.h) needs 1u.
constexpr double kFastError = 0x1p-50;

// sin and cos of 2*pi*(t.hi + t.lo), each as its rounded value and the rounding error.
//   Types: DD<V>   Max error: before hi + lo is rounded, 0.39 ULP, 0.55u relative (sin), 0.12 ULP (cos); measured: below 0.5u
//   Valid range: |t| <= 0.1251
// The errors are largest near pi/4, where both are 0.71 and one ULP is u. The sum of (in u, absolute):
//   sin: z, 0.062; y*z, 0.041; the tail, 0.064; their product, the difference and the sum, 0.063 each; the polynomial,
//        0.028; what 0.5*z*y.lo omits, 0.008.
//   cos: what z*z*tail omits of the difference between y*y and z, 0.065; its roundings, 0.046; the polynomial, 0.009.
template <class V>
SINPE_HD void sincos_accurate(DoubleDouble<V> t, DoubleDouble<V>* s, DoubleDouble<V>* c) {
  const DoubleDouble<V> two_pi{splat<V>(kTwoPi.hi), splat<V>(kTwoPi.lo)};
  const DoubleDouble<V> y = dd_mul(two_pi, t);
  const V z = y.hi * y.hi;
  *s = quick_two_sum(y.hi, y.lo + (y.hi * z * sin_tail(z) - 0.5 * z * y.lo));
  const V half_z = 0.5 * z;
  const V w = 1.0 - half_z;
  const V z_lo = fma(y.hi, y.hi, -z);  // rounding error of the square; near pi/4 it affects the last bit of the cosine
  *c = quick_two_sum(w, ((1.0 - w) - half_z) + (z * z * cos_tail(z) - (0.5 * z_lo + y.hi * y.lo)));
}

// amplitude * v rounded once.
//   Types: DD<V>, double -> V   Max error: 0.5 ULP (with that of sincos_accurate, see accurate_sincos in core/rotate.h)
//   Valid range: no overflow, product above 2^-969
template <class V>
SINPE_HD V scaled_double(DoubleDouble<V> v, double amplitude) {
  const V a = splat<V>(amplitude);
  const DoubleDouble<V> p = two_prod(v.hi, a);
  return select(p.hi == 0.0, p.hi, p.hi + fma(v.lo, a, p.lo));  // the sum would turn -0 into +0
}

// Taylor coefficients of sin(y)/y and cos(y) after the leading 1, as double-doubles: the k-th of kTaylorTerms.
// Functions, because device code cannot take the address of a host constant.
constexpr int kTaylorTerms = 14;
SINPE_HD DD sin_taylor(int k) {
  static constexpr DD c[kTaylorTerms] = {
      {-0x1.5555555555555p-3, -0x1.5555555555555p-57},   {0x1.1111111111111p-7, 0x1.1111111111111p-63},
      {-0x1.a01a01a01a01ap-13, -0x1.a01a01a01a01ap-73},  {0x1.71de3a556c734p-19, -0x1.c154f8ddc6c00p-73},
      {-0x1.ae64567f544e4p-26, 0x1.c062e06d1f209p-80},   {0x1.6124613a86d09p-33, 0x1.f28e0cc748ebep-87},
      {-0x1.ae7f3e733b81fp-41, -0x1.1d8656b0ee8cbp-97},  {0x1.952c77030ad4ap-49, 0x1.ac981465ddc6cp-103},
      {-0x1.2f49b46814157p-57, -0x1.2650f61dbdcb4p-112}, {0x1.71b8ef6dcf572p-66, -0x1.d043ae40c4647p-120},
      {-0x1.761b41316381ap-75, 0x1.3423c7d91404fp-130},  {0x1.3f3ccdd165fa9p-84, -0x1.58ddadf344487p-139},
      {-0x1.d1ab1c2dccea3p-94, -0x1.054d0c78aea14p-149}, {0x1.259f98b4358adp-103, 0x1.eaf8c39dd9bc5p-157}};
  return c[k];
}
SINPE_HD DD cos_taylor(int k) {
  static constexpr DD c[kTaylorTerms] = {{-0x1.0000000000000p-1, 0x0.0p+0},
                                         {0x1.5555555555555p-5, 0x1.5555555555555p-59},
                                         {-0x1.6c16c16c16c17p-10, 0x1.f49f49f49f49fp-65},
                                         {0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-76},
                                         {-0x1.27e4fb7789f5cp-22, -0x1.cbbc05b4fa99ap-76},
                                         {0x1.1eed8eff8d898p-29, -0x1.2aec959e14c06p-83},
                                         {-0x1.93974a8c07c9dp-37, -0x1.05d6f8a2efd1fp-92},
                                         {0x1.ae7f3e733b81fp-45, 0x1.1d8656b0ee8cbp-101},
                                         {-0x1.6827863b97d97p-53, -0x1.eec01221a8b0bp-107},
                                         {0x1.e542ba4020225p-62, 0x1.ea72b4afe3c2fp-120},
                                         {-0x1.0ce396db7f853p-70, 0x1.aebcdbd20331cp-124},
                                         {0x1.f2cf01972f578p-80, -0x1.9ada5fcc1ab14p-135},
                                         {-0x1.88e85fc6a4e5ap-89, 0x1.71c37ebd16540p-143},
                                         {0x1.0a18a2635085dp-98, 0x1.b9e2e28e1aa54p-153}};
  return c[k];
}

// One step of 1 + z*(c[0] + z*(c[1] + ...)), from the last coefficient to the first.
SINPE_HD DD taylor_step(DD sum, DD z, DD c) { return dd_add(c, dd_mul(sum, z)); }

// sin and cos of 2*pi*(t.hi + t.lo).
//   Types: DD   Max error: 2^-98 relative   Valid range: |t| <= 0.1251
SINPE_HD void sincos_dd(DD t, DD* s, DD* c) {
  const DD y = dd_mul(kTwoPi, t);
  const DD z = dd_mul(y, y);
  DD s_sum = sin_taylor(kTaylorTerms - 1), c_sum = cos_taylor(kTaylorTerms - 1);
  SINPE_ROLLED
  for (int k = kTaylorTerms - 2; k >= 0; --k) {
    s_sum = taylor_step(s_sum, z, sin_taylor(k));
    c_sum = taylor_step(c_sum, z, cos_taylor(k));
  }
  const DD one{1.0, 0.0};
  *s = dd_mul(y, taylor_step(s_sum, z, one));
  *c = taylor_step(c_sum, z, one);
}

// sin and cos of quarter/4 + t turns from those of t, without a branch. Only the low two bits of `quarter` are used.
//   Types: V, float, DD   Error: 0
template <class V>
SINPE_HD void apply_quarter(bits_t<V> quarter, V* s, V* c) {
  using B = bits_t<V>;
  const B sign = quarter << (Bits<V>::kSign - 1) & (B{} + Bits<V>::kSignBit);  // of both in quarters 2 and 3
  const V old = *s;
  *s = bit_cast<V>(bit_cast<B>(where_odd(quarter, *c, old)) ^ sign);
  *c = bit_cast<V>(bit_cast<B>(where_odd(quarter, -old, *c)) ^ sign);
}
SINPE_HD void apply_quarter(uint64_t quarter, DD* s, DD* c) {
  apply_quarter(quarter, &s->hi, &c->hi);
  apply_quarter(quarter, &s->lo, &c->lo);
}

}  // namespace sinpe
