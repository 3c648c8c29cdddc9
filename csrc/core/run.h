// One oscillator over a run of rows: the state that a GPU thread keeps in registers from row to row. Unless a sample is
// reported as open (its rounding is undecided), its value is that of `settled` in core/sample.h, whatever method
// computed it.
#pragma once

#include "core/sample.h"

namespace sinpe {

// Whether some sample of a row has an undecided rounding, collected without a branch.
struct Open {
  bool is_set = false;
  uint64_t differ = 0;  // bits in which the ends of an error interval differ; those below kOpenBit are ignored
  SINPE_HD bool any() const { return is_set | (differ >> kOpenBit != 0); }
  static constexpr int kOpenBit = 28;

  SINPE_HD void add(bool open) { is_set = is_set | open; }
  // The interval [v - e, v + e]: floats and the midpoints between them differ in bit kOpenBit or above.
  //   Valid range: e >= kLeastValue, or |v| >= kLeastValue, or both 0: below, the spacing of floats is larger
  SINPE_HD void add(double v, double e) { differ |= bit_cast<uint64_t>(v - e) ^ bit_cast<uint64_t>(v + e); }
};

// The range of positions for which the fast phase (core/rotate.h) is valid, tested on the high words of doubles, which
// approximate their logarithms.
struct Reach {
  uint32_t most;        // limit of positions of 2^-30 or more, relative to the high word of 2^-30
  uint32_t most_whole;  // limit of integer positions (0, or 1 and more), relative to 0
  int32_t least;        // offset of the lower limit of the square of a rest, see is_lost
  static constexpr uint32_t kFirst = 993u << 20;

  Reach() = default;
  SINPE_HD explicit Reach(const Plan& plan) {
    static_assert(kFastProduct == 0x1p45 && kFastPosition == 0x1p53, "as the exponents below say");
    const int turns = static_cast<int>(bit_cast<uint64_t>(plan.max_turns) >> 52) - 1023;  // max_turns < 2^(turns + 1)
    const int exponent = turns > -9 ? 44 - turns : 53;
    most = exponent > -30 ? static_cast<uint32_t>(exponent + 30) << 20 : 0;
    most_whole = most == 0 ? 1 : kFirst + most;
    least = ((turns < -400 ? -800 : 2 * turns) - 1115) * (1 << 20);  // no fast phase for frequencies below 2^-60
  }
  SINPE_HD static uint32_t size(double p) { return static_cast<uint32_t>(bit_cast<uint64_t>(p) >> 32) & 0x7fffffff; }
  SINPE_HD bool holds(double p) const { return (size(p) - kFirst < most) | (p == 0.0); }
  SINPE_HD bool holds_whole(double p) const { return size(p) < most_whole; }

  // Whether a rest of t turns, (2*pi*t)^2 = square, may have lost its digits: |t| < |p * max_turns| * 2^-50. With l(x)
  // the high word of x over 2^20, less 1023, l(x) <= log2(x) < l(x) + 0.087. So 2 * (log2(2*pi) + l(p) + 0.087 + turns
  // + 1 - 50) is a sufficient limit for l(square).
  SINPE_HD bool is_lost(double p, double square) const {
    const int32_t needed = static_cast<int32_t>(2 * size(p) + static_cast<uint32_t>(least));
    return static_cast<int32_t>(bit_cast<uint64_t>(square) >> 32) < needed;
  }
};

// The methods of a run. begin() returns false if every row has to be settled by exact arithmetic; at() gives the
// samples, in the order of the rows if the run is consecutive. kByReach: the caller has to settle rows whose positions
// are outside the reach. kScales: at() reads the amplitude.
template <class Arithmetic, bool kConsecutive>
struct Run;

// Rotated from the first row, at most kAnchorRows rows.
template <>
struct Run<InDouble, true> {
  static constexpr bool kByReach = false, kScales = false;  // begin() checks the whole run, and reads the amplitude
  double value, ahead, step_cos, step_sin, bound, ahead_bound;

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position first, int32_t rows, const Reach& reach) {
    const double hi = plan.turns_hi[osc], lo = plan.turns_lo[osc], last = first.d + static_cast<double>(rows);
    const double k_bound = kRotateError * (plan.amplitude < 0 ? -plan.amplitude : plan.amplitude);
    const double farthest = magnitude(first.d) < magnitude(last) ? last : first.d, one = sine_bound(k_bound, hi);
    bool good = reach.holds(first.d) && reach.holds(farthest) && reach.holds(1.0);
    good = good && (k_bound == 0.0 || (k_bound >= kLeastValue && (one == 0.0 || one >= kRotateError * kLeastValue)));
    if (!good) return false;
    bits_t<double> quarter;
    const double t = fast_phase(first.d, hi, lo, &quarter);
    sincos_fast(t, &value, &ahead);
    apply_quarter(quarter, &value, &ahead);
    value = plan.amplitude * (value + 0.0);  // no negative zero
    ahead = plan.amplitude * ahead;
    bound = sine_bound(k_bound, farthest * hi);
    ahead_bound = k_bound;
    return accurate_sincos(1.0, hi, lo, 1.0, &step_sin, &step_cos);
  }
  SINPE_HD Sample<float> at(const Reach&, Position, const Amplitude&, Open* open) {
    open->add(value, bound);
    open->add(ahead, ahead_bound);
    const Sample<float> v{static_cast<float>(value), static_cast<float>(ahead)};
    rotate(step_cos, step_sin, &value, &ahead);
    return v;
  }
};

// Each position reduced separately, integer or fractional.
template <>
struct Run<InDouble, false> {
  static constexpr bool kByReach = true, kScales = true;
  double hi, lo;

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position, int32_t, const Reach& reach) {
    hi = plan.turns_hi[osc];
    lo = plan.turns_lo[osc];
    // Then the sine of a position is 0 or at least the smallest normal float.
    const double size = magnitude(plan.amplitude);
    return reach.holds(1.0) && (hi == 0.0 || magnitude(hi) >= 0x1p-60) && (size == 0.0 || size >= 0x1p-30);
  }
  SINPE_HD Sample<float> at(const Reach& reach, Position p, const Amplitude& amplitude, Open* open) {
    bits_t<double> quarter;
    double s, c;
    const double t = fast_phase(p.d, hi, lo, &quarter), y = t * SINPE_TWO_PI;
    sincos_fast(t, &s, &c);
    s *= amplitude.whole;
    c *= amplitude.whole;
    open->add(reach.is_lost(p.d, y * y));  // otherwise the error of the reduction is below 2^-54 of the rest
    open->add(is_open(s));
    open->add(is_open(c));
    Sample<float> v{static_cast<float>(s), static_cast<float>(c)};
    apply_quarter(low_half(quarter), &v.s, &v.c);
    return v;
  }
};

// By the integer phase; for consecutive positions it is incremented, which is exact.
template <bool kConsecutive>
struct Run<InSingle, kConsecutive> {
  static constexpr bool kByReach = false, kScales = true;
  uint128 phase, step;
  uint64_t whole;  // whole turns per position
  float turns;     // turns per position, rounded to float

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position first, int32_t, const Reach&) {
    const Oscillator o = oscillator_of(plan, osc);
    step = o.step;
    if (kConsecutive) phase = integer_phase(first.i, step);
    whole = static_cast<uint64_t>(o.whole);
    turns = o.whole < 0 ? 0.0f : static_cast<float>(plan.turns_hi[osc]);
    return !is_below_phase(o, InSingle::kBits);
  }
  SINPE_HD Sample<float> at(const Reach&, Position p, const Amplitude& amplitude, Open* open) {
    bool is_open = false;
    if (!kConsecutive && p.integral) phase = integer_phase(p.i, step);
    if (!kConsecutive && !p.integral) {
      // A product below 2^-30 turns has lost its digits. Negative frequencies, which are rare, are always open.
      FixedPosition size;
      const float product = static_cast<float>(p.d) * turns;
      is_open = !fixed_position(p.d, &size) || !(product > 0x1p-29f || product < -0x1p-29f);
      phase = fixed_phase(size, p.d < 0, step, whole);
    }
    const Sample<float> v = InSingle::at({}, {}, {}, phase, amplitude, &is_open);
    if (kConsecutive) phase += step;
    open->add(is_open);
    return v;
  }
};

template <bool kConsecutive>
struct Run<InFull, kConsecutive> {
  static constexpr bool kByReach = true, kScales = true;
  double hi, lo;

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position, int32_t, const Reach&) {
    hi = plan.turns_hi[osc];
    lo = plan.turns_lo[osc];
    return true;
  }
  SINPE_HD Sample<double> at(const Reach&, Position p, const Amplitude& amplitude, Open* open) {
    Sample<double> v;
    open->add(!accurate_sincos(p.d, hi, lo, amplitude.whole, &v.s, &v.c));
    return v;
  }
};

}  // namespace sinpe
