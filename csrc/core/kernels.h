// The kernels of one type of device as a table of functions: what its library offers to a caller without torch
// (pybind/fast_path/).
#pragma once

#include <cstdint>

#include "sinpe/sinpe.h"

namespace sinpe {

// A packed plan or grid in the memory of the device, and the number of channels that its rows must have.
struct DevicePlan {
  const int64_t* packed;
  int64_t n_words;
  int64_t dim;
};

// Scalars that a kernel reads in the memory of the device, so that the host does not wait for them and a replayed CUDA
// graph uses their new values.
struct DeviceScalars {
  const void* alpha;        // null: the arguments' alpha
  sinpe_dtype alpha_dtype;  // of *alpha
  const int64_t* seed;      // null: the arguments' dropout.seed
};

// The functions are those of sinpe.h, on the current stream of device number `device`, and do not throw. All pointers
// refer to memory of the device, except to the arguments themselves. is_new: whether the result was allocated for this
// call.
struct Kernels {
  int64_t bytes;         // sizeof(Kernels) in the library; a caller built from other sources refuses the table
  bool in_host_memory;   // whether the operands are in the host's memory, and are read before the functions return
  int64_t max_elements;  // of the result of a call; more are for the general path
  // Whether the functions may be called now; not during the capture of a CUDA graph, which keeps the addresses.
  bool (*is_ready)(int32_t device);
  sinpe_status (*table)(int32_t device, const DevicePlan& plan, int64_t start, int64_t length, sinpe_dtype dtype,
                        void* out, int64_t row_stride);
  sinpe_status (*encode)(int32_t device, const DevicePlan& plan, const void* positions, sinpe_dtype position_dtype,
                         int64_t count, sinpe_dtype dtype, void* out, int64_t row_stride);
  sinpe_status (*add)(int32_t device, const DevicePlan& plan, const sinpe_add_arguments& a,
                      const DeviceScalars& scalars, bool is_new);
  sinpe_status (*add_grid)(int32_t device, const DevicePlan& grid, const void* values, int64_t n_values,
                           const sinpe_add_arguments& a, bool is_new);
  sinpe_status (*dropout)(int32_t device, const sinpe_add_arguments& a, bool is_new);
  // The gradient of alpha of `add`: a.x is the gradient of the result; writes to *sum. Null on CUDA, where the operators
  // compute it.
  sinpe_status (*alpha_gradient)(int32_t device, const DevicePlan& plan, const sinpe_add_arguments& a, double* sum);
  sinpe_status (*embed)(int32_t device, const DevicePlan& plan, sinpe_embed_arguments* e, const DeviceScalars& scalars);
};

// The kernels of the CPU (cpu/kernels.cpp).
const Kernels& cpu_kernels();

}  // namespace sinpe
