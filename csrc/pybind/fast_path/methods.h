// The usual way of a call: `add`, its gradients, `embed`, `encode` and `table` directly from the Python objects to the
// kernels of the device (core/kernels.h). A call takes a few microseconds, as much as the checks in Python and an
// operator take each.
//
// Tensors are read through DLPack's C exchange functions, which torch.Tensor provides; these files do not depend on
// torch. What DLPack does not report (gradients, negative bits, modes that intercept operators) is queried by the
// functions passed to `set_up` and by methods of the tensors. Calls that are not supported return None, and the caller
// takes the general path, in Python.
#pragma once

#include "pybind/fast_path/add.h"
#include "pybind/fast_path/backward.h"
#include "pybind/fast_path/embed.h"
#include "pybind/fast_path/table.h"

namespace sinpe_fast_path {

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
    {"set_kernels", as_method(set_kernels), METH_FASTCALL,
     "Passes the address of the kernels of a type of device (csrc/core/kernels.h)."},
    {"forget", forget, METH_NOARGS, "Releases the constants that the fast path has cached."},
    {"fast_add", as_method(fast_add), METH_FASTCALL, "add; None for unsupported arguments."},
    {"fast_embed", as_method(fast_embed), METH_FASTCALL, "embed; None for unsupported arguments."},
    {"fast_table", as_method(fast_table), METH_FASTCALL, "table of a few rows; None for unsupported arguments."},
    {"fast_encode", as_method(fast_encode), METH_FASTCALL,
     "encode for a few positions; None for unsupported arguments."},
    {"fast_dropout", as_method(fast_dropout), METH_FASTCALL,
     "The gradient of x of add; None for unsupported arguments."},
    {"fast_alpha_gradient", as_method(fast_alpha_gradient), METH_FASTCALL,
     "The gradient of alpha of add; None for unsupported arguments."},
    {"is_intercepted", is_intercepted_method, METH_NOARGS,
     "Whether something other than the compiler intercepts the operations of a call."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace sinpe_fast_path
