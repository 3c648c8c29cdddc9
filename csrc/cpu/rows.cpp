// Selection of the row kernels, the rotation state, and the entries that require exact arithmetic.
#include "cpu/rows.h"

#include <cstdlib>
#include <string>

namespace sinpe {

Lanes lanes_of(const Plan& plan) {
  const bool pairs = plan.shared && plan.q0 != plan.q1 && !(plan.interleaved && plan.q0 == 1);
  if (pairs) return {true, {plan.n0, plan.n1}, {0, 0}, padded(plan.n_osc), {0, 0}, {plan.n_osc, 0}};
  const int64_t second = plan.oscillator(1, 0);
  return {false,       {plan.n0, plan.n1}, {0, padded(plan.n0)}, padded(plan.n0) + padded(plan.n1),
          {0, second}, {plan.n0, plan.n1}};
}

RowState::RowState(const Plan& p) : plan(&p), lanes(lanes_of(p)), ahead_bound(0.0), is_normal(false) {
  const size_t n = static_cast<size_t>(lanes.total);
  storage_.reset(new double[5 * n]());
  value = storage_.get();
  ahead = value + n;
  bound = ahead + n;
  step_cos = bound + n;
  step_sin = step_cos + n;
}

void RowState::share_steps(const RowState& from) {
  step_cos = from.step_cos;
  step_sin = from.step_sin;
}

void RowState::compute_steps() {
  const Position one = integer_position(1);
  if (fast_position(one, *plan)) return row_kernels().steps(*this);
  Plan unit = *plan;
  unit.amplitude = 1.0;
  for (int stream = 0; stream < (lanes.pairs ? 1 : 2); ++stream) {
    for (int64_t i = 0; i < lanes.osc_count[stream]; ++i) {
      step_sin[lanes.begin[stream] + i] = exact_double_entry(unit, one, lanes.osc_base[stream] + i, 0);
      step_cos[lanes.begin[stream] + i] = exact_double_entry(unit, one, lanes.osc_base[stream] + i, 1);
    }
  }
}

float exact_entry(const Plan& plan, Position position, int64_t osc, int q) {
  return exact_float(position, plan.frequency(osc), q, plan.amplitude);
}

double exact_double_entry(const Plan& plan, Position position, int64_t osc, int q) {
  return exact_double(position, plan.frequency(osc), q, plan.amplitude);
}

namespace {

template <class Real>
void row_of_entries(const Plan& plan, Position position, Real* row,
                    Real (*entry)(const Plan&, Position, int64_t, int)) {
  const int64_t step = plan.interleaved ? 2 : 1, second = plan.interleaved ? 1 : plan.n0;
  for (int64_t i = 0; i < plan.n0; ++i) row[i * step] = entry(plan, position, i, plan.q0);
  for (int64_t i = 0; i < plan.n1; ++i) {
    row[second + i * step] = entry(plan, position, plan.oscillator(1, i), plan.q1);
  }
  zero_tail(plan, row);
}

}  // namespace

void exact_row(const Plan& plan, Position position, float* row) { row_of_entries(plan, position, row, exact_entry); }

void exact_row(const Plan& plan, Position position, double* row) {
  row_of_entries(plan, position, row, exact_double_entry);
}

SINPE_NOINLINE void resolve_panel(const Plan& plan, Position position, int64_t osc, int q, const double* v,
                                  const double* e, int n, float* out) {
  for (int k = 0; k < n; ++k) {
    if (!is_decided(v[k], e[k])) out[k] = exact_entry(plan, position, osc + k, q);
  }
}

namespace {

const RowKernels& choose_kernels() {
#if defined(SINPE_X86_LEVELS)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512cd");
  const char* text = std::getenv("SINPE_EXT_CPU_ISA");
  const std::string wanted = text == nullptr ? "" : text;
  if (wanted == "default") return kRowKernelsDefault;
  if (v4 && wanted != "v3") return kRowKernelsV4;
  if (v3) return kRowKernelsV3;
#endif
  return kRowKernelsDefault;
}

}  // namespace

const RowKernels& row_kernels() {
  static const RowKernels& chosen = choose_kernels();
  return chosen;
}

}  // namespace sinpe
