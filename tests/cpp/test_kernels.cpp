// Kernels::run of the CPU: operands of every kind, errors, and check_only, which writes nothing.
#include <cstring>
#include <vector>

#include "check.h"
#include "core/kernels.h"
#include "plans.h"

namespace {

using sinpe::Op;
using sinpe::Operand;
using sinpe::View;

constexpr int64_t kBatch = 2, kRows = 5, kDim = 6;

// A contiguous tensor.
View view(void* data, int32_t dtype, const std::vector<int64_t>& sizes) {
  View made{data, sinpe::kHostMemory, 0, static_cast<int32_t>(sizes.size()), dtype, {}, {}};
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    made.sizes[d] = sizes[d];
    made.strides[d] = step;
    step *= sizes[d];
  }
  return made;
}

Operand none() {
  Operand o{};
  o.kind = Operand::kNone;
  return o;
}
Operand of(const View& t) {
  Operand o{};
  o.kind = Operand::kTensor;
  o.tensor = &t;
  return o;
}
Operand of(int64_t number) {
  Operand o{};
  o.kind = Operand::kInt;
  o.integer = number;
  return o;
}
Operand of(double number) {
  Operand o{};
  o.kind = Operand::kFloat;
  o.number = number;
  return o;
}
Operand integers() {
  Operand o{};
  o.kind = Operand::kInts;
  return o;
}

const char* run(Op op, const std::vector<Operand>& operands, bool check_only = false) {
  return sinpe::cpu_kernels().run(op, 0, operands.data(), static_cast<int32_t>(operands.size()), false, check_only);
}

bool says(const char* error, const char* text) { return error != nullptr && std::strstr(error, text) != nullptr; }

struct Data {
  TestPlan plan = plan_of({0.1, 0.01, 0.001}, kDim, 0, false, 1.0);
  std::vector<float> x, out;
  int64_t starts[2] = {3, 8};
  View plan_view, x_view, out_view, starts_view;

  Data()
      : x(kBatch * kRows * kDim, 2.0f),
        out(x.size(), 7.0f),
        plan_view(view(plan.words.data(), SINPE_INT64, {static_cast<int64_t>(plan.words.size())})),
        x_view(view(x.data(), SINPE_FLOAT32, {kBatch, kRows, kDim})),
        out_view(view(out.data(), SINPE_FLOAT32, {kBatch, kRows, kDim})),
        starts_view(view(starts, SINPE_INT64, {kBatch, 1})) {}

  std::vector<Operand> add(const Operand& positions, bool are_starts, int64_t extra, const Operand& alpha,
                           const Operand& seed, int64_t drop) const {
    return {of(x_view),     of(plan_view),           positions, none(),    alpha,    seed,       none(),
            of(int64_t{0}), of(int64_t{are_starts}), of(1.5),   of(extra), of(drop), integers(), of(out_view)};
  }
  bool is_unwritten() const { return out == std::vector<float>(out.size(), 7.0f); }
};

void test_add() {
  Data d;
  CHECK(run(Op::kAdd, d.add(none(), false, 0, none(), none(), 0)) == nullptr);
  std::vector<float> want(d.out.size());
  sinpe_add_arguments a{};
  a.rank = 3;
  for (int k = 0; k < 3; ++k) {
    a.sizes[k] = d.x_view.sizes[k];
    a.x_strides[k] = a.out_strides[k] = d.x_view.strides[k];
  }
  a.x = d.x.data();
  a.out = want.data();
  a.scale = 1.5;
  a.alpha = 1.0;
  const int64_t n_words = static_cast<int64_t>(d.plan.words.size());
  CHECK(sinpe_add(d.plan.words.data(), n_words, &a) == SINPE_OK && d.out == want);

  a.alpha = 0.25;
  a.dropout.seed = 9;
  a.dropout.drop_threshold = 30000;
  CHECK(sinpe_add(d.plan.words.data(), n_words, &a) == SINPE_OK);
  CHECK(run(Op::kAdd, d.add(none(), false, 0, of(0.25), of(int64_t{9}), 30000)) == nullptr && d.out == want);
  double alpha = 0.25;
  const View number = view(&alpha, SINPE_FLOAT64, {});
  CHECK(run(Op::kAdd, d.add(none(), false, 0, of(number), of(int64_t{9}), 30000)) == nullptr && d.out == want);

  const int64_t extra = 2;
  CHECK(run(Op::kAdd, d.add(none(), false, extra, none(), none(), 0)) == nullptr);
  a.alpha = 1.0;
  a.dropout = {};
  a.sizes[1] = kRows - extra;
  a.x = d.x.data() + extra * kDim;
  a.out = want.data() + extra * kDim;
  want.assign(want.size(), 3.0f);  // 1.5 * 2
  CHECK(sinpe_add(d.plan.words.data(), n_words, &a) == SINPE_OK && d.out == want);
}

void test_errors_and_check_only() {
  Data d;
  const auto add = [&](int64_t extra, const Operand& seed, int64_t drop) {
    return d.add(of(d.starts_view), true, extra, none(), seed, drop);
  };
  CHECK(run(Op::kAdd, add(0, none(), 0), true) == nullptr);
  CHECK(says(run(Op::kAdd, add(0, none(), 9), true), "seed: expected one int64, got None"));
  CHECK(says(run(Op::kAdd, add(kRows + 1, none(), 0), true), "extra_tokens: expected 0 to 5, got 6"));
  CHECK(says(run(Op::kAdd, {of(d.x_view)}), "operands: expected 14, got 1"));
  d.starts[1] = INT64_MAX - 2;
  CHECK(says(run(Op::kAdd, add(0, none(), 0), true), "beyond the range of int64"));
  CHECK(says(run(Op::kAdd, add(0, none(), 0)), "beyond the range of int64"));
  View elsewhere = d.x_view;
  elsewhere.device_type = sinpe::kCudaMemory;
  std::vector<Operand> operands = add(0, none(), 0);
  operands[0] = of(elsewhere);
  CHECK(says(run(Op::kAdd, operands), "x: expected a tensor on cpu, got one on cuda:0; move it there"));
  operands[0] = of(1.0);
  CHECK(says(run(Op::kAdd, operands), "x: expected an operand of kind"));
  CHECK(d.is_unwritten());
}

void test_check_of_ids() {
  Data d;
  int64_t ids[kRows] = {0, 1, 3, 2, 0};
  std::vector<float> weight(3 * kDim);
  const View of_ids = view(ids, SINPE_INT64, {kRows}), of_weight = view(weight.data(), SINPE_FLOAT32, {3, kDim}),
             out = view(d.out.data(), SINPE_FLOAT32, {kRows, kDim});
  const std::vector<Operand> operands = {of(of_ids),      of(of_weight),  of(d.plan_view), none(),         none(),
                                         none(),          none(),         of(int64_t{0}),  of(int64_t{0}), of(1.0),
                                         of(int64_t{-1}), of(int64_t{0}), of(int64_t{0}),  integers(),     of(out)};
  CHECK(says(run(Op::kEmbed, operands, true), "ids: expected 0 to 2, rows of weight, got 3"));
  CHECK(says(run(Op::kEmbed, operands), "ids: expected 0 to 2, rows of weight, got 3"));
  ids[2] = 1;
  CHECK(run(Op::kEmbed, operands, true) == nullptr && d.is_unwritten());
  CHECK(run(Op::kEmbed, operands) == nullptr && !d.is_unwritten());
}

}  // namespace

int main() {
  test_add();
  test_errors_and_check_only();
  test_check_of_ids();
  return check::finish("kernels");
}
