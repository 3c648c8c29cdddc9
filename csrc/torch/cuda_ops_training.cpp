// CUDA implementations of the operators that training needs: dropout, the embedding, and what goes backward.
#include <array>

#include "torch/cuda_call.h"

namespace {

using namespace sinpe_torch;

Tensor dropout(const Tensor& x, Optional seed, int64_t drop, double scale, Integers elements) {
  const Call call("x", x);
  Tensor out = new_like(call.device, x);
  sinpe_add_arguments a = arguments_of(call.device, x, out, scale, 0, 1);
  a.dropout = dropout_of(drop, elements, a.sizes, x.dim());
  launched(cuda::dropout(a, scalars_of(call, std::nullopt, seed, drop), call.stream));
  return out;
}

Tensor add_dropout(const Tensor& x, const Tensor& plan, Optional positions, Optional padding_mask, Optional alpha,
                   Optional seed, int64_t start, bool positions_are_starts, double scale, int64_t drop,
                   Integers elements) {
  const Call call("x", x);
  Tensor out = new_like(call.device, x);
  sinpe_add_arguments a = arguments_of(call.device, x, out, scale, start);
  a.dropout = dropout_of(drop, elements, a.sizes, x.dim());
  set_rows(call.device, &a, positions, padding_mask, positions_are_starts);
  const cuda::DeviceScalars scalars = scalars_of(call, alpha, seed, drop);
  launched(cuda::add(plan_of(call, plan, dim_of(a)), a, scalars, call.stream));
  return out;
}

void add_dropout_out(const Tensor& x, const Tensor& plan, Optional positions, Optional padding_mask, Optional seed,
                     int64_t start, bool positions_are_starts, double scale, double alpha, int64_t drop,
                     Integers elements, Tensor out) {
  const Call call("x", x);
  sinpe_add_arguments a = written_arguments_of(call.device, x, out, scale, start);
  expect_apart(out, {{"plan", plan}, {"positions", positions}, {"padding_mask", padding_mask}, {"seed", seed}});
  a.alpha = alpha;
  a.dropout = dropout_of(drop, elements, a.sizes, x.dim());
  set_rows(call.device, &a, positions, padding_mask, positions_are_starts);
  const cuda::DeviceScalars scalars = scalars_of(call, std::nullopt, seed, drop);
  launched(cuda::add(plan_of(call, plan, dim_of(a)), a, scalars, call.stream));
}

void add_grid_out(const Tensor& x, const Tensor& values, const Tensor& grid, Optional padding_mask, Optional seed,
                  double scale, int64_t drop, Integers elements, Tensor out) {
  const Call call("x", x);
  sinpe_add_arguments a = written_arguments_of(call.device, x, out, scale, 0);
  expect_apart(out, {{"grid", grid}, {"values", values}, {"padding_mask", padding_mask}, {"seed", seed}});
  a.dropout = dropout_of(drop, elements, a.sizes, x.dim());
  set_rows(call.device, &a, std::nullopt, padding_mask, false);
  const void* from = grid_values_of(call.device, values, a.dtype);
  const cuda::DeviceScalars scalars = scalars_of(call, std::nullopt, seed, drop);
  launched(cuda::add_grid(plan_of(call, grid, dim_of(a), "grid"), from, values.numel(), a, scalars, call.stream));
}

Tensor row_dots(const Tensor& grad, const Tensor& plan, Optional positions, Optional padding_mask, Optional slopes,
                Optional seed, int64_t start, bool positions_are_starts, int64_t drop, Integers elements) {
  const Call call("grad", grad);
  sinpe_add_arguments a = arguments_of(call.device, grad, grad, 1.0, start);
  a.dropout = dropout_of(drop, elements, a.sizes, grad.dim());
  set_rows(call.device, &a, positions, padding_mask, positions_are_starts);
  const cuda::DeviceScalars scalars = scalars_of(call, std::nullopt, seed, drop);
  const double* factors = slopes_of(call.device, slopes, dim_of(a));
  const cuda::DevicePlan words = plan_of(call, plan, dim_of(a));
  Tensor out = new_dense(call.device, Integers(a.sizes, a.sizes + a.rank - 1), SINPE_FLOAT64);
  a.out = out.mutable_data_ptr();
  launched(cuda::row_dots(words, a, factors, scalars, call.stream));
  return out;
}

// `padding_idx` and `sparse` serve the derivative.
Tensor embed(const Tensor& ids, const Tensor& weight, const Tensor& plan, Optional positions, Optional padding_mask,
             Optional alpha, Optional seed, int64_t start, bool positions_are_starts, double scale, int64_t, bool,
             int64_t drop, Integers elements) {
  const Call call("ids", ids);
  expect_weight(call.device, weight);
  Tensor out = new_with_channels(call.device, ids, weight.size(1), float_type("weight", weight.scalar_type()));
  sinpe_embed_arguments e = embed_arguments_of(call.device, ids, weight, out, scale, start);
  e.add.dropout = dropout_of(drop, elements, e.add.sizes, out.dim());
  set_rows(call.device, &e.add, positions, padding_mask, positions_are_starts);
  const cuda::DeviceScalars scalars = scalars_of(call, alpha, seed, drop);
  launched(cuda::embed(plan_of(call, plan, dim_of(e.add)), e, scalars, call.stream));
  return out;
}

// A tensor's numbers in ascending order, and the row-major index of each; equal ones in the order of their indices.
struct Sorted {
  Tensor values, indices;
};

Sorted sorted(const Tensor& t) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 4> stack{from(torch::stable::flatten(t)), from(std::optional<bool>(true)), from(int64_t{-1}),
                                    from(false)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION));
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
}

// The sort is PyTorch's, whose memory comes from its caching allocator: the only scratch of these operators.
Tensor embed_backward(const Tensor& grad, const Tensor& ids, Optional seed, int64_t num_embeddings, int64_t padding_idx,
                      double scale, int64_t drop, Integers elements) {
  const Call call("grad", grad);
  sinpe_embed_backward_arguments b =
      embed_backward_arguments_of(call.device, grad, ids, num_embeddings, padding_idx, scale);
  b.dropout = dropout_of(drop, elements, b.sizes, grad.dim());
  const cuda::DeviceScalars scalars = scalars_of(call, std::nullopt, seed, drop);
  Tensor out = new_dense(call.device, {num_embeddings, b.sizes[b.rank - 1]}, b.dtype);
  if (out.numel() == 0) return out;  // before the sort, which would write out an expanded tensor of ids
  b.out = out.mutable_data_ptr();
  const Sorted tokens = sorted(ids);
  launched(cuda::embed_backward(b, static_cast<const int64_t*>(tokens.values.const_data_ptr()),
                                static_cast<const int64_t*>(tokens.indices.const_data_ptr()), scalars, call.stream));
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, SINPE_CUDA_KEY, m) {
  m.impl("dropout", TORCH_BOX(&dropout));
  m.impl("add_dropout", TORCH_BOX(&add_dropout));
  m.impl("add_dropout_out", TORCH_BOX(&add_dropout_out));
  m.impl("add_grid_out", TORCH_BOX(&add_grid_out));
  m.impl("row_dots", TORCH_BOX(&row_dots));
  m.impl("embed", TORCH_BOX(&embed));
  m.impl("embed_backward", TORCH_BOX(&embed_backward));
}
