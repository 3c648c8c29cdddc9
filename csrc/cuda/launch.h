// Kernel launches. A body is a functor over (block, thread) in phases with a barrier between them; what a thread needs
// in a later phase is stored in the block's Shared. nvcc compiles it to a kernel; other compilers run it in a loop
// (cuda/on_host.h).
//
//   struct Body {
//     static constexpr int kPhases, kThreads, kBlocks;   // kBlocks: minimum number of blocks per multiprocessor
//     struct Shared;
//     template <int kPhase> SINPE_HD void phase(uint32_t block, int thread, Shared& shared) const;
//   };
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/macros.h"
#include "cuda/launchers.h"
#if !defined(__CUDACC__)
#include "cuda/on_host.h"
#endif

namespace sinpe {
namespace cuda {

constexpr int64_t kMaxBlocks = 0x7fffffff;  // limit of a grid's x dimension

// Number of multiprocessors of the current device. It determines the partition of the work; results must not depend on
// it.
int multiprocessors();

// Whether float32 rows are computed in double precision on the current device, see arithmetic().
bool in_double();

// Records why a launch failed.
sinpe_status launch_failed(const char* why);

// Returns *n and increments it; the threads of a block may do so at the same time.
SINPE_HD uint32_t take_one(uint32_t* n) {
#if defined(__CUDA_ARCH__)
  return atomicAdd(n, 1u);
#else
  return (*n)++;
#endif
}

#if defined(__CUDACC__)

template <class Body, int kPhase>
__device__ __forceinline__ void phases(const Body& body, typename Body::Shared& shared) {
  body.template phase<kPhase>(blockIdx.x, static_cast<int>(threadIdx.x), shared);
  if constexpr (kPhase + 1 < Body::kPhases) {
    __syncthreads();
    phases<Body, kPhase + 1>(body, shared);
  }
}

template <class Body>
__global__ void __launch_bounds__(Body::kThreads, Body::kBlocks) kernel(const __grid_constant__ Body body) {
  __shared__ typename Body::Shared shared;
  phases<Body, 0>(body, shared);
}

#endif

template <class Body>
sinpe_status launch(const Body& body, int64_t blocks, Stream stream) {
  static_assert(std::is_trivially_copyable<Body>::value && sizeof(Body) <= 4000,
                "a kernel's argument is 4 KiB at most");
  if (blocks <= 0) return SINPE_OK;
  if (blocks > kMaxBlocks) return launch_failed("more blocks than a grid can have");
#if defined(__CUDACC__)
  kernel<Body><<<static_cast<unsigned>(blocks), Body::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(body);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? SINPE_OK : launch_failed(cudaGetErrorString(error));
#else
  (void)stream;
  on_host::run(body, blocks);
  return SINPE_OK;
#endif
}

}  // namespace cuda
}  // namespace sinpe
