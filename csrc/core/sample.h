// One oscillator at one position: sine and cosine times the amplitude, in the arithmetic that is fastest on a device.
// The CPU computes whole rows instead (cpu/rows.h); its values have the bits of InDouble and InFull.
#pragma once

#include "core/exact.h"
#include "core/rotate.h"
#include "core/single.h"

namespace sinpe {

// Whether the fast phase (core/rotate.h) is valid for a position in a plan.
SINPE_HD bool fast_position(Position p, const Plan& plan) {
  const double magnitude = p.d < 0 ? -p.d : p.d;
  return magnitude < kFastPosition && magnitude * plan.max_turns < kFastProduct;
}

template <class Real>
struct Sample {
  Real s, c;
};

// An oscillator's constants for the integer phase.
struct Oscillator {
  int64_t index;
  uint128 step;  // the fraction of a turn per position
  int64_t whole;
};
SINPE_HD Oscillator oscillator_of(const Plan& plan, int64_t osc) {
  return {osc, fraction(plan.frequency(osc)), plan.whole[osc]};
}

// Whether the 128 fractional bits hold fewer than `bits` significant bits of a frequency, so that the integer phase is
// not accurate enough.
SINPE_HD bool lacks_phase_bits(const Oscillator& o, int bits) {
  const uint64_t high = static_cast<uint64_t>(o.step >> 64), sign = static_cast<uint64_t>(o.whole);
  return (o.whole == 0 || o.whole == -1) && high == sign && (static_cast<uint64_t>(o.step) ^ sign) >> bits == 0;
}
// The same for one position: the product with a fractional position may be too small.
SINPE_HD bool lacks_phase_bits(const Plan& plan, const Oscillator& o, Position p, int bits) {
  const double product = p.d * plan.turns_hi[o.index];
  return lacks_phase_bits(o, bits) || (!p.integral && product > -0x1p-30 && product < 0x1p-30);
}

// Each arithmetic below computes a sample from the integer phase (InFull does not use it) and sets *undecided if the
// sample is not accurate enough and `resolved_sample` must be used instead. Callers check `undecided` after their
// loops, so that the rare case needs no instructions or registers within them.

// Largest error of a sample in ULPs of the double: kFastError, the scaling, and a margin.
constexpr uint32_t kUndecidedUlps = 16;

// Whether that error leaves the nearest float undecided: the low 29 bits of the double are close to the midpoint.
//   Valid range: |v| >= 2^-126, or 0
SINPE_HD bool is_undecided(double v) {
  const uint32_t low = static_cast<uint32_t>(bit_cast<uint64_t>(v)) << 3;  // the top three bits are shifted out
  return low - 8 * (0x10000000u - kUndecidedUlps) <= 16 * kUndecidedUlps;
}

// float32 by double arithmetic, correctly rounded.
//   Error: that of exact_float   Valid range: the same
struct InDouble {
  using Real = float;
  static constexpr int kBits = 54;  // undecided for frequencies below 2^-74

  SINPE_HD static Sample<float> at(const Plan&, const Oscillator&, Position, uint128 phase, const Amplitude& amplitude,
                                   bool* undecided) {
    const uint64_t top = static_cast<uint64_t>(phase >> 64);
    const uint32_t quarter = (static_cast<uint32_t>(top >> 32) + 0x20000000u) >> 30;
    const int64_t rest = static_cast<int64_t>(top - (static_cast<uint64_t>(quarter) << 62));
    double t = static_cast<double>(rest) * 0x1p-64;
    // With 53 or more significant bits, the low half of the phase could change only the last bit.
    if (static_cast<uint32_t>((rest >> 32) + (1 << 21)) < 1u << 22) {
      t = fma(static_cast<double>(static_cast<uint64_t>(phase)), 0x1p-128, t);
      *undecided = *undecided || (rest >= -8 && rest < 8);  // an exact zero, or possibly subnormal
    }
    double s, c;
    sincos_fast(t, &s, &c);
    s *= amplitude.whole;
    c *= amplitude.whole;
    *undecided = *undecided || is_undecided(s) || is_undecided(c);
    Sample<float> v{static_cast<float>(s), static_cast<float>(c)};
    apply_quarter(quarter, &v.s, &v.c);
    return v;
  }
};

// float32 by float arithmetic.
//   Max error: 1 ULP (measured 0.84)   Valid range: as exact_float
struct InSingle {
  using Real = float;
  static constexpr int kBits = 36;  // undecided for frequencies below 2^-92: relative error 2^-37

  SINPE_HD static Sample<float> at(const Plan&, const Oscillator&, Position, uint128 phase, const Amplitude& amplitude,
                                   bool* undecided) {
    const SingleAngle angle = single_angle(phase, amplitude.whole > 0, undecided);  // a zero has the amplitude's sign
    FloatFloat s, c;
    sincos_single(angle.y, &s, &c);
    Sample<float> v{scaled_sum(s, amplitude.parts), scaled_sum(c, amplitude.parts)};
    apply_quarter(angle.quarter, &v.s, &v.c);
    return v;
  }
};

// float64, from the double-double phase.
//   Max error: as accurate_sincos   Valid range: as exact_double
struct InFull {
  using Real = double;
  static constexpr int kBits = 0;

  SINPE_HD static Sample<double> at(const Plan& plan, const Oscillator& o, Position p, uint128,
                                    const Amplitude& amplitude, bool* undecided) {
    const double hi = plan.turns_hi[o.index], lo = plan.turns_lo[o.index];
    Sample<double> v;
    const bool good = accurate_sincos(p.d, hi, lo, amplitude.whole, &v.s, &v.c);
    *undecided = *undecided || !good || !fast_position(p, plan);
    return v;
  }
};

// exact_float and exact_double of sine and cosine: q = 0 and 1.
SINPE_HD Sample<float> exact_sample(float, const Plan& plan, const Frequency& f, Position p) {
  const Reduced r = reduce_position(p, f);
  DD s, c;
  sincos_dd(r.t, &s, &c);
  apply_quarter(static_cast<uint64_t>(r.quadrant), &s, &c);
  return {exact_scaled(s, plan.amplitude), exact_scaled(c, plan.amplitude)};
}
SINPE_HD Sample<double> exact_sample(double, const Plan& plan, const Frequency& f, Position p) {
  return {exact_double(p, f, 0, plan.amplitude), exact_double(p, f, 1, plan.amplitude)};
}

// The sample of a phase that is a whole number of quarters.
template <class Real>
SINPE_HD Sample<Real> on_axis(uint128 phase, double amplitude) {
  const int quarters = static_cast<int>(phase >> 126);
  return {sine_of_quarters<Real>(quarters, amplitude), sine_of_quarters<Real>(quarters + 1, amplitude)};
}

// The sample of any finite position, with every rounding decided. The function is long; `resolved_sample` below calls
// it out of line.
//   Error: that of Arithmetic
template <class Arithmetic>
SINPE_HD Sample<typename Arithmetic::Real> resolved_sample_inline(const Plan& plan, int64_t osc, Position p) {
  const Oscillator o = oscillator_of(plan, osc);
  const Frequency f = plan.frequency(osc);
  bool undecided = lacks_phase_bits(plan, o, p, Arithmetic::kBits);
  if (!undecided) {
    const uint128 phase = integer_phase(p, f);
    if (Arithmetic::kBits != 0 && phase << 2 == 0) return on_axis<typename Arithmetic::Real>(phase, plan.amplitude);
    const auto v = Arithmetic::at(plan, o, p, phase, amplitude_of(plan.amplitude), &undecided);
    if (!undecided) return v;
  }
  return exact_sample(typename Arithmetic::Real{}, plan, f, p);
}
template <class Arithmetic>
SINPE_HD_RARE Sample<typename Arithmetic::Real> resolved_sample(const Plan& plan, int64_t osc, Position p) {
  return resolved_sample_inline<Arithmetic>(plan, osc, p);
}
// From a packed plan that decode_plan() has accepted, so that a GPU thread does not keep a Plan in local memory.
template <class Arithmetic>
SINPE_HD_RARE Sample<typename Arithmetic::Real> resolved_sample(const int64_t* packed_plan, int64_t osc, Position p) {
  return resolved_sample_inline<Arithmetic>(read_plan(packed_plan), osc, p);
}

}  // namespace sinpe
