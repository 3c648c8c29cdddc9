// `add` of a small tensor, such as one token's: straight from the Python objects to sinpe_add. A decode step costs
// microseconds, of which an operator would be one and a guard in Python another.
//
// Tensors are read by DLPack's C exchange functions, which torch.Tensor offers; nothing here knows torch. What this
// does not take it answers with None, and its caller, sinpe_ext/calls/plain.py, takes the long way. That also asks what
// DLPack does not tell: gradients, negative bits, modes that look at operators.
#pragma once

#include <Python.h>

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
  int (*describe)(void* object, Tensor* out);  // a view; -1 with a Python exception where that fails
  void* current_stream;
};
constexpr int32_t kCpu = 1;
constexpr uint8_t kFloat = 2, kBfloat = 4;

// More elements are worth a second thread and the operator's way. (1 << 15: kGrain in csrc/cpu/exceptions.h.)
constexpr int64_t kMostElements = 1 << 15;

inline const Exchange* exchange = nullptr;
inline PyObject *empty_like = nullptr, *is_lazy = nullptr;
inline PyObject *untyped_storage = nullptr, *nbytes = nullptr, *storage_offset = nullptr;  // names of methods

// set_up(capsule, empty_like, is_lazy): torch.Tensor.__dlpack_c_exchange_api__, torch.empty_like, and what tells whether a
// tensor shares memory until someone writes to it. Whether they serve.
inline PyObject* set_up(PyObject*, PyObject* const* items, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError,
                    "set_up: expected DLPack's exchange functions in a capsule, empty_like and is_lazy");
    return nullptr;
  }
  if (exchange != nullptr) Py_RETURN_TRUE;
  const auto* offered = static_cast<const Exchange*>(PyCapsule_GetPointer(items[0], "dlpack_exchange_api"));
  PyErr_Clear();  // of a capsule of another name
  if (offered == nullptr || offered->major != 1 || offered->describe == nullptr) Py_RETURN_FALSE;
  untyped_storage = PyUnicode_InternFromString("untyped_storage");
  nbytes = PyUnicode_InternFromString("nbytes");
  storage_offset = PyUnicode_InternFromString("storage_offset");
  if (untyped_storage == nullptr || nbytes == nullptr || storage_offset == nullptr) return nullptr;
  Py_INCREF(items[1]);
  Py_INCREF(items[2]);
  empty_like = items[1];
  is_lazy = items[2];
  exchange = offered;
  Py_RETURN_TRUE;
}

// The arguments of `add` in the order of its signature, but for out.
enum Place {
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
constexpr Py_ssize_t kPlaces = kExtra + 1;

inline bool is_int(PyObject* value, long wanted) {
  return PyLong_CheckExact(value) && PyLong_AsLong(value) == wanted && (wanted != -1 || PyErr_Occurred() == nullptr);
}

// Whether these are the arguments of a plain sum: scale * x + alpha * PE of rows from an int `start` on.
inline bool is_plain(PyObject* given) {
  const auto at = [given](Place place) { return PyTuple_GET_ITEM(given, place); };
  const bool plain = at(kPositions) == Py_None && at(kMask) == Py_None && at(kSeed) == Py_None &&
                     at(kGrid) == Py_None && PyLong_CheckExact(at(kStart)) && PyFloat_CheckExact(at(kScale)) &&
                     PyFloat_CheckExact(at(kAlpha)) && PyFloat_CheckExact(at(kDropout)) &&
                     PyFloat_AS_DOUBLE(at(kDropout)) == 0.0 && is_int(at(kSeqDim), -2) && is_int(at(kChannelDim), -1) &&
                     is_int(at(kExtra), 0);
  PyErr_Clear();  // of an int beyond long
  return plain;
}

// An int that a method gives, or -1, which takes any error away. `object` is let go where `steals`.
inline int64_t number_of(PyObject* object, PyObject* method, bool steals = false) {
  if (object == nullptr) return PyErr_Clear(), -1;
  PyObject* number = PyObject_CallMethodNoArgs(object, method);
  const int64_t value = number == nullptr ? -1 : PyLong_AsLongLong(number);
  Py_XDECREF(number);
  if (steals) Py_DECREF(object);
  PyErr_Clear();
  return value;
}

// What DLPack does not tell of a tensor's memory, of `elements` from its first one on: that they are in its storage,
// which anyone may have made smaller.
inline bool has_memory(PyObject* object, const Tensor& t, int64_t elements) {
  const int64_t bytes = number_of(PyObject_CallMethodNoArgs(object, untyped_storage), nbytes, true);
  const int64_t offset = number_of(object, storage_offset);
  return offset >= 0 && offset <= bytes && (offset + elements) * (t.bits / 8) <= bytes;
}
// Whether a copy is put off until someone asks for the address to write to. (Of x, which is read, it is then made.)
inline bool is_lazily_copied(PyObject* object) {
  PyObject* answer = PyObject_CallOneArg(is_lazy, object);
  PyErr_Clear();
  Py_XDECREF(answer);
  return answer != Py_False;
}

// A small contiguous floating-point tensor in the CPU's memory, of two dimensions or more; -1 for any other, else its
// sinpe_dtype.
inline int dtype_of(PyObject* object, Tensor* t) {
  if (exchange->describe(object, t) != 0) {
    PyErr_Clear();
    return -1;
  }
  if (t->device_type != kCpu || t->data == nullptr || t->lanes != 1 || t->byte_offset != 0) return -1;
  if (t->rank < 2 || t->rank > SINPE_MAX_RANK) return -1;
  int64_t elements = 1;
  for (int32_t d = t->rank - 1; d >= 0; --d) {
    if (t->sizes[d] < 1 || t->sizes[d] > kMostElements) return -1;
    if (t->sizes[d] > 1 && t->strides[d] != elements) return -1;
    elements *= t->sizes[d];
    if (elements > kMostElements) return -1;
  }
  if (t->kind == kFloat && t->bits == 32) return SINPE_FLOAT32;
  if (t->kind == kFloat && t->bits == 64) return SINPE_FLOAT64;
  if (t->kind == kFloat && t->bits == 16) return SINPE_FLOAT16;
  return t->kind == kBfloat && t->bits == 16 ? SINPE_BFLOAT16 : -1;
}

inline bool are_alike(const Tensor& a, const Tensor& b) {
  bool alike = a.rank == b.rank && a.kind == b.kind && a.bits == b.bits;
  for (int32_t d = 0; alike && d < a.rank; ++d) alike = a.sizes[d] == b.sizes[d];
  return alike;
}

// The call of sinpe_add, all of whose conditions have been seen to.
inline sinpe_status run(PyObject* given, const Tensor& x, const Tensor& out, int dtype, const int64_t* plan,
                        int64_t words) {
  int overflow = 0;
  const long long start = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(given, kStart), &overflow);
  if (overflow != 0) return SINPE_OUT_OF_RANGE;
  sinpe_add_arguments a{};
  a.rank = 3;
  const int64_t rows = x.sizes[x.rank - 2], dim = x.sizes[x.rank - 1];
  a.sizes[0] = 1;
  for (int32_t d = 0; d < x.rank - 2; ++d) a.sizes[0] *= x.sizes[d];
  a.sizes[1] = rows, a.sizes[2] = dim;
  a.x_strides[0] = a.out_strides[0] = rows * dim;
  a.x_strides[1] = a.out_strides[1] = dim;
  a.x_strides[2] = a.out_strides[2] = 1;
  a.x = x.data;
  a.out = out.data;
  a.dtype = static_cast<sinpe_dtype>(dtype);
  a.start = start;
  a.scale = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(given, kScale));
  a.alpha = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(given, kAlpha));
  return sinpe_add(plan, words, &a);
}

// small_add(given, out, plan, words) -> out, a new tensor where out is None, or None for arguments that it does not take.
// plan and words: the address and the number of a plan's words, which the caller holds.
inline PyObject* add(PyObject*, PyObject* const* items, Py_ssize_t count) {
  if (count != 4 || !PyTuple_Check(items[0]) || PyTuple_GET_SIZE(items[0]) != kPlaces) {
    PyErr_SetString(PyExc_TypeError,
                    "small_add: expected the arguments of add as a tuple, out, a plan's address and its length");
    return nullptr;
  }
  PyObject *given = items[0], *object = PyTuple_GET_ITEM(given, kX), *result = items[1];
  const auto* plan = reinterpret_cast<const int64_t*>(static_cast<intptr_t>(PyLong_AsLongLong(items[2])));
  const int64_t words = PyLong_AsLongLong(items[3]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (exchange == nullptr || !is_plain(given) || (result != Py_None && is_lazily_copied(result))) Py_RETURN_NONE;
  Tensor x, out;
  int dtype = dtype_of(object, &x);
  if (dtype < 0) Py_RETURN_NONE;
  const bool is_new = result == Py_None;
  if (is_new) {
    result = PyObject_CallOneArg(empty_like, object);
    if (result == nullptr) return nullptr;
    dtype = dtype_of(object, &x);  // meanwhile other threads may have run; from here on none does
  } else {
    Py_INCREF(result);
  }
  const auto distance = [&] { return static_cast<char*>(out.data) - static_cast<char*>(x.data); };
  const auto elements = [&] {
    int64_t number = 1;
    for (int32_t d = 0; d < x.rank; ++d) number *= x.sizes[d];
    return number;
  };
  const auto size = [&] { return elements() * (x.bits / 8); };
  const bool fits = dtype >= 0 && dtype_of(result, &out) == dtype && are_alike(x, out) &&
                    (distance() == 0 || distance() >= size() || distance() <= -size()) &&
                    has_memory(object, x, elements()) && (is_new || has_memory(result, out, elements()));
  if (fits && run(given, x, out, dtype, plan, words) == SINPE_OK) return result;
  Py_DECREF(result);
  Py_RETURN_NONE;
}

// METH_FASTCALL functions, which PyMethodDef holds under an older type.
template <class F>
PyCFunction as_method(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

inline PyMethodDef methods[] = {
    {"set_up", as_method(set_up), METH_FASTCALL, "Where tensors come from; whether they can be read."},
    {"small_add", as_method(add), METH_FASTCALL, "add of a small tensor, or None."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace sinpe_small
