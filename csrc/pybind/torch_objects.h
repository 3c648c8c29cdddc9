// The objects of torch that `repeat` calls or compares with, and the descriptions of tensors (DLPack's C functions).
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/kernels.h"

namespace sinpe_repeat {

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
struct DlPackFunctions {  // DLPackExchangeAPI, which a class of tensors has as __dlpack_c_exchange_api__
  uint32_t major, minor;
  const DlPackFunctions* previous;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*describe)(void* object, DlTensor* out);  // a view; -1 with a Python exception on failure
  void* current_stream;
};
constexpr uint8_t kInt = 0, kFloat = 2, kBfloat = 4, kBits = 6;

inline const DlPackFunctions* dlpack = nullptr;  // those of torch.Tensor; null before `set_up`

// The objects passed to `set_up`, never released; see `set_up` in sinpe_ext/operations/repetition.py. `values`: types whose
// objects can be compared by ==. `conditions` are pairs of a function and its result while nothing intercepts a call;
// `variables` are triples of a dict, a key and the value while nothing does; otherwise the function `is_intercepted` decides.
struct TorchObjects {
  PyObject *tensor, *parameter, *empty, *empty_like, *is_lazy, *is_grad_enabled, *is_inference_mode, *increment_version,
      *is_profiled, *values, *conditions, *variables, *is_intercepted;
};
inline TorchObjects torch_objects{};

// Interned names of methods and attributes of a tensor, and tuples with names of keywords.
struct Names {
  PyObject *untyped_storage, *nbytes, *storage_offset, *requires_grad, *is_neg, *is_inference, *keywords;
};
inline Names names{};

// set_up(dlpack, *objects): a capsule with DLPack's functions, then the fields of TorchObjects. Returns whether these
// functions can be used.
inline PyObject* set_up(PyObject*, PyObject* const* items, Py_ssize_t count) {
  constexpr Py_ssize_t kObjects = sizeof(TorchObjects) / sizeof(PyObject*);
  if (count != 1 + kObjects) {
    PyErr_Format(PyExc_TypeError, "set_up: expected DLPack's functions in a capsule, and %zd objects", kObjects);
    return nullptr;
  }
  if (dlpack != nullptr) Py_RETURN_TRUE;
  const auto* offered = static_cast<const DlPackFunctions*>(PyCapsule_GetPointer(items[0], "dlpack_exchange_api"));
  PyErr_Clear();  // raised for a capsule of another name
  if (offered == nullptr || offered->major != 1 || offered->describe == nullptr) Py_RETURN_FALSE;
  names = {PyUnicode_InternFromString("untyped_storage"), PyUnicode_InternFromString("nbytes"),
           PyUnicode_InternFromString("storage_offset"),  PyUnicode_InternFromString("requires_grad"),
           PyUnicode_InternFromString("is_neg"),          PyUnicode_InternFromString("is_inference"),
           Py_BuildValue("(ss)", "dtype", "device")};
  if (PyErr_Occurred() != nullptr) return nullptr;
  for (Py_ssize_t k = 1; k <= kObjects; ++k) Py_INCREF(items[k]);
  std::copy(items + 1, items + 1 + kObjects, reinterpret_cast<PyObject**>(&torch_objects));
  dlpack = offered;
  Py_RETURN_TRUE;
}

// An owned reference; null with an exception.
class Reference {
 public:
  explicit Reference(PyObject* object = nullptr) : object_(object) {}
  Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Reference& operator=(Reference&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Reference() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

// Clears a RuntimeError: the checks in Python raise torch's errors. Other exceptions stay set, because a signal handler may
// have raised them in Python code, which a TorchFunctionMode runs even for methods of tensors.
inline void clear_runtime_error() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_RuntimeError)) PyErr_Clear();
}

// Whether `answer` is the object `wanted`; releases `answer`. An error counts as a different object; no further query may
// follow it.
inline bool is(PyObject* answer, PyObject* wanted) {
  if (answer == nullptr) clear_runtime_error();
  Py_XDECREF(answer);
  return answer == wanted;
}

// Whether something intercepts the operations of this call; -1 with an exception.
inline int is_intercepted() {
  bool quiet = true;
  for (Py_ssize_t k = 0; quiet && k < PyTuple_GET_SIZE(torch_objects.conditions); ++k) {
    PyObject* pair = PyTuple_GET_ITEM(torch_objects.conditions, k);
    quiet = is(PyObject_CallNoArgs(PyTuple_GET_ITEM(pair, 0)), PyTuple_GET_ITEM(pair, 1));
  }
  for (Py_ssize_t k = 0; quiet && k < PyTuple_GET_SIZE(torch_objects.variables); ++k) {
    PyObject* three = PyTuple_GET_ITEM(torch_objects.variables, k);
    quiet =
        PyDict_GetItemWithError(PyTuple_GET_ITEM(three, 0), PyTuple_GET_ITEM(three, 1)) == PyTuple_GET_ITEM(three, 2);
  }
  if (quiet) return 0;
  PyObject* answer = PyObject_CallNoArgs(torch_objects.is_intercepted);
  Py_XDECREF(answer);
  return answer == nullptr ? -1 : answer != Py_False;
}

// A tensor as it was when it was described. `view` is what operators take.
struct Described {
  PyObject* object;  // borrowed
  uint8_t kind, bits;
  sinpe::View view;
};

inline int32_t dtype_of(uint8_t kind, uint8_t bits) {
  if (kind == kFloat) return bits == 32 ? SINPE_FLOAT32 : bits == 64 ? SINPE_FLOAT64 : SINPE_FLOAT16;
  if (kind == kBfloat) return SINPE_BFLOAT16;
  if (kind == kInt && bits == 64) return SINPE_INT64;
  return kind == kBits ? sinpe::kBool : sinpe::kOtherType;
}

// Describes a tensor; returns whether it has memory, on the host or a CUDA device, and elements. Runs no Python code.
inline bool describe(PyObject* object, Described* t) {
  DlTensor of;
  if (dlpack->describe(object, &of) != 0) {
    PyErr_Clear();
    return false;
  }
  if (of.data == nullptr || of.lanes != 1 || of.byte_offset != 0 || of.rank > SINPE_MAX_RANK ||
      (of.device_type != sinpe::kHostMemory && of.device_type != sinpe::kCudaMemory)) {
    return false;
  }
  t->object = object, t->kind = of.kind, t->bits = of.bits;
  sinpe::View& v = t->view;
  v.data = of.data;
  v.device_type = of.device_type, v.device = of.device_id;
  v.rank = of.rank, v.dtype = dtype_of(of.kind, of.bits);
  bool has_elements = true;
  for (int32_t d = 0; d < of.rank; ++d) {
    v.sizes[d] = of.sizes[d], v.strides[d] = of.strides[d];
    has_elements = has_elements && of.sizes[d] > 0 && of.strides[d] >= 0;
  }
  return has_elements;
}

// Whether a tensor is still as it was described: Python code that runs during a call (a finalizer, another thread) may
// change it. Runs no Python code itself, so that it can be called last, before the kernel.
inline bool is_unchanged(const Described& t) {
  Described now;
  const sinpe::View &a = t.view, &b = now.view;
  return describe(t.object, &now) && b.data == a.data && b.device_type == a.device_type && b.device == a.device &&
         b.rank == a.rank && now.kind == t.kind && now.bits == t.bits &&
         std::equal(a.sizes, a.sizes + a.rank, b.sizes) && std::equal(a.strides, a.strides + a.rank, b.strides);
}

inline bool has_type(PyObject* object, PyObject* type) {
  return Py_TYPE(object) == reinterpret_cast<PyTypeObject*>(type);
}

// Whether a tensor's memory has its values, not their negatives.
inline bool has_own_values(const Described& t) {
  return is(PyObject_CallMethodNoArgs(t.object, names.is_neg), Py_False);
}

// Whether autograd records what is computed from a tensor.
inline bool needs_grad(const Described& t) {
  if (t.kind != kFloat && t.kind != kBfloat) return false;
  PyObject* requires_grad = PyObject_GetAttr(t.object, names.requires_grad);
  Py_XDECREF(requires_grad);
  if (requires_grad == nullptr) return true;  // with an exception, which the caller checks for
  return requires_grad != Py_False && !is(PyObject_CallNoArgs(torch_objects.is_grad_enabled), Py_False);
}

// Whether a tensor may be written to directly. A lazy copy (copy-on-write) is deferred until an address for writing is
// requested; for tensors that are read, it is made when they are described.
inline bool is_writable(const Described& t) {
  if (!has_type(t.object, torch_objects.tensor) || !is(PyObject_GetAttr(t.object, names.requires_grad), Py_False))
    return false;
  const bool is_ordinary = is(PyObject_CallMethodNoArgs(t.object, names.is_inference), Py_False);
  if (!is_ordinary &&
      (PyErr_Occurred() != nullptr || !is(PyObject_CallNoArgs(torch_objects.is_inference_mode), Py_True)))
    return false;
  return is(PyObject_CallOneArg(torch_objects.is_lazy, t.object), Py_False);
}

// The int that a method returns, or -1.
inline int64_t number_of(PyObject* object, PyObject* method) {
  const Reference number(object == nullptr ? nullptr : PyObject_CallMethodNoArgs(object, method));
  const int64_t value = number.get() == nullptr ? -1 : PyLong_AsLongLong(number.get());
  clear_runtime_error();
  return value;
}

// Number of elements from the first to the last one in memory.
inline int64_t extent_of(const sinpe::View& v) {
  int64_t last = 0;
  for (int32_t d = 0; d < v.rank; ++d) last += (v.sizes[d] - 1) * v.strides[d];
  return last + 1;
}

// Whether a tensor's elements are within its storage, which may have been resized. DLPack does not report that.
inline bool is_within_storage(const Described& t) {
  const Reference storage(PyObject_CallMethodNoArgs(t.object, names.untyped_storage));
  const int64_t bytes = number_of(storage.get(), names.nbytes);
  if (bytes < 0) return false;
  const int64_t offset = number_of(t.object, names.storage_offset);
  return offset >= 0 && offset <= bytes && (offset + extent_of(t.view)) * (t.bits / 8) <= bytes;
}

// Whether no two elements share memory.
inline bool has_no_internal_overlap(const sinpe::View& v) {
  std::pair<int64_t, int64_t> nested[SINPE_MAX_RANK];  // stride and size
  int32_t count = 0;
  for (int32_t d = 0; d < v.rank; ++d)
    if (v.sizes[d] > 1) nested[count++] = {v.strides[d], v.sizes[d]};
  std::sort(nested, nested + count);
  int64_t reach = 0;
  for (int32_t k = 0; k < count; reach += (nested[k].second - 1) * nested[k].first, ++k)
    if (nested[k].first <= reach) return false;
  return true;
}

// Whether the ranges of memory of two tensors have nothing in common.
inline bool are_apart(const Described& a, const Described& b) {
  const auto begin = [](const Described& t) { return static_cast<const char*>(t.view.data); };
  const auto end = [&](const Described& t) { return begin(t) + extent_of(t.view) * (t.bits / 8); };
  return a.view.device_type != b.view.device_type || end(a) <= begin(b) || end(b) <= begin(a);
}

inline bool are_the_same_memory(const sinpe::View& a, const sinpe::View& b) {
  bool same = a.data == b.data && a.rank == b.rank;
  for (int32_t d = 0; same && d < a.rank; ++d)
    same = a.sizes[d] == b.sizes[d] && (a.sizes[d] == 1 || a.strides[d] == b.strides[d]);
  return same;
}

}  // namespace sinpe_repeat
