// The operators that sinpe_ext/operations/ defines, on the LibTorch stable ABI, for both the CPU and the CUDA library:
// they describe the operands, allocate the results and call Kernels::run (core/kernels.h).
#pragma once

#include <tuple>

#include "torch/tensors.h"

namespace sinpe_torch {

using sinpe::Field;
using sinpe::Op;
using sinpe::Operand;
using Integers = std::vector<int64_t>;
using Optional = std::optional<Tensor>;

const sinpe::Kernels& kernels();  // of the library, which defines this

// The operands and results of one call, described for Kernels::run, in the order of sinpe::kOperands.
class Operands {
 public:
  template <class... T>
  explicit Operands(Op op, const T&... operands) : op_(op), fields_(sinpe::kOperands[static_cast<int32_t>(op)].fields) {
    (add(operands), ...);
  }

  void add(const Tensor& t) {
    const Field field = fields_[count_];
    View& view = views_[count_];
    view = view_of(sinpe::kNames[field], t, field == sinpe::kOut || field == sinpe::kDots);
    next(Operand::kTensor).tensor = &view;
  }
  void add(const Optional& t) {
    if (t.has_value())
      add(*t);
    else
      next(Operand::kNone);
  }
  void add(int64_t number) { next(Operand::kInt).integer = number; }
  void add(bool flag) { add(int64_t{flag}); }
  void add(double number) { next(Operand::kFloat).number = number; }
  void add(const Integers& numbers) {
    Operand& o = next(Operand::kInts);
    o.count = static_cast<int32_t>(numbers.size());
    o.integers = numbers.data();
  }

  // The first operand, a tensor, determines the device.
  const View& first() const { return views_[0]; }
  // Computes the last result, which is new like any others.
  Tensor into_new(Tensor out) {
    add(out);
    run(/*is_new=*/true);
    return out;
  }
  void run(bool is_new) const {
    const char* error = kernels().run(op_, views_[0].device, all_, count_, is_new, /*check_only=*/false);
    if (error != nullptr) throw std::runtime_error(error);
  }

 private:
  Operand& next(Operand::Kind kind) {
    all_[count_].kind = kind;
    return all_[count_++];
  }

  Op op_;
  const Field* fields_;
  int32_t count_ = 0;
  Operand all_[sinpe::kMaxOperands];
  View views_[sinpe::kMaxOperands];
};

// The operators. Rest: the types of operands that are only passed on.

template <Op op, class... T>
void into(const T&... operands) {  // the last one is out
  Operands(op, operands...).run(/*is_new=*/false);
}
inline Tensor table(const Tensor& plan, int64_t start, int64_t length, int64_t dim, ScalarType dtype) {
  expect(length >= 0, "length: expected 0 or more, got ", length);
  Operands all(Op::kTable, plan, start);
  return all.into_new(new_matrix(all.first(), length, dim, float_type(dtype)));
}
inline Tensor encode(const Tensor& positions, const Tensor& plan, int64_t dim, ScalarType dtype) {
  Operands all(Op::kEncode, positions, plan);
  return all.into_new(new_with_channels("positions", all.first(), dim, float_type(dtype)));
}
template <Op op, class... Rest>
Tensor like_x(const Tensor& x, const Rest&... rest) {  // add and dropout
  Operands all(op, x, rest...);
  return all.into_new(new_like(x, all.first()));
}
template <class... Rest>
Tensor row_dots(const Tensor& grad, const Rest&... rest) {
  Operands all(Op::kRowDots, grad, rest...);
  return all.into_new(new_dots(all.first()));
}
template <class... Rest>
std::tuple<Tensor, Tensor> add_backward(const Tensor& grad, const Rest&... rest) {
  Operands all(Op::kAddBackward, grad, rest...);
  const Tensor out = new_like(grad, all.first()), dots = new_dots(all.first());
  all.add(out);
  return {out, all.into_new(dots)};
}
inline Tensor tree_sum(const Tensor& terms) {
  Operands all(Op::kTreeSum, terms);
  return all.into_new(new_sum(all.first()));
}
template <class... Rest>
Tensor embed(const Tensor& ids, const Tensor& weight, const Rest&... rest) {
  Operands all(Op::kEmbed, ids, weight, rest...);
  const int64_t dim = weight.dim() == 2 ? weight.size(1) : 0;  // if not, the operator raises
  const int32_t dtype = dtype_of("weight", weight.scalar_type());
  return all.into_new(new_with_channels("ids", all.first(), dim, dtype));
}
inline Tensor embed_backward(const Tensor& grad, const Tensor& ids, const Optional& seed, int64_t num_embeddings,
                             int64_t padding_idx, double scale, int64_t drop_threshold, const Integers& rng_offsets) {
  expect(num_embeddings >= 0, "num_embeddings: expected 0 or more, got ", num_embeddings);
  Operands all(Op::kEmbedBackward, grad, ids, seed, padding_idx, scale, drop_threshold, rng_offsets);
  const int64_t dim = grad.dim() > 0 ? grad.size(grad.dim() - 1) : 0;
  return all.into_new(new_matrix(all.first(), num_embeddings, dim, all.first().dtype));
}

inline void implement(torch::stable::detail::StableLibrary& m) {
  m.impl("table", TORCH_BOX(&table));
  m.impl("table_out", TORCH_BOX((&into<Op::kTable, Tensor, int64_t, Tensor>)));
  m.impl("encode", TORCH_BOX(&encode));
  m.impl("add", TORCH_BOX((&like_x<Op::kAdd, Tensor, Optional, Optional, Optional, Optional, Optional, int64_t, bool,
                                   double, int64_t, int64_t, Integers>)));
  m.impl("add_out", TORCH_BOX((&into<Op::kAdd, Tensor, Tensor, Optional, Optional, Optional, Optional, Optional,
                                     int64_t, bool, double, int64_t, int64_t, Integers, Tensor>)));
  m.impl("dropout", TORCH_BOX((&like_x<Op::kDropout, Optional, int64_t, double, Integers>)));
  m.impl("row_dots",
         TORCH_BOX((&row_dots<Tensor, Optional, Optional, Optional, Optional, int64_t, bool, int64_t, Integers>)));
  m.impl("add_backward",
         TORCH_BOX((&add_backward<Tensor, Optional, Optional, Optional, int64_t, bool, double, int64_t, Integers>)));
  m.impl("tree_sum", TORCH_BOX(&tree_sum));
  m.impl("embed", TORCH_BOX((&embed<Tensor, Optional, Optional, Optional, Optional, int64_t, bool, double, int64_t,
                                    bool, int64_t, Integers>)));
  m.impl("embed_backward", TORCH_BOX(&embed_backward));
}

}  // namespace sinpe_torch
