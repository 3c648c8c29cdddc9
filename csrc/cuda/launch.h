// How a kernel is run. A body is a functor over (block, thread) in phases with a barrier between them: what a thread knows
// beyond a phase it keeps in the block's Shared. nvcc makes a kernel of it; any other compiler a loop, thread by thread, so
// that the same bodies run under AddressSanitizer on a machine without a card.
//
//   struct Body {
//     static constexpr int kPhases, kThreads, kBlocks;   // kBlocks: that a multiprocessor should hold, at least
//     struct Shared;
//     template <int kPhase> SINPE_HD void phase(uint32_t block, int thread, Shared& shared) const;
//   };
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "core/macros.h"
#include "cuda/launchers.h"

namespace sinpe {
namespace cuda {

constexpr int64_t kMaxBlocks = 0x7fffffff;  // of a grid's first dimension

// Multiprocessors of the current device: a number to cut work by, never to compute by.
int multiprocessors();

// Whether float32 rows are made in double precision on the current device, see arithmetic().
bool in_double();

// Remembers why a launch failed.
sinpe_status launch_failed(const char* why);

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

#else

template <class Body, int kPhase>
void phases(const Body& body, uint32_t block, typename Body::Shared& shared) {
  for (int thread = 0; thread < Body::kThreads; ++thread) body.template phase<kPhase>(block, thread, shared);
  if constexpr (kPhase + 1 < Body::kPhases) phases<Body, kPhase + 1>(body, block, shared);
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
  const std::unique_ptr<typename Body::Shared> shared(new typename Body::Shared);
  for (int64_t block = 0; block < blocks; ++block) {
    std::memset(static_cast<void*>(shared.get()), 0xff, sizeof *shared);  // as undefined as on a device: NaN
    phases<Body, 0>(body, static_cast<uint32_t>(block), *shared);
  }
  return SINPE_OK;
#endif
}

}  // namespace cuda
}  // namespace sinpe
