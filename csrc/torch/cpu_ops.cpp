// CPU implementations of the operators table, encode and add that sinpe_ext/ops/schemas.py defines, on the LibTorch stable
// ABI.
#include "torch/arguments.h"

namespace {

using namespace sinpe_torch;

Tensor table(const Tensor& plan, int64_t start, int64_t length, int64_t dim, ScalarType dtype) {
  const Device cpu = Device::cpu();
  const Words words(cpu, plan);
  expect(length >= 0, "length: expected 0 or more, got ", length);
  expect_dim(words, dim);
  const sinpe_dtype type = float_type("dtype", dtype);
  Tensor out = new_dense(cpu, {length, dim}, type);
  succeed(sinpe_table(words.data, words.size, start, length, type, out.mutable_data_ptr(), dim));
  return out;
}

void table_out(const Tensor& plan, int64_t start, Tensor out) {
  const Device cpu = Device::cpu();
  const Words words(cpu, plan);
  expect_apart(out, {{"plan", plan}});
  const int64_t stride = table_stride(cpu, out);
  expect_dim(words, out.size(1));
  succeed(sinpe_table(words.data, words.size, start, out.size(0), float_type("out", out.scalar_type()),
                      out.mutable_data_ptr(), stride));
}

Tensor encode(const Tensor& positions, const Tensor& plan, int64_t dim, ScalarType dtype) {
  const Device cpu = Device::cpu();
  const Words words(cpu, plan);
  expect_positions(cpu, positions);
  expect_dim(words, dim);
  const sinpe_dtype type = float_type("dtype", dtype);
  Tensor out = new_with_channels(cpu, positions, dim, type);
  succeed(sinpe_encode(words.data, words.size, positions.const_data_ptr(),
                       dtype_of("positions", positions.scalar_type()), positions.numel(), type, out.mutable_data_ptr(),
                       dim));
  return out;
}

Tensor add(const Tensor& x, const Tensor& plan, int64_t start, double scale) {
  const Device cpu = Device::cpu();
  const Words words(cpu, plan);
  Tensor out = new_like(cpu, x);
  const sinpe_add_arguments a = arguments_of(cpu, x, out, scale, start);
  succeed(sinpe_add(words.data, words.size, &a));
  return out;
}

void add_out(const Tensor& x, const Tensor& plan, Optional positions, Optional padding_mask, int64_t start,
             bool positions_are_starts, double scale, double alpha, Tensor out) {
  const Device cpu = Device::cpu();
  const Words words(cpu, plan);
  sinpe_add_arguments a = written_arguments_of(cpu, x, out, scale, start);
  expect_apart(out, {{"plan", plan}, {"positions", positions}, {"padding_mask", padding_mask}});
  a.alpha = alpha;
  set_rows(cpu, &a, positions, padding_mask, positions_are_starts);
  succeed(sinpe_add(words.data, words.size, &a));
}

std::string cpu_isa() { return sinpe_isa(); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CPU, m) {
  m.impl("table", TORCH_BOX(&table));
  m.impl("table_out", TORCH_BOX(&table_out));
  m.impl("encode", TORCH_BOX(&encode));
  m.impl("add", TORCH_BOX(&add));
  m.impl("add_out", TORCH_BOX(&add_out));
}

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CompositeExplicitAutograd, m) { m.impl("cpu_isa", TORCH_BOX(&cpu_isa)); }
