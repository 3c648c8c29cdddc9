// Rows in bulk. A row in double is either computed directly from its reduced position or rotated from the row before.
// Both have an error bound, and an entry whose float32 rounding the bound does not decide is recomputed by
// core/exact.h. So the bits of a float32 result do not depend on the path.
#pragma once

#include "core/round.h"
#include "core/sincos.h"

namespace sinpe {

// Rows from one anchor, which is a row that is computed directly, to the next, and the error bound of a rotation over
// that many rows. One row of
//   v' = fma(v, cos w, a * sin w),  a' = fma(a, cos w, -(v * sin w))
// (a value v, the value a a quarter turn ahead, and the angle w of one position) adds at most 3.6u to the length of the
// error vector (u = 2^-53: two roundings per component, u each, and the errors of the constants, 1.55u by
// accurate_sincos), and rotates the previous error without changing its length. The sine of a small angle keeps a
// *relative* bound: its own roundings add 3.6u times the largest angle theta of the run, and an error of the cosine is
// multiplied by sin w <= theta / rows, which adds at most 1.8u theta per row. Together 5.4u of the 6u.
constexpr int64_t kAnchorRows = 128;
constexpr double kRotateError = kAnchorRows * 6 * 0x1p-53 + kFastError;

// One such row.
template <class V>
SINPE_HD void rotate(V step_cos, V step_sin, V* value, V* ahead) {
  const V v = *value, a = *ahead;
  *value = fma(v, step_cos, a * step_sin);
  *ahead = fma(a, step_cos, -(v * step_sin));
}

// The fast phase is valid while the position is exact in double and the product has enough fractional bits:
// |p * f| < 2^45.
constexpr double kFastProduct = 0x1p45;
constexpr double kFastPosition = 0x1p53;

// Adding and subtracting this constant rounds |x| < 2^51 to the nearest integer, in two additions that every
// instruction set has.
constexpr double kRoundShift = 0x1.8p52;

// p * f reduced: returns the rest t in turns, and the quarter in the low bits of *quarter. The quarter is that of the
// rounded product, from which the rest is computed exactly. The rounding error of the product, at most 3 * 2^-9, is
// added to the rest: |t| <= 0.131.
//   Types: V   Max error: 2^-53 relative to t, plus |p*f| * kPhaseError   Valid range: |p| < 2^53 exact, |p*f| < 2^45
constexpr double kPhaseError = 0x1p-104;
template <class V>
SINPE_HD V fast_phase(V p, V turns_hi, V turns_lo, bits_t<V>* quarter) {
  const V h = p * turns_hi;
  const V e = fma(p, turns_lo, fma(p, turns_hi, -h));
  const V shifted = fma(h, 4.0, kRoundShift);
  *quarter = bit_cast<bits_t<V>>(shifted);
  return fma(shifted - kRoundShift, -0.25, h) + e;
}

// The same without turns_lo and the rounding error of the product.
//   Types: V   Max error: |p*f| * 2^-52   Valid range: as fast_phase
template <class V>
SINPE_HD V short_phase(V p, V turns_hi, bits_t<V>* quarter) {
  const V h = p * turns_hi;
  const V shifted = fma(h, 4.0, kRoundShift);
  *quarter = bit_cast<bits_t<V>>(shifted);
  return fma(shifted - kRoundShift, -0.25, h);
}

// The same with the low part of the rest, for float64 results.
//   Types: DD<V>   Max error: |p*f| * 2^-104 absolute, 2^-104 relative   Valid range: as fast_phase, and a rest no smaller
//   than |p*f| * 2^-48 (below, the parts may overlap and the integer phase must be used)
template <class V>
SINPE_HD DoubleDouble<V> fast_phase_dd(V p, V turns_hi, V turns_lo, bits_t<V>* quarter) {
  const DoubleDouble<V> h = two_prod(p, turns_hi);
  const V whole = (h.hi + kRoundShift) - kRoundShift;
  // h.lo is below half an ULP of h.hi, and h.hi - whole is 0 or a multiple of that ULP: the quick sum is exact.
  const DoubleDouble<V> first = quick_two_sum(h.hi - whole, h.lo);
  const DoubleDouble<V> r = quick_two_sum(first.hi, fma(p, turns_lo, first.lo));
  const V shifted = fma(r.hi, 4.0, kRoundShift);
  *quarter = bit_cast<bits_t<V>>(shifted);
  return quick_two_sum(fma(shifted - kRoundShift, -0.25, r.hi), r.lo);
}

// amplitude * sin and cos of p * f turns, for float64. Returns false (per lane: 0) if the rest is so small that |p*f| *
// 2^-104 could change the last bit, and the integer phase must be used. This depends on the entry alone.
//   Types: V   Max error: 0.89 ULP; 1.05 if the amplitude is not a power of two; for |p*f| > 2^40, 0.08 more (measured: 0.8)
//   Valid range: as fast_phase; amplitude as scaled_double
template <class V>
SINPE_HD auto accurate_sincos(V p, V turns_hi, V turns_lo, double amplitude, V* sine, V* cosine) {
  bits_t<V> quarter;
  const DoubleDouble<V> t = fast_phase_dd(p, turns_hi, turns_lo, &quarter);
  const V product = magnitude(p * turns_hi);
  DoubleDouble<V> s, c;
  sincos_accurate(t, &s, &c);
  s.hi += 0.0;  // no negative zero
  // Scaling commutes with the swap and the signs of apply_quarter, so it is done first, where hi and lo are available.
  *sine = s.hi;
  *cosine = c.hi;
  if (amplitude != 1.0) {
    *sine = scaled_double(s, amplitude);
    *cosine = scaled_double(c, amplitude);
  }
  apply_quarter(quarter, sine, cosine);
  return (magnitude(t.hi) >= product * 0x1p-48) | (product < 0.125);
}

// Error bound of the sine of an angle of at most |turns|, given the bound `k` for angles of one radian or more.
template <class V>
SINPE_HD V sine_bound(double k, V turns) {
  const V bound = (6.2831853071795865 * k) * magnitude(turns);
  const V most = splat<V>(k);
  return select(bound < most, bound, most);
}

}  // namespace sinpe
