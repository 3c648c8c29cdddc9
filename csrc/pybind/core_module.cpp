// sinpe_ext._core: the kernels for NumPy arrays, and the repetition of calls with tensors (repeat.h). Depends neither on torch nor
// on an OpenMP runtime.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "pybind/repeat.h"
#include "sinpe/sinpe.h"

namespace py = pybind11;

namespace {

using PackedPlan = py::array_t<int64_t, py::array::c_style>;

sinpe_dtype dtype_of(const std::string& name) {
  if (name == "float32") return SINPE_FLOAT32;
  if (name == "float64") return SINPE_FLOAT64;
  if (name == "float16") return SINPE_FLOAT16;
  if (name == "int64") return SINPE_INT64;
  throw py::value_error("dtype: expected float32, float64 or float16, got " + name);
}

void check_status(sinpe_status status) {
  if (status == SINPE_NO_MEMORY) throw std::bad_alloc();
  if (status != SINPE_OK) throw py::value_error(sinpe_status_text(status));
}

int64_t dim_of(const PackedPlan& packed_plan) {
  const int64_t dim = sinpe_plan_dim(packed_plan.data(), packed_plan.size());
  if (dim < 0) check_status(SINPE_BAD_PLAN);
  return dim;
}

py::array table(const PackedPlan& packed_plan, int64_t start, int64_t length, const std::string& dtype) {
  const int64_t dim = dim_of(packed_plan);
  if (length < 0) throw py::value_error("length: expected 0 or more, got " + std::to_string(length));
  const sinpe_dtype type = dtype_of(dtype);
  py::array out(py::dtype(dtype), {length, dim});
  void* data = out.mutable_data();
  sinpe_status status;
  {
    py::gil_scoped_release release;
    status = sinpe_table(packed_plan.data(), packed_plan.size(), start, length, type, data, dim);
  }
  check_status(status);
  return out;
}

py::array encode(const PackedPlan& packed_plan, const py::array& positions, const std::string& dtype) {
  const int64_t dim = dim_of(packed_plan);
  constexpr int kReadable = py::array::c_style | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  if ((positions.flags() & kReadable) != kReadable) {
    throw py::value_error("positions: expected a C-contiguous, aligned array");
  }
  const sinpe_dtype type = dtype_of(dtype), position_type = dtype_of(py::str(positions.dtype().attr("name")));
  std::vector<py::ssize_t> shape(positions.shape(), positions.shape() + positions.ndim());
  shape.push_back(dim);
  py::array out(py::dtype(dtype), shape);
  void* data = out.mutable_data();
  sinpe_status status;
  {
    py::gil_scoped_release release;
    status = sinpe_encode(packed_plan.data(), packed_plan.size(), positions.data(), position_type, positions.size(),
                          type, data, dim);
  }
  check_status(status);
  return out;
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Torch-free kernels for NumPy arrays.";
  m.def("table", &table, py::arg("plan"), py::arg("start"), py::arg("length"), py::arg("dtype"),
        "Rows at plan.start + start + 0 .. length-1.");
  m.def("encode", &encode, py::arg("plan"), py::arg("positions"), py::arg("dtype"), "Rows at given positions.");
  if (PyModule_AddFunctions(m.ptr(), sinpe_repeat::methods) != 0) throw py::error_already_set();
  m.def("isa", [] { return std::string(sinpe_isa()); }, "Instruction set of the kernels in use.");
}
