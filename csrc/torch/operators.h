// The operators that sinpe_ext/operations/ defines, on the LibTorch stable ABI, for both the CPU and the CUDA library. `Call`
// (cpu_ops.cpp, cuda_ops.cpp) implements what differs between them: the device of the operands, who reads scalar
// tensors, and which kernels run.
//
//   Call(name, t)                    one call, on the device of t, its first operand
//   device                           the device on which operands must be
//   plan(packed_plan, dim)           the packed plan as the kernels take it, for rows of dim channels
//   expect_dim(plan, dim)            called before `dim` determines the size of a result
//   set_alpha(alpha, &arguments)     alpha, read now or by the kernel; a tensor of shape () on the CPU is valid on
//                                    every device
//   set_seed(seed, drop, &dropout)   the same for the seed
//   register_output(out)             called before a kernel writes a result that the operator allocated; returns out
//   table, encode, add, ...          the kernels; each throws if it fails
#pragma once

#include <tuple>

#include "torch/arguments.h"

namespace sinpe_torch {

template <class Call>
struct Operators {
  static Tensor table(const Tensor& plan, int64_t start, int64_t length, int64_t dim, ScalarType dtype) {
    Call call("plan", plan);
    const auto packed_plan = call.plan(plan, dim);
    expect(length >= 0, "length: expected 0 or more, got ", length);
    call.expect_dim(packed_plan, dim);
    const sinpe_dtype type = float_type("dtype", dtype);
    Tensor out = call.register_output(new_dense(call.device, {length, dim}, type));
    call.table(packed_plan, start, length, type, out.mutable_data_ptr(), dim);
    return out;
  }

  static void table_out(const Tensor& plan, int64_t start, Tensor out) {
    const Call call("plan", plan);
    const int64_t stride = table_stride(call.device, out);
    const auto packed_plan = call.plan(plan, out.size(1));
    call.expect_dim(packed_plan, out.size(1));
    call.table(packed_plan, start, out.size(0), float_type("out", out.scalar_type()), out.mutable_data_ptr(), stride);
  }

  static Tensor encode(const Tensor& positions, const Tensor& plan, int64_t dim, ScalarType dtype) {
    Call call("positions", positions);
    expect_positions(call.device, positions);
    const auto packed_plan = call.plan(plan, dim);
    call.expect_dim(packed_plan, dim);
    const sinpe_dtype type = float_type("dtype", dtype);
    Tensor out = call.register_output(new_with_channels(call.device, positions, dim, type));
    call.encode(packed_plan, positions.const_data_ptr(), dtype_of("positions", positions.scalar_type()),
                positions.numel(), type, out.mutable_data_ptr(), dim);
    return out;
  }

  static Tensor add(const Tensor& x, const Tensor& plan, Optional positions, Optional padding_mask, Optional alpha,
                    Optional seed, int64_t start, bool positions_are_starts, double scale, int64_t drop_threshold,
                    Integers rng_offsets) {
    Call call("x", x);
    Tensor out = call.register_output(new_like(call.device, x));
    sinpe_add_arguments a = arguments_of(call.device, x, out, scale, start);
    call.set_alpha(alpha, &a);
    a.dropout = dropout_of(&call, seed, drop_threshold, rng_offsets, a.sizes, x.dim());
    set_rows(call.device, &a, positions, padding_mask, positions_are_starts);
    call.add(call.plan(plan, dim_of(a)), a);
    return out;
  }

  static void add_out(const Tensor& x, const Tensor& plan, Optional positions, Optional padding_mask, Optional alpha,
                      Optional seed, int64_t start, bool positions_are_starts, double scale, int64_t drop_threshold,
                      Integers rng_offsets, Tensor out) {
    Call call("x", x);
    sinpe_add_arguments a = arguments_of(call.device, x, out, scale, start);
    call.set_alpha(alpha, &a);
    a.dropout = dropout_of(&call, seed, drop_threshold, rng_offsets, a.sizes, x.dim());
    set_rows(call.device, &a, positions, padding_mask, positions_are_starts);
    call.add(call.plan(plan, dim_of(a)), a);
  }

  static void add_grid_out(const Tensor& x, const Tensor& values, const Tensor& grid, Optional padding_mask,
                           Optional seed, double scale, int64_t drop_threshold, Integers rng_offsets, Tensor out) {
    Call call("x", x);
    sinpe_add_arguments a = arguments_of(call.device, x, out, scale, 0);
    a.dropout = dropout_of(&call, seed, drop_threshold, rng_offsets, a.sizes, x.dim());
    set_rows(call.device, &a, std::nullopt, padding_mask, false);
    const void* from = grid_values_of(call.device, values, a.dtype);
    call.add_grid(call.plan(grid, dim_of(a), "grid"), from, values.numel(), a);
  }

  static Tensor dropout(const Tensor& x, Optional seed, int64_t drop_threshold, double scale, Integers rng_offsets) {
    Call call("x", x);
    Tensor out = call.register_output(new_like(call.device, x));
    sinpe_add_arguments a = arguments_of(call.device, x, out, scale, 0, 1);
    a.dropout = dropout_of(&call, seed, drop_threshold, rng_offsets, a.sizes, x.dim());
    call.dropout(a);
    return out;
  }

  static Tensor row_dots(const Tensor& grad, const Tensor& plan, Optional positions, Optional padding_mask,
                         Optional angular_frequencies, Optional seed, int64_t start, bool positions_are_starts,
                         int64_t drop_threshold, Integers rng_offsets) {
    Call call("grad", grad);
    sinpe_add_arguments a = arguments_of(call.device, grad, grad, 1.0, start);
    a.dropout = dropout_of(&call, seed, drop_threshold, rng_offsets, a.sizes, grad.dim());
    set_rows(call.device, &a, positions, padding_mask, positions_are_starts);
    const double* factors = angular_frequencies_of(call.device, angular_frequencies, dim_of(a));
    const auto packed_plan = call.plan(plan, dim_of(a));
    Tensor out = new_dense(call.device, Integers(a.sizes, a.sizes + a.rank - 1), SINPE_FLOAT64);
    a.out = out.mutable_data_ptr();
    call.row_dots(packed_plan, a, factors);
    return out;
  }

  static std::tuple<Tensor, Tensor> add_backward(const Tensor& grad, const Tensor& plan, Optional positions,
                                                 Optional padding_mask, Optional seed, int64_t start,
                                                 bool positions_are_starts, double scale, int64_t drop_threshold,
                                                 Integers rng_offsets) {
    Call call("grad", grad);
    Tensor to_x = call.register_output(new_like(call.device, grad));
    sinpe_add_arguments a = arguments_of(call.device, grad, to_x, scale, start);
    a.dropout = dropout_of(&call, seed, drop_threshold, rng_offsets, a.sizes, grad.dim());
    set_rows(call.device, &a, positions, padding_mask, positions_are_starts);
    const auto packed_plan = call.plan(plan, dim_of(a));
    Tensor dots = new_dense(call.device, Integers(a.sizes, a.sizes + a.rank - 1), SINPE_FLOAT64);
    call.add_backward(packed_plan, a, static_cast<double*>(dots.mutable_data_ptr()));
    return {to_x, dots};
  }

  static Tensor tree_sum(const Tensor& terms) {
    const Call call("terms", terms);
    call.device.expect("terms", terms);
    expect(terms.is_contiguous() && terms.scalar_type() == ScalarType::Double,
           "terms: expected contiguous float64, got ", torch::headeronly::toString(terms.scalar_type()),
           "; pass terms.double().contiguous()");
    Tensor out = new_dense(call.device, Integers(), SINPE_FLOAT64);
    call.tree_sum(static_cast<const double*>(terms.const_data_ptr()), terms.numel(),
                  static_cast<double*>(out.mutable_data_ptr()));
    return out;
  }

  // `padding_idx` and `sparse` are used by the derivative only.
  static Tensor embed(const Tensor& ids, const Tensor& weight, const Tensor& plan, Optional positions,
                      Optional padding_mask, Optional alpha, Optional seed, int64_t start, bool positions_are_starts,
                      double scale, int64_t, bool, int64_t drop_threshold, Integers rng_offsets) {
    Call call("ids", ids);
    expect_weight(call.device, weight);
    const int64_t dim = weight.size(1);
    const auto packed_plan = call.plan(plan, dim);
    call.expect_dim(packed_plan, dim);
    Tensor out =
        call.register_output(new_with_channels(call.device, ids, dim, float_type("weight", weight.scalar_type())));
    sinpe_embed_arguments e = embed_arguments_of(call.device, ids, weight, out, scale, start);
    call.set_alpha(alpha, &e.add);
    e.add.dropout = dropout_of(&call, seed, drop_threshold, rng_offsets, e.add.sizes, out.dim());
    set_rows(call.device, &e.add, positions, padding_mask, positions_are_starts);
    call.embed(packed_plan, e);
    return out;
  }

  static Tensor embed_backward(const Tensor& grad, const Tensor& ids, Optional seed, int64_t num_embeddings,
                               int64_t padding_idx, double scale, int64_t drop_threshold, Integers rng_offsets) {
    Call call("grad", grad);
    sinpe_embed_backward_arguments b =
        embed_backward_arguments_of(call.device, grad, ids, num_embeddings, padding_idx, scale);
    b.dropout = dropout_of(&call, seed, drop_threshold, rng_offsets, b.sizes, grad.dim());
    Tensor out = call.register_output(new_dense(call.device, {num_embeddings, b.sizes[b.rank - 1]}, b.dtype));
    b.out = out.mutable_data_ptr();
    call.embed_backward(b);
    return out;
  }

  template <class Library>
  static void implement(Library& m) {
    m.impl("table", TORCH_BOX(&table));
    m.impl("table_out", TORCH_BOX(&table_out));
    m.impl("encode", TORCH_BOX(&encode));
    m.impl("add", TORCH_BOX(&add));
    m.impl("add_out", TORCH_BOX(&add_out));
    m.impl("add_grid_out", TORCH_BOX(&add_grid_out));
    m.impl("dropout", TORCH_BOX(&dropout));
    m.impl("row_dots", TORCH_BOX(&row_dots));
    m.impl("add_backward", TORCH_BOX(&add_backward));
    m.impl("tree_sum", TORCH_BOX(&tree_sum));
    m.impl("embed", TORCH_BOX(&embed));
    m.impl("embed_backward", TORCH_BOX(&embed_backward));
  }

 private:
  // `sizes` is the shape of the tensor to which dropout is applied. `rng_offsets` must outlive the result.
  static sinpe_dropout_arguments dropout_of(Call* call, const Optional& seed, int64_t drop_threshold,
                                            const Integers& rng_offsets, const int64_t* sizes, int64_t rank) {
    sinpe_dropout_arguments d = sinpe_torch::dropout_of(drop_threshold, rng_offsets, sizes, rank);
    call->set_seed(seed, drop_threshold, &d);
    return d;
  }
};

}  // namespace sinpe_torch
