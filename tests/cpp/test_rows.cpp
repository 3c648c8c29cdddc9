// Rows: each instruction set, partition of the work and layout gives the bits of the entry-by-entry evaluation.
#include <cmath>
#include <initializer_list>
#include <limits>
#include <vector>

#include "check.h"
#include "cpu/row_maker.h"
#include "kernels.h"
#include "plans.h"
#include "sinpe/sinpe.h"

namespace {

const int64_t kPositions[] = {0,
                              1,
                              -1,
                              7199,
                              81665,
                              408325,
                              3803902,
                              16777217,
                              (1LL << 31) - 70,
                              -(1LL << 31),
                              1LL << 40,
                              (1LL << 53) - 5,
                              INT64_MIN,
                              INT64_MAX - 80};

constexpr sinpe::Stores kCached = sinpe::Stores::kCached;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> exact_rows(const sinpe::Plan& plan, int64_t first, int64_t n) {
  std::vector<float> rows(static_cast<size_t>(n * plan.dim), std::nanf(""));
  for (int64_t r = 0; r < n; ++r) {
    sinpe::exact_row(plan, sinpe::integer_position(first + r), rows.data() + r * plan.dim);
  }
  return rows;
}

// Rows of one kernel set computed directly: anchor, then rotation.
std::vector<float> rotated_rows(const sinpe::RowKernels& kernels, const sinpe::Plan& plan, int64_t first, int64_t n) {
  std::vector<float> rows(static_cast<size_t>(n * plan.dim), std::nanf(""));
  sinpe::RowState state(plan);
  kernels.steps(state);
  kernels.anchor(state, static_cast<double>(first), true);
  for (int64_t r = 0; r < n; r += 7) {
    kernels.of_float.rotate(state, first + r, std::min<int64_t>(7, n - r), rows.data() + r * plan.dim, plan.dim,
                            kCached);
  }
  return rows;
}

void test_plan(const TestPlan& made) {
  const sinpe::Plan& plan = made.plan;
  const int64_t n = 40, words = static_cast<int64_t>(made.words.size());
  for (int64_t first : kPositions) {
    const std::vector<float> want = exact_rows(plan, first, n);
    for (const sinpe::RowKernels* kernels : kernel_sets()) {
      if (!sinpe::fast_position(sinpe::integer_position(first), plan)) continue;
      CHECK(same_bits(rotated_rows(*kernels, plan, first, n), want));
      std::vector<float> direct(want.size(), std::nanf(""));
      for (int64_t r = 0; r < n; ++r) {
        kernels->of_float.direct(plan, static_cast<double>(first + r), direct.data() + r * plan.dim);
      }
      CHECK(same_bits(direct, want));
    }
    std::vector<float> table(want.size(), std::nanf(""));
    CHECK(sinpe_table(made.words.data(), words, first, n, SINPE_FLOAT32, table.data(), plan.dim) == SINPE_OK);
    CHECK(same_bits(table, want));
    std::vector<int64_t> backwards;
    std::vector<float> reversed(want.size(), std::nanf("")), turned(want.size());
    for (int64_t r = n; r-- > 0;) backwards.push_back(first + r);
    CHECK(sinpe_encode(made.words.data(), words, backwards.data(), SINPE_INT64, n, SINPE_FLOAT32, reversed.data(),
                       plan.dim) == SINPE_OK);
    for (int64_t r = 0; r < n; ++r) {
      std::copy_n(reversed.data() + (n - 1 - r) * plan.dim, plan.dim, turned.data() + r * plan.dim);
    }
    CHECK(same_bits(turned, want));
  }
}

// float64 and 16-bit rows: all kernel sets give the same bits.
void test_other_types(const TestPlan& made) {
  const sinpe::Plan& plan = made.plan;
  const size_t dim = static_cast<size_t>(plan.dim);
  for (int64_t first : {int64_t{3}, int64_t{81665}, int64_t{2147483000}}) {
    std::vector<double> want(dim);
    sinpe::kRowKernelsDefault.of_double.direct(plan, static_cast<double>(first), want.data());
    for (const sinpe::RowKernels* kernels : kernel_sets()) {
      std::vector<double> got(dim, std::nan(""));
      kernels->of_double.direct(plan, static_cast<double>(first), got.data());
      CHECK(std::memcmp(got.data(), want.data(), dim * sizeof(double)) == 0);
      std::vector<sinpe::float16> half(20 * dim);
      std::vector<sinpe::bfloat16> brain(20 * dim);
      for (int kind = 0; kind < 2; ++kind) {
        sinpe::RowState state(plan);
        kernels->steps(state);
        kernels->anchor(state, static_cast<double>(first), true);
        if (kind == 0) kernels->of_float16.rotate(state, first, 20, half.data(), plan.dim, kCached);
        if (kind == 1) kernels->of_bfloat16.rotate(state, first, 20, brain.data(), plan.dim, kCached);
      }
      const std::vector<float> floats = exact_rows(plan, first, 20);
      for (size_t i = 0; i < floats.size(); ++i) {
        sinpe::float16 h;
        sinpe::bfloat16 b;
        sinpe::round_store(&h, floats[i]);
        sinpe::round_store(&b, floats[i]);
        CHECK(h.bits == half[i].bits);
        CHECK(b.bits == brain[i].bits);
      }
    }
  }
}

// Rotated rows are the float32 ones, rounded once more.
void test_bfloat16(const sinpe::Plan& plan, int64_t first) {
  const size_t n = static_cast<size_t>(sinpe::kAnchorRows * plan.dim);
  for (const sinpe::RowKernels* kernels : kernel_sets()) {
    std::vector<float> floats(n);
    std::vector<sinpe::bfloat16> got(n);
    for (int kind = 0; kind < 2; ++kind) {
      sinpe::RowState state(plan);
      kernels->steps(state);
      kernels->anchor(state, static_cast<double>(first), true);
      if (kind == 0) kernels->of_float.rotate(state, first, sinpe::kAnchorRows, floats.data(), plan.dim, kCached);
      if (kind == 1) kernels->of_bfloat16.rotate(state, first, sinpe::kAnchorRows, got.data(), plan.dim, kCached);
    }
    for (size_t i = 0; i < n; ++i) {
      sinpe::bfloat16 want;
      sinpe::round_store(&want, floats[i]);
      CHECK(got[i].bits == want.bits);
    }
  }
}
void test_bfloat16(int layout, bool own) {
  for (const double amplitude : {1.0, 0.5, -1.9375, 2.5, 0.03}) {  // with and without separate loops
    const TestPlan made = make_plan(160, layout, own, amplitude);
    for (int64_t first = 0; first < 100000; first += 16001) test_bfloat16(made.plan, first);
    // 64 positions each near a zero of a sine, where a rotated value has few digits.
    check::Random random;
    std::vector<double> turns;
    for (int i = 0; i < (own ? 160 : 80); ++i)
      turns.push_back((2 * (i % 32) + 1) / 64.0 + std::ldexp(random.uniform() - 0.5, -33 - 6 * (i % 4)));
    const TestPlan near = plan_of(turns, 160, layout, own, amplitude);
    for (int64_t first = 2; first < 4096; first += 517) test_bfloat16(near.plan, first);
  }
}

void test_interface() {
  const TestPlan made = make_plan(6, 0, false);
  const int64_t words = static_cast<int64_t>(made.words.size());
  float out[12];
  CHECK(sinpe_plan_dim(made.words.data(), words) == 6);
  CHECK(sinpe_plan_dim(made.words.data(), words - 1) == -1);
  CHECK(sinpe_table(made.words.data(), words - 1, 0, 1, SINPE_FLOAT32, out, 6) == SINPE_BAD_PLAN);
  CHECK(sinpe_table(nullptr, words, 0, 1, SINPE_FLOAT32, out, 6) == SINPE_BAD_PLAN);
  CHECK(sinpe_table(made.words.data(), words, 0, -1, SINPE_FLOAT32, out, 6) == SINPE_BAD_ARGUMENT);
  CHECK(sinpe_table(made.words.data(), words, 0, 1, SINPE_FLOAT32, nullptr, 6) == SINPE_BAD_ARGUMENT);
  CHECK(sinpe_table(made.words.data(), words, 0, 1, SINPE_INT64, out, 6) == SINPE_BAD_ARGUMENT);
  CHECK(sinpe_table(made.words.data(), words, 0, 2, SINPE_FLOAT32, out, 5) == SINPE_BAD_ARGUMENT);
  CHECK(sinpe_table(made.words.data(), words, INT64_MAX, 2, SINPE_FLOAT32, out, 6) == SINPE_OUT_OF_RANGE);
  CHECK(sinpe_table(made.words.data(), words, 0, 0, SINPE_FLOAT32, nullptr, 6) == SINPE_OK);
  for (size_t word : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{4}, size_t{5}, size_t{7}}) {
    std::vector<int64_t> broken = made.words;
    broken[word] += word == 2 ? -1 : 1000;
    CHECK(sinpe_plan_dim(broken.data(), words) == -1);
  }
  const double strange[] = {std::nan(""), std::numeric_limits<double>::infinity(), 0.5};
  float rows[18];
  CHECK(sinpe_encode(made.words.data(), words, strange, SINPE_FLOAT64, 3, SINPE_FLOAT32, rows, 6) == SINPE_OK);
  for (int i = 0; i < 12; ++i) CHECK(std::isnan(rows[i]));
  CHECK(rows[12] == 0.47942555f);
  for (int status = 0; status <= 5; ++status) CHECK(sinpe_status_text(static_cast<sinpe_status>(status))[0] != '\0');
}

}  // namespace

int main() {
  std::printf("kernels in use: %s; instruction sets compared: %zu\n", sinpe_isa(), kernel_sets().size());
  for (int layout : {0, 1, 2}) {
    for (bool own : {false, true}) {
      for (int64_t dim : {1, 2, 3, 7, 16, 32, 33, 66, 130}) {
        const TestPlan made = make_plan(dim, layout, own, dim == 7 ? -0.37 : 1.0);
        test_plan(made);
        if (dim > 16) test_other_types(made);
      }
      test_bfloat16(layout, own);
    }
  }
  test_plan(make_plan(96, 0, false, 1.0, 1e30));  // angles down to 1e-30, which need relative bounds
  test_interface();
  return check::finish("test_rows");
}
