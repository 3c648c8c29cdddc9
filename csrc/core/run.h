// One oscillator over a run of rows, those that a GPU thread computes one after the other (cuda/runs.h): the state that
// it keeps in registers from row to row. The positions need not be consecutive. Unless a sample is reported as
// undecided, its value is that of `resolved_sample` in core/sample.h, whatever method computed it.
#pragma once

#include "core/sample.h"

namespace sinpe {

// Whether some sample of a row has an undecided rounding, collected without a branch.
struct Undecided {
  bool is_set = false;
  uint64_t differ = 0;  // of every error interval
  SINPE_HD bool any() const { return is_set | (differ >> kUndecidedBit != 0); }

  SINPE_HD void add(bool undecided) { is_set = is_set | undecided; }
  //   Valid range: that of ends_differ
  SINPE_HD void add(double v, double e) { differ |= ends_differ(v, e); }
};

// The range of positions for which the fast phase (core/rotate.h) is valid, tested on the high words of doubles, which
// approximate their logarithms.
struct FastRange {
  uint32_t limit;          // limit of positions of 2^-30 or more, relative to the high word of 2^-30
  uint32_t integer_limit;  // limit of integer positions (0, or 1 and more), relative to 0
  int32_t square_offset;   // offset of the lower limit of the square of a rest, see is_lost
  float range_error;       // error bound of a RangeRun's samples, relative to the position
  float rotate_error;      // error bound of rotated samples
  float phase_error;       // error bound of samples by the upper half of the integer phase, relative to the position
  static constexpr uint32_t kFirst = 993u << 20;

  FastRange() = default;
  SINPE_HD explicit FastRange(const Plan& plan) {
    static_assert(kFastProduct == 0x1p45 && kFastPosition == 0x1p53, "as the exponents below say");
    const int turns = static_cast<int>(bit_cast<uint64_t>(plan.max_turns) >> 52) - 1023;  // max_turns < 2^(turns + 1)
    const int exponent = turns > -9 ? 44 - turns : 53;
    limit = exponent > -30 ? static_cast<uint32_t>(exponent + 30) << 20 : 0;
    integer_limit = limit == 0 ? 1 : kFirst + limit;
    range_error =
        static_cast<float>(plan.max_turns * magnitude(plan.amplitude) * 0x1p-49);  // 2*pi * 2^-52 and a margin
    phase_error = static_cast<float>(magnitude(plan.amplitude) * 0x1p-62);         // 2*pi * 2^-65 and a margin
    rotate_error = static_cast<float>(kRotateError * magnitude(plan.amplitude));
    // Frequencies below 2^-60 have no fast phase.
    square_offset = ((turns < -400 ? -800 : 2 * turns) - 1115) * (1 << 20);
  }
  SINPE_HD static uint32_t size(double p) { return static_cast<uint32_t>(bit_cast<uint64_t>(p) >> 32) & 0x7fffffff; }
  SINPE_HD bool contains(double p) const { return (size(p) - kFirst < limit) | (p == 0.0); }
  SINPE_HD bool contains_integer(double p) const { return size(p) < integer_limit; }

  // Whether a rest of t turns, (2*pi*t)^2 = square, may have lost its digits: |t| < |p * max_turns| * 2^-50. With l(x)
  // the high word of x over 2^20, less 1023, l(x) <= log2(x) < l(x) + 0.087. So 2 * (log2(2*pi) + l(p) + 0.087 + turns
  // + 1 - 50) is a sufficient limit for l(square).
  SINPE_HD bool is_lost(double p, double square) const {
    const int32_t needed = static_cast<int32_t>(2 * size(p) + static_cast<uint32_t>(square_offset));
    return static_cast<int32_t>(bit_cast<uint64_t>(square) >> 32) < needed;
  }
};

// The methods of a run. begin() returns false if no row can be computed by the fast method; at() gives the samples, in
// the order of the rows if the run is consecutive. kCallerChecksRange: the caller has to test whether a position is in
// the fast range. Rows for which these methods fail must be computed by `resolved_sample`. kScales: at() reads the
// amplitude.
template <class Arithmetic, bool kConsecutive>
struct Run;

// Rotated from the first row, at most kAnchorRows rows. A single row has a smaller error bound.
template <>
struct Run<InDouble, true> {
  // begin() checks the range of the whole run and applies the amplitude.
  static constexpr bool kCallerChecksRange = false, kScales = false;
  double value, ahead, step_cos, step_sin, bound, ahead_bound;

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position first, int32_t rows, const FastRange& fast_range) {
    const double hi = plan.turns_hi[osc], lo = plan.turns_lo[osc], last = first.d + static_cast<double>(rows);
    const double k_bound = (rows == 1 ? kFastError : kRotateError) * magnitude(plan.amplitude);
    const double farthest = magnitude(first.d) < magnitude(last) ? last : first.d, one = sine_bound(k_bound, hi);
    bool good = fast_range.contains(first.d) && fast_range.contains(farthest) && fast_range.contains(1.0);
    good = good &&
           (k_bound == 0.0 || (k_bound >= kMinNormalValue && (one == 0.0 || one >= kRotateError * kMinNormalValue)));
    if (!good) return false;
    step_sin = step_cos = 0.0;
    if (rows > 1 && !accurate_sincos(1.0, hi, lo, 1.0, &step_sin, &step_cos)) return false;
    bits_t<double> quarter;
    const double t = fast_phase(first.d, hi, lo, &quarter);
    sincos_fast(t, &value, &ahead);
    apply_quarter(quarter, &value, &ahead);
    value = plan.amplitude * (value + 0.0);  // no negative zero
    ahead = plan.amplitude * ahead;
    bound = sine_bound(k_bound, farthest * hi);
    ahead_bound = k_bound;
    return true;
  }
  SINPE_HD Sample<float> at(const FastRange&, Position, const Amplitude&, Undecided* undecided) {
    undecided->add(value, bound);
    undecided->add(ahead, ahead_bound);
    const Sample<float> v{static_cast<float>(value), static_cast<float>(ahead)};
    rotate(step_cos, step_sin, &value, &ahead);
    return v;
  }
};

// Each position reduced separately, integer or fractional.
template <>
struct Run<InDouble, false> {
  static constexpr bool kCallerChecksRange = true, kScales = true;
  double hi, lo;

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position, int32_t, const FastRange& fast_range) {
    hi = plan.turns_hi[osc];
    lo = plan.turns_lo[osc];
    // Then the sine of a position is 0 or at least the smallest normal float.
    const double size = magnitude(plan.amplitude);
    return fast_range.contains(1.0) && (hi == 0.0 || magnitude(hi) >= 0x1p-60) && (size == 0.0 || size >= 0x1p-30);
  }
  SINPE_HD Sample<float> at(const FastRange& fast_range, Position p, const Amplitude& amplitude, Undecided* undecided) {
    bits_t<double> quarter;
    double s, c;
    const double t = fast_phase(p.d, hi, lo, &quarter), y = t * SINPE_TWO_PI;
    sincos_fast(t, &s, &c);
    s *= amplitude.whole;
    c *= amplitude.whole;
    undecided->add(fast_range.is_lost(p.d, y * y));  // otherwise the error of the reduction is below 2^-54 of the rest
    undecided->add(is_undecided(s));
    undecided->add(is_undecided(c));
    Sample<float> v{static_cast<float>(s), static_cast<float>(c)};
    apply_quarter(low_half(quarter), &v.s, &v.c);
    return v;
  }
};

// By the integer phase; for consecutive positions it is incremented, which is exact.
template <bool kConsecutive>
struct Run<InSingle, kConsecutive> {
  static constexpr bool kCallerChecksRange = false, kScales = true;
  uint128 phase, step;
  uint64_t whole;  // whole turns per position
  float turns;     // turns per position, rounded to float

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position first, int32_t, const FastRange&) {
    const Oscillator o = oscillator_of(plan, osc);
    step = o.step;
    if (kConsecutive) phase = integer_phase(first.i, step);
    whole = static_cast<uint64_t>(o.whole);
    turns = o.whole < 0 ? 0.0f : static_cast<float>(plan.turns_hi[osc]);
    return !lacks_phase_bits(o, InSingle::kBits);
  }
  SINPE_HD Sample<float> at(const FastRange&, Position p, const Amplitude& amplitude, Undecided* undecided) {
    bool is_undecided = false;
    if (!kConsecutive && p.integral) phase = integer_phase(p.i, step);
    if (!kConsecutive && !p.integral) {
      // A product below 2^-30 turns has lost its digits. Negative frequencies, which are rare, are always undecided.
      FixedPosition size;
      const float product = static_cast<float>(p.d) * turns;
      is_undecided = !fixed_position(p.d, &size) || !(product > 0x1p-29f || product < -0x1p-29f);
      phase = fixed_phase(size, p.d < 0, step, whole);
    }
    const Sample<float> v = InSingle::at({}, {}, {}, phase, amplitude, &is_undecided);
    if (kConsecutive) phase += step;
    undecided->add(is_undecided);
    return v;
  }
};

template <bool kConsecutive>
struct Run<InFull, kConsecutive> {
  static constexpr bool kCallerChecksRange = true, kScales = true;
  double hi, lo;

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position, int32_t, const FastRange&) {
    hi = plan.turns_hi[osc];
    lo = plan.turns_lo[osc];
    return true;
  }
  SINPE_HD Sample<double> at(const FastRange&, Position p, const Amplitude& amplitude, Undecided* undecided) {
    Sample<double> v;
    undecided->add(!accurate_sincos(p.d, hi, lo, amplitude.whole, &v.s, &v.c));
    return v;
  }
};

// Two floats between which a float32 sample lies, either of which may be the sample, before it is turned by a number of
// quarters (apply_quarter in core/sincos.h). Rounding is monotone, so if both have the same 16-bit result, the sample
// has it, too. For 16-bit results, this replaces the test of the rounding to float32, and values need only the accuracy
// of a float.
struct SampleRange {
  Sample<float> low, high;
  uint32_t quarter;
};

// The range of a value with the approximation v and the error bound |v| * relative + absolute. Because rounding is
// monotone, it suffices that the sums include the exact value before they are rounded.
SINPE_HD void find_range(float v, float relative, float absolute, float* low, float* high) {
  const float error = fma(magnitude(v), relative, absolute);
  *low = v - error;
  *high = v + error;
}

// The range of the sine and cosine of y (|y| <= 0.7855), given the relative error of the sine, that of the cosine (which
// is 0.7 to 1, so that its error bound is the same for all), and what else adds to both errors.
SINPE_HD SampleRange float_range(float y, const Amplitude& amplitude, uint32_t quarter, float relative, float of_cosine,
                                 float absolute) {
  Sample<float> v;
  sincos_float(y, &v.s, &v.c);
  const float size = amplitude.parts.hi, cosine = v.c * size, error = magnitude(size) * of_cosine + absolute;
  SampleRange range{{0.0f, cosine - error}, {0.0f, cosine + error}, quarter};
  find_range(v.s * size, relative, absolute, &range.low.s, &range.high.s);
  return range;
}

// As Run, with ranges instead of samples. row_error(), an argument of at(), is the same for all oscillators of a row;
// `unit`: the amplitude is 1. kTurns: whether ranges have quarters other than 0.
template <class Arithmetic, bool kConsecutive>
struct RangeRun;

// Rotated in double from the first row.
template <>
struct RangeRun<InDouble, true> {
  static constexpr bool kCallerChecksRange = false, kScales = false, kTurns = false;
  Run<InDouble, true> run;
  float sine_error;

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position first, int32_t rows, const FastRange& fast_range) {
    sine_error = 0.0f;
    if (!run.begin(plan, osc, first, rows, fast_range)) return false;
    // No subnormal float: the bound exceeds the error by more than the rounding of this conversion.
    sine_error = static_cast<float>(run.bound);
    return run.bound >= 0x1p-100 || plan.turns_hi[osc] == 0.0;
  }
  SINPE_HD static float row_error(const FastRange& fast_range, Position) { return fast_range.rotate_error; }
  SINPE_HD SampleRange at(Position, const Amplitude&, float cosine_error, bool) {
    constexpr float kRelative = 0x1.1p-24f;  // the rounding to float, 2^-24, and a margin
    SampleRange v;
    v.quarter = 0;
    find_range(static_cast<float>(run.value), kRelative, sine_error, &v.low.s, &v.high.s);
    find_range(static_cast<float>(run.ahead), kRelative, cosine_error, &v.low.c, &v.high.c);
    rotate(run.step_cos, run.step_sin, &run.value, &run.ahead);
    return v;
  }
};

// Each position reduced in double, and the sine and cosine of the rest in float.
template <>
struct RangeRun<InDouble, false> {
  static constexpr bool kCallerChecksRange = true, kScales = true, kTurns = true;
  double turns;

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position, int32_t, const FastRange& fast_range) {
    turns = plan.turns_hi[osc];
    // Then the error of a row is not a subnormal float, and exceeds the rounding of a subnormal y.
    const double size = magnitude(plan.amplitude);
    return fast_range.contains(1.0) && plan.max_turns >= 0x1p-60 && plan.max_turns * size >= 0x1p-40 && size < 0x1p60;
  }
  // The error of the reduction, |p*f| * 2^-52 turns (short_phase). 0 for position 0, of which the sine is exact.
  SINPE_HD static float row_error(const FastRange& fast_range, Position p) {
    return magnitude(static_cast<float>(p.d)) * fast_range.range_error;
  }
  SINPE_HD SampleRange at(Position p, const Amplitude& amplitude, float error, bool unit) const {
    // In units of u = 2^-24: y has 1, its rounding; the sine of y, 1.1 for its last rounding and the polynomial, and 0.4
    // for those of the product (an eighth of the sine): 2.5. The cosine has 0.56 for y, 0.5 for z, 0.5 for the last
    // rounding: 1.56. Scaling adds 2.
    const float of_cosine = unit ? 0x1p-23f : 0x1p-22f;  // 2u, 4u
    bits_t<double> quarter;
    const double t = short_phase(p.d, turns, &quarter);
    return float_range(static_cast<float>(t * SINPE_TWO_PI), amplitude, low_half(quarter), sine_error(unit), of_cosine,
                       error);
  }
  SINPE_HD static float sine_error(bool unit) { return unit ? 0x1.8p-23f : 0x1.4p-22f; }  // 3u, 5u
};

// The same for sums, in which the error of the reduction would leave most roundings undecided at positions above 2^32:
// with the low part of the frequency, and turned by the quarter, so that x can be added.
struct SumRangeRun {
  static constexpr bool kCallerChecksRange = true, kScales = true, kTurns = false;
  RangeRun<InDouble, false> short_run;
  double turns_lo;

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position p, int32_t rows, const FastRange& fast_range) {
    turns_lo = plan.turns_lo[osc];
    return short_run.begin(plan, osc, p, rows, fast_range);
  }
  // Exceeds the error of the reduction, |p*f| * kPhaseError turns, by 2^31. It may be subnormal if |p*f| or the amplitude
  // is tiny; the error is then relative to the sample, or far below any sum.
  SINPE_HD static float row_error(const FastRange& fast_range, Position p) {
    return RangeRun<InDouble, false>::row_error(fast_range, p) * 0x1p-24f;
  }
  SINPE_HD SampleRange at(Position p, const Amplitude& amplitude, float error, bool unit) const {
    // The bound of the sine for both: the cosine's 1.56u are below 2.3u relative to it, and it is scaled like the sine.
    const float relative = short_run.sine_error(unit);
    bits_t<double> quarter;
    const double t = fast_phase(p.d, short_run.turns, turns_lo, &quarter);
    Sample<float> v;
    sincos_float(static_cast<float>(t * SINPE_TWO_PI), &v.s, &v.c);
    v = {v.s * amplitude.parts.hi, v.c * amplitude.parts.hi};
    apply_quarter(low_half(quarter), &v.s, &v.c);
    SampleRange range{};
    find_range(v.s, relative, error, &range.low.s, &range.high.s);
    find_range(v.c, relative, error, &range.low.c, &range.high.c);
    return range;
  }
};

// Integer positions by the upper 64 bits of the integer phase; at most 32 rows if they are consecutive.
template <bool kConsecutive>
struct RangeRun<InSingle, kConsecutive> {
  static constexpr bool kCallerChecksRange = false, kScales = true, kTurns = true;
  uint64_t phase, step;

  SINPE_HD bool begin(const Plan& plan, int64_t osc, Position first, int32_t, const FastRange&) {
    const uint128 exact = fraction(plan.frequency(osc));
    step = static_cast<uint64_t>((exact + (uint64_t{1} << 63)) >> 64);
    if (kConsecutive) phase = static_cast<uint64_t>(integer_phase(first.i, exact) >> 64);
    const double size = magnitude(plan.amplitude);
    return size >= 0x1p-40 && size < 0x1p60;
  }
  // 2*pi times the error of the phase, in turns: 2^-65 per position; if it is incremented, 2^-65 per row and 2^-64 at
  // first.
  SINPE_HD static float row_error(const FastRange& fast_range, Position p) {
    return fast_range.phase_error * (kConsecutive ? 32.0f : magnitude(static_cast<float>(p.i)));
  }
  SINPE_HD SampleRange at(Position p, const Amplitude& amplitude, float error, bool unit) {
    // As above, but y has 3.5u: the conversion, the constant, the product and the sum. And 2u more, so that the range
    // also contains the float32 value of InSingle, which need not be the nearest one. 7u and 4.96u; scaling adds 2u.
    const float relative = unit ? 0x1.ep-22f : 0x1.3p-21f;   // 7.5u, 9.5u
    const float of_cosine = unit ? 0x1.6p-22f : 0x1.ep-22f;  // 5.5u, 7.5u
    if (!kConsecutive) phase = static_cast<uint64_t>(p.i) * step;
    // The upper half rounded to nearest, so that the sum with the signed lower half is not small because of
    // cancellation.
    const uint32_t top = static_cast<uint32_t>((phase + 0x80000000u) >> 32), quarter = top + 0x20000000u;
    const int32_t rest = static_cast<int32_t>(top - (quarter & 0xc0000000u));
    const float low = static_cast<float>(static_cast<int32_t>(low_half(phase))) * (kRadiansHigh * 0x1p-32f);
    if (kConsecutive) phase += step;
    return float_range(fma(static_cast<float>(rest), kRadiansHigh, low), amplitude, quarter >> 30, relative, of_cosine,
                       error);
  }
};

}  // namespace sinpe
