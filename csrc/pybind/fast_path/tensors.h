// Descriptions of tensors, and the kernels of their devices.
#pragma once

#include <cstdlib>

#include "core/kernels.h"
#include "core/status.h"
#include "pybind/fast_path/torch_objects.h"

namespace sinpe_fast_path {

// The largest result on the CPU for which one thread is fastest; for `encode`, which computes every row on its own, half as
// many elements. On any device, a copy of more elements for autograd takes longer than a call of Python.
constexpr int64_t kFewElements = 1 << 16;

// The kernels of this module, which has no threads of torch.
inline const sinpe::Kernels kCpuKernels = [] {
  sinpe::Kernels k = sinpe::cpu_kernels();
  k.max_elements = kFewElements;
  return k;
}();

// The kernels by DLPack's type of device; null: none are loaded.
inline const sinpe::Kernels* kernels[] = {nullptr, &kCpuKernels, nullptr};
inline const sinpe::Kernels* kernels_of(const Tensor& t) {
  return t.device_type == kCpu || t.device_type == kCuda ? kernels[t.device_type] : nullptr;
}
// The kernels for a result with this number of elements.
inline const sinpe::Kernels& kernels_for(const Tensor& t, int64_t elements) {
  const sinpe::Kernels& k = *kernels_of(t);
  return k.in_host_memory && elements <= kFewElements ? kCpuKernels : k;
}
// The number of elements up to which `table` and `encode` are supported.
inline int64_t most_rows(const Tensor& t) {
  const sinpe::Kernels& k = *kernels_of(t);
  return k.in_host_memory ? kFewElements : k.max_elements;
}
// Calls f without Python's lock if other threads should not have to wait for it.
template <class F>
bool run_kernels(const sinpe::Kernels& k, const F& f) {
  if (!k.in_host_memory || &k == &kCpuKernels) return f();
  PyThreadState* state = PyEval_SaveThread();
  const bool done = f();
  PyEval_RestoreThread(state);
  return done;
}
inline void raise_launch_failure() {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, sinpe::status_text(SINPE_LAUNCH_FAILED));
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

// Gets the description of a tensor; returns whether it has data, of one of DLPack's common types, on a device with
// kernels.
inline bool describe(PyObject* object, Tensor* t) {
  DlTensor of;
  if (exchange->describe(object, &of) != 0) {
    PyErr_Clear();
    return false;
  }
  if (of.data == nullptr || of.lanes != 1 || of.byte_offset != 0 || of.rank > SINPE_MAX_RANK) return false;
  t->data = of.data;
  t->device_type = of.device_type, t->device_id = of.device_id;
  t->rank = of.rank, t->kind = of.kind, t->bits = of.bits;
  std::copy(of.sizes, of.sizes + of.rank, t->sizes);
  std::copy(of.strides, of.strides + of.rank, t->strides);
  return kernels_of(*t) != nullptr;
}

// Whether a tensor is still as it was described: Python code that runs during a call (a finalizer, another thread) may
// change it. Runs no Python code itself, so that it can be called last, before the kernel.
inline bool is_unchanged(PyObject* object, const Tensor& t) {
  Tensor now;
  return describe(object, &now) && now.data == t.data && now.device_type == t.device_type &&
         now.device_id == t.device_id && now.rank == t.rank && now.kind == t.kind && now.bits == t.bits &&
         std::equal(t.sizes, t.sizes + t.rank, now.sizes) && std::equal(t.strides, t.strides + t.rank, now.strides);
}

// The number of elements of a tensor; -1 if it is empty, has more than its device's max_elements, or a negative stride.
inline int64_t count_strided(const Tensor& t) {
  const int64_t most = kernels_of(t)->max_elements;
  int64_t elements = 1;
  for (int32_t d = 0; d < t.rank; ++d) {
    if (t.sizes[d] < 1 || t.sizes[d] > most || t.strides[d] < 0) return -1;
    elements *= t.sizes[d];
    if (elements > most) return -1;
  }
  return elements;
}

inline bool is_contiguous(const Tensor& t) {
  int64_t step = 1;
  for (int32_t d = t.rank - 1; d >= 0; step *= t.sizes[d--])
    if (t.sizes[d] > 1 && t.strides[d] != step) return false;
  return true;
}

// The same for contiguous tensors; -1 for others.
inline int64_t count_elements(const Tensor& t) {
  const int64_t elements = count_strided(t);
  return elements >= 0 && is_contiguous(t) ? elements : -1;
}

// Number of elements in memory from the first to the last one of a tensor for which count_strided is positive.
inline int64_t extent_of(const Tensor& t) {
  int64_t last = 0;
  for (int32_t d = 0; d < t.rank; ++d) last += t.sizes[d] > 1 ? (t.sizes[d] - 1) * t.strides[d] : 0;
  return last + 1;
}

// Whether a tensor's elements fill its extent, each at a place of its own: a contiguous tensor, or a permutation of one.
inline bool is_dense(const Tensor& t) {
  if (is_contiguous(t)) return true;
  int64_t step = 1;
  for (int32_t inner = 0; inner < t.rank; ++inner) {
    int32_t d = 0;
    while (d < t.rank && (t.sizes[d] == 1 || t.strides[d] != step)) ++d;
    if (d == t.rank) break;
    step *= t.sizes[d];
  }
  return step == count_strided(t);
}

// Whether kernels of the tensor's device may be called now for a result with this number of elements. A profiler sees the
// general path, except of calls so short that it would measure itself. Only the general path checks values in the memory
// of a device (SINPE_EXT_CHECK).
inline bool are_ready(const Tensor& t, int64_t elements) {
  const sinpe::Kernels& k = kernels_for(t, elements);
  if (&k == &kCpuKernels) return true;
  if (!is(PyObject_CallNoArgs(python.is_profiled), Py_False)) return false;
  if (k.in_host_memory) return true;
  const char* check = std::getenv("SINPE_EXT_CHECK");
  return (check == nullptr || *check == 0 || std::strcmp(check, "0") == 0) && k.is_ready(t.device_id);
}

// The sinpe_dtype of a floating-point tensor; -1 for any other.
inline int float_type(const Tensor& t) {
  if (t.kind == kFloat && t.bits == 32) return SINPE_FLOAT32;
  if (t.kind == kFloat && t.bits == 64) return SINPE_FLOAT64;
  if (t.kind == kFloat && t.bits == 16) return SINPE_FLOAT16;
  return t.kind == kBfloat && t.bits == 16 ? SINPE_BFLOAT16 : -1;
}

// The sinpe_dtype of a floating-point tensor of two or more dimensions, with elements; -1 for any other.
inline int strided_dtype_of(PyObject* object, Tensor* t) {
  if (!describe(object, t) || t->rank < 2 || count_strided(*t) < 0) return -1;
  return float_type(*t);
}

// The same for a contiguous tensor; -1 for any other.
inline int dtype_of(PyObject* object, Tensor* t) {
  const int dtype = strided_dtype_of(object, t);
  return dtype >= 0 && is_contiguous(*t) ? dtype : -1;
}

inline bool have_same_strides(const Tensor& a, const Tensor& b) {
  bool same = a.rank == b.rank;
  for (int32_t d = 0; same && d < a.rank; ++d) same = a.sizes[d] == 1 || a.strides[d] == b.strides[d];
  return same;
}

inline bool are_alike(const Tensor& a, const Tensor& b) {
  bool alike = a.rank == b.rank && a.kind == b.kind && a.bits == b.bits && device_of(a) == device_of(b);
  for (int32_t d = 0; alike && d < a.rank; ++d) alike = a.sizes[d] == b.sizes[d];
  return alike;
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

}  // namespace sinpe_fast_path
