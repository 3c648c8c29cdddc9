// `add`, `add_` and `out=`: of a sequence, or of a grid that starts at fixed coordinates.
#pragma once

#include <cstring>

#include "core/parallel.h"
#include "pybind/fast_path/sum.h"

namespace sinpe_fast_path {

// The arguments of `add` in the order of its record, without out.
enum Argument {
  kX,
  kEncoding,
  kPositions,
  kStart,
  kScale,
  kAlpha,
  kDropout,
  kSeed,
  kMask,
  kSeqDim,
  kChannelDim,
  kGrid,
  kExtra
};
constexpr Py_ssize_t kArguments = kExtra + 1;

// Whether x is a sequence, (..., S, C) or, if `is_first`, (S, B, C); sets *extra to the number of its extra tokens.
inline bool is_sequence(PyObject* given, int32_t rank, bool* is_first, int64_t* extra) {
  PyObject *seq_dim = PyTuple_GET_ITEM(given, kSeqDim), *tokens = PyTuple_GET_ITEM(given, kExtra);
  *extra = PyLong_CheckExact(tokens) ? PyLong_AsLongLong(tokens) : -1;
  *is_first = rank == 3 && is_int(seq_dim, 0);
  const bool rows_fit = is_int(seq_dim, -2) || *is_first || is_int(seq_dim, rank - 2);
  PyObject* channel_dim = PyTuple_GET_ITEM(given, kChannelDim);
  const bool is = rows_fit && (is_int(channel_dim, -1) || is_int(channel_dim, rank - 1)) &&
                  PyTuple_GET_ITEM(given, kGrid) == Py_None && *extra >= 0;
  PyErr_Clear();  // raised for an int that does not fit long
  return is;
}

// Whether the arguments may describe a grid that starts at fixed coordinates; sets `layout`.
inline bool may_be_grid(PyObject* given, PyObject** layout) {
  const auto at = [given](Argument argument) { return PyTuple_GET_ITEM(given, argument); };
  const bool is_name = PyUnicode_CheckExact(at(kEncoding));
  if ((!is_name && !has_type(at(kEncoding), python.grid_encoding)) || at(kPositions) != Py_None ||
      at(kMask) != Py_None || !PyFloat_CheckExact(at(kAlpha)) || PyFloat_AS_DOUBLE(at(kAlpha)) != 1.0) {
    return false;
  }
  layout[kLayoutStart] = at(kStart);
  layout[kLayoutSeqDim] = at(kSeqDim);
  layout[kLayoutChannelDim] = at(kChannelDim);
  layout[kLayoutShape] = at(kGrid);
  layout[kLayoutExtra] = at(kExtra);
  for (int k = 0; k < kLayoutArguments; ++k) {
    if (!is_plain_layout(layout[k])) return false;
  }
  return true;
}

// Copies scale * x to the extra tokens, the first `extra` rows; `row` is the dimension of rows in `a`.
inline bool copy_extra_tokens(const sinpe::Kernels& k, int32_t device, int64_t extra, int row, sinpe_add_arguments a) {
  a.sizes[row] = extra;
  if (a.scale == 1.0 && a.out == a.x) return true;
  const bool has_pieces = a.x_strides[row + 1] == 1 || a.sizes[row + 1] == 1;
  if (a.scale != 1.0 || !has_pieces || !k.in_host_memory) return k.dropout(device, a, false) == SINPE_OK;
  const auto item = static_cast<size_t>(sinpe::size_of(a.dtype));
  const int64_t rows = a.sizes[row] * a.sizes[0] * (row == 2 ? a.sizes[1] : 1), dim = a.sizes[row + 1];
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t at = sinpe::offset_at(a.sizes, a.x_strides, row + 1, n) * static_cast<int64_t>(item);
    std::memcpy(static_cast<char*>(a.out) + at, static_cast<const char*>(a.x) + at, static_cast<size_t>(dim) * item);
  }
  return true;
}

// add behind `extra` rows of extra tokens, which get scale * x only: `add` is called with the arguments for the other rows.
// *has_begun: whether something may have been written.
template <class Add>
bool add_behind(const sinpe::Kernels& k, int32_t device, int64_t extra, int row, const sinpe_add_arguments& a,
                bool* has_begun, const Add& add) {
  if (extra == 0) return add(a);
  const int64_t offset = extra * a.x_strides[row] * sinpe::size_of(a.dtype);
  sinpe_add_arguments others = a;
  others.sizes[row] -= extra;
  others.x = static_cast<const char*>(a.x) + offset;
  others.out = static_cast<char*>(a.out) + offset;
  *has_begun = add(others);  // nothing is written if it fails
  return *has_begun && copy_extra_tokens(k, device, extra, row, a);
}

// x as (batch, rows, columns); out has the strides of x.
inline void set_grid(const CachedGrid& grid, PyObject* scale, sinpe_add_arguments* a) {
  a->rank = 3;
  for (int d = 0; d < 3; ++d) {
    a->sizes[d] = grid.sizes[d];
    a->x_strides[d] = a->out_strides[d] = grid.strides[d];
  }
  a->scale = PyFloat_AS_DOUBLE(scale);
}

// What is added to x: rows of one encoding, or of a grid.
struct Source {
  CachedPlan plan;
  CachedGrid grid;
  int64_t dim, extra;  // number of channels, and of extra tokens
  bool is_sequence_first;

  bool is_grid() const { return plan.holder == nullptr; }
  PyObject* holder() const { return is_grid() ? grid.holder : plan.holder; }
};

// The source of a call, from the caches or new; its holder is null if the general path has to be taken.
inline Source find_source(PyObject* given, PyObject* object, const Tensor& x, int dtype) {
  Source s{};
  PyObject *encoding = PyTuple_GET_ITEM(given, kEncoding), *layout[kLayoutArguments];
  s.dim = x.sizes[x.rank - 1];
  const bool may_be_sequence = is_sequence(given, x.rank, &s.is_sequence_first, &s.extra) &&
                               resolve_int(&encoding, &s.dim) && s.dim == x.sizes[x.rank - 1];
  if (may_be_sequence) s.plan = cached_plan(encoding, s.dim, device_of(x));
  if (s.plan.holder != nullptr) return s;
  const bool may_be_of_grid = may_be_grid(given, layout);
  if (may_be_of_grid) s.grid = cached_grid(encoding, layout, x, dtype);
  if (s.grid.holder == nullptr && may_be_sequence) {
    s.plan = new_plan(encoding, s.dim, device_of(x));
    if (s.plan.holder != nullptr || PyErr_Occurred() != nullptr) return s;
  }
  Tensor now;  // x, which other threads may have changed while the plan was sought
  if (s.grid.holder == nullptr && may_be_of_grid && strided_dtype_of(object, &now) == dtype)
    s.grid = new_grid(encoding, layout, given, object, now, dtype);
  s.extra = s.grid.extra;
  return s;
}

// Calls the kernel. *has_begun: as in `add_behind`.
inline bool launch(const sinpe::Kernels& library, int32_t device, const Source& source, const sinpe_add_arguments& a,
                   const sinpe::DeviceScalars& scalars, bool is_new, bool* has_begun) {
  const int row = source.is_grid() ? 1 : 2;
  return add_behind(library, device, source.extra, row, a, has_begun, [&](const sinpe_add_arguments& others) {
    if (!source.is_grid()) return library.add(device, source.plan.plan, others, scalars, is_new) == SINPE_OK;
    const CachedGrid& grid = source.grid;
    const sinpe::DevicePlan packed{grid.words, grid.n_words, others.sizes[2]};
    return library.add_grid(device, packed, grid.values, grid.n_values, others, is_new) == SINPE_OK;
  });
}

// A copy of x, or scale * x, recorded by torch; null if the general path has to be taken.
inline PyObject* recorded_copy(PyObject* object, PyObject* scale, int dtype) {
  Tensor x;
  if (strided_dtype_of(object, &x) != dtype || !is_within_storage(object, x, extent_of(x))) return nullptr;
  if (PyFloat_AS_DOUBLE(scale) == 1.0) return PyObject_CallMethodNoArgs(object, names.clone);
  return PyObject_CallFunctionObjArgs(python.multiply, object, scale, nullptr);
}

// fast_add(given, out) -> out, a new tensor if out is None; or None for unsupported arguments.
// `python.f` are functions of sinpe_ext/operations/fast_path.py and of torch (torch_objects.h).
inline PyObject* fast_add(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const sinpe::OneThread one_thread;
  if (count != 2 || !PyTuple_Check(items[0]) || PyTuple_GET_SIZE(items[0]) != kArguments) {
    PyErr_SetString(PyExc_TypeError, "fast_add: expected the arguments of add as a tuple, and out");
    return nullptr;
  }
  const Reference arguments{with_floats(items[0], {kScale, kAlpha, kDropout})};
  if (arguments.object == nullptr) Py_RETURN_NONE;
  PyObject *given = arguments.object, *object = PyTuple_GET_ITEM(given, kX), *result = items[1];  // object: x
  const auto at = [given](Argument argument) { return PyTuple_GET_ITEM(given, argument); };
  const Sum sum{at(kStart), at(kPositions), at(kMask), at(kScale), at(kAlpha), at(kDropout), at(kSeed)};
  const bool is_new = result == Py_None;
  if (exchange == nullptr || !are_plain(sum)) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  if (!is_ordinary_tensor(object, true) || !(is_new || is_writable(result))) return use_general_path();
  const bool rows_need_grad = needs_grad(sum), needs_gradient = rows_need_grad || needs_grad(object);
  if (PyErr_Occurred() != nullptr || (needs_gradient && !is_new)) return use_general_path();
  Tensor x, out;                                   // DLPack's descriptions
  const int dtype = strided_dtype_of(object, &x);  // -1: not floating-point
  const int64_t elements = dtype < 0 ? 0 : count_strided(x);
  if (dtype < 0 || (x.rank > 4 && !is_contiguous(x)) || !are_ready(x, elements)) return use_general_path();
  const int32_t rank = x.rank, device = device_of(x);
  const sinpe::Kernels& library = kernels_for(x, elements);  // of _core for few elements on the CPU, else of the device
  const Source source = find_source(given, object, x, dtype);
  const Reference holder{source.holder()};
  if (holder.object == nullptr || (source.is_grid() && source.grid.words == nullptr)) return use_general_path();
  // If x needs a gradient, a small result is torch's own copy of x, or scale * x, for its grad_fn, which is that of the
  // sum; the kernel overwrites its values. Any other result is recorded at the end, as that of an operator.
  const bool by_torch = needs_gradient && !rows_need_grad && !sum.drops() && elements <= kFewElements && is_dense(x);
  if (source.extra != 0 && (!is_contiguous(x) || sum.drops() || (needs_gradient && !by_torch)))
    return use_general_path();
  if (rows_need_grad && (source.is_grid() || source.is_sequence_first)) return use_general_path();
  if (is_new) {
    result = by_torch ? recorded_copy(object, sum.scale, dtype) : PyObject_CallOneArg(python.empty_like, object);
    if (result == nullptr) return use_general_path();
  } else {
    Py_INCREF(result);
  }
  sinpe_add_arguments a;
  sinpe::DeviceScalars scalars{};
  RowTensors rows;
  // Checks x and the result, and sets the kernel's arguments except dropout. Called again after Python code has run: other
  // threads may have changed the tensors meanwhile.
  const auto set = [&] {
    if (strided_dtype_of(object, &x) != dtype || strided_dtype_of(result, &out) != dtype || device_of(x) != device ||
        !are_alike(x, out) || count_strided(x) != elements || !is_dense(out) ||
        (x.rank > 4 && !(is_contiguous(x) && is_contiguous(out))))
      return false;
    const bool is_for_x =
        source.is_grid() ? has_layout(source.grid, x) : x.rank == rank && x.sizes[rank - 1] == source.dim;
    const int64_t item = x.bits / 8, bytes = elements * item, extent = extent_of(x);
    const char *first = static_cast<char*>(x.data), *written = static_cast<char*>(out.data);
    const bool is_apart = first + extent * item <= written || first >= written + bytes;
    if (!is_for_x || !(is_apart || (first == written && have_same_strides(x, out))) ||
        ((source.is_grid() || source.extra != 0) && !have_same_strides(x, out)) ||
        !is_within_storage(object, x, extent) || (!is_new && !is_within_storage(result, out, elements)))
      return false;
    set_arguments(x, out, dtype, !source.is_grid() && source.is_sequence_first, &a);
    if (source.is_grid()) {
      set_grid(source.grid, sum.scale, &a);
    } else {
      if (source.extra >= a.sizes[2]) return false;
      a.sizes[2] -= source.extra;  // positions and padding_mask do not include the extra tokens
      if (!set_rows(sum, source.plan.start, out, bytes, &a, &scalars, &rows)) return false;
      a.sizes[2] += source.extra;
    }
    return !sum.drops() || !source.is_grid() || (is_contiguous(x) && is_row_major(a));
  };
  // Where the sequence is first: the mask follows the order of x, (rows, batch, channels), not that of `a`.
  const int64_t rng_offsets[] = {0, source.dim, source.dim, x.rank > 2 ? x.sizes[1] * source.dim : 0, 1};
  bool done = set();
  if (done && sum.drops()) {
    sinpe_dropout_arguments dropout{};
    done = set_dropout(sum, device, &dropout) && set();
    a.dropout = dropout;
    if (source.is_sequence_first) a.dropout.rng_offsets = rng_offsets;
  }
  done = done && is_unchanged(object, x) && is_unchanged(result, out) && rows.are_unchanged();
  const bool is_final = done && sum.drops() && !library.in_host_memory;
  bool has_begun = false;
  done = done && run_kernels(library, [&] {
           return launch(library, x.device_id, source, a, scalars, is_new && !by_torch, &has_begun);
         });
  if (!done) {
    if (has_begun || is_final) raise_launch_failure();  // the general path would add, or draw a seed, a second time
    Py_DECREF(result);
    return use_general_path();
  }
  if (!is_new) return with_new_version(result);
  if (!needs_gradient || by_torch) return result;
  const Reference unrecorded{result};
  const auto seed = static_cast<long long>(a.dropout.seed);
  const int32_t threshold = a.dropout.drop_threshold;
  // Only alpha, of implicit positions: as many tensors are saved as by the general path, see `Derivative`.
  const bool is_of_alpha = rows_need_grad && !sum.drops() && PyLong_CheckExact(sum.start) && sum.positions == Py_None &&
                           sum.mask == Py_None && elements <= kFewElements;
  if (rows_need_grad && !is_of_alpha)
    return PyObject_CallFunction(python.recorded_add_rows, "OOOLi", result, given, source.plan.holder, seed, threshold);
  PyObject *plan = is_of_alpha ? PyTuple_GET_ITEM(source.plan.holder, 0) : Py_None,
           *alpha = is_of_alpha ? sum.alpha : Py_None;
  return PyObject_CallFunction(python.recorded_add, "(OOOLiO)OO", result, plan, sum.start, seed, threshold, sum.scale,
                               object, alpha);
}

}  // namespace sinpe_fast_path
