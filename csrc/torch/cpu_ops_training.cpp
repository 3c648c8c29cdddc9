// CPU implementations of the operators that training needs: dropout, the embedding, and what goes backward.
#include "torch/tensors.h"

namespace {

using namespace sinpe_torch;

using Optional = std::optional<Tensor>;
using Integers = std::vector<int64_t>;

// `rank` is that of the tensor whose elements are numbered. `elements` must outlive the result.
sinpe_dropout_arguments dropout_of(const Optional& seed, int64_t drop, const Integers& elements, int64_t rank) {
  sinpe_dropout_arguments d{};
  STD_TORCH_CHECK(drop >= 0 && drop <= 65536, "drop: expected 0 to 65536, got ", drop);
  d.drop = static_cast<int32_t>(drop);
  if (seed.has_value()) {
    STD_TORCH_CHECK(seed->is_cpu() && seed->scalar_type() == ScalarType::Long && seed->numel() == 1,
                    "seed: expected one int64 on the CPU");
    d.seed = *static_cast<const int64_t*>(seed->const_data_ptr());
  } else {
    STD_TORCH_CHECK(drop == 0 || drop == 65536, "seed: expected one int64 on the CPU, got None while drop is ", drop);
  }
  if (!elements.empty()) {
    STD_TORCH_CHECK(static_cast<int64_t>(elements.size()) == 1 + rank, "elements: expected ", 1 + rank,
                    " integers (base and a step for each dimension), got ", elements.size());
    d.elements = elements.data();
  }
  return d;
}

double value_of(const Optional& alpha) {
  if (!alpha.has_value()) return 1.0;
  STD_TORCH_CHECK(alpha->is_cpu() && alpha->numel() == 1, "alpha: expected one number on the CPU");
  const void* data = alpha->const_data_ptr();
  switch (alpha->scalar_type()) {
    case ScalarType::Double: return *static_cast<const double*>(data);
    case ScalarType::Float: return static_cast<double>(*static_cast<const float*>(data));
    case ScalarType::BFloat16: return static_cast<double>(*static_cast<const torch::headeronly::BFloat16*>(data));
    case ScalarType::Half: return static_cast<double>(*static_cast<const torch::headeronly::Half*>(data));
    default: STD_TORCH_CHECK(false, "alpha: expected a floating-point tensor");
  }
  return 1.0;
}

Tensor dropout(const Tensor& x, Optional seed, int64_t drop, double scale, Integers elements) {
  Tensor out = new_like(x);
  sinpe_add_arguments a = arguments_of(x, out, scale, 0, 1);
  a.dropout = dropout_of(seed, drop, elements, x.dim());
  succeed(sinpe_dropout(&a));
  return out;
}

Tensor add_dropout(const Tensor& x, const Tensor& plan, Optional positions, Optional padding_mask, Optional alpha,
                   Optional seed, int64_t start, bool positions_are_starts, double scale, int64_t drop,
                   Integers elements) {
  const Words words(plan);
  Tensor out = new_like(x);
  sinpe_add_arguments a = arguments_of(x, out, scale, start);
  a.alpha = value_of(alpha);
  a.dropout = dropout_of(seed, drop, elements, x.dim());
  set_rows(&a, positions, padding_mask, positions_are_starts);
  succeed(sinpe_add(words.data, words.size, &a));
  return out;
}

void add_dropout_out(const Tensor& x, const Tensor& plan, Optional positions, Optional padding_mask, Optional seed,
                     int64_t start, bool positions_are_starts, double scale, double alpha, int64_t drop,
                     Integers elements, Tensor out) {
  const Words words(plan);
  sinpe_add_arguments a = arguments_of(x, out, scale, start);
  a.alpha = alpha;
  a.dropout = dropout_of(seed, drop, elements, x.dim());
  set_rows(&a, positions, padding_mask, positions_are_starts);
  succeed(sinpe_add(words.data, words.size, &a));
}

Tensor row_dots(const Tensor& grad, const Tensor& plan, Optional positions, Optional padding_mask, Optional slopes,
                Optional seed, int64_t start, bool positions_are_starts, int64_t drop, Integers elements) {
  const Words words(plan);
  sinpe_add_arguments a = arguments_of(grad, grad, 1.0, start);
  Tensor out = new_dense(Integers(a.sizes, a.sizes + a.rank - 1), SINPE_FLOAT64);
  a.out = out.mutable_data_ptr();
  a.dropout = dropout_of(seed, drop, elements, grad.dim());
  set_rows(&a, positions, padding_mask, positions_are_starts);
  const double* factors = nullptr;
  if (slopes.has_value()) {
    STD_TORCH_CHECK(slopes->is_cpu() && slopes->is_contiguous() && slopes->scalar_type() == ScalarType::Double &&
                        slopes->numel() == words.dim(),
                    "slopes: expected contiguous float64 of shape (dim,) on the CPU");
    factors = static_cast<const double*>(slopes->const_data_ptr());
  }
  succeed(sinpe_row_dots(words.data, words.size, &a, factors));
  return out;
}

const int64_t* ids_of(const Tensor& ids, int64_t* strides) {
  STD_TORCH_CHECK(ids.is_cpu() && ids.scalar_type() == ScalarType::Long, "ids: expected int64 on the CPU");
  STD_TORCH_CHECK(ids.dim() >= 1 && ids.dim() < SINPE_MAX_RANK, "ids: expected 1 to ", SINPE_MAX_RANK - 1,
                  " dimensions, got ", ids.dim());
  for (int64_t d = 0; d < ids.dim(); ++d) strides[d] = ids.stride(d);
  return static_cast<const int64_t*>(ids.const_data_ptr());
}

void succeed_with_ids(sinpe_status status, int64_t bad_id, int64_t rows) {
  if (status != SINPE_BAD_ID) return succeed(status);
  const std::string count = std::to_string(rows);
  throw std::runtime_error("ids: expected 0 to " + std::to_string(rows - 1) + ", rows of weight, got " +
                           std::to_string(bad_id) + " (weight has " + count +
                           " rows); check the tokenizer's vocabulary, or enlarge the embedding");
}

// `padding_idx` and `sparse` serve the derivative.
Tensor embed(const Tensor& ids, const Tensor& weight, const Tensor& plan, Optional positions, Optional padding_mask,
             Optional alpha, Optional seed, int64_t start, bool positions_are_starts, double scale, int64_t, bool,
             int64_t drop, Integers elements) {
  const Words words(plan);
  sinpe_embed_arguments e{};
  e.ids = ids_of(ids, e.id_strides);
  STD_TORCH_CHECK(weight.is_cpu() && weight.dim() == 2 && (weight.size(1) <= 1 || weight.stride(1) == 1),
                  "weight: expected a CPU tensor of shape (num_embeddings, dim) whose channels are contiguous");
  words.expect_dim(weight.size(1));
  const auto sizes = ids.sizes();
  Integers shape(sizes.begin(), sizes.end());
  shape.push_back(weight.size(1));
  Tensor out = new_dense(shape, dtype_of("weight", weight.scalar_type()));
  e.add = arguments_of(out, out, scale, start);
  e.add.x = weight.const_data_ptr();
  e.add.alpha = value_of(alpha);
  e.add.dropout = dropout_of(seed, drop, elements, out.dim());
  set_rows(&e.add, positions, padding_mask, positions_are_starts);
  e.num_embeddings = weight.size(0);
  e.weight_stride = weight.stride(0);
  const sinpe_status status = sinpe_embed(words.data, words.size, &e);
  succeed_with_ids(status, e.bad_id, e.num_embeddings);
  return out;
}

Tensor embed_backward(const Tensor& grad, const Tensor& ids, Optional seed, int64_t num_embeddings, int64_t padding_idx,
                      double scale, int64_t drop, Integers elements) {
  sinpe_embed_backward_arguments b{};
  b.ids = ids_of(ids, b.id_strides);
  STD_TORCH_CHECK(num_embeddings >= 0, "num_embeddings: expected 0 or more, got ", num_embeddings);
  STD_TORCH_CHECK(grad.is_cpu() && grad.dim() == ids.dim() + 1,
                  "grad: expected a CPU tensor of shape (*ids.shape, dim)");
  b.rank = static_cast<int32_t>(grad.dim());
  for (int64_t d = 0; d < grad.dim(); ++d) {
    STD_TORCH_CHECK(d == ids.dim() || grad.size(d) == ids.size(d), "grad: expected the shape (*ids.shape, dim)");
    b.sizes[d] = grad.size(d);
    b.grad_strides[d] = grad.stride(d);
  }
  b.dtype = dtype_of("grad", grad.scalar_type());
  Tensor out = new_dense({num_embeddings, grad.size(grad.dim() - 1)}, b.dtype);
  b.grad = grad.const_data_ptr();
  b.out = out.mutable_data_ptr();
  b.num_embeddings = num_embeddings;
  b.padding_idx = padding_idx;
  b.scale = scale;
  b.dropout = dropout_of(seed, drop, elements, grad.dim());
  const sinpe_status status = sinpe_embed_backward(&b);
  succeed_with_ids(status, b.bad_id, num_embeddings);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CPU, m) {
  m.impl("dropout", TORCH_BOX(&dropout));
  m.impl("add_dropout", TORCH_BOX(&add_dropout));
  m.impl("add_dropout_out", TORCH_BOX(&add_dropout_out));
  m.impl("row_dots", TORCH_BOX(&row_dots));
  m.impl("embed", TORCH_BOX(&embed));
  m.impl("embed_backward", TORCH_BOX(&embed_backward));
}
