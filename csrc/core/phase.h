// Position times frequency, reduced to an eighth of a turn. The integer product wraps at 2^128, which is the range
// reduction: there is no large floating-point angle at any point.
#pragma once

#include "core/dd.h"
#include "core/plan.h"

namespace sinpe {

__extension__ typedef unsigned __int128 uint128;
__extension__ typedef __int128 int128;

// phase = quadrant / 4 + t turns, |t| <= 1/8 (plus a rounding error).
struct Reduced {
  int quadrant;  // number of the nearest quarter turn, 0..3
  DD t;
};

// A position: an integer, or a finite double taken at its exact value.
struct Position {
  bool integral;
  int64_t i;
  double d;  // the value rounded to double, when integral
};

SINPE_HD Position integer_position(int64_t i) { return {true, i, static_cast<double>(i)}; }
SINPE_HD Position float_position(double d) { return {false, 0, d + 0.0}; }  // + 0.0: -0 counts as 0

// Splits a 128-bit fraction of a turn into the nearest quarter and the signed rest.
//   Error: 2^-106 of the rest, or 0 when the rest has at most 106 bits
SINPE_HD Reduced reduce_fraction(uint128 phase) {
  const uint128 eighth = static_cast<uint128>(1) << 125;
  const int quadrant = static_cast<int>((phase + eighth) >> 126);
  const int128 rest = static_cast<int128>(phase - (static_cast<uint128>(quadrant) << 126));
  // Four exact pieces of at most 53 bits each, largest first.
  const int64_t high = static_cast<int64_t>(rest >> 64);
  const uint64_t low = static_cast<uint64_t>(rest);
  const double p0 = static_cast<double>(high >> 11) * 0x1p-53;
  const double p1 = static_cast<double>(high & 0x7ff) * 0x1p-64;
  const double p2 = static_cast<double>(low >> 11) * 0x1p-117;
  const double p3 = static_cast<double>(low & 0x7ff) * 0x1p-128;
  const DD top = two_sum(p0, p1);
  const DD bottom = two_sum(p2, p3);
  return {quadrant & 3, dd_add(top, bottom)};
}

// Fraction of a turn of the product of position m * 2^e (m != 0) and the frequency, in units of 2^-128: the exact
// product with the stored frequency, truncated.
SINPE_HD uint128 scaled_product(int64_t m, int e, Frequency f) {
  bool negative = m < 0;
  const uint64_t mag = negative ? ~static_cast<uint64_t>(m) + 1 : static_cast<uint64_t>(m);
  uint64_t w = static_cast<uint64_t>(f.whole), hi = f.frac_hi, lo = f.frac_lo;
  if (f.whole < 0) {  // convert to sign and magnitude, 192 bits
    negative = !negative;
    lo = ~lo + 1;
    hi = ~hi + (lo == 0);
    w = ~w + (lo == 0 && hi == 0);
  }
  uint64_t limb[4];  // mag * (w : hi : lo), least significant first
  uint128 t = static_cast<uint128>(mag) * lo;
  limb[0] = static_cast<uint64_t>(t);
  t = static_cast<uint128>(mag) * hi + (t >> 64);
  limb[1] = static_cast<uint64_t>(t);
  t = static_cast<uint128>(mag) * w + (t >> 64);
  limb[2] = static_cast<uint64_t>(t);
  limb[3] = static_cast<uint64_t>(t >> 64);
  uint128 phase = 0;
  if (e >= 128 || e <= -256) {
    phase = 0;
  } else if (e >= 0) {
    phase = ((static_cast<uint128>(limb[1]) << 64) | limb[0]) << e;
  } else {
    const int words = -e >> 6, bits = -e & 63;
    // Limbs words, words + 1 and words + 2, selected without indexing, which would move the array to a GPU's local
    // memory.
    const uint64_t a = words == 0 ? limb[0] : (words == 1 ? limb[1] : (words == 2 ? limb[2] : limb[3]));
    const uint64_t b = words == 0 ? limb[1] : (words == 1 ? limb[2] : (words == 2 ? limb[3] : 0));
    const uint64_t c = words == 0 ? limb[2] : (words == 1 ? limb[3] : 0);
    const uint64_t low = bits == 0 ? a : (a >> bits) | (b << (64 - bits));
    const uint64_t high = bits == 0 ? b : (b >> bits) | (c << (64 - bits));
    phase = (static_cast<uint128>(high) << 64) | low;
  }
  return negative ? ~phase + 1 : phase;
}

// A finite double as m * 2^e.
SINPE_HD void split_double(double d, int64_t* m, int* e) {
  const uint64_t bits = bit_cast<uint64_t>(d);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  *m = static_cast<int64_t>(bits & 0xfffffffffffffULL);
  if (exponent != 0) *m |= int64_t{1} << 52;
  if (bits >> 63 != 0) *m = -*m;
  *e = (exponent == 0 ? 1 : exponent) - 1075;
}

SINPE_HD uint128 fraction(Frequency f) { return (static_cast<uint128>(f.frac_hi) << 64) | f.frac_lo; }

// Fraction of a turn of position times frequency, in units of 2^-128: the product with the stored frequency, modulo 1.
// `step` is the fraction of a turn of one position.
//   Error: |p| * 2^-129 turns (the stored fraction's rounding); for a fractional position, in addition 2^-128
//   Valid range: every int64; every finite double (a product below 2^-64 turns has lost its digits)
SINPE_HD uint128 integer_phase(int64_t p, uint128 step) {
  const uint128 size = step * static_cast<uint64_t>(p);  // p as unsigned: 2^64 * step too large if p is negative
  return p < 0 ? size - (step << 64) : size;
}
SINPE_HD uint128 integer_phase(Position p, Frequency f) {
  if (p.integral) return integer_phase(p.i, fraction(f));
  int64_t m;
  int e;
  split_double(p.d, &m, &e);
  return m == 0 ? 0 : scaled_product(m, e, f);
}

// |d| in units of 2^-64, exact for |d| in [2^-12, 2^52); returns false for others.
struct FixedPosition {
  uint64_t whole, fraction;
};
SINPE_HD bool fixed_position(double d, FixedPosition* p) {
  const uint64_t bits = bit_cast<uint64_t>(d);
  const uint32_t shift = (static_cast<uint32_t>(bits >> 52) & 0x7ff) - 1011;  // shift of the significand
  const uint64_t m = (bits & 0xfffffffffffffULL) | int64_t{1} << 52;
  p->fraction = m << (shift & 63);
  p->whole = shift == 0 ? 0 : m >> ((64 - shift) & 63);
  return shift < 64;
}

// integer_phase(p, f) of a position with magnitude `size`, for f >= 0.
SINPE_HD uint128 fixed_phase(FixedPosition size, bool negative, uint128 step, uint64_t whole) {
  const uint64_t step_high = static_cast<uint64_t>(step >> 64), step_low = static_cast<uint64_t>(step);
  const uint128 turned = step * size.whole + (static_cast<uint128>(whole * size.fraction) << 64);
  const uint128 phase =
      turned + static_cast<uint128>(size.fraction) * step_high + (static_cast<uint128>(size.fraction) * step_low >> 64);
  return negative ? ~phase + 1 : phase;
}

// Returns the quarter of a turn if the phase differs from it by no more than the rounding of the stored fraction can
// cause, otherwise the phase. Example: 1/3 of a turn is not a multiple of 2^-128, but three positions of it are a whole
// turn.
SINPE_HD uint128 to_exact_quarter(uint128 phase, Position p) {
  const uint128 eighth = static_cast<uint128>(1) << 125, quarter = (phase + eighth) >> 126 << 126;
  uint128 rest = phase - quarter;
  if (rest >> 127 != 0) rest = ~rest + 1;
  const double most = (p.d < 0 ? -p.d : p.d) + 1.0;  // 1: truncation in scaled_product
  return rest >> 64 == 0 && static_cast<double>(static_cast<uint64_t>(rest)) <= most ? quarter : phase;
}

// The reduced phase of a finite position. Products below an eighth of a turn use the double-double frequency, so that a
// frequency of 1e-60 keeps its digits.
//   Error: (1.5 * |p| + 1) * 2^-128 turns (the stored fraction's rounding, and to_exact_quarter), and 2^-103 relative; 0
//   if the phase of the exact frequency is a whole number of quarters and |p| < 2^63
//   Valid range: every int64; every finite double (the bits of the fraction are significant below 2^53)
SINPE_HD Reduced reduce_position(Position p, Frequency f) {
  if (p.d == 0.0) return {0, {0.0, 0.0}};
  const double rough = p.d * f.turns_hi;
  if (rough > -0.125 && rough < 0.125) {
    const DD turns{f.turns_hi, f.turns_lo};
    if (!p.integral) return {0, dd_mul(turns, p.d)};
    // int64 as hi + lo: the rounded double and the rounding error (2^63 itself does not fit int64, hence uint64).
    const uint64_t rounded = p.d >= 0x1p63 ? uint64_t{1} << 63 : static_cast<uint64_t>(static_cast<int64_t>(p.d));
    const int64_t rounding_error = static_cast<int64_t>(static_cast<uint64_t>(p.i) - rounded);
    return {0, dd_mul(turns, DD{p.d, static_cast<double>(rounding_error)})};
  }
  return reduce_fraction(to_exact_quarter(integer_phase(p, f), p));
}

}  // namespace sinpe
