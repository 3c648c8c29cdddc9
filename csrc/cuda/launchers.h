// What the CUDA half offers to its binding (torch/cuda_ops.cpp): raw pointers and a stream in, a status out. Every pointer
// is device memory, the plan's words included. Nothing here synchronises or allocates, and nothing but the kernels reads
// what the pointers point to: a plan that is none, and a position or an id out of range, give rows of NaN (zero channels of an encoding stay 0).
//
// The same sources compile as plain C++, where "device memory" is memory and a launch is a loop (cuda/launch.h): so the
// kernels are tested without a card.
#pragma once

#include <cstdint>

#include "sinpe/sinpe.h"

namespace sinpe {
namespace cuda {

using Stream = void*;  // a cudaStream_t

// A plan in device memory, and the channels that its rows must have.
struct DevicePlan {
  const int64_t* words;
  int64_t n_words;
  int64_t dim;
};

// Numbers that a kernel reads on the device, so that no one waits for them and a replayed graph sees new ones.
struct DeviceScalars {
  const void* alpha;        // null: the arguments' alpha
  sinpe_dtype alpha_dtype;  // of *alpha
  const int64_t* seed;      // null: the arguments' dropout.seed
};

// As sinpe_table, sinpe_encode, sinpe_add, sinpe_add_grid, sinpe_dropout, sinpe_row_dots and sinpe_embed, whose argument structures they
// take; `elements`, sizes and strides are host memory as there. Of embed's arguments bad_id stays unset.
sinpe_status table(const DevicePlan& plan, int64_t start, int64_t length, sinpe_dtype dtype, void* out,
                   int64_t row_stride, Stream stream);
sinpe_status encode(const DevicePlan& plan, const void* positions, sinpe_dtype position_dtype, int64_t count,
                    sinpe_dtype dtype, void* out, int64_t row_stride, Stream stream);
sinpe_status add(const DevicePlan& plan, const sinpe_add_arguments& a, const DeviceScalars& scalars, Stream stream);
sinpe_status add_grid(const DevicePlan& grid, const void* values, int64_t n_values, const sinpe_add_arguments& a,
                      const DeviceScalars& scalars, Stream stream);
sinpe_status dropout(const sinpe_add_arguments& a, const DeviceScalars& scalars, Stream stream);
// scratch: memory of row_dots_scratch(a) bytes; null where that is 0.
sinpe_status row_dots(const DevicePlan& plan, const sinpe_add_arguments& a, const double* slopes, void* scratch,
                      const DeviceScalars& scalars, Stream stream);
int64_t row_dots_scratch(const sinpe_add_arguments& a);
sinpe_status embed(const DevicePlan& plan, const sinpe_embed_arguments& e, const DeviceScalars& scalars, Stream stream);

// As sinpe_embed_backward, from the ids in ascending order and, for each, the row-major index of its token; equal ids in
// the order of their tokens (a stable sort). a.ids and a.id_strides are not read. An id that is no row counts for none.
// scratch: memory of embed_backward_scratch(a) bytes, 16-byte aligned, for where rows begin and for sums of tokens.
sinpe_status embed_backward(const sinpe_embed_backward_arguments& a, const int64_t* sorted_ids,
                            const int64_t* sorted_tokens, void* scratch, const DeviceScalars& scalars, Stream stream);
int64_t embed_backward_scratch(const sinpe_embed_backward_arguments& a);

// Makes a device the current one for what follows on this thread, which then asks no more which it is. The CUDA runtime in this library is its own: it is told what
// PyTorch's has been told.
sinpe_status use_device(int device);

// Of SINPE_LAUNCH_FAILED: what CUDA said. For this thread, until its next launch. Never null.
const char* launch_error();

// The arithmetic of float32 rows on the current device: "double" (correctly rounded, the CPU's bits), chosen where double
// precision runs at half the rate of single, or "single" (<= 1 ULP). SINPE_EXT_CUDA_ARITHMETIC=single|double overrules.
const char* arithmetic();

}  // namespace cuda
}  // namespace sinpe
