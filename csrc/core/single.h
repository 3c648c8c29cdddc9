// Sine and cosine of a 128-bit phase in float arithmetic, for devices on which double precision is slow. The phase is
// an exact integer, so the argument of the polynomials is small and known to twice the precision of a float.
#pragma once

#include "core/phase.h"

namespace sinpe {

// 2*pi times powers of two as floats, the first and the last with their rounding errors: radians per unit of the high
// part, the low part and a small rest.
constexpr float kRadiansHigh = 0x1.921fb6p-30f, kRadiansHighLow = -0x1.777a5cp-55f;    // 2*pi / 2^32
constexpr float kRadiansLow = 0x1.921fb6p-56f;                                         // 2*pi / 2^58
constexpr float kRadiansSmall = 0x1.921fb6p-74f, kRadiansSmallLow = -0x1.777a5cp-99f;  // 2*pi / 2^76

// Minimax coefficients of (sin(y) - y) / y^3 and (cos(y) - 1 + y^2/2) / y^4 in z = y*y on [-pi/4, pi/4]: the sine is
// within 2^-27.6 relative, the cosine within 2^-31.
constexpr float kF1 = -0x1.555546p-3f, kF2 = 0x1.11076p-7f, kF3 = -0x1.994cf6p-13f;
constexpr float kG1 = 0x1.55554ap-5f, kG2 = -0x1.6c0c82p-10f, kG3 = 0x1.9a00d2p-16f;

SINPE_HD float fma(float a, float b, float c) {
#if defined(__CUDACC__)
  return ::fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// An unevaluated sum of two floats.
struct FloatFloat {
  float hi, lo;
};

// The nearest quarter of a phase, and the rest in radians.
struct SingleAngle {
  uint32_t quarter;  // modulo 4
  FloatFloat y;
};

// Converts a phase. Sets *undecided for a rest below 2^-50 turns, which has too few bits, or is exactly 0. Exception:
// the phase 0 with takes_zero, which says that its sine may be +0.
//   Error: 2^-40 relative for a rest of 0.01 turns or more, 2^-26 for a smaller one, unless *undecided is set
//   Valid range: every phase
SINPE_HD SingleAngle single_angle(uint128 phase, bool takes_zero, bool* undecided) {
  const uint64_t top = static_cast<uint64_t>(phase >> 64), low = static_cast<uint64_t>(phase);
  const uint32_t quarter = (static_cast<uint32_t>(top >> 32) + 0x20000000u) >> 30;
  const uint64_t rest = top - (static_cast<uint64_t>(quarter) << 62);
  const int32_t high = static_cast<int32_t>(static_cast<uint32_t>(rest >> 32));
  if (static_cast<uint32_t>(high + 0x800) < 0x1000u) {
    // The leading bits are zero: take 64 bits further down.
    const int64_t small = static_cast<int64_t>(rest << 12 | low >> 52);
    const bool is_zero = takes_zero && (top | low) == 0;
    *undecided = *undecided || (static_cast<uint64_t>(small + (1 << 26)) < 1u << 27 && !is_zero);
    const float a = static_cast<float>(small), b = static_cast<float>(small - static_cast<int64_t>(a));
    const float hi = a * kRadiansSmall;
    return {quarter & 3, {hi, fma(b, kRadiansSmall, fma(a, kRadiansSmallLow, fma(a, kRadiansSmall, -hi)))}};
  }
  // 30 signed bits in two parts that are exact as floats: a multiple of 64, and the 32 bits below.
  const float a = static_cast<float>(high & ~63);
  const float b = static_cast<float>(static_cast<uint32_t>(rest >> 6));
  const float hi = a * kRadiansHigh;
  return {quarter & 3, {hi, fma(b, kRadiansLow, fma(a, kRadiansHighLow, fma(a, kRadiansHigh, -hi)))}};
}

// sin and cos of an angle, each as a sum with a small second term.
//   Types: float   Max error: 0.45 ULP before hi + lo is rounded   Valid range: |y| <= 0.7855
SINPE_HD void sincos_single(FloatFloat y, FloatFloat* s, FloatFloat* c) {
  const float z = y.hi * y.hi, half_z = 0.5f * z;
  const float w = 1.0f - half_z;
  *s = {y.hi, fma(y.hi * z, fma(z, fma(z, kF3, kF2), kF1), y.lo * w)};
  *c = {w, fma(z * z, fma(z, fma(z, kG3, kG2), kG1), fma(-y.hi, y.lo, (1.0f - w) - half_z))};
}

// sin and cos of y.
//   Types: float   Max error: 1.5 ULP (sin), 1.2 ULP (cos), without that of y   Valid range: |y| <= 0.7855
SINPE_HD void sincos_float(float y, float* s, float* c) {
  const float z = y * y;
  *s = fma(y * z, fma(z, fma(z, kF3, kF2), kF1), y);
  *c = fma(z, fma(z, fma(z, fma(z, kG3, kG2), kG1), -0.5f), 1.0f);
}

// The amplitude as a double, and as the sum of two floats.
struct Amplitude {
  double whole;
  FloatFloat parts;
};
SINPE_HD Amplitude amplitude_of(double a) {
  const float hi = static_cast<float>(a);
  return {a, {hi, static_cast<float>(a - static_cast<double>(hi))}};
}

//   Error: 0.7 ULP (measured: 0.64)   Valid range: |v.lo| <= |v.hi| / 8, no overflow
SINPE_HD float scaled_sum(FloatFloat v, FloatFloat amplitude) {
  if (amplitude.hi == 1.0f && amplitude.lo == 0.0f) return v.hi + v.lo;
  return fma(v.hi, amplitude.hi, fma(v.hi, amplitude.lo, v.lo * amplitude.hi));
}

}  // namespace sinpe
