// Resolved samples (core/sample.h) against the exact entries, and runs of rows (core/run.h) against resolved samples:
// rows that a run does not mark as undecided have their bits.
#include "core/run.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "check.h"
#include "plans.h"

namespace {

using namespace sinpe;

struct Counted {
  int64_t samples = 0, open = 0, refused = 0;  // refused: rows of runs that begin() rejected
};

template <class Real>
bool same(Sample<Real> a, Sample<Real> b) {
  return bit_cast<bits_t<Real>>(a.s) == bit_cast<bits_t<Real>>(b.s) &&
         bit_cast<bits_t<Real>>(a.c) == bit_cast<bits_t<Real>>(b.c);
}

// Consecutive positions from `first` on.
template <class Arithmetic>
void test_consecutive(const Plan& plan, int64_t osc, int64_t first, int32_t rows, Counted* counted) {
  const FastRange reach(plan);
  const Amplitude amplitude = amplitude_of(plan.amplitude);
  Run<Arithmetic, true> run;
  if (!run.begin(plan, osc, integer_position(first), rows, reach)) {
    counted->refused += rows;
    return;
  }
  for (int32_t r = 0; r < rows; ++r) {
    const Position p = integer_position(first + r);
    Undecided open;
    if (Run<Arithmetic, true>::kCallerChecksRange) open.add(!reach.contains(p.d));
    const auto v = run.at(reach, p, amplitude, &open);
    ++counted->samples;
    counted->open += open.any();
    CHECK(open.any() || same(v, resolved_sample<Arithmetic>(plan, osc, p)));
  }
}

template <class Arithmetic>
void test_any(const Plan& plan, int64_t osc, Position p, Counted* counted) {
  const FastRange reach(plan);
  Run<Arithmetic, false> run;
  if (!run.begin(plan, osc, {}, 1, reach)) {
    ++counted->refused;
    return;
  }
  Undecided open;
  if (Run<Arithmetic, false>::kCallerChecksRange) open.add(!reach.contains(p.d));
  const auto v = run.at(reach, p, amplitude_of(plan.amplitude), &open);
  ++counted->samples;
  counted->open += open.any();
  CHECK(open.any() || same(v, resolved_sample<Arithmetic>(plan, osc, p)));
}

// Resolved samples: in double arithmetic correctly rounded, in single at most the next float, zeros included.
void test_resolved(const Plan& plan, Position p) {
  const Sample<float> in_double = resolved_sample<InDouble>(plan, 0, p),
                      in_single = resolved_sample<InSingle>(plan, 0, p);
  const Sample<float> exact{exact_float(p, plan.frequency(0), 0, plan.amplitude),
                            exact_float(p, plan.frequency(0), 1, plan.amplitude)};
  CHECK(same(in_double, exact));
  const auto is_next = [](float a, float b) {
    const int64_t apart = int64_t{bit_cast<uint32_t>(a)} - int64_t{bit_cast<uint32_t>(b)};
    return apart == 0 || (b != 0.0f && std::abs(apart) == 1);
  };
  CHECK(is_next(in_single.s, exact.s) && is_next(in_single.c, exact.c));
}

struct All {
  Counted in_double, in_single, in_full;
  void consecutive(const Plan& plan, int64_t osc, int64_t first, int32_t rows) {
    test_consecutive<InDouble>(plan, osc, first, rows, &in_double);
    test_consecutive<InSingle>(plan, osc, first, rows, &in_single);
    test_consecutive<InFull>(plan, osc, first, rows, &in_full);
  }
  void any(const Plan& plan, int64_t osc, Position p) {
    test_any<InDouble>(plan, osc, p, &in_double);
    test_any<InSingle>(plan, osc, p, &in_single);
    test_any<InFull>(plan, osc, p, &in_full);
  }
};

// All kinds of frequencies, amplitudes and positions.
void test_frequencies() {
  check::Random random;
  All consecutive, any;
  for (int n = 0; n < 3000; ++n) {
    const double size = std::exp2(-110.0 * random.uniform() * random.uniform());
    const double f = n % 7 == 0    ? std::floor(random.uniform() * 4096) / 4  // whole quarters of a turn
                     : n % 11 == 0 ? 0.0
                                   : (n % 5 == 0 ? -1.0 : 1.0) * size * (n % 13 == 0 ? 1e4 : 1.0);
    const double amplitude = n % 3 == 0 ? -0.044194173824159216 : (n % 17 == 0 ? std::exp2(-90) : 1.0);
    const TestPlan p = one_frequency(f, amplitude);
    const auto position = [&] {
      const int bits = static_cast<int>(random.next() % 64);
      const int64_t i = static_cast<int64_t>(random.next() >> (63 - bits) >> 1);
      return random.next() % 4 == 0 ? -i : i;
    };
    for (int k = 0; k < 6; ++k) {
      const int64_t first = k == 0 ? 0 : k == 1 ? -20 : std::min(position(), INT64_MAX - kAnchorRows);
      consecutive.consecutive(p.plan, 0, first, k % 2 == 0 ? 32 : static_cast<int32_t>(kAnchorRows));
    }
    for (int k = 0; k < 40; ++k) {
      const Position whole = integer_position(k == 0 ? 0 : position());
      const Position part =
          float_position(std::ldexp(random.uniform() - 0.5, static_cast<int>(random.next() % 120) - 60));
      for (const Position at : {whole, part}) any.any(p.plan, 0, at);
      if (k % 4 == 0) test_resolved(p.plan, whole);
      if (k % 8 == 0) test_resolved(p.plan, part);
    }
  }
  CHECK(consecutive.in_double.samples > 100000 && any.in_double.samples > 10000 && any.in_full.samples > 100000);
}

struct Ranges {
  int64_t samples = 0, refused = 0;

  void see(SampleRange range, Sample<float> exact) {
    const auto between = [](float a, float v, float b) { return std::min(a, b) <= v && v <= std::max(a, b); };
    ++samples;
    for (Sample<float>* v : {&range.low, &range.high}) apply_quarter(range.quarter, &v->s, &v->c);
    CHECK(between(range.low.s, exact.s, range.high.s) && between(range.low.c, exact.c, range.high.c));
  }
  template <class Arithmetic, bool kConsecutive>
  void rows(const Plan& plan, int64_t osc, Position first, int32_t rows) {
    runs<RangeRun<Arithmetic, kConsecutive>, kConsecutive>(plan, osc, first, rows);
  }
  template <class Run, bool kConsecutive>
  void runs(const Plan& plan, int64_t osc, Position first, int32_t rows) {
    const FastRange reach(plan);
    Run run;
    if (!run.begin(plan, osc, first, rows, reach)) {
      refused += rows;
      return;
    }
    for (int32_t r = 0; r < rows; ++r) {
      const Position p = kConsecutive ? integer_position(first.i + r) : first;
      const float error = run.row_error(reach, p);
      const SampleRange range = run.at(p, amplitude_of(plan.amplitude), error, plan.amplitude == 1.0);
      CHECK(run.kTurns || range.quarter == 0);
      if (run.kCallerChecksRange && !reach.contains(p.d)) {
        ++refused;
      } else {
        see(range, resolved_sample<InDouble>(plan, osc, p));
      }
    }
  }
};

// Ranges include the correctly rounded sample, at any frequency, amplitude and position.
void test_ranges() {
  check::Random random;
  Ranges rotated, separate, stepped, single, summed;
  for (int n = 0; n < 3000; ++n) {
    const double size = std::exp2(-50.0 * random.uniform() * random.uniform());
    const double f = n % 7 == 0 ? std::floor(random.uniform() * 4096) / 4 : (n % 5 == 0 ? -1.0 : 1.0) * size;
    const TestPlan p = one_frequency(f * (n % 13 == 0 ? 1e3 : 1.0), n % 3 == 0 ? -0.044194173824159216 : 1.0);
    for (int k = 0; k < 40; ++k) {
      const int bits = static_cast<int>(random.next() % 40);
      const int64_t i = k == 0 ? 0 : static_cast<int64_t>(random.next() >> (63 - bits));
      const Position at = integer_position(random.next() % 4 == 0 ? -i : i);
      rotated.rows<InDouble, true>(p.plan, 0, at, k % 2 == 0 ? 32 : 1);
      stepped.rows<InSingle, true>(p.plan, 0, at, 32);
      separate.rows<InDouble, false>(p.plan, 0, at, 1);
      single.rows<InSingle, false>(p.plan, 0, at, 1);
      const Position any =
          float_position(std::ldexp(random.uniform() - 0.5, static_cast<int>(random.next() % 80) - 30));
      separate.rows<InDouble, false>(p.plan, 0, any, 1);
      summed.runs<SumRangeRun, false>(p.plan, 0, k % 2 == 0 ? at : any, 1);
    }
  }
  for (const Ranges& r : {rotated, separate, stepped, single, summed}) CHECK(r.samples > 50000);
}

// An amplitude that brings the sine or cosine of a position, scaled by 2^exponent, as close to the midpoint of two
// floats as doubles allow: an undecided rounding that is not marked is wrong half of the time.
double hard_amplitude(const TestPlan& unit, Position p, bool cosine, int exponent, check::Random* random) {
  const Reduced r = reduce_position(p, unit.plan.frequency(0));
  DD s, c;
  sincos_dd(r.t, &s, &c);
  apply_quarter(static_cast<uint64_t>(r.quadrant), &s, &c);
  const float low = static_cast<float>(std::ldexp(1.0 + random->uniform(), exponent));
  const double middle = (static_cast<double>(low) + static_cast<double>(std::nextafter(low, HUGE_VALF))) / 2;
  return middle / (cosine ? c.hi : s.hi);
}

void test_midpoints() {
  check::Random random;
  All consecutive, any;
  for (int n = 0; n < 20000; ++n) {
    const double f = std::exp2(-40.0 * random.uniform() * random.uniform());
    const TestPlan unit = one_frequency(f, 1.0);
    const int64_t first = static_cast<int64_t>(random.next() >> (34 + random.next() % 29)) + 1;
    const int32_t row = static_cast<int32_t>(random.next() % static_cast<uint64_t>(kAnchorRows));
    const Position whole = integer_position(first + row), part = float_position(random.uniform() * 1e4 + 1e-3);
    const bool cosine = n % 2 == 0;
    const int exponent = n % 4 < 2 ? 0 : (n % 8 < 4 ? -60 : -140 + n % 16);  // the last: floats that are farther apart
    for (const Position p : {whole, part}) {
      const double amplitude = hard_amplitude(unit, p, cosine, exponent, &random);
      if (!(std::fabs(amplitude) < 1e30)) continue;  // an exact zero
      const TestPlan hard = one_frequency(f, amplitude);
      any.any(hard.plan, 0, p);
      if (p.integral) consecutive.consecutive(hard.plan, 0, first, static_cast<int32_t>(kAnchorRows));
    }
  }
  CHECK(any.in_double.open > 1000 && consecutive.in_double.open > 1000);
}

// A double near the midpoint of two floats does not decide which is nearest, on both sides of it; random values are
// rarely that close.
void test_undecided() {
  for (const double v : {1.0, -0.7, 1e-30, 3.0}) {
    const uint64_t high = static_cast<uint64_t>(bits_of(v)) >> 29 << 29, middle = high | 0x10000000;
    const uint64_t reach = kUndecidedUlps;
    for (uint64_t k = 0; k <= reach; ++k) {
      CHECK(is_undecided(bit_cast<double>(middle + k)) && is_undecided(bit_cast<double>(middle - k)));
    }
    for (const uint64_t bits : {middle + reach + 1, middle - reach - 1, high, high | 0x1fffffff}) {
      CHECK(!is_undecided(bit_cast<double>(bits)));
    }
  }
}

// Reach gives valid bounds for all sizes.
void test_reach() {
  check::Random random;
  for (int n = 0; n < 200000; ++n) {
    TestPlan made = one_frequency(0.25, 1.0);
    made.plan.max_turns = std::ldexp(1.0 + random.uniform(), static_cast<int>(random.next() % 200) - 150);
    const FastRange reach(made.plan);
    const double p = std::ldexp(1.0 + random.uniform(), static_cast<int>(random.next() % 140) - 60);
    CHECK(reach.contains(p) == reach.contains(-p) && reach.contains(0.0));
    const double whole = std::floor(p);
    CHECK(reach.contains_integer(whole) == reach.contains(whole) &&
          reach.contains_integer(-whole) == reach.contains(-whole));
    CHECK(!reach.contains(p) || (p >= 0x1p-30 && p < kFastPosition && p * made.plan.max_turns < kFastProduct));
    // And not larger than necessary by more than a factor of 4.
    CHECK(reach.contains(p) || p < 0x1p-30 || 4 * p >= kFastPosition || 4 * p * made.plan.max_turns >= kFastProduct);
    const double least = p * made.plan.max_turns * 0x1p-50, t = least * std::exp2(6.0 * (random.uniform() - 0.5));
    if (!reach.contains(p) || t > 0.131) continue;
    const double y = 6.283185307179586 * t;
    CHECK(reach.is_lost(p, y * y) || t >= least);
    CHECK(!reach.is_lost(p, y * y) || t < 4 * least);
  }
  for (const double p : {std::nan(""), HUGE_VAL, -HUGE_VAL, 1e300})
    CHECK(!FastRange(make_plan(8, 0, false).plan).contains(p));
}

}  // namespace

int main() {
  test_frequencies();
  test_ranges();
  test_midpoints();
  test_undecided();
  test_reach();
  return check::finish("test_run");
}
