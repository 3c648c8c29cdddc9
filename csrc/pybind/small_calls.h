// Fast path for calls with a few rows, such as one token's: `add`, `embed`, `encode` and `table` directly from the Python
// objects to the C interface. Such a call takes a few microseconds, as much as the checks in Python and an operator take
// each.
//
// Tensors are read through DLPack's C exchange functions, which torch.Tensor provides; this file does not depend on
// torch. What DLPack does not report (gradients, negative bits, modes that intercept operators) is queried by the
// functions passed to `set_up` and by methods of the tensors. Calls that this path does not support return None, and
// the caller, sinpe_ext/operations/small.py, takes the general path.
#pragma once

#include <Python.h>

#include <cmath>
#include <cstring>

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
constexpr int32_t kCpu = 1;
constexpr uint8_t kInt = 0, kFloat = 2, kBfloat = 4, kBool = 6;

// For more elements, a second thread and the operator are faster; for `encode`, which computes every row on its own,
// from half as many on.
constexpr int64_t kMaxElements = 1 << 16;

inline const Exchange* exchange = nullptr;

// The objects passed to `set_up`, never released; see `set_up` in sinpe_ext/operations/small.py.
struct PythonObjects {
  PyObject *tensor, *empty_like, *is_lazy, *is_grad_enabled, *is_inference_mode, *increment_version;
  PyObject *parameter, *empty, *float32, *embedding, *grid_encoding;
  PyObject *conditions, *variables, *is_intercepted, *plan_of, *grid_of;
};
inline PythonObjects python{};

// Interned names of attributes and methods of a tensor, and a tuple with the name of the only keyword.
struct Names {
  PyObject *untyped_storage, *nbytes, *storage_offset, *requires_grad, *is_neg, *is_inference, *new_empty, *dtype,
      *clone, *dtype_alone;
};
inline Names names{};

// set_up(exchange, *objects): a capsule with DLPack's exchange functions, then the fields of PythonObjects: torch.Tensor,
// functions, types and a dtype of torch, and from sinpe_ext the conditions under which calls are intercepted, the function
// that returns the plan of an encoding, and the one that returns the grid of a call. Returns whether the exchange
// functions can be used.
inline PyObject* set_up(PyObject*, PyObject* const* items, Py_ssize_t count) {
  constexpr Py_ssize_t kObjects = sizeof(PythonObjects) / sizeof(PyObject*);
  if (count != 1 + kObjects || !PyTuple_Check(items[12]) || !PyTuple_Check(items[13])) {
    PyErr_SetString(PyExc_TypeError, "set_up: expected DLPack's exchange functions in a capsule, and sixteen objects");
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
  python = {items[1], items[2],  items[3],  items[4],  items[5],  items[6],  items[7],  items[8],
            items[9], items[10], items[11], items[12], items[13], items[14], items[15], items[16]};
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

// Cache of the plans of the last encodings, by the object that was given and the number of channels; holds a reference
// to both the object and the plan.
struct Plan {
  PyObject *encoding, *holder;
  int64_t dim, n_words, start;
  const int64_t* plan;
};
constexpr int kPlans = 32;
inline Plan plans[kPlans];
inline int next_plan = 0;

// The plans and grids below are returned with a new reference to their holder.

// The cached plan of an encoding; its holder is null if there is none.
inline Plan cached_plan(PyObject* encoding, int64_t dim) {
  for (const Plan& cached : plans) {
    if (cached.encoding != encoding || cached.dim != dim) continue;
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
inline Plan new_plan(PyObject* encoding, int64_t dim) {
  PyObject* number = PyLong_FromLongLong(dim);
  PyObject* found =
      number == nullptr ? nullptr : PyObject_CallFunctionObjArgs(python.plan_of, encoding, number, nullptr);
  Py_XDECREF(number);
  Plan made{encoding, found, dim, 0, 0, nullptr};
  if (found != nullptr && PyTuple_Check(found) && PyTuple_GET_SIZE(found) == 4) {  // holder, address, length, start
    made.plan = static_cast<const int64_t*>(PyLong_AsVoidPtr(PyTuple_GET_ITEM(found, 1)));
    made.n_words = PyLong_AsLongLong(PyTuple_GET_ITEM(found, 2));
    made.start = PyLong_AsLongLong(PyTuple_GET_ITEM(found, 3));
  }
  if (PyErr_Occurred() != nullptr || made.plan == nullptr) {
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

// Arguments of `add` that determine the layout of a grid in x, and where it starts.
enum LayoutArgument { kLayoutStart, kLayoutSeqDim, kLayoutChannelDim, kLayoutShape, kLayoutExtra, kLayoutArguments };

// A grid in a tensor x: its operands, and x as (batch, rows, columns): rows and columns are the extra tokens and points,
// and the channels; or, channels first, the channels, and the points.
struct GridPlan {
  PyObject *encoding, *holder;
  PyObject* layout[kLayoutArguments];
  int32_t rank;
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

// Whether the arguments describe scale * x + alpha * PE only, without dropout.
inline bool is_plain(PyObject* given) {
  const auto at = [given](Argument argument) { return PyTuple_GET_ITEM(given, argument); };
  return at(kSeed) == Py_None && PyFloat_CheckExact(at(kScale)) &&
         (PyFloat_CheckExact(at(kAlpha)) || has_type(at(kAlpha), python.tensor)) && PyFloat_CheckExact(at(kDropout)) &&
         PyFloat_AS_DOUBLE(at(kDropout)) == 0.0;
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

// Gets the description of a tensor; returns whether it is a CPU tensor with data, of one of DLPack's common types.
inline bool describe(PyObject* object, Tensor* t) {
  if (exchange->describe(object, t) != 0) {
    PyErr_Clear();
    return false;
  }
  return t->device_type == kCpu && t->data != nullptr && t->lanes == 1 && t->byte_offset == 0;
}

// The number of elements of a contiguous tensor; -1 if it is empty, not contiguous or has more than kMaxElements.
inline int64_t count_elements(const Tensor& t) {
  int64_t elements = 1;
  for (int32_t d = t.rank - 1; d >= 0; --d) {
    if (t.sizes[d] < 1 || t.sizes[d] > kMaxElements) return -1;
    if (t.sizes[d] > 1 && t.strides[d] != elements) return -1;
    elements *= t.sizes[d];
    if (elements > kMaxElements) return -1;
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

// The sinpe_dtype of a small contiguous floating-point tensor of two or more dimensions; -1 for any other.
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
  bool same = grid.encoding == encoding && grid.dtype == dtype && has_sizes(grid, x);
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
  made.encoding = encoding, made.rank = x.rank, made.dtype = dtype;
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
  if (made.holder != nullptr && (dtype_of(object, &x) != dtype || !has_sizes(made, x))) Py_CLEAR(made.holder);
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
  bool alike = a.rank == b.rank && a.kind == b.kind && a.bits == b.bits;
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

// Gets the description of an operand of shape (S,) or (B, S) with S = `rows`, any strides, and its strides of batch and
// sequence.
inline bool describe_rows(PyObject* object, const sinpe_add_arguments& a, int64_t rows, Tensor* t, int64_t* strides) {
  if (!is_readable(object) || !describe(object, t) || t->rank < 1 || t->rank > 2) return false;
  const int64_t batch = t->rank == 2 ? t->sizes[0] : 1;
  if (t->sizes[t->rank - 1] != rows || (batch != 1 && batch != a.sizes[0])) return false;
  strides[0] = batch > 1 ? t->strides[0] : 0;
  strides[1] = rows > 1 ? t->strides[t->rank - 1] : 0;
  return strides[0] >= 0 && strides[1] >= 0 &&
         is_within_storage(object, *t, (batch - 1) * strides[0] + (rows - 1) * strides[1] + 1);
}

// Whether a tensor with strides of 0 or more has no memory in common with the result, which has `bytes` bytes.
inline bool is_apart(const Tensor& t, const sinpe_add_arguments& a, int64_t bytes) {
  int64_t last = 0;
  for (int32_t d = 0; d < t.rank; ++d) last += (t.sizes[d] - 1) * (t.sizes[d] > 1 ? t.strides[d] : 0);
  const char *first = static_cast<const char*>(t.data), *out = static_cast<const char*>(a.out);
  return first + (last + 1) * (t.bits / 8) <= out || first >= out + bytes;
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
inline bool set_positions(PyObject* object, bool are_starts, int64_t own_start, int64_t bytes, sinpe_add_arguments* a) {
  Tensor t;
  if (are_starts) {
    if (own_start != 0 || !is_readable(object) || !describe(object, &t) || t.rank > 1) return false;
    if (t.kind != kInt || t.bits != 64 || (t.rank == 1 && t.sizes[0] != 1 && t.sizes[0] != a->sizes[0])) return false;
    a->position_strides[0] = t.rank == 1 && t.sizes[0] > 1 ? t.strides[0] : 0;
    if (a->position_strides[0] < 0) return false;
    if (!is_within_storage(object, t, (a->sizes[0] - 1) * a->position_strides[0] + 1)) return false;
  } else if (!describe_rows(object, *a, a->sizes[2], &t, a->position_strides)) {
    return false;
  }
  if (!is_position(t, &a->position_dtype) || !is_apart(t, *a, bytes)) return false;
  a->positions = t.data;
  a->positions_are_starts = are_starts;
  return true;
}

// Sets alpha, a float or a floating-point tensor of shape () or (1,) apart from the result, which has `bytes` bytes.
inline bool set_alpha(PyObject* object, int64_t bytes, sinpe_add_arguments* a) {
  if (PyFloat_CheckExact(object)) {
    a->alpha = PyFloat_AS_DOUBLE(object);
    return true;
  }
  Tensor t;
  if (!is_readable(object) || !describe(object, &t) || t.rank > 1 || count_elements(t) != 1) return false;
  if (float_type(t) < 0 || !is_within_storage(object, t, 1) || !is_apart(t, *a, bytes)) return false;
  PyObject* number = PyNumber_Float(object);
  if (number == nullptr) {
    clear_runtime_error();
    return false;
  }
  a->alpha = PyFloat_AS_DOUBLE(number);
  Py_DECREF(number);
  return true;
}

// The arguments that `add` and `embed` have in common.
struct Rows {
  PyObject *start, *positions, *mask, *scale, *alpha;
};

// Whether one of them is a tensor that needs a gradient.
inline bool needs_grad(const Rows& rows) {
  for (PyObject* object : {rows.start, rows.positions, rows.alpha})
    if (PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(python.tensor)) && needs_grad(object)) return true;
  return false;
}

// Sets these arguments; returns false if the general path has to be taken.
inline bool set_rows(const Rows& rows, int64_t own_start, int64_t bytes, sinpe_add_arguments* a) {
  PyObject *start = rows.start, *positions = rows.positions, *mask = rows.mask;
  if (PyLong_CheckExact(start)) {
    int overflow = 0;
    a->start = PyLong_AsLongLongAndOverflow(start, &overflow);
    if (overflow != 0 || (positions != Py_None && a->start != 0)) return false;
    if (positions != Py_None && !set_positions(positions, false, own_start, bytes, a)) return false;
  } else if (positions != Py_None || !set_positions(start, true, own_start, bytes, a)) {
    return false;
  }
  if (mask != Py_None) {
    Tensor t;
    if (!describe_rows(mask, *a, a->sizes[2], &t, a->mask_strides) || t.kind != kBool || t.bits != 8 ||
        !is_apart(t, *a, bytes))
      return false;
    a->padding_mask = static_cast<const uint8_t*>(t.data);
  }
  a->scale = PyFloat_AS_DOUBLE(rows.scale);
  return set_alpha(rows.alpha, bytes, a);
}

// Copies scale * x to the extra tokens, the first `extra` rows; `row` is the dimension of rows in `a`.
inline bool copy_extra_tokens(int64_t extra, int row, sinpe_add_arguments a) {
  a.sizes[row] = extra;
  if (a.scale != 1.0 || (a.x_strides[row + 1] != 1 && a.sizes[row + 1] != 1)) return sinpe_dropout(&a) == SINPE_OK;
  const size_t item = a.dtype == SINPE_FLOAT64 ? 8 : a.dtype == SINPE_FLOAT32 ? 4 : 2;
  const int64_t rows = a.sizes[row] * a.sizes[0] * (row == 2 ? a.sizes[1] : 1), dim = a.sizes[row + 1];
  for (int64_t k = 0; k < rows && a.out != a.x; ++k) {
    const int64_t at = sinpe::offset_at(a.sizes, a.x_strides, row + 1, k) * static_cast<int64_t>(item);
    std::memcpy(static_cast<char*>(a.out) + at, static_cast<const char*>(a.x) + at, static_cast<size_t>(dim) * item);
  }
  return true;
}

// add behind `extra` rows of extra tokens, which get scale * x only: `add` is called with the arguments for the other rows.
template <class Add>
bool add_behind(int64_t extra, int row, const sinpe_add_arguments& a, const Add& add) {
  if (extra == 0) return add(a);
  const int64_t bytes = a.dtype == SINPE_FLOAT64 ? 8 : a.dtype == SINPE_FLOAT32 ? 4 : 2;
  const int64_t offset = extra * a.x_strides[row] * bytes;
  sinpe_add_arguments others = a;
  others.sizes[row] -= extra;
  others.x = static_cast<const char*>(a.x) + offset;
  others.out = static_cast<char*>(a.out) + offset;
  return add(others) && copy_extra_tokens(extra, row, a);  // only the first can fail; nothing is written then
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
  const bool is_new = result == Py_None;
  if (exchange == nullptr || !is_plain(given)) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  if (!has_values(object, true) || !(is_new || is_writable(result))) return use_general_path();
  const auto at = [given](Argument argument) { return PyTuple_GET_ITEM(given, argument); };
  const Rows rows{at(kStart), at(kPositions), at(kMask), at(kScale), at(kAlpha)};
  // The result is then a copy of x, or scale * x, recorded by torch, whose gradient is that of the sum.
  const bool learns = needs_grad(object), has_scale = PyFloat_AS_DOUBLE(rows.scale) != 1.0;
  const bool can_learn = is_new && !needs_grad(rows);
  if (PyErr_Occurred() != nullptr || (learns && !can_learn)) return use_general_path();
  Tensor x, out;
  const int dtype = dtype_of(object, &x);
  if (dtype < 0) Py_RETURN_NONE;
  const int32_t rank = x.rank;
  PyObject *encoding = at(kEncoding), *layout[kLayoutArguments];
  int64_t dim = x.sizes[rank - 1], extra;
  bool is_sequence_first;
  Plan plan{};
  GridPlan grid{};
  const bool may_be_sequence =
      is_sequence(given, rank, &is_sequence_first, &extra) && resolve_int(&encoding, &dim) && dim == x.sizes[rank - 1];
  if (may_be_sequence) plan = cached_plan(encoding, dim);
  const bool is_grid = plan.holder == nullptr && may_be_grid(given, layout);
  if (is_grid) grid = cached_grid(encoding, layout, x, dtype);
  const bool is_fresh = plan.holder == nullptr && grid.holder == nullptr;
  if (is_fresh && may_be_sequence) plan = new_plan(encoding, dim);
  if (is_fresh && is_grid && plan.holder == nullptr && PyErr_Occurred() == nullptr && dtype_of(object, &x) == dtype)
    grid = new_grid(encoding, layout, given, object, x, dtype);
  const Reference holder{plan.holder != nullptr ? plan.holder : grid.holder};
  if (holder.object == nullptr || (plan.holder == nullptr && grid.words == nullptr)) return use_general_path();
  if (learns) {
    if (dtype_of(object, &x) != dtype || !is_within_storage(object, x, count_elements(x))) return use_general_path();
    result = has_scale ? PyNumber_Multiply(object, rows.scale) : PyObject_CallMethodNoArgs(object, names.clone);
  } else {
    result = is_new ? PyObject_CallOneArg(python.empty_like, object) : Py_NewRef(result);
  }
  // x is described again, because other threads may have run in between.
  bool done = false;
  int64_t size = 0;
  const auto fits = [&] {
    if (result == nullptr || dtype_of(object, &x) != dtype || dtype_of(result, &out) != dtype) return false;
    const bool is_for_x = plan.holder != nullptr ? x.rank == rank && x.sizes[rank - 1] == dim : has_sizes(grid, x);
    const int64_t elements = count_elements(x), distance = static_cast<char*>(out.data) - static_cast<char*>(x.data);
    size = elements * (x.bits / 8);
    return is_for_x && are_alike(x, out) && (distance == 0 || distance >= size || distance <= -size) &&
           is_within_storage(object, x, elements) && (is_new || is_within_storage(result, out, elements));
  };
  if (fits()) {
    sinpe_add_arguments a = arguments_of(x, out, dtype, plan.holder != nullptr && is_sequence_first);
    if (grid.holder != nullptr) {
      set_grid(grid, rows.scale, &a);
      done = add_behind(grid.extra, 1, a, [&](const sinpe_add_arguments& points) {
        return sinpe_add_grid(grid.words, grid.n_words, grid.values, grid.n_values, &points) == SINPE_OK;
      });
    } else if (extra < a.sizes[2]) {
      a.sizes[2] -= extra;  // positions and padding_mask do not include the extra tokens
      done = set_rows(rows, plan.start, size, &a);
      a.sizes[2] += extra;
      done = done && add_behind(extra, 2, a, [&](const sinpe_add_arguments& others) {
               return sinpe_add(plan.plan, plan.n_words, &others) == SINPE_OK;
             });
    }
  }
  if (!done) {
    if (result == nullptr) return nullptr;
    Py_DECREF(result);
    return use_general_path();
  }
  return is_new ? result : with_new_version(result);
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
  if (!positions()) Py_RETURN_NONE;
  Plan plan = cached_plan(encoding, given_dim);
  const bool is_fresh = plan.holder == nullptr;
  if (is_fresh) plan = new_plan(encoding, given_dim);
  const Reference holder{plan.holder};
  if (holder.object == nullptr) return use_general_path();
  if (is_fresh && !positions()) Py_RETURN_NONE;  // again: other threads may have run in between
  const int64_t dim = sinpe_plan_dim(plan.plan, plan.n_words);
  if (count_elements(t) > kMaxElements / 2 / dim) Py_RETURN_NONE;
  PyObject* result = new_rows(object, t, dim, items[2]);
  sinpe_dtype type;
  const int dtype = result == nullptr ? -1 : dtype_of(result, &out);
  const bool done = dtype >= 0 && positions() && is_position(t, &type) &&
                    is_within_storage(object, t, count_elements(t)) && count_elements(out) == count_elements(t) * dim &&
                    sinpe_encode(plan.plan, plan.n_words, t.data, type, count_elements(t),
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

// Whether the arguments of `embed` describe scale * weight[ids] + alpha * PE only.
inline bool is_plain_embed(PyObject* given) {
  const auto at = [given](EmbedArgument argument) { return PyTuple_GET_ITEM(given, argument); };
  PyObject *padding_idx = at(kPaddingIdx), *sparse = at(kSparse);
  const bool plain = at(kIdSeed) == Py_None && PyFloat_CheckExact(at(kWeightScale)) &&
                     (PyFloat_CheckExact(at(kIdAlpha)) || has_type(at(kIdAlpha), python.tensor)) &&
                     PyFloat_CheckExact(at(kIdDropout)) && PyFloat_AS_DOUBLE(at(kIdDropout)) == 0.0 &&
                     (padding_idx == Py_None || PyLong_CheckExact(padding_idx)) &&
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
  return weight.bits >= 32 && count_elements(ids) <= sinpe::terms_under(1);
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
  if (exchange == nullptr || !is_plain_embed(given)) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  if (!is_readable(at(kIds)) || !has_values(at(kWeight), true)) return use_general_path();
  // The result is then torch's own scale * weight[ids], whose gradient is that of the sum.
  const bool learns = needs_grad(at(kWeight));
  const Rows rows{at(kIdStart), at(kIdPositions), at(kIdMask), at(kWeightScale), at(kIdAlpha)};
  const bool can_learn = is_power_of_two(PyFloat_AS_DOUBLE(rows.scale)) && !needs_grad(rows);
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
           (!learns || (has_gradient_of_torch(weight, ids) && !is_transposed(ids))) &&
           get_padding_row(at(kPaddingIdx), weight.sizes[0], &padding_row) &&
           is_within_storage(at(kIds), ids, count_elements(ids)) &&
           is_within_storage(at(kWeight), weight, (weight.sizes[0] - 1) * weight.strides[0] + weight.sizes[1]);
  };
  if (!operands()) return use_general_path();
  const int64_t dim = weight.sizes[1];
  PyObject* encoding = at(kEmbedEncoding);
  int64_t plan_dim = dim;
  if (!resolve_int(&encoding, &plan_dim)) Py_RETURN_NONE;
  Plan plan = cached_plan(encoding, dim);
  if (plan.holder == nullptr) plan = new_plan(encoding, dim);
  const Reference holder{plan.holder};
  if (holder.object == nullptr || count_elements(ids) > kMaxElements / dim) return use_general_path();
  PyObject* result = learns ? recorded_embedding(at(kWeight), at(kIds), padding_row, at(kSparse), at(kWeightScale))
                            : new_rows(at(kWeight), ids, dim, nullptr);
  const int dtype = result == nullptr ? -1 : dtype_of(result, &out);
  bool done = false;
  // Described again, because other threads may have run in between.
  if (dtype >= 0 && operands() && float_type(weight) == dtype && weight.sizes[1] == dim &&
      count_elements(ids) * dim == count_elements(out)) {
    sinpe_embed_arguments e{};
    const bool is_rows_first = is_sequence_first && ids.rank == 2;
    e.add = arguments_of(out, out, dtype, is_rows_first);
    e.add.x = weight.data;
    e.ids = static_cast<const int64_t*>(ids.data);
    e.id_strides[0] = is_rows_first ? 1 : e.add.sizes[1] * e.add.sizes[2];
    e.id_strides[1] = e.add.sizes[2];
    e.id_strides[2] = is_rows_first ? e.add.sizes[0] : 1;
    e.num_embeddings = weight.sizes[0];
    e.weight_stride = weight.sizes[0] > 1 ? weight.strides[0] : dim;
    const int64_t bytes = count_elements(out) * (out.bits / 8);
    done = set_rows(rows, plan.start, bytes, &e.add) && sinpe_embed(plan.plan, plan.n_words, &e) == SINPE_OK;
  }
  if (done) return result;
  Py_XDECREF(result);
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
  if (overflow != 0 || overflow_of_start != 0 || length < 1 || length > kMaxElements) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  PyObject *result = at(kOut), *wanted = at(kDtype);
  const bool is_new = result == Py_None;
  if (wanted != Py_None && Py_TYPE(wanted) != Py_TYPE(python.float32)) Py_RETURN_NONE;
  if (!is_new && !is_writable(result)) return use_general_path();
  if (!is_new && wanted != Py_None && !is(PyObject_GetAttr(result, names.dtype), wanted)) return use_general_path();
  Plan plan = cached_plan(encoding, given_dim);
  if (plan.holder == nullptr) plan = new_plan(encoding, given_dim);
  const Reference holder{plan.holder};
  if (holder.object == nullptr) return use_general_path();
  const int64_t dim = sinpe_plan_dim(plan.plan, plan.n_words);
  if (length > kMaxElements / dim) Py_RETURN_NONE;
  if (is_new) {
    PyObject* call[3] = {at(kLength), PyLong_FromLongLong(dim), wanted == Py_None ? python.float32 : wanted};
    result = call[1] == nullptr ? nullptr : PyObject_Vectorcall(python.empty, call, 2, names.dtype_alone);
    Py_XDECREF(call[1]);
  } else {
    Py_INCREF(result);
  }
  Tensor out;
  const int dtype = result == nullptr ? -1 : dtype_of(result, &out);
  const bool done =
      dtype >= 0 && out.rank == 2 && out.sizes[0] == length && out.sizes[1] == dim &&
      (is_new || is_within_storage(result, out, length * dim)) &&
      sinpe_table(plan.plan, plan.n_words, start, length, static_cast<sinpe_dtype>(dtype), out.data, dim) == SINPE_OK;
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

inline PyMethodDef methods[] = {
    {"set_up", as_method(set_up), METH_FASTCALL,
     "Passes the objects that the fast path calls; returns whether it can be used."},
    {"small_add", as_method(add), METH_FASTCALL, "add for a small tensor; None for unsupported arguments."},
    {"small_embed", as_method(embed), METH_FASTCALL, "embed of a few tokens; None for unsupported arguments."},
    {"small_table", as_method(table), METH_FASTCALL, "table of a few rows; None for unsupported arguments."},
    {"small_encode", as_method(encode), METH_FASTCALL, "encode for a few positions; None for unsupported arguments."},
    {"is_intercepted", is_intercepted_method, METH_NOARGS,
     "Whether something other than the compiler intercepts the operations of a call."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace sinpe_small
