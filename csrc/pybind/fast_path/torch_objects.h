// The objects of Python and torch that the fast path queries, and DLPack's description of a tensor.
#pragma once

#include <Python.h>
#include <algorithm>
#include <cstring>

#include "sinpe/sinpe.h"

namespace sinpe_fast_path {

// The parts of DLPack 1.x (https://dmlc.github.io/dlpack/latest/c_api.html) that are used here.
struct DlTensor {  // DLTensor
  void* data;
  int32_t device_type, device_id;
  int32_t rank;
  uint8_t kind, bits;
  uint16_t lanes;
  int64_t *sizes, *strides;  // in the tensor itself, which changes them when Python code calls its methods
  uint64_t byte_offset;
};
// A copy of the description of a tensor.
struct Tensor {
  void* data;
  int32_t device_type, device_id;
  int32_t rank;
  uint8_t kind, bits;
  int64_t sizes[SINPE_MAX_RANK], strides[SINPE_MAX_RANK];
};
struct Exchange {  // DLPackExchangeAPI
  uint32_t major, minor;
  const Exchange* previous;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*describe)(void* object, DlTensor* out);  // a view; -1 with a Python exception on failure
  void* current_stream;
};
constexpr int32_t kCpu = 1, kCuda = 2;
constexpr uint8_t kInt = 0, kFloat = 2, kBfloat = 4, kBool = 6;

inline const Exchange* exchange = nullptr;

// The objects passed to `set_up`, never released; see `set_up` in sinpe_ext/operations/fast_path.py.
struct PythonObjects {
  PyObject *tensor, *empty_like, *is_lazy, *is_grad_enabled, *is_inference_mode, *increment_version;
  PyObject *parameter, *empty, *float32, *embedding, *multiply, *grid_encoding;
  PyObject *conditions, *variables, *is_intercepted, *plan_of, *grid_of, *draw_seed, *recorded_add, *recorded_add_rows,
      *recorded_embed, *is_profiled;
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
// functions that return the plan of an encoding, the grid of a call, a seed, a result recorded for autograd, and whether
// torch's profiler is active. Returns whether the exchange functions can be used.
inline PyObject* set_up(PyObject*, PyObject* const* items, Py_ssize_t count) {
  constexpr Py_ssize_t kObjects = sizeof(PythonObjects) / sizeof(PyObject*);
  if (count != 1 + kObjects || !PyTuple_Check(items[13]) || !PyTuple_Check(items[14])) {
    PyErr_SetString(PyExc_TypeError,
                    "set_up: expected DLPack's exchange functions in a capsule, and twenty-two objects");
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
  std::copy(items + 1, items + 1 + kObjects, reinterpret_cast<PyObject**>(&python));
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

inline bool has_type(PyObject* object, PyObject* type) {
  return Py_TYPE(object) == reinterpret_cast<PyTypeObject*>(type);
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

// Whether an object is a torch.Tensor, not of a subclass, whose memory has its values, not their negatives.
inline bool is_ordinary_tensor(PyObject* x, bool may_be_parameter = false) {
  if (!has_type(x, python.tensor) && !(may_be_parameter && has_type(x, python.parameter))) return false;
  return returns_false(x, names.is_neg);
}

// Whether a tensor can be read directly, without recording for autograd.
inline bool is_readable(PyObject* x) { return is_ordinary_tensor(x) && PyErr_Occurred() == nullptr && !needs_grad(x); }

// Whether `out` can be written directly. A lazy copy (copy-on-write) is deferred until an address for writing is
// requested. (For x, which is read, it is made at that point.)
inline bool is_writable(PyObject* out) {
  if (!has_type(out, python.tensor)) return false;
  if (!is(PyObject_GetAttr(out, names.requires_grad), Py_False)) return false;
  const bool is_ordinary = returns_false(out, names.is_inference);
  if (!is_ordinary && (PyErr_Occurred() != nullptr || !returns_true(python.is_inference_mode))) return false;
  return returns_false(out, names.is_neg) && is(PyObject_CallOneArg(python.is_lazy, out), Py_False);
}

}  // namespace sinpe_fast_path
