// Caches of the packed plans of encodings, and of grids.
#pragma once

#include "pybind/fast_path/tensors.h"

namespace sinpe_fast_path {

constexpr int64_t kOwnDim = 0;  // stands for the encoding's number of channels, in calls that give none

// Cache of the plans of the last encodings, by the object that was given, the number of channels and the device
// (device_of); holds a reference to both the object and the plan.
struct CachedPlan {
  PyObject *encoding, *holder;
  int64_t given_dim;
  int32_t device;
  int64_t start;
  sinpe::DevicePlan plan;
};
constexpr int kPlans = 32;
inline CachedPlan plans[kPlans];
inline int next_plan = 0;

// The plans and grids below are returned with a new reference to their holder.

// The cached plan of an encoding; its holder is null if there is none.
inline CachedPlan cached_plan(PyObject* encoding, int64_t dim, int32_t device) {
  for (const CachedPlan& cached : plans) {
    if (cached.encoding != encoding || cached.given_dim != dim || cached.device != device) continue;
    Py_XINCREF(cached.holder);
    return cached;
  }
  return {};
}

// An int n as encoding stands for None and n channels; if `dim` is given, too, it must be that. Returns whether these are
// the arguments of one encoding.
inline bool resolve_int(PyObject** encoding, int64_t* dim) {
  if (!PyLong_CheckExact(*encoding)) return true;
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(*encoding, &overflow);
  if (overflow != 0 || number < 1 || (*dim != kOwnDim && *dim != number)) return false;
  *encoding = Py_None;
  *dim = number;
  return true;
}

// Gets the plan of an encoding, given as an object, a name or None, and caches it. The holder is null if kernels do not
// support the encoding for `dim` channels, or if there is an exception.
inline CachedPlan new_plan(PyObject* encoding, int64_t dim, int32_t device) {
  PyObject* answer = PyObject_CallFunction(python.plan_of, "OLi", encoding, static_cast<long long>(dim), device);
  CachedPlan made{encoding, answer, dim, device, 0, {nullptr, 0, 0}};
  if (answer != nullptr && answer != Py_None) {
    PyObject* tensor;
    unsigned long long address;
    long long words, channels, start;
    if (PyArg_ParseTuple(answer, "OKLLL", &tensor, &address, &words, &channels, &start) != 0) {
      made.plan = {reinterpret_cast<const int64_t*>(address), words, channels};
      made.start = start;
    }
  }
  if (made.plan.packed == nullptr) {
    Py_XDECREF(answer);
    return {};
  }
  Py_INCREF(encoding);
  Py_INCREF(answer);  // before the old objects are released, which may run code that uses the cache
  CachedPlan& slot = plans[next_plan];
  next_plan = (next_plan + 1) % kPlans;
  const CachedPlan old = slot;
  slot = made;
  Py_XDECREF(old.encoding);
  Py_XDECREF(old.holder);
  return made;
}

inline CachedPlan find_plan(PyObject* encoding, int64_t dim, int32_t device) {
  const CachedPlan cached = cached_plan(encoding, dim, device);
  return cached.holder != nullptr ? cached : new_plan(encoding, dim, device);
}

// Arguments of `add` that determine the layout of a grid in x, and where it starts.
enum LayoutArgument { kLayoutStart, kLayoutSeqDim, kLayoutChannelDim, kLayoutShape, kLayoutExtra, kLayoutArguments };

// A grid in a tensor x: its operands, and x as (batch, rows, columns): rows and columns are the extra tokens and points,
// and the channels; or, channels first, the channels, and the points.
struct CachedGrid {
  PyObject *encoding, *holder;
  PyObject* layout[kLayoutArguments];
  int32_t rank, device;
  int dtype;
  int64_t x_sizes[SINPE_MAX_RANK], x_strides[SINPE_MAX_RANK];
  int64_t n_words, n_values;
  const int64_t* words;  // null: a grid for the general path
  const void* values;
  int64_t sizes[3], strides[3], extra;
};

// Cache of the last grids, by the encoding's object, the layout and the sizes, strides and dtype of x.
constexpr int kGrids = 16;
inline CachedGrid grids[kGrids];
inline int next_grid = 0;

// Whether a value can be compared with others without running code of a subclass: None, an int, or a tuple of ints.
inline bool is_plain_layout(PyObject* value) {
  if (!PyTuple_CheckExact(value)) return value == Py_None || PyLong_CheckExact(value);
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(value); ++k) {
    if (!PyLong_CheckExact(PyTuple_GET_ITEM(value, k))) return false;
  }
  return true;
}

inline bool has_layout(const CachedGrid& grid, const Tensor& x) {
  bool same = grid.rank == x.rank;
  for (int32_t d = 0; same && d < x.rank; ++d)
    same = grid.x_sizes[d] == x.sizes[d] && (x.sizes[d] == 1 || grid.x_strides[d] == x.strides[d]);
  return same;
}

inline bool is_for(const CachedGrid& grid, PyObject* encoding, PyObject* const* layout, const Tensor& x, int dtype) {
  bool same = grid.encoding == encoding && grid.dtype == dtype && grid.device == device_of(x) && has_layout(grid, x);
  for (int k = 0; same && k < kLayoutArguments; ++k)
    same = grid.layout[k] == layout[k] || PyObject_RichCompareBool(grid.layout[k], layout[k], Py_EQ) == 1;
  return same;
}

// The cached grid; the holder is null if there is none. Only the holder is referenced: another thread may replace the
// cached grid, whose layout is then released.
inline CachedGrid cached_grid(PyObject* encoding, PyObject* const* layout, const Tensor& x, int dtype) {
  for (const CachedGrid& cached : grids) {
    if (!is_for(cached, encoding, layout, x, dtype)) continue;
    Py_XINCREF(cached.holder);
    return cached;
  }
  return {};
}

// Gets the grid of a call with x = `object` and caches it, or that it is one for the general path. The holder is null if
// there is an exception, or if x has changed meanwhile.
inline CachedGrid new_grid(PyObject* encoding, PyObject* const* layout, PyObject* given, PyObject* object, Tensor x,
                           int dtype) {
  CachedGrid made{};
  made.encoding = encoding, made.rank = x.rank, made.device = device_of(x), made.dtype = dtype;
  for (int32_t d = 0; d < x.rank; ++d) made.x_sizes[d] = x.sizes[d], made.x_strides[d] = x.strides[d];
  made.holder = PyObject_CallOneArg(python.grid_of, given);
  if (made.holder != nullptr && made.holder != Py_None) {
    PyObject* tensors;
    unsigned long long words = 0, values = 0;
    long long numbers[9] = {};
    long long* n = numbers;
    if (PyArg_ParseTuple(made.holder, "OKLKL(LLL)(LLL)L", &tensors, &words, n, &values, n + 1, n + 2, n + 3, n + 4,
                         n + 5, n + 6, n + 7, n + 8) == 0) {
      Py_CLEAR(made.holder);
    }
    made.words = reinterpret_cast<const int64_t*>(words);
    made.values = reinterpret_cast<const void*>(values);
    made.n_words = n[0], made.n_values = n[1];
    for (int d = 0; d < 3; ++d) made.sizes[d] = n[2 + d], made.strides[d] = n[5 + d];
    made.extra = n[8];
  }
  if (made.holder != nullptr &&
      (strided_dtype_of(object, &x) != dtype || device_of(x) != made.device || !has_layout(made, x)))
    Py_CLEAR(made.holder);
  if (made.holder == nullptr) return {};
  Py_INCREF(encoding);
  Py_INCREF(made.holder);
  for (int k = 0; k < kLayoutArguments; ++k) made.layout[k] = Py_NewRef(layout[k]);
  CachedGrid& slot = grids[next_grid];
  next_grid = (next_grid + 1) % kGrids;
  const CachedGrid old = slot;
  slot = made;
  Py_XDECREF(old.encoding);
  Py_XDECREF(old.holder);
  for (PyObject* object : old.layout) Py_XDECREF(object);
  return made;
}

// forget(): releases the cached plans and grids.
inline PyObject* forget(PyObject*, PyObject*) {
  for (CachedPlan& slot : plans) {
    const CachedPlan old = slot;
    slot = {};
    Py_XDECREF(old.encoding);
    Py_XDECREF(old.holder);
  }
  for (CachedGrid& slot : grids) {
    const CachedGrid old = slot;
    slot = {};
    Py_XDECREF(old.encoding);
    Py_XDECREF(old.holder);
    for (PyObject* object : old.layout) Py_XDECREF(object);
  }
  Py_RETURN_NONE;
}

}  // namespace sinpe_fast_path
