// CPU implementations of the operators table, encode and add that sinpe_ext/_ops.py defines, on the LibTorch stable
// ABI.
#include "torch/tensors.h"

namespace {

using namespace sinpe_torch;

Tensor table(const Tensor& plan, int64_t start, int64_t length, int64_t dim, ScalarType dtype) {
  const Words words(plan);
  STD_TORCH_CHECK(length >= 0, "length: expected 0 or more, got ", length);
  words.expect_dim(dim);
  const sinpe_dtype type = result_type(dtype);
  Tensor out = new_dense({length, dim}, type);
  succeed(sinpe_table(words.data, words.size, start, length, type, out.mutable_data_ptr(), dim));
  return out;
}

void table_out(const Tensor& plan, int64_t start, Tensor out) {
  const Words words(plan);
  STD_TORCH_CHECK(
      out.dim() == 2 && out.is_cpu() && out.size(1) == words.dim() && (out.size(1) == 1 || out.stride(1) == 1),
      "out: expected a CPU tensor of shape (length, dim) whose channels are contiguous");
  const int64_t length = out.size(0), stride = length > 1 ? out.stride(0) : out.size(1);
  succeed(sinpe_table(words.data, words.size, start, length, dtype_of("out", out.scalar_type()), out.mutable_data_ptr(),
                      stride));
}

Tensor encode(const Tensor& positions, const Tensor& plan, int64_t dim, ScalarType dtype) {
  const Words words(plan);
  STD_TORCH_CHECK(positions.is_cpu() && positions.is_contiguous(), "positions: expected a contiguous CPU tensor");
  words.expect_dim(dim);
  const auto sizes = positions.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.push_back(dim);
  const sinpe_dtype type = result_type(dtype);
  Tensor out = new_dense(shape, type);
  succeed(sinpe_encode(words.data, words.size, positions.const_data_ptr(),
                       dtype_of("positions", positions.scalar_type()), positions.numel(), type, out.mutable_data_ptr(),
                       dim));
  return out;
}

Tensor add(const Tensor& x, const Tensor& plan, int64_t start, double scale) {
  const Words words(plan);
  Tensor out = new_like(x);
  const sinpe_add_arguments a = arguments_of(x, out, scale, start);
  succeed(sinpe_add(words.data, words.size, &a));
  return out;
}

void add_out(const Tensor& x, const Tensor& plan, std::optional<Tensor> positions, std::optional<Tensor> padding_mask,
             int64_t start, bool positions_are_starts, double scale, double alpha, Tensor out) {
  const Words words(plan);
  sinpe_add_arguments a = arguments_of(x, out, scale, start);
  a.alpha = alpha;
  set_rows(&a, positions, padding_mask, positions_are_starts);
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
