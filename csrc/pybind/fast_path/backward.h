// Gradients of `add`: with respect to x, dropout(scale * grad) with the mask of the forward pass; with respect to alpha.
#pragma once

#include "core/parallel.h"
#include "pybind/fast_path/sum.h"

namespace sinpe_fast_path {

// fast_dropout(grad, seed, drop_threshold, scale) -> a new tensor, or None for arguments that it does not take.
inline PyObject* fast_dropout(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const sinpe::OneThread one_thread;
  if (count != 4 || !PyLong_Check(items[1]) || !PyLong_Check(items[2]) || !PyFloat_Check(items[3])) {
    PyErr_SetString(PyExc_TypeError, "fast_dropout: expected a tensor, a seed, a threshold and a factor");
    return nullptr;
  }
  PyObject* object = items[0];
  if (exchange == nullptr) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  if (!is_readable(object)) return use_general_path();
  Tensor x, out;
  const int dtype = dtype_of(object, &x);
  const int64_t elements = dtype < 0 ? 0 : count_elements(x);
  if (dtype < 0 || !are_ready(x, elements)) return use_general_path();
  const sinpe::Kernels& library = kernels_for(x, elements);
  PyObject* result = PyObject_CallOneArg(python.empty_like, object);
  // Described again, because other threads may have run in between.
  bool done = result != nullptr && dtype_of(object, &x) == dtype && dtype_of(result, &out) == dtype &&
              are_alike(x, out) && count_elements(x) == elements && is_within_storage(object, x, elements);
  if (done) {
    sinpe_add_arguments a;
    set_arguments(x, out, dtype, false, &a);
    a.dropout.seed = PyLong_AsLongLong(items[1]);
    a.dropout.drop_threshold = static_cast<int32_t>(PyLong_AsLong(items[2]));
    a.scale = PyFloat_AS_DOUBLE(items[3]);
    done = PyErr_Occurred() == nullptr && is_unchanged(object, x) && is_unchanged(result, out) &&
           run_kernels(library, [&] { return library.dropout(x.device_id, a, true) == SINPE_OK; });
  }
  if (done) return result;
  Py_XDECREF(result);
  return use_general_path();
}

// fast_alpha_gradient(grad, plan, start) -> a float, or None for arguments that it does not take.
inline PyObject* fast_alpha_gradient(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const sinpe::OneThread one_thread;
  if (count != 3 || !PyLong_Check(items[2])) {
    PyErr_SetString(PyExc_TypeError, "fast_alpha_gradient: expected a tensor, a plan and an int");
    return nullptr;
  }
  if (exchange == nullptr) Py_RETURN_NONE;
  const int intercepted = is_intercepted();
  if (intercepted < 0) return nullptr;
  if (intercepted > 0) Py_RETURN_NONE;
  if (!is_readable(items[0]) || !is_readable(items[1])) return use_general_path();
  Tensor grad, plan;
  const int dtype = dtype_of(items[0], &grad);
  const int64_t elements = dtype < 0 ? 0 : count_elements(grad);
  if (dtype < 0 || elements > kFewElements || !are_ready(grad, elements)) return use_general_path();
  const sinpe::Kernels& library = kernels_for(grad, elements);
  if (library.alpha_gradient == nullptr || !describe(items[1], &plan) || plan.rank != 1 || plan.kind != kInt ||
      plan.bits != 64 || device_of(plan) != device_of(grad) || !is_contiguous(plan) ||
      !is_within_storage(items[0], grad, elements) || !is_within_storage(items[1], plan, plan.sizes[0]))
    return use_general_path();
  sinpe_add_arguments a;
  set_arguments(grad, grad, dtype, false, &a);
  a.start = PyLong_AsLongLong(items[2]);
  const sinpe::DevicePlan packed{static_cast<const int64_t*>(plan.data), plan.sizes[0], a.sizes[3]};
  double sum = 0.0;
  const bool done = PyErr_Occurred() == nullptr && is_unchanged(items[0], grad) && is_unchanged(items[1], plan) &&
                    library.alpha_gradient(grad.device_id, packed, a, &sum) == SINPE_OK;
  return done ? PyFloat_FromDouble(sum) : use_general_path();
}

}  // namespace sinpe_fast_path
