// Fast path for calls that compute and record nothing else, such as the step of one token: `add`, `embed`, `encode` and
// `table` directly from the Python objects to the kernels of the device (core/kernels.h). On the CPU it is for a few rows:
// such a call takes a few microseconds, as much as the checks in Python and an operator take each.
//
// Tensors are read through DLPack's C exchange functions, which torch.Tensor provides; this file does not depend on
// torch. What DLPack does not report (gradients, negative bits, modes that intercept operators) is queried by the
// functions passed to `set_up` and by methods of the tensors. Calls that this path does not support return None, and
// the caller, sinpe_ext/operations/small.py, takes the general path.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/kernels.h"
#include "core/layout.h"
#include "core/parallel.h"
#include "core/tree_sum.h"
#include "sinpe/sinpe.h"

namespace sinpe_small {

// The parts of DLPack 1.x (https://dmlc.github.io/dlpack/latest/c_api.html) that are used here.
struct Tensor {  // DLTensor
  void* data;
  int32_t device_type, device_id;
  int32_t rank;
  uint8_t kind, bits;
  uint16_t lanes;
  int64_t *sizes, *strides;
  uint64_t byte_offset;
};
struct Exchange {  // DLPackExchangeAPI
  uint32_t major, minor;
  const Exchange* previous;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*describe)(void* object, Tensor* out);  // a view; -1 with a Python exception on failure
  void* current_stream;
};
constexpr int32_t kCpu = 1, kCuda = 2;
constexpr uint8_t kInt = 0, kFloat = 2, kBfloat = 4, kBool = 6;

// For more elements on the CPU, a second thread and the operator are faster; for `encode`, which computes every row on its
// own, from half as many on. On any device, a copy of more elements for autograd takes longer than a call of the operator.
constexpr int64_t kMaxElements = 1 << 16;

inline const Exchange* exchange = nullptr;

constexpr sinpe::Kernels kCpuKernels{
    sizeof(sinpe::Kernels),
    true,
    kMaxElements,
    [](int32_t) { return true; },
    [](int32_t, const sinpe::DevicePlan& plan, int64_t start, int64_t length, sinpe_dtype dtype, void* out,
       int64_t row_stride) { return sinpe_table(plan.packed, plan.n_words, start, length, dtype, out, row_stride); },
    [](int32_t, const sinpe::DevicePlan& plan, const void* positions, sinpe_dtype position_dtype, int64_t count,
       sinpe_dtype dtype, void* out, int64_t row_stride) {
      return sinpe_encode(plan.packed, plan.n_words, positions, position_dtype, count, dtype, out, row_stride);
    },
    [](int32_t, const sinpe::DevicePlan& plan, const sinpe_add_arguments& a, const sinpe::DeviceScalars&) {
      return sinpe_add(plan.packed, plan.n_words, &a);
    },
    [](int32_t, const sinpe::DevicePlan& grid, const void* values, int64_t n_values, const sinpe_add_arguments& a) {
      return sinpe_add_grid(grid.packed, grid.n_words, values, n_values, &a);
    },
    [](int32_t, const sinpe_add_arguments& a) { return sinpe_dropout(&a); },
    [](int32_t, const sinpe::DevicePlan& plan, sinpe_embed_arguments* e, const sinpe::DeviceScalars&) {
      return sinpe_embed(plan.packed, plan.n_words, e);
    },
};

// The kernels by DLPack's type of device; null: none are loaded.
inline const sinpe::Kernels* kernels[] = {nullptr, &kCpuKernels, nullptr};
inline const sinpe::Kernels* kernels_of(const Tensor& t) {
  return t.device_type == kCpu || t.device_type == kCuda ? kernels[t.device_type] : nullptr;
}
// Number of a CUDA device; -1 for the CPU.
inline int32_t device_of(const Tensor& t) { return t.device_type == kCpu ? -1 : t.device_id; }

// set_kernels(device_type, address): the functions of a loaded library, for DLPack's type of device.
inline PyObject* set_kernels(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const long type = count == 2 ? PyLong_AsLong(items[0]) : -1;
  const auto* offered = static_cast<const sinpe::Kernels*>(count == 2 ? PyLong_AsVoidPtr(items[1]) : nullptr);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if ((type != kCpu && type != kCuda) || offered == nullptr) {
    PyErr_SetString(PyExc_TypeError, "set_kernels: expected a type of device, 1 or 2, and an address");
    return nullptr;
  }
  if (offered->bytes == sizeof(sinpe::Kernels)) kernels[type] = offered;
  Py_RETURN_NONE;
}

// The objects passed to `set_up`, never released; see `set_up` in sinpe_ext/operations/small.py.
struct PythonObjects {
  PyObject *tensor, *empty_like, *is_lazy, *is_grad_enabled, *is_inference_mode, *increment_version;
  PyObject *parameter, *empty, *float32, *embedding, *grid_encoding;
  PyObject *conditions, *variables, *is_intercepted, *plan_of, *grid_of, *draw_seed;
};
inline PythonObjects python{};

// Interned names of attributes and methods of a tensor, and a tuple with the name of the only keyword.
struct Names {
  PyObject *untyped_storage, *nbytes, *storage_offset, *requires_grad, *is_neg, *is_inference, *new_empty, *dtype,
      *clone, *dtype_alone;
};
inline Names names{};

// set_up(exchange, *objects): a capsule with DLPack's exchange functions, then the fields of PythonObjects: torch.Tensor,
// functions, types and a dtype of torch, and from sinpe_ext the conditions under which calls are intercepted, and the
// functions that return the plan of an encoding, the grid of a call and a seed. Returns whether the exchange functions
// can be used.
inline PyObject* set_up(PyObject*, PyObject* const* items, Py_ssize_t count) {
  constexpr Py_ssize_t kObjects = sizeof(PythonObjects) / sizeof(PyObject*);
  if (count != 1 + kObjects || !PyTuple_Check(items[12]) || !PyTuple_Check(items[13])) {
    PyErr_SetString(PyExc_TypeError,
                    "set_up: expected DLPack's exchange functions in a capsule, and seventeen objects");
    return nullptr;
  }
  if (exchange != nullptr) Py_RETURN_TRUE;
  const auto* offered = static_cast<const Exchange*>(PyCapsule_GetPointer(items[0], "dlpack_exchange_api"));
  PyErr_Clear();  // raised for a capsule of another name
  if (offered == nullptr || offered->major != 1 || offered->describe == nullptr) Py_RETURN_FALSE;
  names = {PyUnicode_InternFromString("untyped_storage"), PyUnicode_InternFromString("nbytes"),
           PyUnicode_InternFromString("storage_offset"),  PyUnicode_InternFromString("requires_grad"),
           PyUnicode_InternFromString("is_neg"),          PyUnicode_InternFromString("is_inference"),
           PyUnicode_InternFromString("new_empty"),       PyUnicode_InternFromString("dtype"),
           PyUnicode_InternFromString("clone"),           Py_BuildValue("(s)", "dtype")};
  if (PyErr_Occurred() != nullptr) return nullptr;
  for (Py_ssize_t k = 1; k <= kObjects; ++k) Py_INCREF(items[k]);
  python = {items[1],  items[2],  items[3],  items[4],  items[5],  items[6],  items[7],  items[8], items[9],
            items[10], items[11], items[12], items[13], items[14], items[15], items[16], items[17]};
  exchange = offered;
  Py_RETURN_TRUE;
}

// Clears a RuntimeError: the general path raises torch's errors. Other exceptions stay set, because a signal handler
// may have raised them in Python code, which a TorchFunctionMode runs even for methods of tensors.
inline void clear_runtime_error() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_RuntimeError)) PyErr_Clear();
}

// The return value if the general path has to be taken.
inline PyObject* use_general_path() {
  if (PyErr_Occurred() != nullptr) return nullptr;
  Py_RETURN_NONE;
}

// Whether `answer` is the object `wanted`; releases `answer`. An error counts as a different object; no further query
// may follow it.
inline bool is(PyObject* answer, PyObject* wanted) {
  if (answer == nullptr) clear_runtime_error();
  Py_XDECREF(answer);
  return answer == wanted;
}
inline bool returns_true(PyObject* function) { return is(PyObject_CallNoArgs(function), Py_True); }
inline bool returns_false(PyObject* object, PyObject* method) {
  return is(PyObject_CallMethodNoArgs(object, method), Py_False);
}

// Whether something intercepts the operations of this call; -1 with an exception. `conditions` are pairs of a function
// and its result when nothing does; `variables` are triples of a dict, a key and the value when nothing does. Otherwise
// the Python function `is_intercepted` decides.
inline int is_intercepted() {
  bool quiet = true;
  for (Py_ssize_t k = 0; quiet && k < PyTuple_GET_SIZE(python.conditions); ++k) {
    PyObject* pair = PyTuple_GET_ITEM(python.conditions, k);
    quiet = is(PyObject_CallNoArgs(PyTuple_GET_ITEM(pair, 0)), PyTuple_GET_ITEM(pair, 1));
  }
  for (Py_ssize_t k = 0; quiet && k < PyTuple_GET_SIZE(python.variables); ++k) {
    PyObject* three = PyTuple_GET_ITEM(python.variables, k);
    quiet =
        PyDict_GetItemWithError(PyTuple_GET_ITEM(three, 0), PyTuple_GET_ITEM(three, 1)) == PyTuple_GET_ITEM(three, 2);
  }
  if (quiet) return 0;
  PyObject* answer = PyObject_CallNoArgs(python.is_intercepted);
  Py_XDECREF(answer);
  return answer == nullptr ? -1 : answer != Py_False;
}

// Releases an object at the end of a block.
struct Reference {
  PyObject* object;
  ~Reference() { Py_XDECREF(object); }
};

constexpr int64_t kOwnDim = 0;  // stands for the encoding's number of channels, in calls that give none

// Cache of the plans of the last encodings, by the object that was given, the number of channels and the device
// (device_of); holds a reference to both the object and the plan.
struct Plan {
  PyObject *encoding, *holder;
  int64_t given_dim;
  int32_t device;
  int64_t start;
  sinpe::DevicePlan plan;
};
constexpr int kPlans = 32;
inline Plan plans[kPlans];
inline int next_plan = 0;

// The plans and grids below are returned with a new reference to their holder.

// The cached plan of an encoding; its holder is null if there is none.
inline Plan cached_plan(PyObject* encoding, int64_t dim, int32_t device) {
  for (const Plan& cached : plans) {
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
inline Plan new_plan(PyObject* encoding, int64_t dim, int32_t device) {
  PyObject* found = PyObject_CallFunction(python.plan_of, "OLi", encoding, static_cast<long long>(dim), device);
  Plan made{encoding, found, dim, device, 0, {nullptr, 0, 0}};
  if (found != nullptr && found != Py_None) {
    PyObject* tensor;
    unsigned long long address;
    long long words, channels, start;
    if (PyArg_ParseTuple(found, "OKLLL", &tensor, &address, &words, &channels, &start) != 0) {
      made.plan = {reinterpret_cast<const int64_t*>(address), words, channels};
      made.start = start;
    }
  }
  if (made.plan.packed == nullptr) {
    Py_XDECREF(found);
    return {};
  }
  Py_INCREF(encoding);
  Py_INCREF(found);  // before the old objects are released, which may run code that uses the cache
  Plan& slot = plans[next_plan];
  next_plan = (next_plan + 1) % kPlans;
  const Plan old = slot;
  slot = made;
  Py_XDECREF(old.encoding);
  Py_XDECREF(old.holder);
  return made;
}

inline Plan find_plan(PyObject* encoding, int64_t dim, int32_t device) {
  const Plan cached = cached_plan(encoding, dim, device);
  return cached.holder != nullptr ? cached : new_plan(encoding, dim, device);
}

// Arguments of `add` that determine the layout of a grid in x, and where it starts.
enum LayoutArgument { kLayoutStart, kLayoutSeqDim, kLayoutChannelDim, kLayoutShape, kLayoutExtra, kLayoutArguments };

// A grid in a tensor x: its operands, and x as (batch, rows, columns): rows and columns are the extra tokens and points,
// and the channels; or, channels first, the channels, and the points.
struct GridPlan {
  PyObject *encoding, *holder;
  PyObject* layout[kLayoutArguments];
  int32_t rank, device;
  int dtype;
  int64_t x_sizes[SINPE_MAX_RANK];
  int64_t n_words, n_values;
  const int64_t* words;  // null: a grid for the general path
  const void* values;
  int64_t sizes[3], strides[3], extra;
};

// Cache of the last grids, by the encoding's object, the layout and the sizes and dtype of x.
constexpr int kGrids = 16;
inline GridPlan grids[kGrids];
inline int next_grid = 0;

// Whether a value can be compared with others without running code of a subclass: None, an int, or a tuple of ints.
inline bool is_plain_layout(PyObject* value) {
  if (!PyTuple_CheckExact(value)) return value == Py_None || PyLong_CheckExact(value);
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(value); ++k) {
    if (!PyLong_CheckExact(PyTuple_GET_ITEM(value, k))) return false;
  }
  return true;
}

inline bool has_type(PyObject* object, PyObject* type) {
  return Py_TYPE(object) == reinterpret_cast<PyTypeObject*>(type);
}

// The arguments of `add` in the order of its record, without out.
enum Argument {
  kX,
  kEncoding,
  kPositions,
  kStart,
  kScale,
  kAlpha,
  kMask,
  kSeqDim,
  kChannelDim,
  kDropout,
  kSeed,
  kGrid,
  kExtra
};
constexpr Py_ssize_t kArguments = kExtra + 1;

inline bool is_int(PyObject* value, long wanted) {
  return PyLong_CheckExact(value) && PyLong_AsLong(value) == wanted && (wanted != -1 || PyErr_Occurred() == nullptr);
}

// The arguments that `add` and `embed` have in common.
struct Rows {
  PyObject *start, *positions, *mask, *scale, *alpha, *dropout, *seed;

  bool drops() const { return PyFloat_AS_DOUBLE(dropout) != 0.0; }
};

// Whether the types of these arguments are supported, and the values of those that are numbers.
inline bool are_plain(const Rows& rows) {
  if (!PyFloat_CheckExact(rows.scale) || !PyFloat_CheckExact(rows.dropout)) return false;
  if (!PyFloat_CheckExact(rows.alpha) && !has_type(rows.alpha, python.tensor)) return false;
  const double p = PyFloat_AS_DOUBLE(rows.dropout);
  return rows.seed == Py_None ? p >= 0.0 && p < 1.0 : PyLong_CheckExact(rows.seed) && p > 0.0 && p < 1.0;
}

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

// The int that a method returns, or -1. Releases `object` if `steals`.
inline int64_t number_of(PyObject* object, PyObject* method, bool steals = false) {
  PyObject* number = object == nullptr ? nullptr : PyObject_CallMethodNoArgs(object, method);
  const int64_t value = number == nullptr ? -1 : PyLong_AsLongLong(number);
  Py_XDECREF(number);
  if (steals) Py_XDECREF(object);
  clear_runtime_error();
  return value;
}

// Whether `elements` elements from the tensor's first one are within its storage, which may have been resized. DLPack
// does not report that.
inline bool is_within_storage(PyObject* object, const Tensor& t, int64_t elements) {
  const int64_t bytes = number_of(PyObject_CallMethodNoArgs(object, names.untyped_storage), names.nbytes, true);
  if (bytes < 0) return false;
  const int64_t offset = number_of(object, names.storage_offset);
  return offset >= 0 && offset <= bytes && (offset + elements) * (t.bits / 8) <= bytes;
}

// Whether autograd records what is computed from a tensor.
inline bool needs_grad(PyObject* x) {
  PyObject* requires_grad = PyObject_GetAttr(x, names.requires_grad);
  Py_XDECREF(requires_grad);
  if (requires_grad == nullptr) return true;  // with an exception, which the caller checks for
  return requires_grad != Py_False && returns_true(python.is_grad_enabled);
}

// Whether a tensor's memory has its values.
inline bool has_values(PyObject* x, bool may_be_parameter = false) {
  if (!has_type(x, python.tensor) && !(may_be_parameter && has_type(x, python.parameter))) return false;
  return returns_false(x, names.is_neg);
}

// Whether a tensor can be read directly, without recording for autograd.
inline bool is_readable(PyObject* x, bool may_be_parameter = false) {
  return has_values(x, may_be_parameter) && PyErr_Occurred() == nullptr && !needs_grad(x);
}

// Whether `out` can be written directly. A lazy copy (copy-on-write) is deferred until an address for writing is
// requested. (For x, which is read, it is made at that point.)
inline bool is_writable(PyObject* out) {
  if (!has_type(out, python.tensor)) return false;
  if (!is(PyObject_GetAttr(out, names.requires_grad), Py_False)) return false;
  const bool is_ordinary = returns_false(out, names.is_inference);
  if (!is_ordinary && (PyErr_Occurred() != nullptr || !returns_true(python.is_inference_mode))) return false;
  return returns_false(out, names.is_neg) && is(PyObject_CallOneArg(python.is_lazy, out), Py_False);
}

// Gets the description of a tensor; returns whether it has data, of one of DLPack's common types, on a device with
// kernels.
inline bool describe(PyObject* object, Tensor* t) {
  if (exchange->describe(object, t) != 0) {
    PyErr_Clear();
    return false;
  }
  return kernels_of(*t) != nullptr && t->data != nullptr && t->lanes == 1 && t->byte_offset == 0;
}

// Whether the kernels of the tensor's device may be called now. Only the general path checks values in the memory of a
// device (SINPE_EXT_CHECK).
inline bool are_ready(const Tensor& t) {
  const sinpe::Kernels& k = *kernels_of(t);
  if (k.reads_values) return true;
  const char* check = std::getenv("SINPE_EXT_CHECK");
  return (check == nullptr || *check == 0 || std::strcmp(check, "0") == 0) && k.is_ready(t.device_id);
}

// The number of elements of a contiguous tensor; -1 if it is empty, not contiguous or has more than its device's
// max_elements.
inline int64_t count_elements(const Tensor& t) {
  const int64_t most = kernels_of(t)->max_elements;
  int64_t elements = 1;
  for (int32_t d = t.rank - 1; d >= 0; --d) {
    if (t.sizes[d] < 1 || t.sizes[d] > most) return -1;
    if (t.sizes[d] > 1 && t.strides[d] != elements) return -1;
    elements *= t.sizes[d];
    if (elements > most) return -1;
  }
  return elements;
}

// The sinpe_dtype of a floating-point tensor; -1 for any other.
inline int float_type(const Tensor& t) {
  if (t.kind == kFloat && t.bits == 32) return SINPE_FLOAT32;
  if (t.kind == kFloat && t.bits == 64) return SINPE_FLOAT64;
  if (t.kind == kFloat && t.bits == 16) return SINPE_FLOAT16;
  return t.kind == kBfloat && t.bits == 16 ? SINPE_BFLOAT16 : -1;
}

// The sinpe_dtype of a contiguous floating-point tensor of two or more dimensions; -1 for any other.
inline int dtype_of(PyObject* object, Tensor* t) {
  if (!describe(object, t) || t->rank < 2 || t->rank > SINPE_MAX_RANK || count_elements(*t) < 0) return -1;
  return float_type(*t);
}

inline bool has_sizes(const GridPlan& grid, const Tensor& x) {
  bool same = grid.rank == x.rank;
  for (int32_t d = 0; same && d < x.rank; ++d) same = grid.x_sizes[d] == x.sizes[d];
  return same;
}

inline bool is_for(const GridPlan& grid, PyObject* encoding, PyObject* const* layout, const Tensor& x, int dtype) {
  bool same = grid.encoding == encoding && grid.dtype == dtype && grid.device == device_of(x) && has_sizes(grid, x);
  for (int k = 0; same && k < kLayoutArguments; ++k)
    same = grid.layout[k] == layout[k] || PyObject_RichCompareBool(grid.layout[k], layout[k], Py_EQ) == 1;
  return same;
}

// The cached grid; the holder is null if there is none. Only the holder is referenced: another thread may replace the
// cached grid, whose layout is then released.
inline GridPlan cached_grid(PyObject* encoding, PyObject* const* layout, const Tensor& x, int dtype) {
  for (const GridPlan& cached : grids) {
    if (!is_for(cached, encoding, layout, x, dtype)) continue;
    Py_XINCREF(cached.holder);
    return cached;
  }
  return {};
}

// Gets the grid of a call with x = `object` and caches it, or that it is one for the general path. The holder is null if
// there is an exception, or if x has changed meanwhile.
inline GridPlan new_grid(PyObject* encoding, PyObject* const* layout, PyObject* given, PyObject* object, Tensor x,
                         int dtype) {
  GridPlan made{};
  made.encoding = encoding, made.rank = x.rank, made.device = device_of(x), made.dtype = dtype;
  for (int32_t d = 0; d < x.rank; ++d) made.x_sizes[d] = x.sizes[d];
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
  if (made.holder != nullptr && (dtype_of(object, &x) != dtype || device_of(x) != made.device || !has_sizes(made, x)))
    Py_CLEAR(made.holder);
  if (made.holder == nullptr) return {};
  Py_INCREF(encoding);
  Py_INCREF(made.holder);
  for (int k = 0; k < kLayoutArguments; ++k) made.layout[k] = Py_NewRef(layout[k]);
  GridPlan& slot = grids[next_grid];
  next_grid = (next_grid + 1) % kGrids;
  const GridPlan old = slot;
  slot = made;
  Py_XDECREF(old.encoding);
  Py_XDECREF(old.holder);
  for (PyObject* object : old.layout) Py_XDECREF(object);
  return made;
}

inline bool are_alike(const Tensor& a, const Tensor& b) {
  bool alike = a.rank == b.rank && a.kind == b.kind && a.bits == b.bits && device_of(a) == device_of(b);
  for (int32_t d = 0; alike && d < a.rank; ++d) alike = a.sizes[d] == b.sizes[d];
  return alike;
}

// x in the form of sinpe_add: (batch, middle, rows, dim), contiguous like out; x is (rows, batch, dim) if
// `is_sequence_first`.
inline sinpe_add_arguments arguments_of(const Tensor& x, const Tensor& out, int dtype, bool is_sequence_first = false) {
  sinpe_add_arguments a{};
  a.rank = 4;
  a.sizes[0] = x.rank > 2 ? x.sizes[0] : 1;
  a.sizes[1] = 1;
  for (int32_t d = 1; d < x.rank - 2; ++d) a.sizes[1] *= x.sizes[d];
  a.sizes[2] = x.sizes[x.rank - 2], a.sizes[3] = x.sizes[x.rank - 1];
  int64_t step = 1;
  for (int d = 3; d >= 0; --d) {
    a.x_strides[d] = a.out_strides[d] = step;
    step *= a.sizes[d];
  }
  if (is_sequence_first) {
    const int64_t rows = x.sizes[0], batch = x.sizes[1], dim = x.sizes[2];
    a.sizes[0] = batch, a.sizes[2] = rows;
    a.x_strides[0] = a.x_strides[1] = a.out_strides[0] = a.out_strides[1] = dim;
    a.x_strides[2] = a.out_strides[2] = batch * dim;
  }
  a.x = x.data;
  a.out = out.data;
  a.dtype = static_cast<sinpe_dtype>(dtype);
  return a;
}

// The memory that a call writes, and its device.
struct Written {
  const char *data, *end;
  int32_t device;

  explicit Written(const Tensor& out)
      : data(static_cast<const char*>(out.data)),
        end(data + count_elements(out) * (out.bits / 8)),
        device(device_of(out)) {}

  // Gets the description of a tensor that is read; returns whether it is on this device and has no memory in common. Its
  // strides must be 0 or more.
  bool describe_apart(PyObject* object, Tensor* t) const {
    if (!is_readable(object) || !describe(object, t) || device_of(*t) != device) return false;
    int64_t last = 0;
    for (int32_t d = 0; d < t->rank; ++d) {
      const int64_t stride = t->sizes[d] > 1 ? t->strides[d] : 0;
      if (t->sizes[d] < 1 || stride < 0) return false;
      last += (t->sizes[d] - 1) * stride;
    }
    const char* first = static_cast<const char*>(t->data);
    return (first + (last + 1) * (t->bits / 8) <= data || first >= end) && is_within_storage(object, *t, last + 1);
  }
};

// Gets the description of an operand of shape (S,) or (B, S) with S = `rows`, any strides, and its strides of batch and
// sequence.
inline bool describe_rows(PyObject* object, const Written& out, const sinpe_add_arguments& a, int64_t rows, Tensor* t,
                          int64_t* strides) {
  if (!out.describe_apart(object, t) || t->rank < 1 || t->rank > 2) return false;
  const int64_t batch = t->rank == 2 ? t->sizes[0] : 1;
  if (t->sizes[t->rank - 1] != rows || (batch != 1 && batch != a.sizes[0])) return false;
  strides[0] = batch > 1 ? t->strides[0] : 0;
  strides[1] = rows > 1 ? t->strides[t->rank - 1] : 0;
  return true;
}

// Sets *type to the dtype of positions; returns false if kernels do not support it.
inline bool is_position(const Tensor& t, sinpe_dtype* type) {
  if (t.kind == kInt && t.bits == 64) {
    *type = SINPE_INT64;
  } else if (t.kind == kFloat && t.bits >= 32) {
    *type = t.bits == 32 ? SINPE_FLOAT32 : SINPE_FLOAT64;
  } else {
    return false;
  }
  return true;
}

// Sets positions of any supported dtype, or starts of shape () or (B,). Kernels do not add the encoding's own start to
// these starts, so it must be 0.
inline bool set_positions(PyObject* object, bool are_starts, int64_t own_start, const Written& out,
                          sinpe_add_arguments* a) {
  Tensor t;
  if (are_starts) {
    if (own_start != 0 || !out.describe_apart(object, &t) || t.rank > 1) return false;
    if (t.kind != kInt || t.bits != 64 || (t.rank == 1 && t.sizes[0] != 1 && t.sizes[0] != a->sizes[0])) return false;
    a->position_strides[0] = t.rank == 1 && t.sizes[0] > 1 ? t.strides[0] : 0;
  } else if (!describe_rows(object, out, *a, a->sizes[2], &t, a->position_strides)) {
    return false;
  }
  if (!is_position(t, &a->position_dtype)) return false;
  a->positions = t.data;
  a->positions_are_starts = are_starts;
  return true;
}

// Sets alpha, a float or a floating-point tensor of shape () or (1,).
inline bool set_alpha(PyObject* object, const Written& out, bool reads_values, sinpe_add_arguments* a,
                      sinpe::DeviceScalars* scalars) {
  if (PyFloat_CheckExact(object)) {
    a->alpha = PyFloat_AS_DOUBLE(object);
    return true;
  }
  Tensor t;
  if (!out.describe_apart(object, &t) || t.rank > 1 || count_elements(t) != 1 || float_type(t) < 0) return false;
  if (!reads_values) {
    scalars->alpha = t.data;
    scalars->alpha_dtype = static_cast<sinpe_dtype>(float_type(t));
    return true;
  }
  PyObject* number = PyNumber_Float(object);
  if (number == nullptr) {
    clear_runtime_error();
    return false;
  }
  a->alpha = PyFloat_AS_DOUBLE(number);
  Py_DECREF(number);
  return true;
}

// Whether one of the arguments is a tensor that needs a gradient.
inline bool needs_grad(const Rows& rows) {
  for (PyObject* object : {rows.start, rows.positions, rows.alpha})
    if (PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(python.tensor)) && needs_grad(object)) return true;
  return false;
}

// Whether `rows` positions from own_start + start on are within int64.
inline bool are_positions(int64_t own_start, int64_t start, int64_t rows) {
  int64_t first, last;
  return !__builtin_add_overflow(own_start, start, &first) && !__builtin_add_overflow(first, rows, &last);
}

// Sets the arguments of a sequence except dropout; returns false if the general path has to be taken.
inline bool set_rows(const Rows& rows, int64_t own_start, const Tensor& result, sinpe_add_arguments* a,
                     sinpe::DeviceScalars* scalars) {
  const Written out(result);
  PyObject *start = rows.start, *positions = rows.positions, *mask = rows.mask;
  const bool reads_values = kernels_of(result)->reads_values;
  if (PyLong_CheckExact(start)) {
    int overflow = 0;
    a->start = PyLong_AsLongLongAndOverflow(start, &overflow);
    const bool is_valid = positions == Py_None ? are_positions(own_start, a->start, a->sizes[2]) : a->start == 0;
    if (overflow != 0 || !is_valid) return false;
    if (positions != Py_None && !set_positions(positions, false, own_start, out, a)) return false;
  } else if (positions != Py_None || !set_positions(start, true, own_start, out, a) || (reads_values && rows.drops())) {
    return false;  // the last: the kernel may refuse the starts after the seed has been drawn
  }
  if (mask != Py_None) {
    Tensor t;
    if (!describe_rows(mask, out, *a, a->sizes[2], &t, a->mask_strides) || t.kind != kBool || t.bits != 8) return false;
    a->padding_mask = static_cast<const uint8_t*>(t.data);
  }
  a->scale = PyFloat_AS_DOUBLE(rows.scale);
  return set_alpha(rows.alpha, out, reads_values, a, scalars);
}

// Whether the RNG offset of each element is its index: x is in row-major order.
inline bool is_row_major(const sinpe_add_arguments& a) {
  int64_t step = 1;
  for (int d = a.rank - 1; d >= 0; --d) {
    if (a.sizes[d] > 1 && a.x_strides[d] != step) return false;
    step *= a.sizes[d];
  }
  return true;
}

// Sets the dropout, and draws its seed if none is given: after all checks, so that a call that raises does not advance
// the generator.
inline bool set_dropout(const Rows& rows, int32_t device, sinpe_dropout_arguments* d) {
  PyObject* seed = rows.seed == Py_None ? PyObject_CallFunction(python.draw_seed, "i", device) : Py_NewRef(rows.seed);
  int overflow = 0;
  d->seed = seed == nullptr ? -1 : PyLong_AsLongLongAndOverflow(seed, &overflow);
  Py_XDECREF(seed);
  const double units = std::nearbyint(PyFloat_AS_DOUBLE(rows.dropout) * 65536);
  d->drop_threshold = static_cast<int32_t>(std::min(std::max(units, 1.0), 65535.0));
  return overflow == 0 && PyErr_Occurred() == nullptr;
}

// Copies scale * x to the extra tokens, the first `extra` rows; `row` is the dimension of rows in `a`.
inline bool copy_extra_tokens(const Tensor& x, int64_t extra, int row, sinpe_add_arguments a) {
  const sinpe::Kernels& k = *kernels_of(x);
  a.sizes[row] = extra;
  if (a.scale == 1.0 && a.out == a.x) return true;
  const bool has_pieces = a.x_strides[row + 1] == 1 || a.sizes[row + 1] == 1;
  if (a.scale != 1.0 || !has_pieces || !k.reads_values) return k.dropout(x.device_id, a) == SINPE_OK;
  const size_t item = a.dtype == SINPE_FLOAT64 ? 8 : a.dtype == SINPE_FLOAT32 ? 4 : 2;
  const int64_t rows = a.sizes[row] * a.sizes[0] * (row == 2 ? a.sizes[1] : 1), dim = a.sizes[row + 1];
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t at = sinpe::offset_at(a.sizes, a.x_strides, row + 1, n) * static_cast<int64_t>(item);
    std::memcpy(static_cast<char*>(a.out) + at, static_cast<const char*>(a.x) + at, static_cast<size_t>(dim) * item);
  }
  return true;
}

// add behind `extra` rows of extra tokens, which get scale * x only: `add` is called with the arguments for the other rows.
template <class Add>
bool add_behind(const Tensor& x, int64_t extra, int row, const sinpe_add_arguments& a, const Add& add) {
  if (extra == 0) return add(a);
  const int64_t bytes = a.dtype == SINPE_FLOAT64 ? 8 : a.dtype == SINPE_FLOAT32 ? 4 : 2;
  const int64_t offset = extra * a.x_strides[row] * bytes;
  sinpe_add_arguments others = a;
  others.sizes[row] -= extra;
  others.x = static_cast<const char*>(a.x) + offset;
  others.out = static_cast<char*>(a.out) + offset;
  return add(others) && copy_extra_tokens(x, extra, row, a);  // only the first can fail; nothing is written then
}

// x as (batch, rows, columns).
inline void set_grid(const GridPlan& grid, PyObject* scale, sinpe_add_arguments* a) {
  a->rank = 3;
  for (int d = 0; d < 3; ++d) {
    a->sizes[d] = grid.sizes[d];
    a->x_strides[d] = a->out_strides[d] = grid.strides[d];
  }
  a->scale = PyFloat_AS_DOUBLE(scale);
}

// Increments the version of a tensor that was written to, and returns it; null with an exception.
inline PyObject* with_new_version(PyObject* result) {  // a function in C: no signal handler comes between
  PyObject* written = PyTuple_Pack(1, result);
  PyObject* incremented = written == nullptr ? nullptr : PyObject_CallOneArg(python.increment_version, written);
  Py_XDECREF(written);
  Py_XDECREF(incremented);
  if (incremented == nullptr) Py_CLEAR(result);
  return result;
}

// small_add(given, out) -> out, a new tensor if out is None; or None for unsupported arguments.
inline PyObject* add(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const sinpe::OneThread one_thread;
  if (count != 2 || !PyTuple_Check(items[0]) || PyTuple_GET_SIZE(items[0]) != kArguments) {
    PyErr_SetString(PyExc_TypeError, "small_add: expected the arguments of add as a tuple, and out");
    return nullptr;
  }
  PyObject *given = items[0], *object = PyTuple_GET_ITEM(given, kX), *result = items[1];
  const auto at = [given](Argument argument) { return PyTuple_GET_ITEM(given, argument); };
  const Rows rows{at(kStart), at(kPositions), at(kMask), at(kScale), at(kAlpha), at(kDropout), at(kSeed)};
  const bool is_new = result == Py_None;
  if (exchange == nullptr || !are_plain(rows)) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  if (!has_values(object, true) || !(is_new || is_writable(result))) return use_general_path();
  // The result is then a copy of x, or scale * x, recorded by torch, whose gradient is that of the sum.
  const bool learns = needs_grad(object), has_scale = PyFloat_AS_DOUBLE(rows.scale) != 1.0;
  const bool can_learn = is_new && !rows.drops() && !needs_grad(rows);
  if (PyErr_Occurred() != nullptr || (learns && !can_learn)) return use_general_path();
  Tensor x, out;
  const int dtype = dtype_of(object, &x);
  if (dtype < 0 || (learns && count_elements(x) > kMaxElements) || !are_ready(x)) return use_general_path();
  const int32_t rank = x.rank, device = device_of(x);
  const sinpe::Kernels& run = *kernels_of(x);
  PyObject *encoding = at(kEncoding), *layout[kLayoutArguments];
  int64_t dim = x.sizes[rank - 1], extra;
  bool is_sequence_first;
  Plan plan{};
  GridPlan grid{};
  const bool may_be_sequence =
      is_sequence(given, rank, &is_sequence_first, &extra) && resolve_int(&encoding, &dim) && dim == x.sizes[rank - 1];
  if (may_be_sequence) plan = cached_plan(encoding, dim, device);
  const bool is_grid = plan.holder == nullptr && may_be_grid(given, layout);
  if (is_grid) grid = cached_grid(encoding, layout, x, dtype);
  const bool is_fresh = plan.holder == nullptr && grid.holder == nullptr;
  if (is_fresh && may_be_sequence) plan = new_plan(encoding, dim, device);
  if (is_fresh && is_grid && plan.holder == nullptr && PyErr_Occurred() == nullptr && dtype_of(object, &x) == dtype)
    grid = new_grid(encoding, layout, given, object, x, dtype);
  const Reference holder{plan.holder != nullptr ? plan.holder : grid.holder};
  if (holder.object == nullptr || (plan.holder == nullptr && grid.words == nullptr)) return use_general_path();
  if (plan.holder == nullptr) extra = grid.extra;
  if (rows.drops() && extra != 0) return use_general_path();
  if (learns) {
    if (dtype_of(object, &x) != dtype || !is_within_storage(object, x, count_elements(x))) return use_general_path();
    result = has_scale ? PyNumber_Multiply(object, rows.scale) : PyObject_CallMethodNoArgs(object, names.clone);
  } else {
    result = is_new ? PyObject_CallOneArg(python.empty_like, object) : Py_NewRef(result);
  }
  if (result == nullptr) return nullptr;
  sinpe_add_arguments a{};
  sinpe::DeviceScalars scalars{};
  // Sets the arguments. x is described again, because other threads may have run in between.
  const auto set = [&] {
    if (dtype_of(object, &x) != dtype || dtype_of(result, &out) != dtype || device_of(x) != device) return false;
    const bool is_for_x = plan.holder != nullptr ? x.rank == rank && x.sizes[rank - 1] == dim : has_sizes(grid, x);
    const int64_t elements = count_elements(x), distance = static_cast<char*>(out.data) - static_cast<char*>(x.data);
    const int64_t bytes = elements * (x.bits / 8);
    if (!is_for_x || !are_alike(x, out) || (distance != 0 && distance < bytes && distance > -bytes) ||
        !is_within_storage(object, x, elements) || (!is_new && !is_within_storage(result, out, elements)))
      return false;
    a = arguments_of(x, out, dtype, plan.holder != nullptr && is_sequence_first);
    if (plan.holder == nullptr) {
      set_grid(grid, rows.scale, &a);
    } else {
      if (extra >= a.sizes[2]) return false;
      a.sizes[2] -= extra;  // positions and padding_mask do not include the extra tokens
      if (!set_rows(rows, plan.start, out, &a, &scalars)) return false;
      a.sizes[2] += extra;
    }
    return !rows.drops() || is_row_major(a);
  };
  bool done = set();
  if (done && rows.drops()) {
    sinpe_dropout_arguments dropout{};
    done = set_dropout(rows, device, &dropout) && set();
    a.dropout = dropout;
  }
  if (done && plan.holder == nullptr) {
    done = add_behind(x, extra, 1, a, [&](const sinpe_add_arguments& points) {
      const sinpe::DevicePlan packed{grid.words, grid.n_words, points.sizes[2]};
      return run.add_grid(x.device_id, packed, grid.values, grid.n_values, points) == SINPE_OK;
    });
  } else if (done) {
    done = add_behind(x, extra, 2, a, [&](const sinpe_add_arguments& others) {
      return run.add(x.device_id, plan.plan, others, scalars) == SINPE_OK;
    });
  }
  if (done) return is_new ? result : with_new_version(result);
  Py_DECREF(result);
  return use_general_path();
}

// A new tensor of t's sizes and one more, `dim`, of a torch.dtype, or of the dtype of `object` if that is null, on the
// device of `object`; or null with an exception.
inline PyObject* new_rows(PyObject* object, const Tensor& t, int64_t dim, PyObject* dtype) {
  PyObject* call[SINPE_MAX_RANK + 2] = {object};
  int32_t made = 1;
  for (; made <= t.rank + 1; ++made) {
    call[made] = PyLong_FromLongLong(made <= t.rank ? t.sizes[made - 1] : dim);
    if (call[made] == nullptr) break;
  }
  call[t.rank + 2] = dtype;
  PyObject *result = nullptr, *keywords = dtype == nullptr ? nullptr : names.dtype_alone;
  if (made == t.rank + 2) result = PyObject_VectorcallMethod(names.new_empty, call, t.rank + 2, keywords);
  for (int32_t k = 1; k < made; ++k) Py_DECREF(call[k]);
  return result;
}

// Sets *dim to the argument `dim` of table and encode, None or an int, which is for an encoding that is None or a name.
inline bool get_dim(PyObject* object, PyObject* encoding, int64_t* dim) {
  *dim = kOwnDim;
  if (object == Py_None) return true;
  int overflow = 0;
  if (PyLong_CheckExact(object)) *dim = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && *dim > 0 && (encoding == Py_None || PyUnicode_CheckExact(encoding));
}

// small_encode(positions, encoding, dtype, dim) -> a new tensor, or None for arguments that it does not take.
inline PyObject* encode(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const sinpe::OneThread one_thread;
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "small_encode: expected positions, an encoding, a dtype and dim");
    return nullptr;
  }
  PyObject *object = items[0], *encoding = items[1];
  int64_t given_dim;
  if (exchange == nullptr || Py_TYPE(items[2]) != Py_TYPE(python.float32) || !get_dim(items[3], encoding, &given_dim) ||
      !resolve_int(&encoding, &given_dim)) {
    Py_RETURN_NONE;
  }
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  if (!is_readable(object)) return use_general_path();
  Tensor t, out;
  const auto positions = [&] {
    sinpe_dtype type;
    return describe(object, &t) && t.rank > 0 && t.rank + 1 < SINPE_MAX_RANK && count_elements(t) > 0 &&
           is_position(t, &type);
  };
  if (!positions() || !are_ready(t)) Py_RETURN_NONE;
  const int32_t device = device_of(t);
  const Plan plan = find_plan(encoding, given_dim, device);
  const Reference holder{plan.holder};
  if (holder.object == nullptr) return use_general_path();
  const int64_t dim = plan.plan.dim;
  // Described again, here and below, because other threads may have run in between.
  if (!positions() || count_elements(t) > kernels_of(t)->max_elements / 2 / dim) Py_RETURN_NONE;
  PyObject* result = new_rows(object, t, dim, items[2]);
  sinpe_dtype type;
  const int dtype = result == nullptr ? -1 : dtype_of(result, &out);
  const bool done = dtype >= 0 && positions() && is_position(t, &type) && device_of(t) == device &&
                    device_of(out) == device && is_within_storage(object, t, count_elements(t)) &&
                    count_elements(out) == count_elements(t) * dim &&
                    kernels_of(t)->encode(t.device_id, plan.plan, t.data, type, count_elements(t),
                                          static_cast<sinpe_dtype>(dtype), out.data, dim) == SINPE_OK;
  if (done) return result;
  Py_XDECREF(result);
  return use_general_path();
}

// The arguments of `embed` in the order of its record.
enum EmbedArgument {
  kIds,
  kWeight,
  kEmbedEncoding,
  kIdPositions,
  kIdStart,
  kWeightScale,
  kIdAlpha,
  kIdDropout,
  kIdSeed,
  kPaddingIdx,
  kIdMask,
  kSparse,
  kEncodePadding,
  kIdSeqDim
};
constexpr Py_ssize_t kEmbedArguments = kIdSeqDim + 1;

// Whether the other arguments of `embed` are supported.
inline bool is_plain_embed(PyObject* given) {
  const auto at = [given](EmbedArgument argument) { return PyTuple_GET_ITEM(given, argument); };
  PyObject *padding_idx = at(kPaddingIdx), *sparse = at(kSparse);
  const bool plain = (padding_idx == Py_None || PyLong_CheckExact(padding_idx)) &&
                     (sparse == Py_True || sparse == Py_False) && at(kEncodePadding) == Py_True &&
                     (is_int(at(kIdSeqDim), -1) || is_int(at(kIdSeqDim), 0));
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

// Whether torch's gradient of scale * weight[ids] has the bits of ours, for a scale that is a power of two: torch
// multiplies each term by it, not the sum, which is the same unless a product overflows (or denormals are flushed). In
// 16 bits it would round each partial sum; the sum of more terms is a tree.
inline bool has_gradient_of_torch(const Tensor& weight, const Tensor& ids) {
  return kernels_of(weight)->reads_values && weight.bits >= 32 && count_elements(ids) <= sinpe::terms_under(1);
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
  PyObject* scaled = PyNumber_Multiply(result, scale);
  Py_DECREF(result);
  return scaled;
}

// small_embed(given) -> a new tensor, or None for arguments that it does not take.
inline PyObject* embed(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const sinpe::OneThread one_thread;
  if (count != 1 || !PyTuple_Check(items[0]) || PyTuple_GET_SIZE(items[0]) != kEmbedArguments) {
    PyErr_SetString(PyExc_TypeError, "small_embed: expected the arguments of embed as a tuple");
    return nullptr;
  }
  PyObject* given = items[0];
  const auto at = [given](EmbedArgument argument) { return PyTuple_GET_ITEM(given, argument); };
  const Rows rows{at(kIdStart), at(kIdPositions), at(kIdMask), at(kWeightScale),
                  at(kIdAlpha), at(kIdDropout),   at(kIdSeed)};
  if (exchange == nullptr || !are_plain(rows) || !is_plain_embed(given)) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  if (!is_readable(at(kIds)) || !has_values(at(kWeight), true)) return use_general_path();
  // The result is then torch's own scale * weight[ids], whose gradient is that of the sum.
  const bool learns = needs_grad(at(kWeight));
  const bool can_learn = is_power_of_two(PyFloat_AS_DOUBLE(rows.scale)) && !rows.drops() && !needs_grad(rows);
  if (PyErr_Occurred() != nullptr || (learns && !can_learn)) return use_general_path();
  Tensor ids, weight, out;
  int64_t padding_row = -1;
  const bool is_sequence_first = is_int(at(kIdSeqDim), 0);
  const auto is_transposed = [&](const Tensor& t) {  // torch sums a gradient in the order of memory
    return is_sequence_first && t.rank == 2 && t.sizes[0] > 1 && t.sizes[1] > 1;
  };
  const auto operands = [&] {
    return describe(at(kIds), &ids) && ids.kind == kInt && ids.bits == 64 && ids.rank > 0 &&
           ids.rank + 1 < SINPE_MAX_RANK && (!is_sequence_first || ids.rank < 3) && count_elements(ids) > 0 &&
           describe(at(kWeight), &weight) && weight.rank == 2 && float_type(weight) >= 0 && weight.sizes[0] > 0 &&
           weight.sizes[1] > 0 && weight.strides[0] >= 0 && (weight.strides[1] == 1 || weight.sizes[1] == 1) &&
           device_of(weight) == device_of(ids) &&
           (!learns || (has_gradient_of_torch(weight, ids) && !is_transposed(ids))) &&
           get_padding_row(at(kPaddingIdx), weight.sizes[0], &padding_row) &&
           is_within_storage(at(kIds), ids, count_elements(ids)) &&
           is_within_storage(at(kWeight), weight, (weight.sizes[0] - 1) * weight.strides[0] + weight.sizes[1]);
  };
  if (!operands() || !are_ready(ids)) return use_general_path();
  const sinpe::Kernels& run = *kernels_of(ids);
  if (rows.drops() && (run.reads_values || is_transposed(ids))) Py_RETURN_NONE;  // it may refuse an id
  const int64_t dim = weight.sizes[1];
  const int32_t device = device_of(ids);
  PyObject* encoding = at(kEmbedEncoding);
  int64_t plan_dim = dim;
  if (!resolve_int(&encoding, &plan_dim)) Py_RETURN_NONE;
  const Plan plan = find_plan(encoding, dim, device);
  const Reference holder{plan.holder};
  if (holder.object == nullptr || !operands() || count_elements(ids) > run.max_elements / dim)
    return use_general_path();
  PyObject* result = learns ? recorded_embedding(at(kWeight), at(kIds), padding_row, at(kSparse), at(kWeightScale))
                            : new_rows(at(kWeight), ids, dim, nullptr);
  if (result == nullptr) return use_general_path();
  const int dtype = dtype_of(result, &out);
  sinpe_embed_arguments e{};
  sinpe::DeviceScalars scalars{};
  // Sets the arguments. The operands are described again, because other threads may have run in between.
  const auto set = [&] {
    if (dtype < 0 || !operands() || float_type(weight) != dtype || weight.sizes[1] != dim || device_of(ids) != device ||
        device_of(out) != device || count_elements(ids) * dim != count_elements(out))
      return false;
    const bool is_rows_first = is_sequence_first && ids.rank == 2;
    e.add = arguments_of(out, out, dtype, is_rows_first);
    e.add.x = weight.data;
    e.ids = static_cast<const int64_t*>(ids.data);
    e.id_strides[0] = is_rows_first ? 1 : e.add.sizes[1] * e.add.sizes[2];
    e.id_strides[1] = e.add.sizes[2];
    e.id_strides[2] = is_rows_first ? e.add.sizes[0] : 1;
    e.num_embeddings = weight.sizes[0];
    e.weight_stride = weight.sizes[0] > 1 ? weight.strides[0] : dim;
    return set_rows(rows, plan.start, out, &e.add, &scalars);
  };
  bool done = set();
  if (done && rows.drops()) {
    sinpe_dropout_arguments dropout{};
    done = set_dropout(rows, device, &dropout) && set();
    e.add.dropout = dropout;
  }
  if (done && run.embed(ids.device_id, plan.plan, &e, scalars) == SINPE_OK) return result;
  Py_DECREF(result);
  return use_general_path();
}

// The arguments of `table` in the order of its record.
enum TableArgument { kLength, kTableEncoding, kTableStart, kDtype, kDevice, kOut, kFlatten, kTableExtra, kDim };
constexpr Py_ssize_t kTableArguments = kDim + 1;

// small_table(given) -> out, a new tensor if that is None; or None for arguments that it does not take.
inline PyObject* table(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const sinpe::OneThread one_thread;
  if (count != 1 || !PyTuple_Check(items[0]) || PyTuple_GET_SIZE(items[0]) != kTableArguments) {
    PyErr_SetString(PyExc_TypeError, "small_table: expected the arguments of table as a tuple");
    return nullptr;
  }
  const auto at = [given = items[0]](TableArgument argument) { return PyTuple_GET_ITEM(given, argument); };
  PyObject* encoding = at(kTableEncoding);
  int64_t given_dim;
  if (exchange == nullptr || !get_dim(at(kDim), encoding, &given_dim) || !resolve_int(&encoding, &given_dim) ||
      at(kDevice) != Py_None || at(kFlatten) != Py_False || !PyLong_CheckExact(at(kLength)) ||
      !PyLong_CheckExact(at(kTableStart)) || !is_int(at(kTableExtra), 0)) {
    PyErr_Clear();  // raised for an int that does not fit long
    Py_RETURN_NONE;
  }
  int overflow = 0, overflow_of_start = 0;
  const int64_t length = PyLong_AsLongLongAndOverflow(at(kLength), &overflow);
  const int64_t start = PyLong_AsLongLongAndOverflow(at(kTableStart), &overflow_of_start);
  if (overflow != 0 || overflow_of_start != 0 || length < 1) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  PyObject *result = at(kOut), *wanted = at(kDtype);
  const bool is_new = result == Py_None;
  if (wanted != Py_None && Py_TYPE(wanted) != Py_TYPE(python.float32)) Py_RETURN_NONE;
  if (!is_new && !is_writable(result)) return use_general_path();
  if (!is_new && wanted != Py_None && !is(PyObject_GetAttr(result, names.dtype), wanted)) return use_general_path();
  Tensor out;
  if (!is_new && dtype_of(result, &out) < 0) Py_RETURN_NONE;
  Plan plan = find_plan(encoding, given_dim, is_new ? -1 : device_of(out));
  const Reference holder{plan.holder};
  if (holder.object == nullptr) return use_general_path();
  const int64_t dim = plan.plan.dim;
  if (!are_positions(plan.start, start, length)) Py_RETURN_NONE;
  if (is_new) {
    if (length > kMaxElements / dim) Py_RETURN_NONE;
    PyObject* call[3] = {at(kLength), PyLong_FromLongLong(dim), wanted == Py_None ? python.float32 : wanted};
    result = call[1] == nullptr ? nullptr : PyObject_Vectorcall(python.empty, call, 2, names.dtype_alone);
    Py_XDECREF(call[1]);
  } else {
    Py_INCREF(result);
  }
  // A new result is on another device than the plan if that is the default device.
  const int dtype = result == nullptr ? -1 : dtype_of(result, &out);
  const bool done =
      dtype >= 0 && device_of(out) == plan.device && are_ready(out) && out.rank == 2 && out.sizes[0] == length &&
      out.sizes[1] == dim && (is_new || is_within_storage(result, out, length * dim)) &&
      kernels_of(out)->table(out.device_id, plan.plan, start, length, static_cast<sinpe_dtype>(dtype), out.data, dim) ==
          SINPE_OK;
  if (done) return is_new ? result : with_new_version(result);
  Py_XDECREF(result);
  return use_general_path();
}

// is_intercepted() -> bool, for other calls; False before set_up.
inline PyObject* is_intercepted_method(PyObject*, PyObject*) {
  const int answer = exchange == nullptr ? 0 : is_intercepted();
  return answer < 0 ? nullptr : PyBool_FromLong(answer);
}

// METH_FASTCALL functions, which PyMethodDef holds under an older type.
template <class F>
PyCFunction as_method(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// forget(): releases the cached plans and grids.
inline PyObject* forget(PyObject*, PyObject*) {
  for (Plan& slot : plans) {
    const Plan old = slot;
    slot = {};
    Py_XDECREF(old.encoding);
    Py_XDECREF(old.holder);
  }
  for (GridPlan& slot : grids) {
    const GridPlan old = slot;
    slot = {};
    Py_XDECREF(old.encoding);
    Py_XDECREF(old.holder);
    for (PyObject* object : old.layout) Py_XDECREF(object);
  }
  Py_RETURN_NONE;
}

inline PyMethodDef methods[] = {
    {"set_up", as_method(set_up), METH_FASTCALL,
     "Passes the objects that the fast path calls; returns whether it can be used."},
    {"set_kernels", as_method(set_kernels), METH_FASTCALL,
     "Passes the address of the kernels of a type of device (csrc/core/kernels.h)."},
    {"forget", forget, METH_NOARGS, "Releases the constants that the fast path has cached."},
    {"small_add", as_method(add), METH_FASTCALL, "add for a small tensor; None for unsupported arguments."},
    {"small_embed", as_method(embed), METH_FASTCALL, "embed of a few tokens; None for unsupported arguments."},
    {"small_table", as_method(table), METH_FASTCALL, "table of a few rows; None for unsupported arguments."},
    {"small_encode", as_method(encode), METH_FASTCALL, "encode for a few positions; None for unsupported arguments."},
    {"is_intercepted", is_intercepted_method, METH_NOARGS,
     "Whether something other than the compiler intercepts the operations of a call."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace sinpe_small
