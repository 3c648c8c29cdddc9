// The arithmetics of core/sample.h against the exact entries: InDouble bit by bit, InSingle in ULP, InFull bit by bit
// as in the CPU's rows.
#include <cmath>
#include <vector>

#include "check.h"
#include "core/sample.h"
#include "plans.h"

namespace {

using namespace sinpe;

// |got - want| in ULP of want, a double-double.
double ulps(float got, DD want) {
  const float nearest = round_to_float(want);
  int exponent;
  std::frexp(nearest == 0.0f ? 1e-45f : nearest, &exponent);
  const double ulp = std::ldexp(1.0, std::max(exponent, -125) - 24);
  return std::fabs((static_cast<double>(got) - want.hi) - want.lo) / ulp;
}

struct Worst {
  double single = 0.0;
  int64_t open = 0, samples = 0;
};

void test_entry(const TestPlan& p, Position position, Worst* worst) {
  const Frequency f = p.plan.frequency(0);
  const Sample<float> in_double = resolved_sample<InDouble>(p.plan, 0, position);
  const Sample<float> in_single = resolved_sample<InSingle>(p.plan, 0, position);
  const Sample<float> exact{exact_float(position, f, 0, p.plan.amplitude),
                            exact_float(position, f, 1, p.plan.amplitude)};
  CHECK(bit_cast<uint32_t>(in_double.s) == bit_cast<uint32_t>(exact.s));
  CHECK(bit_cast<uint32_t>(in_double.c) == bit_cast<uint32_t>(exact.c));
  const Reduced r = reduce_position(position, f);
  DD s, c;
  sincos_dd(r.t, &s, &c);
  apply_quarter(static_cast<uint64_t>(r.quadrant), &s, &c);
  const Sample<DD> v{s, c};
  worst->single = std::fmax(worst->single, ulps(in_single.s, dd_mul(v.s, p.plan.amplitude)));
  worst->single = std::fmax(worst->single, ulps(in_single.c, dd_mul(v.c, p.plan.amplitude)));
  // Without the sign, which exact zeros do not have.
  CHECK(exact.s != 0.0f || bit_cast<uint32_t>(in_single.s) == bit_cast<uint32_t>(exact.s));
  CHECK(exact.c != 0.0f || bit_cast<uint32_t>(in_single.c) == bit_cast<uint32_t>(exact.c));
  bool open = false;
  const Oscillator o = oscillator_of(p.plan, 0);
  if (position.integral) InDouble::at(p.plan, o, position, integer_phase(position.i, o.step), amplitude_of(1.0), &open);
  worst->open += open;
  ++worst->samples;
}

void test_frequencies() {
  check::Random random;
  Worst worst;
  for (int n = 0; n < 4000; ++n) {
    const double size = std::exp2(-100.0 * random.uniform() * random.uniform());
    const double whole = n % 7 == 0 ? std::floor(random.uniform() * 3000) : 0.0;
    const double f =
        (n % 5 == 0 ? -1.0 : 1.0) * (whole != 0.0 ? whole + std::floor(random.uniform() * 1024) / 1024 : size);
    const TestPlan p = one_frequency(f, n % 3 == 0 ? 0.044194173824159216 : 1.0);
    for (int k = 0; k < 60; ++k) {
      const int bits = static_cast<int>(random.next() % 64);
      int64_t i = static_cast<int64_t>(random.next() >> (63 - bits) >> 1);
      if (k % 4 == 0) i = -i;
      test_entry(p, integer_position(k == 0 ? 0 : i), &worst);
      const double d = std::ldexp(random.uniform() - 0.5, static_cast<int>(random.next() % 60) - 20);
      if (k % 3 == 0) test_entry(p, float_position(d), &worst);
    }
  }
  std::printf("InSingle: %.3f ULP at most; InDouble left %" PRId64 " of %" PRId64 " samples open\n", worst.single,
              worst.open, worst.samples);
  CHECK(worst.single <= 1.0);
  CHECK(worst.open < worst.samples / 10);  // exact zeros: position 0 and whole frequencies
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

// All positions up to 2^20 of the paper's frequencies would take too long: the oscillators of d = 512, each over its
// own run, and the closest approaches to zero.
void test_paper() {
  const TestPlan p = make_plan(512, 0, false);
  Worst worst;
  check::Random random;
  const int64_t closest[][2] = {{7199, 35}, {81665, 13}, {408325, 77}, {3803902, 50}};
  for (int64_t osc = 0; osc < 256; ++osc) {
    const Oscillator o = oscillator_of(p.plan, osc);
    const Amplitude one = amplitude_of(1.0);
    int64_t from = static_cast<int64_t>(random.next() >> 34);
    for (const auto& c : closest) from = c[1] == osc ? c[0] - 100 : from;
    uint128 phase = integer_phase(from, o.step);
    for (int64_t i = from; i < from + 2000; ++i, phase += o.step) {
      CHECK(phase == integer_phase(i, o.step) && phase == integer_phase(integer_position(i), p.plan.frequency(osc)));
      bool open = false;
      const Sample<float> single = InSingle::at(p.plan, o, integer_position(i), phase, one, &open);
      Sample<float> in_double = InDouble::at(p.plan, o, integer_position(i), phase, one, &open);
      if (open) in_double = resolved_sample<InDouble>(p.plan, osc, integer_position(i));
      const Reduced r = reduce_position(integer_position(i), p.plan.frequency(osc));
      DD s, c;
      sincos_dd(r.t, &s, &c);
      apply_quarter(static_cast<uint64_t>(r.quadrant), &s, &c);
      const Sample<DD> v{s, c};
      CHECK(in_double.s == round_to_float(v.s) && in_double.c == round_to_float(v.c));
      worst.single = std::fmax(worst.single, std::fmax(ulps(single.s, v.s), ulps(single.c, v.c)));
    }
  }
  std::printf("InSingle, d = 512: %.3f ULP at most\n", worst.single);
  CHECK(worst.single <= 1.0);
}

}  // namespace

int main() {
  test_frequencies();
  test_paper();
  test_undecided();
  return check::finish("test_sample");
}
