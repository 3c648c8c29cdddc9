// The operators: conversion of their operands to the arguments of the C interface, for the CPU and for devices whose
// memory the host cannot read. What memory safety requires of the operands is checked here.
//
// `Call` (cpu/kernels.cpp, torch/cuda_ops.cpp) implements what differs between the devices:
//
//   Call(device)                one call, on this device
//   kDeviceType, kReadsMemory   the type of device of its operands; whether the host can read them
//   check(status)               throws unless the status is SINPE_OK
//   register_output(data, n)    called before a kernel writes a result of n bytes that was allocated for this call
//   dim_of(plan)                the number of channels of the plan's rows, -1 if it is not a plan; plan.dim if unknown
//   examine(op, &arguments)     what the host can check of the contents of operands
//   run(op, &arguments)         the kernels
#pragma once

#include <algorithm>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include "core/dtype.h"
#include "core/kernels.h"
#include "core/layout.h"
#include "core/status.h"

namespace sinpe {

// The names of operands, for all operators.
// clang-format off
enum Field : int8_t {
  kX, kGrad, kTerms, kIds, kWeight, kPlan, kPositions, kPaddingMask, kAlpha, kAngularFrequencies, kSeed, kAxisRows,
  kStart, kPositionsAreStarts, kScale, kExtraTokens, kPaddingIdx, kSparse, kDropThreshold, kRngOffsets, kOut, kDots,
  kFields
};
constexpr const char* kNames[kFields] = {
  "x", "grad", "terms", "ids", "weight", "plan", "positions", "padding_mask", "alpha", "angular_frequencies", "seed",
  "axis_rows", "start", "positions_are_starts", "scale", "extra_tokens", "padding_idx", "sparse", "drop_threshold",
  "rng_offsets", "out", "dots"
};

// The operands of each operator, in the order of Op, and its results: those of the schema (sinpe_ext/records.py) without
// those that only determine the shape and dtype of a result. With axis_rows, plan is a packed grid.
constexpr int kMaxOperands = 15;
struct OperandList { int32_t count; Field fields[kMaxOperands]; };
constexpr OperandList kOperands[] = {
  {3, {kPlan, kStart, kOut}},
  {3, {kPositions, kPlan, kOut}},
  {14, {kX, kPlan, kPositions, kPaddingMask, kAlpha, kSeed, kAxisRows, kStart, kPositionsAreStarts, kScale, kExtraTokens,
        kDropThreshold, kRngOffsets, kOut}},
  {6, {kX, kSeed, kDropThreshold, kScale, kRngOffsets, kOut}},
  {11, {kGrad, kPlan, kPositions, kPaddingMask, kAngularFrequencies, kSeed, kStart, kPositionsAreStarts, kDropThreshold,
        kRngOffsets, kDots}},
  {12, {kGrad, kPlan, kPositions, kPaddingMask, kSeed, kStart, kPositionsAreStarts, kScale, kDropThreshold, kRngOffsets,
        kOut, kDots}},
  {2, {kTerms, kOut}},
  {15, {kIds, kWeight, kPlan, kPositions, kPaddingMask, kAlpha, kSeed, kStart, kPositionsAreStarts, kScale, kPaddingIdx,
        kSparse, kDropThreshold, kRngOffsets, kOut}},
  {8, {kGrad, kIds, kSeed, kPaddingIdx, kScale, kDropThreshold, kRngOffsets, kOut}},
};
// clang-format on

template <class... Parts>
[[noreturn]] SINPE_NOINLINE void throw_error(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::runtime_error(sentence.str());
}

template <class... Parts>
inline void expect(bool condition, const Parts&... message) {
  if (!condition) throw_error(message...);
}

inline void check_status(sinpe_status status) { expect(status == SINPE_OK, status_text(status)); }

inline const char* type_name(int32_t dtype) {
  constexpr const char* kTypes[] = {"Float", "Double", "BFloat16", "Half", "Long", "Bool"};  // as torch names them
  return dtype >= 0 && dtype <= kBool ? kTypes[dtype] : "another type";
}
inline sinpe_dtype dtype_of(Field field, const View& t) {
  expect(t.dtype >= 0 && t.dtype <= SINPE_INT64, kNames[field], ": unsupported dtype, got ", type_name(t.dtype));
  return static_cast<sinpe_dtype>(t.dtype);
}
inline sinpe_dtype float_type(Field field, const View& t) {
  expect(t.dtype != SINPE_INT64, kNames[field], ": expected a floating-point type, got Long");
  return dtype_of(field, t);
}

inline int64_t numel(const View& t) {
  const bool is_empty = std::find(t.sizes, t.sizes + t.rank, 0) != t.sizes + t.rank;
  return is_empty ? 0 : product(t.sizes, t.rank);  // the product of the others may overflow
}
inline bool is_contiguous(const View& t) {
  if (numel(t) == 0) return true;
  int64_t step = 1;
  for (int32_t d = t.rank - 1; d >= 0; step *= t.sizes[d--]) {
    if (t.sizes[d] != 1 && t.strides[d] != step) return false;
  }
  return true;
}
// The stride of a dimension with one element may be arbitrary, even too large for pointer arithmetic.
inline int64_t stride_of(const View& t, int32_t d) {
  return t.sizes[d] > 1 || t.strides[d] < (int64_t{1} << 40) ? t.strides[d] : 0;
}
// A scalar that the host may read immediately on every device: like PyTorch, a tensor of shape () on the CPU.
inline bool is_host_number(const View& t) { return t.rank == 0 && t.device_type == kHostMemory; }

// The operands of a call by name, all of them on its device.
class Given {
 public:
  Given(Op op, const Operand* operands, int32_t count, int32_t device_type, int32_t device) {
    const OperandList& list = kOperands[static_cast<int32_t>(op)];
    expect(count == list.count, "operands: expected ", list.count, ", got ", count);
    for (int32_t k = 0; k < count; ++k) {
      const Field field = list.fields[k];
      all_[field] = operands + k;
      if (operands[k].kind != Operand::kTensor) continue;
      const View& t = *operands[k].tensor;
      const bool is_here = t.device_type == device_type && (t.device_type == kHostMemory || t.device == device);
      if (is_here || ((field == kAlpha || field == kSeed) && is_host_number(t))) continue;
      throw_error(kNames[field], ": expected a tensor on ", device_name(device_type, device), ", got one on ",
                  device_name(t.device_type, t.device), "; move it there");
    }
  }

  // An operand of this kind; null if it is None, or not one of the operator's.
  bool is_none(Field field) const { return all_[field] == nullptr || all_[field]->kind == Operand::kNone; }
  bool is(Field field, Operand::Kind kind) const { return !is_none(field) && all_[field]->kind == kind; }
  const Operand* of(Field field, Operand::Kind kind) const {
    expect(is_none(field) || is(field, kind), kNames[field], ": expected an operand of kind ", int{kind});
    return is_none(field) ? nullptr : all_[field];
  }
  const View* optional(Field field) const { return of(field, Operand::kTensor) ? all_[field]->tensor : nullptr; }
  const View& tensor(Field field) const {
    const View* t = optional(field);
    expect(t != nullptr, kNames[field], ": expected a tensor, got None");
    return *t;
  }
  int64_t integer(Field field) const { return of(field, Operand::kInt) ? all_[field]->integer : 0; }
  double scale() const { return of(kScale, Operand::kFloat) ? all_[kScale]->number : 1.0; }

 private:
  static std::string device_name(int32_t type, int32_t index) {
    return type == kHostMemory ? "cpu" : index < 0 ? "cuda" : "cuda:" + std::to_string(index);
  }
  const Operand* all_[kFields] = {};
};

// The arguments of the kernels of an operator.
struct Arguments {
  DevicePlan plan;              // or a grid
  DeviceScalars scalars;        // of a device whose memory the host cannot read
  sinpe_embed_arguments embed;  // embed.add: also for every other operator; sizes[0]: number of rows or terms
  sinpe_embed_backward_arguments embed_backward;
  const View* axis_rows;              // of a grid, or null
  const double* angular_frequencies;  // null: ones
  double* dots;
};

template <class Call>
class Operators : Given {
 public:
  Operators(Op op, int32_t device, const Operand* operands, int32_t count, bool is_new, bool check_only)
      : Given(op, operands, count, Call::kDeviceType, device), call_(device), is_new_(is_new), check_only_(check_only) {
    g_.scalars = {};
    g_.axis_rows = nullptr;
    g_.angular_frequencies = nullptr;
  }

  void run(Op op) {
    switch (op) {
      case Op::kTable: return table();
      case Op::kEncode: return encode();
      case Op::kAdd: return add();
      case Op::kDropout: return dropout();
      case Op::kRowDots: return row_dots(op, tensor(kGrad));
      case Op::kAddBackward: return row_dots(op, output());
      case Op::kTreeSum: return tree_sum();
      case Op::kEmbed: return embed();
      case Op::kEmbedBackward: return embed_backward();
    }
  }

 private:
  sinpe_status launch(Op op) { return check_only_ ? call_.examine(op, &g_) : call_.run(op, &g_); }

  void table() {
    const View& out = output();
    expect(out.rank == 2 && (out.sizes[1] == 1 || out.strides[1] == 1),
           "out: expected the shape (length, dim) with contiguous channels");
    check_plan(out.sizes[1]);
    set_rows_of(out, out.sizes[0]);
    if (out.sizes[0] > 1) a_.out_strides[0] = out.strides[0];
    a_.start = integer(kStart);
    call_.check(launch(Op::kTable));
  }

  void encode() {
    const View &positions = tensor(kPositions), &out = output();
    expect(is_contiguous(positions), "positions: expected a contiguous tensor, got strides; pass .contiguous()");
    check_plan(out.rank > 0 ? out.sizes[out.rank - 1] : 0);
    set_rows_of(out, numel(positions));
    expect(out.rank == positions.rank + 1 && is_contiguous(out) && numel(out) == a_.sizes[0] * g_.plan.dim,
           "out: expected the contiguous shape (*positions.shape, dim)");
    a_.positions = positions.data;
    a_.position_dtype = dtype_of(kPositions, positions);
    call_.check(launch(Op::kEncode));
  }

  void add() {
    set_arguments(kX, output());
    const int64_t extra = integer(kExtraTokens), rows = a_.sizes[a_.rank - 2];
    expect(extra >= 0 && extra <= rows, "extra_tokens: expected 0 to ", rows, ", got ", extra);
    sinpe_add_arguments front;
    int64_t rng_offsets[2][1 + SINPE_MAX_RANK];
    if (extra != 0) split(extra, &front, &a_, rng_offsets);
    set_rows();
    set_plan(dim());
    if (const View* rows = optional(kAxisRows)) set_axis_rows(*rows);
    const sinpe_status status = launch(Op::kAdd);
    if (g_.axis_rows != nullptr) check_grid(status);
    call_.check(status);
    if (extra == 0 || check_only_) return;
    const bool is_x = front.x == front.out && std::equal(front.x_strides, front.x_strides + a_.rank, front.out_strides);
    if (is_x && front.scale == 1.0 && front.dropout.drop_threshold == 0) return;
    a_ = front;
    call_.check(launch(Op::kDropout));
  }

  // `axis_rows` are in the accumulation type of x.
  void set_axis_rows(const View& rows) {
    const sinpe_dtype wanted = a_.dtype == SINPE_FLOAT64 ? SINPE_FLOAT64 : SINPE_FLOAT32;
    expect(rows.dtype == wanted && rows.rank == 1 && is_contiguous(rows), "axis_rows: expected a contiguous row of ",
           type_name(wanted), ", got ", rows.rank, " dimensions of ", type_name(rows.dtype));
    expect(a_.positions == nullptr, "positions: expected None where axis_rows is given, got a tensor");
    g_.axis_rows = &rows;
  }
  void check_grid(sinpe_status status) const {
    expect(status != SINPE_BAD_PLAN, "plan: expected a packed grid tensor for ", g_.axis_rows->sizes[0],
           " values of axis_rows, got another; pass sinpe_ext.operations.grid_rows.pack_grid(...)");
    expect(status != SINPE_BAD_ARGUMENT, "x: expected the points and channels of the grid, without a padding_mask ",
           "where it is one by channels, got other sizes, or an out that overlaps an operand");
  }

  void dropout() {
    set_arguments(kX, output(), 1);
    call_.check(launch(Op::kDropout));
  }

  void row_dots(Op op, const View& out) {
    set_arguments(kGrad, out);
    set_rows();
    set_plan(dim());
    if (const View* t = optional(kAngularFrequencies)) {
      expect(is_contiguous(*t) && t->dtype == SINPE_FLOAT64 && numel(*t) == dim(),
             "angular_frequencies: expected contiguous float64 of shape (", dim(), ",), got ", numel(*t), " of ",
             type_name(t->dtype));
      g_.angular_frequencies = static_cast<const double*>(t->data);
    }
    const View& dots = tensor(kDots);
    expect(dots.dtype == SINPE_FLOAT64 && dots.rank == a_.rank - 1 && is_contiguous(dots) &&
               std::equal(dots.sizes, dots.sizes + dots.rank, a_.sizes),
           "dots: expected contiguous float64 of shape grad.shape[:-1]");
    g_.dots = static_cast<double*>(dots.data);
    if (op == Op::kRowDots) a_.out = dots.data;
    call_.check(launch(op));
  }

  void tree_sum() {
    const View &terms = tensor(kTerms), &out = tensor(kOut);
    expect(is_contiguous(terms) && terms.dtype == SINPE_FLOAT64, "terms: expected contiguous float64, got ",
           type_name(terms.dtype), "; pass terms.double().contiguous()");
    expect(numel(out) == 1 && out.dtype == SINPE_FLOAT64, "out: expected one float64");
    a_.x = terms.data;
    a_.sizes[0] = numel(terms);
    a_.out = out.data;
    call_.check(launch(Op::kTreeSum));
  }

  void embed() {
    sinpe_embed_arguments& e = g_.embed;
    const View &weight = tensor(kWeight), &out = output();
    expect(weight.rank == 2 && (weight.sizes[1] <= 1 || weight.strides[1] == 1),
           "weight: expected the shape (num_embeddings, dim) with contiguous channels");
    check_plan(weight.sizes[1]);
    e.ids = ids_of(kOut, e.id_strides);
    expect(out.sizes[out.rank - 1] == g_.plan.dim && out.dtype == float_type(kWeight, weight),
           "out: expected the dim and dtype of weight");
    set_arguments(kOut, out);
    set_rows();
    a_.x = weight.data;
    e.num_embeddings = weight.sizes[0];
    e.weight_stride = weight.strides[0];
    e.bad_id = 0;
    const sinpe_status status = launch(Op::kEmbed);
    check_ids(status, e.bad_id, e.num_embeddings);
  }

  void embed_backward() {
    sinpe_embed_backward_arguments& b = g_.embed_backward;
    const View &grad = tensor(kGrad), &out = output();
    b.ids = ids_of(kGrad, b.id_strides);
    b.rank = grad.rank;
    for (int32_t d = 0; d < b.rank; ++d) {
      b.sizes[d] = grad.sizes[d];
      b.grad_strides[d] = stride_of(grad, d);
    }
    b.dtype = float_type(kGrad, grad);
    expect(out.rank == 2 && out.sizes[1] == b.sizes[b.rank - 1] && out.dtype == grad.dtype && is_contiguous(out),
           "out: expected the contiguous shape (num_embeddings, dim) and the dtype of grad");
    b.grad = grad.data;
    b.out = out.data;
    b.num_embeddings = out.sizes[0];
    b.padding_idx = integer(kPaddingIdx);
    b.scale = scale();
    b.bad_id = 0;
    set_dropout(b.sizes, b.rank, &b.dropout);
    const sinpe_status status = launch(Op::kEmbedBackward);
    check_ids(status, b.bad_id, b.num_embeddings);
  }

  // ------------------------------------------------------------------------------------------------ operands

  // The packed plan or grid.
  void set_plan(int64_t dim) {
    const View& t = tensor(kPlan);
    expect(t.dtype == SINPE_INT64, "plan: expected int64 words, got ", type_name(t.dtype));
    expect(numel(t) > 0, "plan: expected a packed plan tensor, got none");
    expect(is_contiguous(t), "plan: expected contiguous words, got strides; pass plan.contiguous()");
    g_.plan = {static_cast<const int64_t*>(t.data), numel(t), dim};
  }
  void check_plan(int64_t dim) {
    set_plan(dim);
    expect(dim >= 1, "dim: expected 1 or more, got ", dim);
    const int64_t wanted = call_.dim_of(g_.plan);
    if (wanted < 0) call_.check(SINPE_BAD_PLAN);
    expect(dim == wanted, "dim: expected the plan's ", wanted, ", got ", dim);
  }

  const View& output() {
    const View& t = tensor(kOut);
    const bool is_valid = t.dtype >= 0 && t.dtype <= SINPE_INT64;  // otherwise the caller raises
    if (is_new_ && is_valid && !check_only_) call_.register_output(t.data, numel(t) * size_of(dtype_of(kOut, t)));
    return t;
  }

  // The arguments of `table` and `encode`, whose result is `count` rows.
  void set_rows_of(const View& out, int64_t count) {
    a_.out = out.data;
    a_.dtype = float_type(kOut, out);
    a_.sizes[0] = count;
    a_.out_strides[0] = g_.plan.dim;
  }

  // The arguments of an operator with x and out, which must have the same shape and dtype, except its rows. They are
  // the defaults for operands that the operator does not have. Sizes and strides beyond the rank are not set.
  void set_arguments(Field of_x, const View& out, int32_t least_rank = 2) {
    const View& x = tensor(of_x);
    const char* name = kNames[of_x];
    expect(x.rank >= least_rank, name, ": expected ", least_rank, " to ", SINPE_MAX_RANK, " dimensions, got ", x.rank);
    expect(out.rank == x.rank && out.dtype == x.dtype, "out: expected the rank and dtype of ", name);
    a_.rank = x.rank;
    for (int32_t d = 0; d < x.rank; ++d) {
      expect(out.sizes[d] == x.sizes[d], "out: expected the shape of ", name, ", whose size in dimension ", d, " is ",
             x.sizes[d], ", got ", out.sizes[d]);
      a_.sizes[d] = x.sizes[d];
      a_.x_strides[d] = stride_of(x, d);
      a_.out_strides[d] = stride_of(out, d);
    }
    a_.x = x.data;
    a_.out = out.data;
    a_.dtype = float_type(of_x, x);
    a_.positions = nullptr;
    a_.position_dtype = SINPE_INT64;
    a_.positions_are_starts = 0;
    a_.padding_mask = nullptr;
    a_.alpha = alpha();
    a_.start = integer(kStart);
    a_.scale = scale();
    set_dropout(a_.sizes, a_.rank, &a_.dropout);
  }
  int64_t dim() const { return a_.sizes[a_.rank - 1]; }

  // Moves the first `extra` rows from `behind`, the arguments of all rows, to `front`. Stores the RNG offsets of both.
  static void split(int64_t extra, sinpe_add_arguments* front, sinpe_add_arguments* behind,
                    int64_t (*rng_offsets)[1 + SINPE_MAX_RANK]) {
    sinpe_add_arguments& a = *behind;
    const int32_t row = a.rank - 2;
    *front = a;
    front->sizes[row] = extra;
    if (!Shape(a).empty()) {
      const RngOffsets whole(a.dropout, a.sizes, a.rank);
      for (int32_t k = 0; k < 2; ++k) {
        rng_offsets[k][0] = static_cast<int64_t>(whole.base + static_cast<uint64_t>(k * extra * whole.strides[row]));
        std::copy(whole.strides, whole.strides + a.rank, rng_offsets[k] + 1);
      }
      front->dropout.rng_offsets = rng_offsets[0];
      a.dropout.rng_offsets = rng_offsets[1];
      a.x = static_cast<const char*>(a.x) + extra * a.x_strides[row] * size_of(a.dtype);
      a.out = static_cast<char*>(a.out) + extra * a.out_strides[row] * size_of(a.dtype);
    }
    a.sizes[row] -= extra;
  }

  void set_rows() {
    if (const View* t = optional(kPositions)) {
      a_.positions = t->data;
      a_.position_dtype = dtype_of(kPositions, *t);
      a_.positions_are_starts = integer(kPositionsAreStarts) != 0;
      set_row_strides(kPositions, *t, a_.positions_are_starts != 0, a_.position_strides);
    }
    if (const View* t = optional(kPaddingMask)) {
      expect(t->dtype == kBool, "padding_mask: expected bool, got ", type_name(t->dtype));
      a_.padding_mask = static_cast<const uint8_t*>(t->data);
      set_row_strides(kPaddingMask, *t, false, a_.mask_strides);
    }
  }
  // Strides of an operand of shape (batch or 1, rows), 0 in dimensions that are broadcast.
  void set_row_strides(Field field, const View& t, bool one_row, int64_t* strides) const {
    const int64_t batch = a_.rank > 2 ? a_.sizes[0] : 1, rows = one_row ? 1 : a_.sizes[a_.rank - 2];
    expect(t.rank == 2, kNames[field], ": expected 2 dimensions, (batch or 1, sequence), got ", t.rank);
    const int64_t b = t.sizes[0], s = t.sizes[1];
    expect((b == 1 || b == batch) && s == rows, kNames[field], ": expected the shape (", batch, " or 1, ", rows,
           "), got (", b, ", ", s, ")");
    strides[0] = b == 1 ? 0 : t.strides[0];
    strides[1] = s == 1 ? 0 : t.strides[1];
  }

  // alpha and the seed are read now, or by the kernel if they are on a device.
  static bool is_readable(const View& t) { return Call::kReadsMemory || is_host_number(t); }

  double alpha() {
    if (is_none(kAlpha)) return 1.0;
    if (is(kAlpha, Operand::kFloat)) return of(kAlpha, Operand::kFloat)->number;
    const View& t = tensor(kAlpha);
    expect(numel(t) == 1, "alpha: expected one number, got ", numel(t));
    const sinpe_dtype dtype = float_type(kAlpha, t);
    if (is_readable(t)) return value_of(t.data, dtype);
    g_.scalars.alpha = t.data;
    g_.scalars.alpha_dtype = dtype;
    return 1.0;
  }

  // `sizes` is the shape of the tensor to which dropout is applied.
  void set_dropout(const int64_t* sizes, int32_t rank, sinpe_dropout_arguments* d) {
    const int64_t threshold = integer(kDropThreshold);
    expect(threshold >= 0 && threshold <= kDropAll, "drop_threshold: expected 0 to 65536, got ", threshold);
    const Operand* offsets = of(kRngOffsets, Operand::kInts);
    const bool is_row_major = offsets == nullptr || offsets->count == 0;
    expect(is_row_major || offsets->count == 1 + rank, "rng_offsets: expected ", 1 + rank,
           " integers (base and a step for each dimension), got ", is_row_major ? 0 : offsets->count);
    *d = {static_cast<int32_t>(threshold), 0, is_row_major ? nullptr : offsets->integers};
    expect(valid_dropout(*d, sizes, rank), "rng_offsets: expected steps of 0 or more to numbers that int64 holds, got ",
           "others; pass those of the whole tensor");
    if (is_none(kSeed)) {
      expect(threshold == 0 || threshold == kDropAll, "seed: expected one int64, got None while drop_threshold is ",
             threshold);
    } else if (is(kSeed, Operand::kInt)) {
      d->seed = integer(kSeed);
    } else {
      const View& t = tensor(kSeed);
      expect(t.dtype == SINPE_INT64 && numel(t) == 1, "seed: expected one int64, got ", numel(t), " of ",
             type_name(t.dtype));
      const auto* number = static_cast<const int64_t*>(t.data);
      if (is_readable(t))
        d->seed = *number;
      else
        g_.scalars.seed = number;
    }
  }

  // The ids, and their strides; `with_dim` has the shape (*ids.shape, dim).
  const int64_t* ids_of(Field with_dim, int64_t* strides) const {
    const View &ids = tensor(kIds), &t = tensor(with_dim);
    const char* name = kNames[with_dim];
    expect(ids.dtype == SINPE_INT64, "ids: expected int64, got ", type_name(ids.dtype));
    expect(ids.rank >= 1 && ids.rank < SINPE_MAX_RANK, "ids: expected 1 to ", SINPE_MAX_RANK - 1, " dimensions, got ",
           ids.rank);
    expect(t.rank == ids.rank + 1, name, ": expected ", ids.rank + 1, " dimensions, those of ids and dim, got ",
           t.rank);
    for (int32_t d = 0; d < ids.rank; ++d) {
      expect(t.sizes[d] == ids.sizes[d], name, ": expected the shape (*ids.shape, dim), got ", t.sizes[d],
             " in dimension ", d);
      strides[d] = stride_of(ids, d);
    }
    return static_cast<const int64_t*>(ids.data);
  }
  void check_ids(sinpe_status status, int64_t bad_id, int64_t rows) const {
    expect(status != SINPE_BAD_ID, "ids: expected 0 to ", rows - 1, ", rows of weight, got ", bad_id, " (weight has ",
           rows, " rows); check the tokenizer's vocabulary, or enlarge the embedding");
    call_.check(status);
  }

  Call call_;
  const bool is_new_, check_only_;
  Arguments g_;
  sinpe_add_arguments& a_ = g_.embed.add;
};

// Kernels::run.
template <class Call>
const char* run_operator(Op op, int32_t device, const Operand* operands, int32_t count, bool is_new, bool check_only) {
  thread_local std::string message;
  try {
    Operators<Call>(op, device, operands, count, is_new, check_only).run(op);
    return nullptr;
  } catch (const std::bad_alloc&) {
    return status_text(SINPE_NO_MEMORY);
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

}  // namespace sinpe
