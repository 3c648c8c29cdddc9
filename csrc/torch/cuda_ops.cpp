// CUDA implementations of the operators table, encode and add that sinpe_ext/ops/schemas.py defines, on the LibTorch stable
// ABI. Every operand is on one device, the plan too; nothing here reads one or waits for the device.
#include "torch/cuda_call.h"

namespace {

using namespace sinpe_torch;

Tensor table(const Tensor& plan, int64_t start, int64_t length, int64_t dim, ScalarType dtype) {
  const Call call("plan", plan);
  expect(length >= 0, "length: expected 0 or more, got ", length);
  expect(dim >= 1, "dim: expected 1 or more, got ", dim);
  const sinpe_dtype type = float_type("dtype", dtype);
  const cuda::DevicePlan words = plan_of(call, plan, dim);
  Tensor out = new_dense(call.device, {length, dim}, type);
  launched(cuda::table(words, start, length, type, out.mutable_data_ptr(), dim, call.stream));
  return out;
}

void table_out(const Tensor& plan, int64_t start, Tensor out) {
  const Call call("plan", plan);
  expect_apart(out, {{"plan", plan}});
  const int64_t stride = table_stride(call.device, out);
  launched(cuda::table(plan_of(call, plan, out.size(1)), start, out.size(0), float_type("out", out.scalar_type()),
                       out.mutable_data_ptr(), stride, call.stream));
}

Tensor encode(const Tensor& positions, const Tensor& plan, int64_t dim, ScalarType dtype) {
  const Call call("positions", positions);
  expect_positions(call.device, positions);
  expect(dim >= 1, "dim: expected 1 or more, got ", dim);
  const sinpe_dtype type = float_type("dtype", dtype);
  const cuda::DevicePlan words = plan_of(call, plan, dim);
  Tensor out = new_with_channels(call.device, positions, dim, type);
  launched(cuda::encode(words, positions.const_data_ptr(), dtype_of("positions", positions.scalar_type()),
                        positions.numel(), type, out.mutable_data_ptr(), dim, call.stream));
  return out;
}

Tensor add(const Tensor& x, const Tensor& plan, int64_t start, double scale) {
  const Call call("x", x);
  Tensor out = new_like(call.device, x);
  const sinpe_add_arguments a = arguments_of(call.device, x, out, scale, start);
  launched(cuda::add(plan_of(call, plan, dim_of(a)), a, {}, call.stream));
  return out;
}

void add_out(const Tensor& x, const Tensor& plan, Optional positions, Optional padding_mask, int64_t start,
             bool positions_are_starts, double scale, double alpha, Tensor out) {
  const Call call("x", x);
  sinpe_add_arguments a = written_arguments_of(call.device, x, out, scale, start);
  expect_apart(out, {{"plan", plan}, {"positions", positions}, {"padding_mask", padding_mask}});
  a.alpha = alpha;
  set_rows(call.device, &a, positions, padding_mask, positions_are_starts);
  launched(cuda::add(plan_of(call, plan, dim_of(a)), a, {}, call.stream));
}

std::string cuda_arithmetic() { return cuda::arithmetic(); }

#ifdef SINPE_EMULATED
std::string cpu_isa() { return "emulated"; }
#endif

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, SINPE_CUDA_KEY, m) {
  m.impl("table", TORCH_BOX(&table));
  m.impl("table_out", TORCH_BOX(&table_out));
  m.impl("encode", TORCH_BOX(&encode));
  m.impl("add", TORCH_BOX(&add));
  m.impl("add_out", TORCH_BOX(&add_out));
}

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CompositeExplicitAutograd, m) {
  m.impl("cuda_arithmetic", TORCH_BOX(&cuda_arithmetic));
#ifdef SINPE_EMULATED
  m.impl("cpu_isa", TORCH_BOX(&cpu_isa));
#endif
}
