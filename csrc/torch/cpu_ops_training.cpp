// CPU implementations of the operators that training needs: dropout, the embedding, and what goes backward.
#include "torch/arguments.h"

namespace {

using namespace sinpe_torch;

sinpe_dropout_arguments dropout_of(const Device& cpu, const Optional& seed, int64_t drop, const Integers& elements,
                                   const int64_t* sizes, int64_t rank) {
  sinpe_dropout_arguments d = sinpe_torch::dropout_of(drop, elements, sizes, rank);
  if (const int64_t* value = seed_of(cpu, seed, drop)) d.seed = *value;
  return d;
}

double value_of(const Device& cpu, const Optional& alpha) {
  sinpe_dtype dtype;
  const void* data = alpha_of(cpu, alpha, &dtype);
  if (data == nullptr) return 1.0;
  switch (dtype) {
    case SINPE_FLOAT64: return *static_cast<const double*>(data);
    case SINPE_BFLOAT16: return static_cast<double>(*static_cast<const torch::headeronly::BFloat16*>(data));
    case SINPE_FLOAT16: return static_cast<double>(*static_cast<const torch::headeronly::Half*>(data));
    default: return static_cast<double>(*static_cast<const float*>(data));
  }
}

Tensor dropout(const Tensor& x, Optional seed, int64_t drop, double scale, Integers elements) {
  const Device cpu = Device::cpu();
  Tensor out = new_like(cpu, x);
  sinpe_add_arguments a = arguments_of(cpu, x, out, scale, 0, 1);
  a.dropout = dropout_of(cpu, seed, drop, elements, a.sizes, x.dim());
  succeed(sinpe_dropout(&a));
  return out;
}

Tensor add_dropout(const Tensor& x, const Tensor& plan, Optional positions, Optional padding_mask, Optional alpha,
                   Optional seed, int64_t start, bool positions_are_starts, double scale, int64_t drop,
                   Integers elements) {
  const Device cpu = Device::cpu();
  const Words words(cpu, plan);
  Tensor out = new_like(cpu, x);
  sinpe_add_arguments a = arguments_of(cpu, x, out, scale, start);
  a.alpha = value_of(cpu, alpha);
  a.dropout = dropout_of(cpu, seed, drop, elements, a.sizes, x.dim());
  set_rows(cpu, &a, positions, padding_mask, positions_are_starts);
  succeed(sinpe_add(words.data, words.size, &a));
  return out;
}

void add_dropout_out(const Tensor& x, const Tensor& plan, Optional positions, Optional padding_mask, Optional seed,
                     int64_t start, bool positions_are_starts, double scale, double alpha, int64_t drop,
                     Integers elements, Tensor out) {
  const Device cpu = Device::cpu();
  const Words words(cpu, plan);
  sinpe_add_arguments a = written_arguments_of(cpu, x, out, scale, start);
  expect_apart(out, {{"plan", plan}, {"positions", positions}, {"padding_mask", padding_mask}, {"seed", seed}});
  a.alpha = alpha;
  a.dropout = dropout_of(cpu, seed, drop, elements, a.sizes, x.dim());
  set_rows(cpu, &a, positions, padding_mask, positions_are_starts);
  succeed(sinpe_add(words.data, words.size, &a));
}

void add_grid_out(const Tensor& x, const Tensor& values, const Tensor& grid, Optional padding_mask, Optional seed,
                  double scale, int64_t drop, Integers elements, Tensor out) {
  const Device cpu = Device::cpu();
  const Words words(cpu, grid, "grid");
  sinpe_add_arguments a = written_arguments_of(cpu, x, out, scale, 0);
  expect_apart(out, {{"grid", grid}, {"values", values}, {"padding_mask", padding_mask}, {"seed", seed}});
  a.dropout = dropout_of(cpu, seed, drop, elements, a.sizes, x.dim());
  set_rows(cpu, &a, std::nullopt, padding_mask, false);
  const void* from = grid_values_of(cpu, values, a.dtype);
  const sinpe_status status = sinpe_add_grid(words.data, words.size, from, values.numel(), &a);
  expect(status != SINPE_BAD_PLAN, "grid: expected the words of a grid over ", values.numel(),
         " values, got others; pass those of sinpe_ext.calls.grid_rows.words");
  expect(status != SINPE_BAD_ARGUMENT, "x: expected the places and channels of the grid, without a padding_mask where ",
         "it is one by channels, got other sizes");
  succeed(status);
}

Tensor row_dots(const Tensor& grad, const Tensor& plan, Optional positions, Optional padding_mask, Optional slopes,
                Optional seed, int64_t start, bool positions_are_starts, int64_t drop, Integers elements) {
  const Device cpu = Device::cpu();
  const Words words(cpu, plan);
  sinpe_add_arguments a = arguments_of(cpu, grad, grad, 1.0, start);
  Tensor out = new_dense(cpu, Integers(a.sizes, a.sizes + a.rank - 1), SINPE_FLOAT64);
  a.out = out.mutable_data_ptr();
  a.dropout = dropout_of(cpu, seed, drop, elements, a.sizes, grad.dim());
  set_rows(cpu, &a, positions, padding_mask, positions_are_starts);
  succeed(sinpe_row_dots(words.data, words.size, &a, slopes_of(cpu, slopes, plan_dim(words))));
  return out;
}

void succeed_with_ids(sinpe_status status, int64_t bad_id, int64_t rows) {
  expect(status != SINPE_BAD_ID, "ids: expected 0 to ", rows - 1, ", rows of weight, got ", bad_id, " (weight has ",
         rows, " rows); check the tokenizer's vocabulary, or enlarge the embedding");
  succeed(status);
}

// `padding_idx` and `sparse` serve the derivative.
Tensor embed(const Tensor& ids, const Tensor& weight, const Tensor& plan, Optional positions, Optional padding_mask,
             Optional alpha, Optional seed, int64_t start, bool positions_are_starts, double scale, int64_t, bool,
             int64_t drop, Integers elements) {
  const Device cpu = Device::cpu();
  const Words words(cpu, plan);
  expect_weight(cpu, weight);
  expect_dim(words, weight.size(1));
  Tensor out = new_with_channels(cpu, ids, weight.size(1), float_type("weight", weight.scalar_type()));
  sinpe_embed_arguments e = embed_arguments_of(cpu, ids, weight, out, scale, start);
  e.add.alpha = value_of(cpu, alpha);
  e.add.dropout = dropout_of(cpu, seed, drop, elements, e.add.sizes, out.dim());
  set_rows(cpu, &e.add, positions, padding_mask, positions_are_starts);
  const sinpe_status status = sinpe_embed(words.data, words.size, &e);
  succeed_with_ids(status, e.bad_id, e.num_embeddings);
  return out;
}

Tensor embed_backward(const Tensor& grad, const Tensor& ids, Optional seed, int64_t num_embeddings, int64_t padding_idx,
                      double scale, int64_t drop, Integers elements) {
  const Device cpu = Device::cpu();
  sinpe_embed_backward_arguments b = embed_backward_arguments_of(cpu, grad, ids, num_embeddings, padding_idx, scale);
  b.dropout = dropout_of(cpu, seed, drop, elements, b.sizes, grad.dim());
  Tensor out = new_dense(cpu, {num_embeddings, b.sizes[b.rank - 1]}, b.dtype);
  b.out = out.mutable_data_ptr();
  const sinpe_status status = sinpe_embed_backward(&b);
  succeed_with_ids(status, b.bad_id, num_embeddings);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CPU, m) {
  m.impl("dropout", TORCH_BOX(&dropout));
  m.impl("add_dropout", TORCH_BOX(&add_dropout));
  m.impl("add_dropout_out", TORCH_BOX(&add_dropout_out));
  m.impl("add_grid_out", TORCH_BOX(&add_grid_out));
  m.impl("row_dots", TORCH_BOX(&row_dots));
  m.impl("embed", TORCH_BOX(&embed));
  m.impl("embed_backward", TORCH_BOX(&embed_backward));
}
