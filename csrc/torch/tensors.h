// What the operators' bindings share: a Tensor becomes pointers and strides of the C interface, nothing more. Python
// has checked the arguments by the time they arrive; what memory safety needs is checked again here.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "sinpe/sinpe.h"

namespace sinpe_torch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline sinpe_dtype dtype_of(const char* name, ScalarType type) {
  switch (type) {
    case ScalarType::Float: return SINPE_FLOAT32;
    case ScalarType::Double: return SINPE_FLOAT64;
    case ScalarType::BFloat16: return SINPE_BFLOAT16;
    case ScalarType::Half: return SINPE_FLOAT16;
    case ScalarType::Long: return SINPE_INT64;
    default: STD_TORCH_CHECK(false, name, ": unsupported dtype");
  }
  return SINPE_FLOAT32;
}

// Not STD_TORCH_CHECK: that would put this function's name and the source's path before the sentence.
inline void succeed(sinpe_status status) {
  if (status != SINPE_OK) throw std::runtime_error(sinpe_status_text(status));
}

inline sinpe_dtype result_type(ScalarType type) {
  STD_TORCH_CHECK(type != ScalarType::Long, "dtype: expected a floating-point type");
  return dtype_of("dtype", type);
}

// torch's number for a result type.
inline int32_t type_number(sinpe_dtype dtype) {
  switch (dtype) {
    case SINPE_FLOAT64: return aoti_torch_dtype_float64();
    case SINPE_BFLOAT16: return aoti_torch_dtype_bfloat16();
    case SINPE_FLOAT16: return aoti_torch_dtype_float16();
    default: return aoti_torch_dtype_float32();
  }
}

// An uninitialised CPU tensor. The shim's direct call: torch::stable::new_empty looks its operator up by name each
// time, which is a third of a small call.
inline Tensor new_strided(const int64_t* sizes, const int64_t* strides, int64_t rank, sinpe_dtype dtype) {
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(rank, sizes, strides, type_number(dtype), aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

inline Tensor new_dense(const std::vector<int64_t>& sizes, sinpe_dtype dtype) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
  return new_strided(sizes.data(), strides.data(), static_cast<int64_t>(sizes.size()), dtype);
}

inline Tensor new_like(const Tensor& x) {
  if (!x.is_contiguous()) return torch::stable::empty_like(x);
  return new_strided(x.sizes().data(), x.strides().data(), x.dim(), dtype_of("x", x.scalar_type()));
}

// A plan: int64 words on the CPU.
struct Words {
  const int64_t* data;
  int64_t size;
  explicit Words(const Tensor& plan) : data(nullptr), size(plan.numel()) {
    STD_TORCH_CHECK(plan.scalar_type() == ScalarType::Long && plan.is_contiguous() && plan.is_cpu(),
                    "plan: expected contiguous int64 words on the CPU");
    data = static_cast<const int64_t*>(plan.const_data_ptr());
  }
  int64_t dim() const {
    const int64_t dim = sinpe_plan_dim(data, size);
    if (dim < 0) succeed(SINPE_BAD_PLAN);
    return dim;
  }
  void expect_dim(int64_t wanted) const {
    STD_TORCH_CHECK(dim() == wanted, "dim: expected the plan's ", dim(), ", got ", wanted);
  }
};

// Shapes, strides and pointers of x and out, which must be alike.
inline sinpe_add_arguments arguments_of(const Tensor& x, const Tensor& out, double scale, int64_t start,
                                        int64_t least_rank = 2) {
  sinpe_add_arguments a{};
  const int64_t rank = x.dim();
  STD_TORCH_CHECK(x.is_cpu() && out.is_cpu(), "x, out: expected CPU tensors");
  STD_TORCH_CHECK(rank >= least_rank && rank <= SINPE_MAX_RANK, "x: expected ", least_rank, " to ", SINPE_MAX_RANK,
                  " dimensions, got ", rank);
  STD_TORCH_CHECK(out.dim() == rank && out.scalar_type() == x.scalar_type(), "out: expected the rank and dtype of x");
  a.rank = static_cast<int32_t>(rank);
  const auto sizes = x.sizes(), x_strides = x.strides(), out_sizes = out.sizes(), out_strides = out.strides();
  for (int64_t d = 0; d < rank; ++d) {
    const size_t k = static_cast<size_t>(d);
    STD_TORCH_CHECK(out_sizes[k] == sizes[k], "out: expected the shape of x");
    a.sizes[d] = sizes[k];
    a.x_strides[d] = x_strides[k];
    a.out_strides[d] = out_strides[k];
  }
  a.x = x.const_data_ptr();
  a.out = out.mutable_data_ptr();
  a.dtype = dtype_of("x", x.scalar_type());
  a.scale = scale;
  a.alpha = 1.0;
  a.start = start;
  return a;
}

// Strides of a (batch, rows) companion of x, broadcast where its size is 1.
inline void companion_strides(const char* name, const Tensor& t, const sinpe_add_arguments& a, bool one_row,
                              int64_t* strides) {
  const int64_t batch = a.rank > 2 ? a.sizes[0] : 1, rows = a.sizes[a.rank - 2];
  STD_TORCH_CHECK(
      t.is_cpu() && t.dim() == 2 && (t.size(0) == 1 || t.size(0) == batch) && t.size(1) == (one_row ? 1 : rows), name,
      ": expected a CPU tensor of shape (batch or 1, sequence)");
  strides[0] = t.size(0) == 1 ? 0 : t.stride(0);
  strides[1] = t.size(1) == 1 ? 0 : t.stride(1);
}

// Positions and padding of the rows.
inline void set_rows(sinpe_add_arguments* a, const std::optional<Tensor>& positions,
                     const std::optional<Tensor>& padding_mask, bool positions_are_starts) {
  if (positions.has_value()) {
    companion_strides("positions", *positions, *a, positions_are_starts, a->position_strides);
    a->positions = positions->const_data_ptr();
    a->position_dtype = dtype_of("positions", positions->scalar_type());
    a->positions_are_starts = positions_are_starts;
  }
  if (padding_mask.has_value()) {
    STD_TORCH_CHECK(padding_mask->scalar_type() == ScalarType::Bool, "padding_mask: expected bool");
    companion_strides("padding_mask", *padding_mask, *a, false, a->mask_strides);
    a->padding_mask = static_cast<const uint8_t*>(padding_mask->const_data_ptr());
  }
}

}  // namespace sinpe_torch
