// `table` and `encode`.
#pragma once

#include "core/parallel.h"
#include "pybind/fast_path/sum.h"

namespace sinpe_fast_path {

// Sets *dim to the argument `dim` of table and encode, None or an int, which is for an encoding that is None or a name.
inline bool get_dim(PyObject* object, PyObject* encoding, int64_t* dim) {
  *dim = kOwnDim;
  if (object == Py_None) return true;
  int overflow = 0;
  if (PyLong_CheckExact(object)) *dim = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && *dim > 0 && (encoding == Py_None || PyUnicode_CheckExact(encoding));
}

// fast_encode(positions, encoding, dtype, dim) -> a new tensor, or None for arguments that it does not take.
inline PyObject* fast_encode(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const sinpe::OneThread one_thread;
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "fast_encode: expected positions, an encoding, a dtype and dim");
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
  if (!positions() || !are_ready(t, 0)) return use_general_path();
  const int32_t device = device_of(t);
  const CachedPlan plan = find_plan(encoding, given_dim, device);
  const Reference holder{plan.holder};
  if (holder.object == nullptr) return use_general_path();
  const int64_t dim = plan.plan.dim;
  // Described again, here and below, because other threads may have run in between.
  if (!positions() || count_elements(t) > most_rows(t) / 2 / dim) Py_RETURN_NONE;
  PyObject* result = new_rows(object, t, dim, items[2]);
  sinpe_dtype type;
  const int dtype = result == nullptr ? -1 : dtype_of(result, &out);
  const bool done = dtype >= 0 && positions() && is_position(t, &type) && device_of(t) == device &&
                    device_of(out) == device && is_within_storage(object, t, count_elements(t)) &&
                    count_elements(out) == count_elements(t) * dim && is_unchanged(object, t) &&
                    is_unchanged(result, out) &&
                    kernels_for(t, 0).encode(t.device_id, plan.plan, t.data, type, count_elements(t),
                                             static_cast<sinpe_dtype>(dtype), out.data, dim) == SINPE_OK;
  if (done) return result;
  Py_XDECREF(result);
  return use_general_path();
}

// The arguments of `table` in the order of its record.
enum TableArgument { kLength, kTableEncoding, kTableStart, kDtype, kDevice, kOut, kFlatten, kTableExtra, kDim };
constexpr Py_ssize_t kTableArguments = kDim + 1;

// fast_table(given) -> out, a new tensor if that is None; or None for arguments that it does not take.
inline PyObject* fast_table(PyObject*, PyObject* const* items, Py_ssize_t count) {
  const sinpe::OneThread one_thread;
  if (count != 1 || !PyTuple_Check(items[0]) || PyTuple_GET_SIZE(items[0]) != kTableArguments) {
    PyErr_SetString(PyExc_TypeError, "fast_table: expected the arguments of table as a tuple");
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
  CachedPlan plan = find_plan(encoding, given_dim, is_new ? -1 : device_of(out));
  const Reference holder{plan.holder};
  if (holder.object == nullptr) return use_general_path();
  const int64_t dim = plan.plan.dim;
  if (!are_positions(plan.start, start, length)) Py_RETURN_NONE;
  if (is_new) {
    if (length > kFewElements / dim) Py_RETURN_NONE;
    PyObject* call[3] = {at(kLength), PyLong_FromLongLong(dim), wanted == Py_None ? python.float32 : wanted};
    result = call[1] == nullptr ? nullptr : PyObject_Vectorcall(python.empty, call, 2, names.dtype_alone);
    Py_XDECREF(call[1]);
  } else {
    Py_INCREF(result);
  }
  // A new result is on another device than the plan if that is the default device.
  const int dtype = result == nullptr ? -1 : dtype_of(result, &out);
  const bool done = dtype >= 0 && device_of(out) == plan.device && are_ready(out, 0) &&
                    length <= most_rows(out) / dim && out.rank == 2 && out.sizes[0] == length && out.sizes[1] == dim &&
                    (is_new || is_within_storage(result, out, length * dim)) && is_unchanged(result, out) &&
                    kernels_for(out, 0).table(out.device_id, plan.plan, start, length, static_cast<sinpe_dtype>(dtype),
                                              out.data, dim) == SINPE_OK;
  if (done) return is_new ? result : with_new_version(result);
  Py_XDECREF(result);
  return use_general_path();
}

}  // namespace sinpe_fast_path
