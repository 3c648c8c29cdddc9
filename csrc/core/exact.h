// Single entries in exact arithmetic: the slow path that decides each rounding that the error bound of a fast path
// leaves undecided.
#pragma once

#include "core/phase.h"
#include "core/round.h"
#include "core/sincos.h"

namespace sinpe {

// amplitude * v rounded to a float.
SINPE_HD float exact_scaled(DD v, double amplitude) {
  // An exact zero has the amplitude's sign, not a quadrant's.
  return v.hi == 0.0 ? static_cast<float>(amplitude * 0.0) : round_to_float(dd_mul(v, amplitude));
}

// amplitude * sin(2*pi * quarters/4). A zero has the sign of the amplitude, not that of the quarter.
//   Types: Real   Error: correctly rounded   Valid range: every number of quarters
template <class Real>
SINPE_HD Real sine_of_quarters(int quarters, double amplitude) {
  const double unit = (quarters & 2) == 0 ? amplitude : -amplitude;
  return static_cast<Real>((quarters & 1) == 0 ? amplitude * 0.0 : unit);
}

// amplitude * sin(2*pi*(p*f + q/4)).
//   Types: float    Error: correctly rounded, unless the value lies within 2^-96 of a rounding boundary
//   Valid range: every int64 and finite double position; amplitude such that the product neither over- nor underflows
SINPE_HD float exact_float(Position p, Frequency f, int q, double amplitude) {
  const Reduced r = reduce_position(p, f);
  if (r.t.hi == 0.0) return sine_of_quarters<float>(r.quadrant + q, amplitude);  // the series takes 20 times as long
  DD s, c;
  sincos_dd(r.t, &s, &c);
  apply_quarter(static_cast<uint64_t>(r.quadrant + q), &s, &c);
  return exact_scaled(s, amplitude);
}

// The same for float64.
//   Types: double   Max error: as accurate_sincos (core/rotate.h)   Valid range: as above
SINPE_HD double exact_double(Position p, Frequency f, int q, double amplitude) {
  const Reduced r = reduce_position(p, f);
  DD s, c;
  sincos_accurate(r.t, &s, &c);
  apply_quarter(static_cast<uint64_t>(r.quadrant + q), &s, &c);
  return s.hi == 0.0 ? amplitude * 0.0 : scaled_double(s, amplitude);
}

}  // namespace sinpe
