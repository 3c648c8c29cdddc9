// Common parts of the bindings: devices, dtypes, new tensors, and errors. arguments.h converts tensors to the arguments
// of the C interface. Python has already checked the operands; what memory safety requires is checked again here.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/macros.h"
#include "core/status.h"
#include "sinpe/sinpe.h"

namespace sinpe_torch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

using Integers = std::vector<int64_t>;
using Optional = std::optional<Tensor>;

// Not STD_TORCH_CHECK, which would add the function's name and the path of the source file to the message.
template <class... Parts>
[[noreturn]] SINPE_NOINLINE void throw_error(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::runtime_error(sentence.str());
}

template <class... Parts>
inline void expect(bool condition, const Parts&... message) {
  if (!condition) throw_error(message...);
}

inline void check_status(sinpe_status status) {
  if (status != SINPE_OK) throw_error(sinpe::status_text(status));
}

// Checks that a tensor's elements are within the bounds of its storage, which may have been resized; like
// sinpe_ext/operations/checks.py.
inline void check_storage_bounds(const char* name, const Tensor& t) {
  if (t.numel() == 0) return;
  int64_t bytes, end = t.storage_offset() + 1;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(t.get(), &bytes));
  const auto sizes = t.sizes(), strides = t.strides();
  for (size_t d = 0; d < sizes.size(); ++d) end += (sizes[d] - 1) * strides[d];
  const int64_t needed = end * static_cast<int64_t>(t.element_size());
  expect(needed <= bytes, name, ": expected a tensor whose memory holds its elements, got ", bytes, " bytes where ",
         needed, " are needed; it was freed or resized, use it where it is whole");
}

// A device. All CPU tensors are on one device, whatever index they report.
struct Device {
  int32_t type, index;

  static Device cpu() { return {aoti_torch_device_type_cpu(), -1}; }
  static Device of(const Tensor& t) {
    Device device{};
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &device.type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(t.get(), &device.index));
    return device;
  }
  bool holds(const Tensor& t) const {
    int32_t other;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &other));
    if (other != type || index < 0) return other == type;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(t.get(), &other));
    return other == index;
  }
  void expect(const char* name, const Tensor& t) const {
    if (!holds(t))
      throw_error(name, ": expected a tensor on ", text(), ", got one on ", of(t).text(), "; move it there");
    check_storage_bounds(name, t);
  }
  std::string text() const {
    if (type == aoti_torch_device_type_cpu()) return "cpu";
    if (type == aoti_torch_device_type_meta()) return "meta";
    const bool is_cuda = type == aoti_torch_device_type_cuda();
    return (is_cuda ? "cuda" : "device type " + std::to_string(type)) + ":" + std::to_string(index);
  }
};

inline sinpe_dtype dtype_of(const char* name, ScalarType type) {
  switch (type) {
    case ScalarType::Float: return SINPE_FLOAT32;
    case ScalarType::Double: return SINPE_FLOAT64;
    case ScalarType::BFloat16: return SINPE_BFLOAT16;
    case ScalarType::Half: return SINPE_FLOAT16;
    case ScalarType::Long: return SINPE_INT64;
    default: throw_error(name, ": unsupported dtype, got ", torch::headeronly::toString(type));
  }
}

inline sinpe_dtype float_type(const char* name, ScalarType type) {
  expect(type != ScalarType::Long, name, ": expected a floating-point type, got Long");
  return dtype_of(name, type);
}

// torch's number of a floating-point dtype.
inline int32_t type_number(sinpe_dtype dtype) {
  switch (dtype) {
    case SINPE_FLOAT64: return aoti_torch_dtype_float64();
    case SINPE_BFLOAT16: return aoti_torch_dtype_bfloat16();
    case SINPE_FLOAT16: return aoti_torch_dtype_float16();
    default: return aoti_torch_dtype_float32();
  }
}

// An uninitialised tensor, by the shim's direct call: torch::stable::new_empty looks up its operator by name each time,
// which would be a third of a small call's duration.
inline Tensor new_strided(const Device& device, const int64_t* sizes, const int64_t* strides, int64_t rank,
                          sinpe_dtype dtype) {
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(rank, sizes, strides, type_number(dtype), device.type, device.index, &handle));
  return Tensor(handle);
}

inline Tensor new_dense(const Device& device, const Integers& sizes, sinpe_dtype dtype) {
  Integers strides(sizes.size());
  int64_t stride = 1;
  bool counted = true, empty = false;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    empty = empty || sizes[d] == 0;
    int64_t next;
    const bool fits = sizes[d] < 2 || !__builtin_mul_overflow(stride, sizes[d], &next);
    if (fits && sizes[d] > 1) stride = next;
    counted = counted && fits;
  }
  expect(counted || empty, "out: expected a number of elements within int64, got more; ask for fewer");
  return new_strided(device, sizes.data(), strides.data(), static_cast<int64_t>(sizes.size()), dtype);
}

// Whether a tensor is contiguous except for the order of its dimensions (in torch: non-overlapping and dense).
inline bool is_dense(const Tensor& t) {
  if (t.is_contiguous()) return true;
  const auto sizes = t.sizes(), strides = t.strides();
  std::vector<std::pair<int64_t, int64_t>> nested;  // stride and size, smallest stride first
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1) nested.emplace_back(strides[d], sizes[d]);
  }
  std::sort(nested.begin(), nested.end());
  int64_t reach = 1;
  for (const auto& [stride, size] : nested) {
    if (size == 0 || stride != reach || __builtin_mul_overflow(reach, size, &reach)) return false;
  }
  return true;
}

// A new tensor with the strides of torch.empty_like.
inline Tensor new_like(const Device& device, const Tensor& x) {
  if (!is_dense(x)) return torch::stable::empty_like(x);
  return new_strided(device, x.sizes().data(), x.strides().data(), x.dim(), float_type("x", x.scalar_type()));
}

}  // namespace sinpe_torch
