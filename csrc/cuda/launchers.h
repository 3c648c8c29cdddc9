// The interface of the CUDA library to its binding (torch/cuda_ops.cpp): raw pointers and a stream in, a status out.
// Every pointer refers to device memory, that of the packed plan included. No function synchronises or allocates, and
// only kernels read what the pointers refer to. Invalid plans, and positions or ids out of range, therefore give rows
// of NaN (zero channels of an encoding stay 0).
//
// The same sources compile as plain C++, where device memory is ordinary memory and a launch is a loop (cuda/launch.h),
// so that the kernels are tested without a GPU.
#pragma once

#include <cstdint>

#include "core/kernels.h"
#include "sinpe/sinpe.h"

namespace sinpe {
namespace cuda {

using sinpe::DevicePlan;
using sinpe::DeviceScalars;
using Stream = void*;  // a cudaStream_t

// As sinpe_table, sinpe_encode, sinpe_add, sinpe_add_grid, sinpe_dropout, sinpe_row_dots and sinpe_embed, with the same
// argument structures. `elements`, sizes and strides are in host memory as there. embed does not set bad_id.
sinpe_status table(const DevicePlan& plan, int64_t start, int64_t length, sinpe_dtype dtype, void* out,
                   int64_t row_stride, Stream stream);
sinpe_status encode(const DevicePlan& plan, const void* positions, sinpe_dtype position_dtype, int64_t count,
                    sinpe_dtype dtype, void* out, int64_t row_stride, Stream stream);
sinpe_status add(const DevicePlan& plan, const sinpe_add_arguments& a, const DeviceScalars& scalars, Stream stream);
sinpe_status add_grid(const DevicePlan& grid, const void* values, int64_t n_values, const sinpe_add_arguments& a,
                      const DeviceScalars& scalars, Stream stream);
sinpe_status dropout(const sinpe_add_arguments& a, const DeviceScalars& scalars, Stream stream);
// scratch: row_dots_scratch(a) bytes of device memory; null if that is 0.
sinpe_status row_dots(const DevicePlan& plan, const sinpe_add_arguments& a, const double* angular_frequencies,
                      void* scratch, const DeviceScalars& scalars, Stream stream);
int64_t row_dots_scratch(const sinpe_add_arguments& a);
// Both gradients of add: row_dots(a.x) into `dots`, and dropout(a.x) into a.out. The scratch is that of row_dots.
sinpe_status add_backward(const DevicePlan& plan, const sinpe_add_arguments& a, double* dots, void* scratch,
                          const DeviceScalars& scalars, Stream stream);
// The sum of n doubles into *out, in the order of core/tree_sum.h. scratch: tree_sum_scratch(n) bytes of device memory.
sinpe_status tree_sum(const double* terms, int64_t n, double* out, void* scratch, Stream stream);
int64_t tree_sum_scratch(int64_t n);
sinpe_status embed(const DevicePlan& plan, const sinpe_embed_arguments& e, const DeviceScalars& scalars, Stream stream);

// As sinpe_embed_backward, but ids that are not rows of the weight are ignored. scratch: embed_backward_scratch(a)
// bytes of device memory, 16-byte aligned, for the starts of the rows, the sums of tokens and the sorted ids.
sinpe_status embed_backward(const sinpe_embed_backward_arguments& a, void* scratch, const DeviceScalars& scalars,
                            Stream stream);
int64_t embed_backward_scratch(const sinpe_embed_backward_arguments& a);

// Makes a device current for the following calls of this thread, which then do not query it. Necessary where this
// library is linked with a CUDA runtime of its own, which has to be told what PyTorch's has been told.
sinpe_status use_device(int device);

// Whether a CUDA graph is being captured on a stream of the current device, or in a way that concerns it.
bool is_capturing(Stream stream);

// The CUDA error message for SINPE_LAUNCH_FAILED, of this thread, valid until its next launch. Never null.
const char* launch_error();

// The arithmetic of float32 rows on the current device: "double" (correctly rounded, the CPU's bits), used if double
// precision has half the throughput of single, or "single" (<= 1 ULP). SINPE_EXT_CUDA_ARITHMETIC=single|double
// overrides it.
const char* arithmetic();

}  // namespace cuda
}  // namespace sinpe
