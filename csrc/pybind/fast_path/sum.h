// What `add` and `embed` have in common: the arguments that determine which rows are added, and dropout.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "core/dtype.h"
#include "core/layout.h"
#include "pybind/fast_path/plans.h"

namespace sinpe_fast_path {

inline bool is_int(PyObject* value, long wanted) {
  return PyLong_CheckExact(value) && PyLong_AsLong(value) == wanted && (wanted != -1 || PyErr_Occurred() == nullptr);
}

// The arguments that `add` and `embed` have in common.
struct Sum {
  PyObject *start, *positions, *mask, *scale, *alpha, *dropout, *seed;

  bool drops() const { return PyFloat_AS_DOUBLE(dropout) != 0.0; }
};

// A new reference to the arguments of a call, a tuple, with floats in place of ints where a number is expected; null for
// an int that is too large.
inline PyObject* with_floats(PyObject* given, std::initializer_list<Py_ssize_t> numbers) {
  PyObject* result = Py_NewRef(given);
  for (const Py_ssize_t at : numbers) {
    if (!PyLong_CheckExact(PyTuple_GET_ITEM(given, at))) continue;
    PyObject* number = PyNumber_Float(PyTuple_GET_ITEM(given, at));
    if (number != nullptr && result == given) {
      Py_DECREF(result);
      result = PyTuple_New(PyTuple_GET_SIZE(given));
      for (Py_ssize_t k = 0; result != nullptr && k < PyTuple_GET_SIZE(given); ++k)
        PyTuple_SET_ITEM(result, k, Py_NewRef(PyTuple_GET_ITEM(given, k)));
    }
    if (number == nullptr || result == nullptr) {
      PyErr_Clear();
      Py_XDECREF(number);
      Py_XDECREF(result);
      return nullptr;
    }
    Py_DECREF(PyTuple_GET_ITEM(result, at));
    PyTuple_SET_ITEM(result, at, number);
  }
  return result;
}

// Whether the types of these arguments are supported, and the values of those that are numbers.
inline bool are_plain(const Sum& sum) {
  if (!PyFloat_CheckExact(sum.scale) || !PyFloat_CheckExact(sum.dropout)) return false;
  if (!PyFloat_CheckExact(sum.alpha) && !has_type(sum.alpha, python.tensor) && !has_type(sum.alpha, python.parameter))
    return false;
  const double p = PyFloat_AS_DOUBLE(sum.dropout);
  return sum.seed == Py_None ? p >= 0.0 && p < 1.0 : PyLong_CheckExact(sum.seed) && p > 0.0 && p < 1.0;
}

// x and out in the form of sinpe_add: (batch, middle, rows, dim); x is (rows, batch, dim) if `is_sequence_first`. They must
// be contiguous if they have more than four dimensions.
inline void set_arguments(const Tensor& x, const Tensor& out, int dtype, bool is_sequence_first,
                          sinpe_add_arguments* arguments) {
  sinpe_add_arguments& a = *arguments;
  a = {};
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
  const auto set_strides = [&](const Tensor& t, int64_t* strides) {
    const int32_t of[] = {is_sequence_first ? 1 : 0, 1, is_sequence_first ? 0 : t.rank - 2, t.rank - 1};
    for (int32_t d = 0; d < 4 && !is_contiguous(t); ++d) {  // the stride of a dimension of one element is arbitrary
      const bool exists = d > 1 || t.rank > d + 2;
      if (exists && t.sizes[of[d]] > 1) strides[d] = t.strides[of[d]];
    }
  };
  set_strides(x, a.x_strides);
  set_strides(out, a.out_strides);
  a.x = x.data;
  a.out = out.data;
  a.dtype = static_cast<sinpe_dtype>(dtype);
}

// The memory that a call writes, and its device.
struct Written {
  const char *data, *end;
  int32_t device;

  Written(const Tensor& out, int64_t bytes)
      : data(static_cast<const char*>(out.data)), end(data + bytes), device(device_of(out)) {}

  // Gets the description of a tensor that is read; returns whether it is on this device and has no memory in common. Its
  // strides must be 0 or more.
  bool describe_apart(PyObject* object, Tensor* t) const {
    if (!is_ordinary_tensor(object, true) || !describe(object, t) || device_of(*t) != device) return false;
    if (count_strided(*t) < 0) return false;
    const int64_t extent = extent_of(*t);
    const char* first = static_cast<const char*>(t->data);
    return (first + extent * (t->bits / 8) <= data || first >= end) && is_within_storage(object, *t, extent);
  }
};

// The tensors that determine the rows, as they were described; their objects are null for those that are not given.
struct RowTensors {
  struct Described {
    PyObject* object = nullptr;
    Tensor tensor;
  };
  Described positions, mask, alpha;

  bool are_unchanged() const {
    for (const Described* each : {&positions, &mask, &alpha})
      if (each->object != nullptr && !is_unchanged(each->object, each->tensor)) return false;
    return true;
  }
};

// Gets the description of an operand of shape (S,) or (B, S) with S = `rows`, any strides, and its strides of batch and
// sequence.
inline bool describe_rows(PyObject* object, const Written& out, const sinpe_add_arguments& a, int64_t rows,
                          RowTensors::Described* to, int64_t* strides) {
  Tensor& t = to->tensor;
  if (!out.describe_apart(object, &t) || t.rank < 1 || t.rank > 2) return false;
  const int64_t batch = t.rank == 2 ? t.sizes[0] : 1;
  if (t.sizes[t.rank - 1] != rows || (batch != 1 && batch != a.sizes[0])) return false;
  strides[0] = batch > 1 ? t.strides[0] : 0;
  strides[1] = rows > 1 ? t.strides[t.rank - 1] : 0;
  to->object = object;
  return true;
}

// Sets positions of any supported dtype, or starts of shape () or (B,). Kernels do not add the encoding's own start to
// these starts, so it must be 0.
inline bool set_positions(PyObject* object, bool are_starts, int64_t own_start, const Written& out,
                          sinpe_add_arguments* a, RowTensors::Described* to) {
  Tensor& t = to->tensor;
  if (are_starts) {
    if (own_start != 0 || !out.describe_apart(object, &t) || t.rank > 1) return false;
    if (t.kind != kInt || t.bits != 64 || (t.rank == 1 && t.sizes[0] != 1 && t.sizes[0] != a->sizes[0])) return false;
    a->position_strides[0] = t.rank == 1 && t.sizes[0] > 1 ? t.strides[0] : 0;
    to->object = object;
  } else if (!describe_rows(object, out, *a, a->sizes[2], to, a->position_strides)) {
    return false;
  }
  if (!is_position(t, &a->position_dtype)) return false;
  a->positions = t.data;
  a->positions_are_starts = are_starts;
  return true;
}

// Sets alpha, a float or a floating-point tensor of shape () or (1,).
inline bool set_alpha(PyObject* object, const Written& out, bool in_host_memory, sinpe_add_arguments* a,
                      sinpe::DeviceScalars* scalars, RowTensors::Described* to) {
  if (PyFloat_CheckExact(object)) {
    a->alpha = PyFloat_AS_DOUBLE(object);
    return true;
  }
  Tensor& t = to->tensor;
  if (!out.describe_apart(object, &t) || t.rank > 1 || count_elements(t) != 1 || float_type(t) < 0) return false;
  to->object = object;
  const auto dtype = static_cast<sinpe_dtype>(float_type(t));
  if (!in_host_memory) {
    scalars->alpha = t.data;
    scalars->alpha_dtype = dtype;
    return true;
  }
  if (!is_unchanged(object, t)) return false;
  a->alpha = sinpe::value_of(t.data, dtype);
  return true;
}

// Whether one of the arguments is a tensor that needs a gradient.
inline bool needs_grad(const Sum& sum) {
  for (PyObject* object : {sum.start, sum.positions, sum.alpha})
    if (PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(python.tensor)) && needs_grad(object)) return true;
  return false;
}

// Whether `rows` positions from own_start + start on are within int64.
inline bool are_positions(int64_t own_start, int64_t start, int64_t rows) {
  int64_t first, last;
  return !__builtin_add_overflow(own_start, start, &first) && !__builtin_add_overflow(first, rows, &last);
}

// Sets the arguments of a sequence except dropout; returns false if the general path has to be taken.
inline bool set_rows(const Sum& sum, int64_t own_start, const Tensor& result, int64_t bytes, sinpe_add_arguments* a,
                     sinpe::DeviceScalars* scalars, RowTensors* rows) {
  const Written out(result, bytes);
  rows->positions.object = rows->mask.object = rows->alpha.object = nullptr;
  PyObject *start = sum.start, *positions = sum.positions, *mask = sum.mask;
  const bool in_host_memory = kernels_of(result)->in_host_memory;
  if (PyLong_CheckExact(start)) {
    int overflow = 0;
    a->start = PyLong_AsLongLongAndOverflow(start, &overflow);
    const bool is_valid = positions == Py_None ? are_positions(own_start, a->start, a->sizes[2]) : a->start == 0;
    if (overflow != 0 || !is_valid) return false;
    if (positions != Py_None && !set_positions(positions, false, own_start, out, a, &rows->positions)) return false;
  } else if (positions != Py_None || !set_positions(start, true, own_start, out, a, &rows->positions) ||
             (in_host_memory && sum.drops())) {
    return false;  // the last: the kernel may refuse the starts after the seed has been drawn
  }
  if (mask != Py_None) {
    const Tensor& t = rows->mask.tensor;
    if (!describe_rows(mask, out, *a, a->sizes[2], &rows->mask, a->mask_strides) || t.kind != kBool || t.bits != 8)
      return false;
    a->padding_mask = static_cast<const uint8_t*>(t.data);
  }
  a->scale = PyFloat_AS_DOUBLE(sum.scale);
  return set_alpha(sum.alpha, out, in_host_memory, a, scalars, &rows->alpha);
}

// Whether the RNG offset of each element is its index in `a`: x is in row-major order.
inline bool is_row_major(const sinpe_add_arguments& a) {
  int64_t step = 1;
  for (int d = a.rank - 1; d >= 0; --d) {
    if (a.sizes[d] > 1 && a.x_strides[d] != step) return false;
    step *= a.sizes[d];
  }
  return true;
}

// Sets the dropout, and draws its seed from torch's generator if none is given (`draw` in operations/dropout.py): after
// all checks, so that a call that raises does not advance the generator.
inline bool set_dropout(const Sum& sum, int32_t device, sinpe_dropout_arguments* d) {
  PyObject* seed = sum.seed == Py_None ? PyObject_CallFunction(python.draw_seed, "i", device) : Py_NewRef(sum.seed);
  int overflow = 0;
  d->seed = seed == nullptr ? -1 : PyLong_AsLongLongAndOverflow(seed, &overflow);
  Py_XDECREF(seed);
  const double units = std::nearbyint(PyFloat_AS_DOUBLE(sum.dropout) * 65536);
  d->drop_threshold = static_cast<int32_t>(std::min(std::max(units, 1.0), 65535.0));
  return overflow == 0 && PyErr_Occurred() == nullptr;
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

}  // namespace sinpe_fast_path
