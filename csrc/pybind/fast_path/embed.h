// `embed`.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "core/tree_sum.h"
#include "pybind/fast_path/sum.h"

namespace sinpe_fast_path {

// The arguments of `embed` in the order of its record.
enum EmbedArgument {
  kIds,
  kWeight,
  kEmbedEncoding,
  kEmbedPositions,
  kEmbedStart,
  kEmbedScale,
  kEmbedAlpha,
  kEmbedDropout,
  kEmbedSeed,
  kPaddingIdx,
  kEmbedMask,
  kSparse,
  kEncodePadding,
  kEmbedSeqDim
};
constexpr Py_ssize_t kEmbedArguments = kEmbedSeqDim + 1;

// Whether the other arguments of `embed` are supported.
inline bool is_plain_embed(PyObject* given) {
  const auto at = [given](EmbedArgument argument) { return PyTuple_GET_ITEM(given, argument); };
  PyObject *padding_idx = at(kPaddingIdx), *sparse = at(kSparse);
  const bool plain = (padding_idx == Py_None || PyLong_CheckExact(padding_idx)) &&
                     (sparse == Py_True || sparse == Py_False) && at(kEncodePadding) == Py_True &&
                     (is_int(at(kEmbedSeqDim), -1) || is_int(at(kEmbedSeqDim), 0));
  PyErr_Clear();  // raised for an int that does not fit long
  return plain;
}

// Sets *row to the index of padding_idx, None or an int, -1 for None; returns false if it is not a row of weight.
inline bool get_padding_row(PyObject* padding_idx, int64_t rows, int64_t* row) {
  *row = -1;
  if (padding_idx == Py_None) return true;
  int overflow = 0;
  *row = PyLong_AsLongLongAndOverflow(padding_idx, &overflow);
  if (overflow != 0 || *row < -rows || *row >= rows) return false;
  if (*row < 0) *row += rows;
  return true;
}

// Whether all ids are rows of weight.
inline bool are_rows(const Tensor& ids, int64_t rows) {
  const auto* each = static_cast<const int64_t*>(ids.data);
  return std::all_of(each, each + count_elements(ids), [rows](int64_t id) { return id >= 0 && id < rows; });
}

// Whether torch's gradient of scale * weight[ids] has the bits of ours, for a scale that is a power of two: torch
// multiplies each term by it, not the sum, which is the same unless a product overflows (or denormals are flushed). In
// 16 bits it would round each partial sum; the sum of more terms is a tree.
inline bool has_gradient_of_torch(const Tensor& weight, const Tensor& ids) {
  return kernels_of(weight)->in_host_memory && weight.bits >= 32 && count_elements(ids) <= sinpe::terms_under(1);
}
inline bool is_power_of_two(double scale) {
  int exponent = 0;
  return scale >= 1.0 && scale <= 1024.0 && std::frexp(scale, &exponent) == 0.5;
}

// scale * weight[ids] as computed and recorded by torch; null with an exception.
inline PyObject* recorded_embedding(PyObject* weight, PyObject* ids, int64_t padding_row, PyObject* sparse,
                                    PyObject* scale) {
  PyObject* row = PyLong_FromLongLong(padding_row);
  if (row == nullptr) return nullptr;
  PyObject* result = PyObject_CallFunctionObjArgs(python.embedding, weight, ids, row, Py_False, sparse, nullptr);
  Py_DECREF(row);
  if (result == nullptr) {  // an id out of range; the general path raises the error
    if (PyErr_ExceptionMatches(PyExc_IndexError)) PyErr_Clear();
    return nullptr;
  }
  if (PyFloat_AS_DOUBLE(scale) == 1.0) return result;
  PyObject* scaled = PyObject_CallFunctionObjArgs(python.multiply, result, scale, nullptr);
  Py_DECREF(result);
  return scaled;
}

// fast_embed(given) -> a new tensor, or None for arguments that it does not take.
inline PyObject* fast_embed(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const sinpe::OneThread one_thread;
  if (count != 1 || !PyTuple_Check(items[0]) || PyTuple_GET_SIZE(items[0]) != kEmbedArguments) {
    PyErr_SetString(PyExc_TypeError, "fast_embed: expected the arguments of embed as a tuple");
    return nullptr;
  }
  const Reference arguments{with_floats(items[0], {kEmbedScale, kEmbedAlpha, kEmbedDropout})};
  if (arguments.object == nullptr) Py_RETURN_NONE;
  PyObject* given = arguments.object;
  const auto at = [given](EmbedArgument argument) { return PyTuple_GET_ITEM(given, argument); };
  const Sum sum{at(kEmbedStart), at(kEmbedPositions), at(kEmbedMask), at(kEmbedScale),
                at(kEmbedAlpha), at(kEmbedDropout),   at(kEmbedSeed)};
  if (exchange == nullptr || !are_plain(sum) || !is_plain_embed(given)) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  if (!is_readable(at(kIds)) || !is_ordinary_tensor(at(kWeight), true)) return use_general_path();
  const bool rows_need_grad = needs_grad(sum), needs_gradient = rows_need_grad || needs_grad(at(kWeight));
  if (PyErr_Occurred() != nullptr || (rows_need_grad && !is_int(at(kEmbedSeqDim), -1))) return use_general_path();
  Tensor ids, weight, out;
  int64_t padding_row = -1;
  const bool is_sequence_first = is_int(at(kEmbedSeqDim), 0);
  const auto is_transposed = [&] {  // the order of the ids for the gradient is not that of the memory
    return is_sequence_first && ids.rank == 2 && ids.sizes[0] > 1 && ids.sizes[1] > 1;
  };
  const auto operands = [&] {
    return describe(at(kIds), &ids) && ids.kind == kInt && ids.bits == 64 && ids.rank > 0 &&
           ids.rank + 1 < SINPE_MAX_RANK && (!is_sequence_first || ids.rank < 3) && count_elements(ids) > 0 &&
           describe(at(kWeight), &weight) && weight.rank == 2 && float_type(weight) >= 0 && weight.sizes[0] > 0 &&
           weight.sizes[1] > 0 && weight.strides[0] >= 0 && (weight.strides[1] == 1 || weight.sizes[1] == 1) &&
           device_of(weight) == device_of(ids) && !(is_transposed() && (needs_gradient || sum.drops())) &&
           get_padding_row(at(kPaddingIdx), weight.sizes[0], &padding_row) &&
           is_within_storage(at(kIds), ids, count_elements(ids)) &&
           is_within_storage(at(kWeight), weight, (weight.sizes[0] - 1) * weight.strides[0] + weight.sizes[1]);
  };
  if (!operands()) return use_general_path();
  const int64_t tokens = count_elements(ids), dim = weight.sizes[1];
  if (tokens > kernels_of(ids)->max_elements / dim || !are_ready(ids, tokens * dim)) return use_general_path();
  const sinpe::Kernels& library = kernels_for(ids, tokens * dim);
  // If weight needs a gradient, a small result is torch's own scale * weight[ids], for its grad_fn, which is that of the
  // sum; the kernel overwrites its values. Any other result is recorded at the end, as that of the operator.
  const bool by_torch = needs_gradient && !rows_need_grad && !sum.drops() &&
                        is_power_of_two(PyFloat_AS_DOUBLE(sum.scale)) && has_gradient_of_torch(weight, ids);
  const int32_t device = device_of(ids);
  const int dtype = float_type(weight);
  PyObject* encoding = at(kEmbedEncoding);
  int64_t plan_dim = dim;
  if (!resolve_int(&encoding, &plan_dim)) Py_RETURN_NONE;
  const CachedPlan plan = find_plan(encoding, dim, device);
  const Reference holder{plan.holder};
  if (holder.object == nullptr) return use_general_path();
  sinpe_embed_arguments e{};
  sinpe::DeviceScalars scalars{};
  RowTensors rows;
  // Checks the tensors, and sets the kernel's arguments except dropout. Called again after Python code has run: other
  // threads may have changed the tensors meanwhile.
  const auto set = [&](const Tensor& out) {
    if (!operands() || float_type(weight) != dtype || weight.sizes[1] != dim || device_of(ids) != device ||
        device_of(out) != device || count_elements(ids) != tokens || tokens * dim != count_elements(out))
      return false;
    const bool is_rows_first = is_sequence_first && ids.rank == 2;
    set_arguments(out, out, dtype, is_rows_first, &e.add);
    e.add.x = weight.data;
    e.ids = static_cast<const int64_t*>(ids.data);
    e.id_strides[0] = is_rows_first ? 1 : e.add.sizes[1] * e.add.sizes[2];
    e.id_strides[1] = e.add.sizes[2];
    e.id_strides[2] = is_rows_first ? e.add.sizes[0] : 1;
    e.num_embeddings = weight.sizes[0];
    e.weight_stride = weight.sizes[0] > 1 ? weight.strides[0] : dim;
    // The kernel would refuse an id after the seed has been drawn.
    const bool is_checked = !sum.drops() || !library.in_host_memory || are_rows(ids, weight.sizes[0]);
    return is_checked && set_rows(sum, plan.start, out, tokens * dim * (out.bits / 8), &e.add, &scalars, &rows);
  };
  if (by_torch) {          // checks all arguments before autograd saves the ids
    Tensor none = weight;  // the result, without its memory
    none.rank = ids.rank + 1;
    std::copy(ids.sizes, ids.sizes + ids.rank, none.sizes);
    none.sizes[ids.rank] = dim;
    int64_t step = 1;
    for (int32_t d = ids.rank; d >= 0; step *= none.sizes[d--]) none.strides[d] = step;
    none.data = none.sizes;  // any address apart from those of tensors
    if (!set(none)) return use_general_path();
  }
  PyObject* result = by_torch ? recorded_embedding(at(kWeight), at(kIds), padding_row, at(kSparse), at(kEmbedScale))
                              : new_rows(at(kWeight), ids, dim, nullptr);
  if (result == nullptr) return use_general_path();
  bool done = dtype_of(result, &out) == dtype && set(out);
  if (done && sum.drops()) {
    sinpe_dropout_arguments dropout{};
    done = set_dropout(sum, device, &dropout) && dtype_of(result, &out) == dtype && set(out);
    e.add.dropout = dropout;
  }
  done = done && is_unchanged(at(kIds), ids) && is_unchanged(at(kWeight), weight) && is_unchanged(result, out) &&
         rows.are_unchanged();
  const bool is_final = done && sum.drops() && !library.in_host_memory;
  done = done && run_kernels(library, [&] { return library.embed(ids.device_id, plan.plan, &e, scalars) == SINPE_OK; });
  if (!done) {
    if (is_final) raise_launch_failure();  // the general path would draw a seed a second time
    Py_DECREF(result);
    return use_general_path();
  }
  if (!needs_gradient || by_torch) return result;
  const Reference unrecorded{result};
  return PyObject_CallFunction(python.recorded_embed, "OOOLi", result, given, plan.holder,
                               static_cast<long long>(e.add.dropout.seed), e.add.dropout.drop_threshold);
}

}  // namespace sinpe_fast_path
