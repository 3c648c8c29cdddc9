// Conversion of operator operands to the arguments of the C interface: shapes, strides and pointers, for the CPU and
// for devices whose memory the host cannot read.
#pragma once

#include <algorithm>
#include <utility>

#include "core/layout.h"
#include "torch/tensors.h"

namespace sinpe_torch {

// A packed plan or grid. The elements may be read only if tensors are in host memory.
struct PackedArray {
  const int64_t* data;
  int64_t size;
  PackedArray(const Device& device, const Tensor& packed, const char* name = "plan")
      : data(nullptr), size(packed.numel()) {
    device.expect(name, packed);
    const ScalarType type = packed.scalar_type();
    expect(type == ScalarType::Long, name, ": expected int64 words, got ", torch::headeronly::toString(type));
    expect(size > 0, name, ": expected a packed ", name, " tensor, got none");
    expect(packed.is_contiguous(), name, ": expected contiguous words, got strides; pass ", name, ".contiguous()");
    data = static_cast<const int64_t*>(packed.const_data_ptr());
  }
};

// A new tensor of t's shape, with a channel dimension appended. If t is a transposed contiguous tensor, so is the result,
// like that of `with_channels` in sinpe_ext/reference/apply.py.
inline Tensor new_with_channels(const Device& device, const Tensor& t, int64_t dim, sinpe_dtype dtype) {
  const auto sizes = t.sizes(), from = t.strides();
  Integers shape(sizes.begin(), sizes.end()), strides(from.begin(), from.end());
  shape.push_back(dim);
  int64_t elements;
  if (t.is_contiguous() || dim == 0 || !is_dense(t) || __builtin_mul_overflow(t.numel(), dim, &elements)) {
    return new_dense(device, shape, dtype);
  }
  for (int64_t& stride : strides) stride *= dim;
  strides.push_back(1);
  return new_strided(device, shape.data(), strides.data(), static_cast<int64_t>(shape.size()), dtype);
}

// The row stride of an output table.
inline int64_t table_stride(const Device& device, const Tensor& out) {
  device.expect("out", out);
  expect(out.dim() == 2 && (out.size(1) == 1 || out.stride(1) == 1),
         "out: expected the shape (length, dim) with contiguous channels");
  return out.size(0) > 1 ? out.stride(0) : out.size(1);
}

inline void expect_positions(const Device& device, const Tensor& positions) {
  device.expect("positions", positions);
  expect(positions.is_contiguous(), "positions: expected a contiguous tensor, got strides; pass .contiguous()");
}

// The stride of a dimension with one element may be arbitrary, even too large for pointer arithmetic.
inline int64_t stride_of(int64_t size, int64_t stride) { return size > 1 || stride < (int64_t{1} << 40) ? stride : 0; }

// Arguments with x and out, which must have the same shape and dtype.
inline sinpe_add_arguments arguments_of(const Device& device, const Tensor& x, const Tensor& out, double scale,
                                        int64_t start, int64_t least_rank = 2) {
  sinpe_add_arguments a{};
  const int64_t rank = x.dim();
  device.expect("x", x);
  device.expect("out", out);
  expect(rank >= least_rank && rank <= SINPE_MAX_RANK, "x: expected ", least_rank, " to ", SINPE_MAX_RANK,
         " dimensions, got ", rank);
  expect(out.dim() == rank && out.scalar_type() == x.scalar_type(), "out: expected the rank and dtype of x");
  a.rank = static_cast<int32_t>(rank);
  const auto sizes = x.sizes(), x_strides = x.strides(), out_sizes = out.sizes(), out_strides = out.strides();
  for (int64_t d = 0; d < rank; ++d) {
    const size_t k = static_cast<size_t>(d);
    expect(out_sizes[k] == sizes[k], "out: expected the shape of x, whose size in dimension ", d, " is ", sizes[k],
           ", got ", out_sizes[k]);
    a.sizes[d] = sizes[k];
    a.x_strides[d] = stride_of(sizes[k], x_strides[k]);
    a.out_strides[d] = stride_of(sizes[k], out_strides[k]);
  }
  a.x = x.const_data_ptr();
  a.out = out.mutable_data_ptr();
  a.dtype = float_type("x", x.scalar_type());
  a.scale = scale;
  a.alpha = 1.0;
  a.start = start;
  return a;
}

inline int64_t dim_of(const sinpe_add_arguments& a) { return a.sizes[a.rank - 1]; }

// Strides of an operand of shape (batch or 1, rows), 0 in dimensions that are broadcast.
inline void row_operand_strides(const Device& device, const char* name, const Tensor& t, const sinpe_add_arguments& a,
                                bool one_row, int64_t* strides) {
  device.expect(name, t);
  const int64_t batch = a.rank > 2 ? a.sizes[0] : 1, rows = one_row ? 1 : a.sizes[a.rank - 2];
  expect(t.dim() == 2, name, ": expected 2 dimensions, (batch or 1, sequence), got ", t.dim());
  const int64_t b = t.size(0), s = t.size(1);
  expect((b == 1 || b == batch) && s == rows, name, ": expected the shape (", batch, " or 1, ", rows, "), got (", b,
         ", ", s, ")");
  strides[0] = b == 1 ? 0 : t.stride(0);
  strides[1] = s == 1 ? 0 : t.stride(1);
}

// Sets the positions and the padding mask.
inline void set_rows(const Device& device, sinpe_add_arguments* a, const Optional& positions,
                     const Optional& padding_mask, bool positions_are_starts) {
  if (positions.has_value()) {
    row_operand_strides(device, "positions", *positions, *a, positions_are_starts, a->position_strides);
    a->positions = positions->const_data_ptr();
    a->position_dtype = dtype_of("positions", positions->scalar_type());
    a->positions_are_starts = positions_are_starts;
  }
  if (padding_mask.has_value()) {
    const ScalarType type = padding_mask->scalar_type();
    expect(type == ScalarType::Bool, "padding_mask: expected bool, got ", torch::headeronly::toString(type));
    row_operand_strides(device, "padding_mask", *padding_mask, *a, false, a->mask_strides);
    a->padding_mask = static_cast<const uint8_t*>(padding_mask->const_data_ptr());
  }
}

// Whether an operand is a scalar that the host may read immediately: like PyTorch, a tensor of shape () on the CPU.
inline bool is_host_number(const Optional& t) {
  return t.has_value() && t->dim() == 0 && Device::of(*t).type == aoti_torch_device_type_cpu();
}

// Pointer to the seed of dropout; null if none is needed.
inline const int64_t* seed_of(const Device& device, const Optional& seed, int64_t drop_threshold) {
  if (!seed.has_value()) {
    expect(drop_threshold == 0 || drop_threshold == 65536,
           "seed: expected one int64, got None while drop_threshold is ", drop_threshold);
    return nullptr;
  }
  device.expect("seed", *seed);
  const ScalarType type = seed->scalar_type();
  expect(type == ScalarType::Long && seed->numel() == 1, "seed: expected one int64, got ", seed->numel(), " of ",
         torch::headeronly::toString(type));
  return static_cast<const int64_t*>(seed->const_data_ptr());
}

// All dropout arguments except the seed. `sizes` is the shape of the tensor to which dropout is applied. `rng_offsets`
// must outlive the result.
inline sinpe_dropout_arguments dropout_of(int64_t drop_threshold, const Integers& rng_offsets, const int64_t* sizes,
                                          int64_t rank) {
  sinpe_dropout_arguments d{};
  expect(drop_threshold >= 0 && drop_threshold <= 65536, "drop_threshold: expected 0 to 65536, got ", drop_threshold);
  d.drop_threshold = static_cast<int32_t>(drop_threshold);
  if (rng_offsets.empty()) return d;
  expect(static_cast<int64_t>(rng_offsets.size()) == 1 + rank, "rng_offsets: expected ", 1 + rank,
         " integers (base and a step for each dimension), got ", rng_offsets.size());
  d.rng_offsets = rng_offsets.data();
  expect(sinpe::valid_dropout(d, sizes, static_cast<int>(rank)),
         "rng_offsets: expected steps of 0 or more to numbers that int64 holds, got others; pass those of the whole "
         "tensor");
  return d;
}

// Pointer to alpha, and its dtype; null if alpha is not given (1).
inline const void* alpha_of(const Device& device, const Optional& alpha, sinpe_dtype* dtype) {
  *dtype = SINPE_FLOAT32;
  if (!alpha.has_value()) return nullptr;
  device.expect("alpha", *alpha);
  expect(alpha->numel() == 1, "alpha: expected one number, got ", alpha->numel());
  *dtype = float_type("alpha", alpha->scalar_type());
  return alpha->const_data_ptr();
}

// The rows of a grid's axes, in the accumulation type of x.
inline const void* grid_values_of(const Device& device, const Tensor& values, sinpe_dtype x) {
  device.expect("values", values);
  const ScalarType wanted = x == SINPE_FLOAT64 ? ScalarType::Double : ScalarType::Float, type = values.scalar_type();
  expect(type == wanted && values.dim() == 1 && values.is_contiguous(), "values: expected a contiguous row of ",
         torch::headeronly::toString(wanted), ", got ", values.dim(), " dimensions of ",
         torch::headeronly::toString(type));
  return values.const_data_ptr();
}

// The factors of row_dots, one per channel; null if there are none.
inline const double* angular_frequencies_of(const Device& device, const Optional& angular_frequencies, int64_t dim) {
  if (!angular_frequencies.has_value()) return nullptr;
  device.expect("angular_frequencies", *angular_frequencies);
  expect(angular_frequencies->is_contiguous() && angular_frequencies->scalar_type() == ScalarType::Double &&
             angular_frequencies->numel() == dim,
         "angular_frequencies: expected contiguous float64 of shape (", dim, ",), got ", angular_frequencies->numel(),
         " of ", torch::headeronly::toString(angular_frequencies->scalar_type()));
  return static_cast<const double*>(angular_frequencies->const_data_ptr());
}

inline const int64_t* ids_of(const Device& device, const Tensor& ids, int64_t* strides) {
  device.expect("ids", ids);
  const int64_t rank = ids.dim();
  const ScalarType type = ids.scalar_type();
  expect(type == ScalarType::Long, "ids: expected int64, got ", torch::headeronly::toString(type));
  expect(rank >= 1 && rank < SINPE_MAX_RANK, "ids: expected 1 to ", SINPE_MAX_RANK - 1, " dimensions, got ", rank);
  const auto from = ids.strides();
  for (size_t d = 0; d < from.size(); ++d) strides[d] = stride_of(ids.size(static_cast<int64_t>(d)), from[d]);
  return static_cast<const int64_t*>(ids.const_data_ptr());
}

inline void expect_weight(const Device& device, const Tensor& weight) {
  device.expect("weight", weight);
  expect(weight.dim() == 2 && (weight.size(1) <= 1 || weight.stride(1) == 1),
         "weight: expected the shape (num_embeddings, dim) with contiguous channels");
}

// `weight` must have passed expect_weight; `out` has the shape (*ids.shape, dim) and the dtype of `weight`.
inline sinpe_embed_arguments embed_arguments_of(const Device& device, const Tensor& ids, const Tensor& weight,
                                                const Tensor& out, double scale, int64_t start) {
  sinpe_embed_arguments e{};
  e.ids = ids_of(device, ids, e.id_strides);
  e.add = arguments_of(device, out, out, scale, start);
  e.add.x = weight.const_data_ptr();
  e.num_embeddings = weight.size(0);
  e.weight_stride = weight.stride(0);
  return e;
}

// All arguments except out and dropout.
inline sinpe_embed_backward_arguments embed_backward_arguments_of(const Device& device, const Tensor& grad,
                                                                  const Tensor& ids, int64_t num_embeddings,
                                                                  int64_t padding_idx, double scale) {
  sinpe_embed_backward_arguments b{};
  device.expect("grad", grad);
  b.ids = ids_of(device, ids, b.id_strides);
  expect(num_embeddings >= 0, "num_embeddings: expected 0 or more, got ", num_embeddings);
  const int64_t rank = grad.dim();
  expect(rank == ids.dim() + 1, "grad: expected ", ids.dim() + 1, " dimensions, those of ids and dim, got ", rank);
  b.rank = static_cast<int32_t>(rank);
  for (int64_t d = 0; d < rank; ++d) {
    expect(d == rank - 1 || grad.size(d) == ids.size(d), "grad: expected the shape (*ids.shape, dim), got ",
           grad.size(d), " in dimension ", d);
    b.sizes[d] = grad.size(d);
    b.grad_strides[d] = stride_of(grad.size(d), grad.stride(d));
  }
  b.dtype = float_type("grad", grad.scalar_type());
  b.grad = grad.const_data_ptr();
  b.num_embeddings = num_embeddings;
  b.padding_idx = padding_idx;
  b.scale = scale;
  return b;
}

}  // namespace sinpe_torch
