// Tensors of PyTorch's stable ABI: their description as the operators take it (View of core/kernels.h), and new ones.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/operators.h"

namespace sinpe_torch {

using sinpe::expect;
using sinpe::throw_error;
using sinpe::View;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// dtype of a View. All operands have one of these types.
inline int32_t dtype_of(const char* name, ScalarType type) {
  switch (type) {
    case ScalarType::Float: return SINPE_FLOAT32;
    case ScalarType::Double: return SINPE_FLOAT64;
    case ScalarType::BFloat16: return SINPE_BFLOAT16;
    case ScalarType::Half: return SINPE_FLOAT16;
    case ScalarType::Long: return SINPE_INT64;
    case ScalarType::Bool: return sinpe::kBool;
    default: throw_error(name, ": unsupported dtype, got ", torch::headeronly::toString(type));
  }
}
// The argument `dtype` of an operator.
inline int32_t float_type(ScalarType type) {
  const int32_t dtype = dtype_of("dtype", type);
  expect(dtype <= SINPE_FLOAT16, "dtype: expected a floating-point type, got ", sinpe::type_name(dtype));
  return dtype;
}

// An operand. All CPU tensors are on one device, whatever index they report.
inline View view_of(const char* name, const Tensor& t, bool is_written) {
  View view;
  int32_t type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &type));
  const bool is_cpu = type == aoti_torch_device_type_cpu();
  if (!is_cpu && type != aoti_torch_device_type_cuda()) {
    const bool is_meta = type == aoti_torch_device_type_meta();
    throw_error(name, ": expected a tensor on cpu or cuda, got one on ",
                is_meta ? "meta" : "device type " + std::to_string(type), "; move it there");
  }
  view.device_type = is_cpu ? sinpe::kHostMemory : sinpe::kCudaMemory;
  view.device = is_cpu ? -1 : t.get_device_index();
  const auto sizes = t.sizes(), strides = t.strides();
  expect(sizes.size() <= SINPE_MAX_RANK, name, ": expected 1 to ", SINPE_MAX_RANK, " dimensions, got ", sizes.size());
  view.rank = static_cast<int32_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), view.sizes);
  std::copy(strides.begin(), strides.end(), view.strides);
  view.dtype = dtype_of(name, t.scalar_type());
  // Its storage may have been resized; like check_storage_bounds in sinpe_ext/encodings/values.py.
  const bool is_empty = sinpe::numel(view) == 0;
  int64_t bytes, end = is_empty ? 0 : t.storage_offset() + 1;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(t.get(), &bytes));
  for (int32_t d = 0; !is_empty && d < view.rank; ++d) end += (view.sizes[d] - 1) * view.strides[d];
  const int64_t needed = end * static_cast<int64_t>(t.element_size());
  expect(needed <= bytes, name, ": expected a tensor whose memory holds its elements, got ", bytes, " bytes where ",
         needed, " are needed; it was freed or resized, use it where it is whole");
  // A tensor that is only read is not copied on write.
  view.data = is_written ? t.mutable_data_ptr() : const_cast<void*>(t.const_data_ptr());
  return view;
}

// An uninitialised tensor with the device, dtype, sizes and strides of a View, by the shim's direct call:
// torch::stable::new_empty looks up its operator by name each time, which would be a third of a small call's duration.
inline Tensor new_tensor(const View& like) {
  constexpr int32_t (*kTypes[])() = {aoti_torch_dtype_float32, aoti_torch_dtype_float64, aoti_torch_dtype_bfloat16,
                                     aoti_torch_dtype_float16, aoti_torch_dtype_int64,   aoti_torch_dtype_bool};
  const bool is_cpu = like.device_type == sinpe::kHostMemory;
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(like.rank, like.sizes, like.strides, kTypes[like.dtype](),
                                                  is_cpu ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda(),
                                                  like.device, &handle));
  return Tensor(handle);
}

inline Tensor new_contiguous(View like) {
  const bool fits = sinpe::valid_sizes(like.sizes, like.rank);
  expect(fits, "out: expected a number of elements within int64, got more; ask for fewer");
  int64_t step = 1, next;
  for (int32_t d = like.rank - 1; d >= 0; --d) {
    like.strides[d] = step;
    if (like.sizes[d] > 1 && !__builtin_mul_overflow(step, like.sizes[d], &next)) step = next;
  }
  return new_tensor(like);
}

// Whether a tensor is contiguous except for the order of its dimensions (in torch: non-overlapping and dense).
inline bool is_dense(const View& t) {
  const int64_t elements = sinpe::numel(t);
  for (int64_t reach = 1; reach < elements;) {
    int32_t d = 0;
    while (d < t.rank && (t.sizes[d] == 1 || t.strides[d] != reach)) ++d;
    if (d == t.rank) return false;
    reach *= t.sizes[d];
  }
  return elements != 0;
}

// A new tensor with the dtype and strides of torch.empty_like; `view` is that of x.
inline Tensor new_like(const Tensor& x, const View& view) {
  return sinpe::is_contiguous(view) || is_dense(view) ? new_tensor(view) : torch::stable::empty_like(x);
}

// A new tensor of shape grad.shape[:-1].
inline Tensor new_dots(View grad) {
  grad.rank = std::max(grad.rank - 1, 0);
  grad.dtype = SINPE_FLOAT64;
  return new_contiguous(grad);
}

inline Tensor new_sum(View terms) {
  terms.rank = 0;
  terms.dtype = SINPE_FLOAT64;
  return new_tensor(terms);
}

// A new tensor of shape (rows, dim) on the device of `like`.
inline Tensor new_matrix(View like, int64_t rows, int64_t dim, int32_t dtype) {
  like.rank = 2;
  like.sizes[0] = rows;
  like.sizes[1] = dim;
  like.dtype = dtype;
  return new_contiguous(like);
}

// A new tensor of t's shape with a channel dimension appended. If t is a transposed contiguous tensor, so is the result,
// like that of `with_channels` in sinpe_ext/reference/apply.py.
inline Tensor new_with_channels(const char* name, View t, int64_t dim, int32_t dtype) {
  expect(t.rank < SINPE_MAX_RANK, name, ": expected at most ", SINPE_MAX_RANK - 1, " dimensions, got ", t.rank);
  int64_t elements;
  const bool fits = dim > 0 && !__builtin_mul_overflow(sinpe::numel(t), dim, &elements);
  const bool is_transposed = fits && !sinpe::is_contiguous(t) && is_dense(t);
  for (int32_t d = 0; is_transposed && d < t.rank; ++d) t.strides[d] = sinpe::stride_of(t, d) * dim;
  t.sizes[t.rank] = dim;
  t.strides[t.rank++] = 1;
  t.dtype = dtype;
  return is_transposed ? new_tensor(t) : new_contiguous(t);
}

}  // namespace sinpe_torch
