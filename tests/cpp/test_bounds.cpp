// Each error bound of csrc/core against the largest error that is found: over anchors at the ends of a run, frequencies
// and positions near a zero or at the limits of the range, and random ones, in arithmetic of 113 bits. No error exceeds
// its bound, and the largest is the stated fraction of the bound. So a bound that is changed fails: one that is too
// small, of which a result shows nothing in hundreds of millions, and one that leaves too much undecided.
#include <cfloat>
#include <cmath>
#include <string>

#include "check.h"
#include "core/run.h"
#include "core/tree_sum.h"
#include "kernels.h"
#include "plans.h"

#if defined(__SIZEOF_FLOAT128__) || LDBL_MANT_DIG == 113

namespace {

using namespace sinpe;

#if defined(__SIZEOF_FLOAT128__)
__extension__ typedef __float128 quad;
#else
typedef long double quad;
#endif

constexpr double kUnit = 0x1p-53;   // u of the comments in csrc/core
constexpr double kTurn = 0x1p-128;  // turns of a unit of a phase
check::Random random;

struct Largest {
  double ratio = 0;  // of an error and its bound
  void see(quad error, double bound) {
    const double size = std::fabs(static_cast<double>(error));
    ratio = std::fmax(ratio, size == 0 ? 0 : size / bound);
  }
};

// `found`: the fraction when this was written; libraries' exp2 and the like may change it a little.
void expect(const char* name, const Largest& largest, double found) {
  const bool good = largest.ratio <= 1 && largest.ratio >= 0.8 * found && largest.ratio <= 1.25 * found;
  if (!good) std::printf("%s: the largest error is %.4f of the bound, expected %.4f\n", name, largest.ratio, found);
  CHECK(good);
}

double between(double low, double high) { return low + (high - low) * random.uniform(); }
double power(double low, double high) { return std::exp2(between(low, high)); }
DD double_double() { return {between(1, 2), between(-0x1p-53, 0x1p-53)}; }
quad sum(DD v) { return static_cast<quad>(v.hi) + v.lo; }

struct Point {
  quad s, c;
};

// sin and cos of t turns by their series, |t| <= 0.131.
Point on_arc(quad t) {
  constexpr int kTerms = 16;
  static quad factors[2 * kTerms + 2];  // 1/k!
  for (int k = 0; factors[2 * kTerms + 1] == 0; ++k) factors[k] = k == 0 ? 1 : factors[k - 1] / k;
  const quad y = t * (static_cast<quad>(0x1.921fb54442d18p+2) + 0x1.1a62633145c07p-52 - 0x1.f1976b7ed8fbcp-108);
  const quad z = y * y;
  quad s = 0, c = 0;
  for (int k = kTerms; k >= 0; --k) {
    s = factors[2 * k + 1] - s * z;
    c = factors[2 * k] - c * z;
  }
  return {y * s, c};
}

// Those of a phase in units of 2^-128 turns.
Point on_circle(uint128 phase) {
  const uint128 quarter = (phase + (static_cast<uint128>(1) << 125)) >> 126;
  const Point p = on_arc(static_cast<quad>(static_cast<int128>(phase - (quarter << 126))) * kTurn);
  return (quarter & 1) == 0 ? ((quarter & 2) == 0 ? p : Point{-p.s, -p.c})
                            : ((quarter & 2) == 0 ? Point{p.c, -p.s} : Point{-p.c, p.s});
}

uint128 phase_at(int64_t p, uint128 fraction) { return static_cast<uint128>(static_cast<int128>(p)) * fraction; }

// How far a number of quarters and a rest are from a phase, in turns.
quad turns_between(uint64_t quarters, quad rest, uint128 phase) {
  return rest - static_cast<quad>(static_cast<int128>(phase - (static_cast<uint128>(quarters) << 126))) * kTurn;
}

uint128 random_fraction(double least) {  // 2^least to 1/2 of a turn, with all its bits
  const uint128 whole = static_cast<uint128>(random.next() | uint64_t{1} << 63) << 64 | random.next();
  return whole >> (1 + static_cast<int>(between(0, -least)));
}

// A frequency whose product with p > 0 is `turns` whole turns and `rest` (within p units).
uint128 fraction_for(int64_t p, uint64_t turns, int128 rest) {
  const uint128 n = static_cast<uint128>(p), all = ~static_cast<uint128>(0), quotient = all / n;
  return quotient * turns + static_cast<uint128>(static_cast<int128>((all % n + 1) * turns) + rest) / n;
}

// A plan of pairs with these frequencies, the low parts included.
TestPlan plan_of_fractions(const std::vector<uint128>& fractions, double amplitude) {
  const size_t n = fractions.size();
  TestPlan made = plan_of(std::vector<double>(n, 0.25), static_cast<int64_t>(2 * n), 0, false, amplitude);
  double most = 0;
  for (size_t k = 0; k < n; ++k) {
    const quad f = static_cast<quad>(fractions[k]) * kTurn;
    const double hi = static_cast<double>(f);
    const int64_t words[] = {static_cast<int64_t>(fractions[k] >> 64), static_cast<int64_t>(fractions[k]), 0,
                             bits_of(hi), bits_of(static_cast<double>(f - hi))};
    for (size_t j = 0; j < 5; ++j) made.words[16 + j * n + k] = words[j];
    most = std::fmax(most, hi);
  }
  made.words[10] = bits_of(most);
  CHECK(decode_plan(made.words.data(), static_cast<int64_t>(made.words.size()), &made.plan));
  return made;
}

void test_double_doubles() {
  Largest sums, by_double, by_sum;
  for (int k = 0; k < 100000; ++k) {
    const DD a = double_double(), b = double_double(), c{k % 2 == 0 ? b.hi : -b.hi, b.lo};
    sums.see(sum(dd_add(a, c)) - (sum(a) + sum(c)), 0x1p-104 * (a.hi + b.hi));
    const quad product = sum(a) * sum(b), simple = sum(a) * b.hi;
    by_double.see((sum(dd_mul(a, b.hi)) - simple) / simple, 0x1p-104);
    by_sum.see((sum(dd_mul(a, b)) - product) / product, 0x1p-103);
  }
  expect("dd_add", sums, 0.25);
  expect("dd_mul by a double", by_double, 0.4);
  expect("dd_mul", by_sum, 0.44);
}

// The polynomials alone, without roundings; then with them.
void test_sincos() {
  const double s_of[] = {kS1, kS2, kS3, kS4, kS5, kS6}, c_of[] = {kC1, kC2, kC3, kC4, kC5, kC6};
  Largest narrow, wide, cosine, fast_sine, fast_wide, fast_cosine, sine, sine_ulp, accurate_cosine, series;
  for (int k = 1; k <= 20000; ++k) {
    const double t = 0.131 * k / 20000 * (k % 2 == 0 ? 1 : -1);
    const Point exact = on_arc(t), turn = on_arc(static_cast<quad>(t));
    const quad y = t * (static_cast<quad>(kTwoPi.hi) + kTwoPi.lo), z = y * y;
    quad s = 0, c = 0;
    for (int i = 5; i >= 0; --i) {
      s = s * z + s_of[i];
      c = c * z + c_of[i];
    }
    const bool is_wide = std::fabs(t) > 0.1251;
    (is_wide ? wide : narrow).see((y + y * z * s - exact.s) / exact.s, (is_wide ? 1.28 : 0.04) * kUnit);
    cosine.see(1 - z / 2 + z * z * c - exact.c, 0.02 * kUnit);
    double fs, fc;
    sincos_fast(t, &fs, &fc);
    (is_wide ? fast_wide : fast_sine).see((fs - turn.s) / turn.s, (is_wide ? 3.5 : 2.8) * kUnit);
    fast_cosine.see(fc - turn.c, 1.9 * kUnit);
    const DD dd = quick_two_sum(between(-0.1251, 0.1251) * power(-k % 40, 0), power(-200, -60));
    const Point at = on_arc(sum(dd));
    DD as, ac;
    sincos_accurate(dd, &as, &ac);
    const quad error = sum(as) - at.s;
    sine.see(error / at.s, 0.55 * kUnit);
    sine_ulp.see(error, 0.39 * std::ldexp(1.0, std::ilogb(as.hi) - 52));
    accurate_cosine.see(sum(ac) - at.c, 0.12 * kUnit);
    sincos_dd(dd, &as, &ac);
    series.see((sum(as) - at.s) / at.s, 0x1p-98);
    series.see((sum(ac) - at.c) / at.c, 0x1p-98);
  }
  expect("polynomial of the sine", narrow, 0.99);
  expect("polynomial of the sine beyond an eighth", wide, 1);
  expect("polynomial of the cosine", cosine, 0.75);
  expect("sincos_fast, sine", fast_sine, 0.77);
  expect("sincos_fast, sine beyond an eighth", fast_wide, 0.55);
  expect("sincos_fast, cosine", fast_cosine, 0.69);
  expect("sincos_accurate, sine", sine, 0.51);
  expect("sincos_accurate, sine in ULP", sine_ulp, 0.48);
  expect("sincos_accurate, cosine", accurate_cosine, 0.61);
  expect("sincos_dd", series, 0.017);
}

// Reductions, and values computed from them, where the product is large and its rest is small as well as anywhere.
void test_phases() {
  Largest fast, brief, both, exact, quarters, reach, direct, small, ulps, doubles, scaled;
  for (int k = 0; k < 60000; ++k) {
    const int64_t p = static_cast<int64_t>(power(1, 52.9));
    const double turns = std::fmin(power(-6, 44.9), static_cast<double>(p) * 0.4);
    const int128 rest = static_cast<int128>(power(80, 126)) * (k % 2 == 0 ? 1 : -1);
    const bool is_near = k % 4 < 2 && turns >= 1;
    const uint128 f = is_near ? fraction_for(p, static_cast<uint64_t>(turns), rest)
                              : random_fraction(-60) / (k % 4 == 3 ? 1 : static_cast<uint128>(1) << 20);
    const double amplitude = k % 3 == 0 ? -0.7 : 1.0;
    const TestPlan made = plan_of_fractions({f}, amplitude);
    const Frequency of = made.plan.frequency(0);
    const double d = static_cast<double>(p), product = d * of.turns_hi;
    const Reduced r = reduce_position(integer_position(p), of);
    const uint128 phase = phase_at(p, f);
    exact.see(turns_between(static_cast<uint64_t>(r.quadrant), sum(r.t), phase),
              (1.5 * d + 1) * 0x1p-128 + std::fabs(r.t.hi) * 0x1p-103);
    if (!fast_position(integer_position(p), made.plan)) continue;
    uint64_t quarter;
    const auto turned = [&](quad t) { return turns_between(quarter, t, phase); };
    const double t = fast_phase(d, of.turns_hi, of.turns_lo, &quarter);
    fast.see(turned(t), std::fabs(t) * kUnit + product * kPhaseError);
    reach.see(t, 0.131);
    double s, c;
    sincos_fast(t, &s, &c);
    const Point want = on_circle(phase - (static_cast<uint128>(quarter) << 126));
    const double k_bound = kFastError * std::fabs(amplitude);
    (product < 0.1 ? small : direct).see(amplitude * s - amplitude * want.s, sine_bound(k_bound, product));
    direct.see(amplitude * c - amplitude * want.c, k_bound);
    const double y = t * kTwoPiHigh;
    if (!FastRange(made.plan).is_lost(d, y * y)) {
      ulps.see(amplitude * s - amplitude * want.s, kUndecidedUlps * std::ldexp(1.0, std::ilogb(amplitude * s) - 52));
      ulps.see(amplitude * c - amplitude * want.c, kUndecidedUlps * std::ldexp(1.0, std::ilogb(amplitude * c) - 52));
    }
    brief.see(turned(short_phase(d, of.turns_hi, &quarter)), product * 0x1p-52);
    const DD low = fast_phase_dd(d, of.turns_hi, of.turns_lo, &quarter);
    if (std::fabs(low.hi) < product * 0x1p-48) continue;
    both.see(turned(sum(low)), (product + std::fabs(low.hi)) * 0x1p-104);
    const Point all = on_circle(phase);
    CHECK(accurate_sincos(d, of.turns_hi, of.turns_lo, amplitude, &s, &c));
    for (const auto& [value, of_it] : {std::make_pair(s, all.s), std::make_pair(c, all.c)}) {
      const double ulp = std::ldexp(1.0, std::ilogb(value) - 52);
      (amplitude == 1.0 ? doubles : scaled)
          .see(value - amplitude * of_it, ((amplitude == 1.0 ? 0.89 : 1.05) + (product > 0x1p40 ? 0.08 : 0)) * ulp);
    }
  }
  // Frequencies whose last digit was rounded by half a unit, at positions where their phase is all but a quarter.
  for (int k = 0; k < 20000; ++k) {
    const int64_t p = 1 + static_cast<int64_t>(power(0, 62));
    const int64_t off = static_cast<int64_t>(between(-2, 2) * static_cast<double>(p));
    const uint128 f = fraction_for(p, 1 + random.next() % 5, (static_cast<int128>(1) << 126) + off);
    if ((f >> 125) != 0) continue;
    const TestPlan made = plan_of_fractions({f}, 1.0);
    const Reduced r = reduce_position(integer_position(p), made.plan.frequency(0));
    const quad half = static_cast<quad>(p) * kTurn / 2;
    const quad error = turns_between(static_cast<uint64_t>(r.quadrant), sum(r.t), phase_at(p, f));
    quarters.see(std::fabs(static_cast<double>(error)) + half,
                 (1.5 * static_cast<double>(p) + 1) * 0x1p-128 + std::fabs(r.t.hi) * 0x1p-103);
  }
  expect("fast_phase", fast, 1);
  expect("rest of fast_phase", reach, 0.96);
  expect("short_phase", brief, 0.97);
  expect("fast_phase_dd", both, 0.28);
  expect("reduce_position", exact, 0.21);
  expect("reduce_position near a quarter", quarters, 1);
  expect("kFastError", direct, 0.23);
  expect("kFastError of small angles", small, 0.41);
  expect("kUndecidedUlps", ulps, 0.16);
  expect("accurate_sincos", doubles, 0.81);
  expect("accurate_sincos with an amplitude", scaled, 0.73);
}

// Rows rotated over a whole run, on each instruction set and by the run of a GPU thread.
struct Rotated {
  Largest sine, ahead, small;

  void see(double value, double bound, double next, double next_bound, uint128 phase, double amplitude, bool is_small) {
    const Point want = on_circle(phase);
    (is_small ? small : sine).see(value - amplitude * want.s, bound);
    ahead.see(next - amplitude * want.c, next_bound);
  }
  void cpu(const RowKernels& kernels, const TestPlan& p, const std::vector<uint128>& f, int64_t first, bool is_small) {
    RowState state(p.plan);
    std::vector<float> rows(static_cast<size_t>(kAnchorRows * p.plan.dim));
    kernels.steps(state);
    kernels.anchor(state, static_cast<double>(first), true);
    const int64_t last = kAnchorRows - 1;
    kernels.of_float.rotate(state, first, last, rows.data(), p.plan.dim, Stores::kCached);
    for (size_t k = 0; k < f.size(); ++k) {
      see(state.value[k], state.bound[k], state.ahead[k], state.ahead_bound, phase_at(first + last, f[k]),
          p.plan.amplitude, is_small);
    }
  }
  void cuda(const TestPlan& p, const std::vector<uint128>& f, int64_t first, bool is_small) {
    const FastRange range(p.plan);
    for (size_t k = 0; k < f.size(); ++k) {
      Run<InDouble, true> run{};
      Undecided unused;
      CHECK(run.begin(p.plan, static_cast<int64_t>(k), integer_position(first), kAnchorRows, range));
      for (int64_t row = 1; row < kAnchorRows; ++row) run.at(range, {}, {}, &unused);
      see(run.value, run.bound, run.ahead, run.ahead_bound, phase_at(first + kAnchorRows - 1, f[k]), p.plan.amplitude,
          is_small);
    }
  }
};

void test_rotation() {
  Rotated cpu, cuda;
  for (int k = 0; k < 120; ++k) {
    const bool is_small = k % 3 == 0;
    std::vector<uint128> f;
    for (int i = 0; i < 64; ++i) f.push_back(is_small ? random_fraction(-40) >> 10 : random_fraction(-8));
    const int64_t anchors[] = {0, 1, -127, -64}, any = static_cast<int64_t>(power(3, 44));
    const int64_t first = is_small ? anchors[k / 3 % 4] : (k % 2 == 0 ? any : -any);
    const TestPlan made = plan_of_fractions(f, k % 5 == 0 ? 0.7 : 1.0);
    for (const RowKernels* kernels : kernel_sets()) cpu.cpu(*kernels, made, f, first, is_small);
    cuda.cuda(made, f, first, is_small);
  }
  expect("rotated rows, CPU, sine", cpu.sine, 0.11);
  expect("rotated rows, CPU, a quarter ahead", cpu.ahead, 0.11);
  expect("rotated rows, CPU, small angles", cpu.small, 0.094);
  expect("rotated rows, CUDA, sine", cuda.sine, 0.11);
  expect("rotated rows, CUDA, a quarter ahead", cuda.ahead, 0.11);
  expect("rotated rows, CUDA, small angles", cuda.small, 0.094);
}

// Ranges of floats: the distance of the value from the middle, relative to half of their width. `bits`: of the largest
// position. Where positions are small, the bound of the float arithmetic is seen; elsewhere, and near a zero, that of
// the reduction.
template <class Run>
void test_ranges(const char* name, int32_t rows, double bits, bool near_zero, const double (&found)[4]) {
  for (int kind = 0; kind < 2; ++kind) {  // the amplitude
    Largest sine, cosine;
    for (int k = 0; k < 20000; ++k) {
      const int64_t p = static_cast<int64_t>(k % 2 == 0 ? power(0, bits) : power(bits - 1, bits));
      const int128 rest = static_cast<int128>(static_cast<uint128>(k) << 126) + static_cast<int128>(power(66, 86));
      const uint64_t turns = 1 + random.next() % static_cast<uint64_t>((p + 3) / 4);
      const uint128 f = near_zero ? fraction_for(p + rows - 1, turns, rest) : random_fraction(-8);
      const TestPlan made = plan_of_fractions({f}, kind == 0 ? 1.0 : between(0.5, 2));
      const FastRange reach(made.plan);
      const Amplitude amplitude = amplitude_of(made.plan.amplitude);
      Run run{};
      if (!run.begin(made.plan, 0, integer_position(p), rows, reach) || !reach.contains(static_cast<double>(p)))
        continue;
      SampleRange v{};
      for (int32_t r = 0; r < rows; ++r) {
        const Position at = integer_position(p + r);
        v = run.at(at, amplitude, run.row_error(reach, at), kind == 0);
      }
      const Point want = on_circle(phase_at(p + rows - 1, f) - (static_cast<uint128>(v.quarter) << 126));
      const auto see = [&](Largest& into, float low, float high, quad value) {
        if (near_zero && std::fabs(low) > 0x1p-30f) return;
        const double middle = (static_cast<double>(low) + static_cast<double>(high)) / 2;
        into.see(value * made.plan.amplitude - middle, std::fabs(static_cast<double>(high) - middle));
      };
      see(sine, v.low.s, v.high.s, want.s);
      see(cosine, v.low.c, v.high.c, want.c);
    }
    expect((std::string(name) + (kind == 0 ? ", sine" : ", scaled sine")).c_str(), sine, found[2 * kind]);
    expect((std::string(name) + (kind == 0 ? ", cosine" : ", scaled cosine")).c_str(), cosine, found[2 * kind + 1]);
  }
}

double ulp_of(quad v) { return std::ldexp(1.0, std::ilogb(static_cast<double>(v)) - 23); }

void test_single() {
  Largest angle, small_angle, sine, cosine, float_sine, float_cosine, sample, scaled;
  const quad two_pi = static_cast<quad>(kTwoPi.hi) + kTwoPi.lo;
  for (int k = 0; k < 40000; ++k) {
    const uint128 phase = static_cast<uint128>(random.next()) << 64 | random.next();
    const uint128 near = k % 2 == 0 ? phase : (phase >> 126 << 126) + (phase >> (4 + k % 44));
    bool undecided = false;
    const SingleAngle a = single_angle(near, false, &undecided);
    if (undecided) continue;
    const int128 rest = static_cast<int128>(near - (static_cast<uint128>(a.quarter) << 126));
    const quad y = static_cast<quad>(rest) * kTurn * two_pi, pair = static_cast<quad>(a.y.hi) + a.y.lo;
    const bool is_small = std::fabs(static_cast<double>(rest)) < 0.01 / kTurn;
    (is_small ? small_angle : angle).see((pair - y) / y, is_small ? 0x1p-26 : 0x1p-40);
    FloatFloat s, c;
    sincos_single(a.y, &s, &c);
    const Point at = on_arc(pair / two_pi), at_float = on_arc(a.y.hi / two_pi);
    sine.see(static_cast<quad>(s.hi) + s.lo - at.s, 0.45 * ulp_of(at.s));
    cosine.see(static_cast<quad>(c.hi) + c.lo - at.c, 0.45 * ulp_of(at.c));
    float fs, fc;
    sincos_float(a.y.hi, &fs, &fc);
    float_sine.see(fs - at_float.s, 1.5 * ulp_of(at_float.s));
    float_cosine.see(fc - at_float.c, 1.2 * ulp_of(at_float.c));
    const Amplitude amplitude = amplitude_of(k % 3 == 0 ? 1.0 : between(0.5, 2));
    const Sample<float> v = InSingle::at({}, {}, {}, near, amplitude, &undecided);
    const Point want = on_circle(near);
    sample.see(v.s - amplitude.whole * want.s, ulp_of(amplitude.whole * want.s));
    sample.see(v.c - amplitude.whole * want.c, ulp_of(amplitude.whole * want.c));
    const quad product = (static_cast<quad>(s.hi) + s.lo) * amplitude.whole;
    scaled.see(scaled_sum(s, amplitude.parts) - product, 0.7 * ulp_of(product));
  }
  expect("single_angle", angle, 0.13);
  expect("single_angle of small angles", small_angle, 0.98);
  expect("sincos_single, sine", sine, 0.49);
  expect("sincos_single, cosine", cosine, 0.83);
  expect("sincos_float, sine", float_sine, 0.43);
  expect("sincos_float, cosine", float_cosine, 0.68);
  expect("InSingle", sample, 0.83);
  expect("scaled_sum", scaled, 0.92);
}

// Terms that are rounded up by all but half an ULP.
void test_tree_sum() {
  std::vector<double> terms(64, 0x1.001p-53);
  terms[0] = 1.0;
  quad exact = 0;
  for (const double term : terms) exact += term;
  Largest of;
  of.see(tree_sum(terms.data(), 64) - exact, 64 * tree_levels(64) * kUnit * static_cast<double>(exact));
  expect("tree_sum", of, 0.98);
}

}  // namespace

int main() {
  test_double_doubles();
  test_sincos();
  test_phases();
  test_rotation();
  test_ranges<RangeRun<InDouble, true>>("rotated range", kAnchorRows, 24, false, {0.61, 0.55, 0.5, 0.5});
  test_ranges<RangeRun<InDouble, true>>("rotated range near 0", kAnchorRows, 24, true, {0.13, 0.13, 0.14, 0.13});
  test_ranges<RangeRun<InDouble, false>>("range", 1, 8, false, {0.5, 0.57, 0.61, 0.6});
  test_ranges<RangeRun<InDouble, false>>("range near 0", 1, 40, true, {0.77, 0, 0.73, 0});
  test_ranges<SumRangeRun>("range of a sum", 1, 8, false, {0.54, 0.56, 0.61, 0.68});
  test_ranges<RangeRun<InSingle, true>>("single range of a run", 32, 50, false, {0.39, 0.28, 0.39, 0.3});
  test_ranges<RangeRun<InSingle, true>>("single range of a run near 0", 32, 50, true, {0.81, 0, 0.81, 0});
  test_ranges<RangeRun<InSingle, false>>("single range", 1, 8, false, {0.39, 0.28, 0.41, 0.31});
  test_ranges<RangeRun<InSingle, false>>("single range near 0", 1, 50, true, {0.79, 0, 0.79, 0});
  test_single();
  test_tree_sum();
  return check::finish("test_bounds");
}

#else
int main() { std::printf("no arithmetic of 113 bits\n"); }
#endif
