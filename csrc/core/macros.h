// Function decorations shared by every compiler that sees csrc/core: g++, clang++ and nvcc.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define SINPE_HD __host__ __device__ __forceinline__
#elif defined(SINPE_INLINE_FREELY)
#define SINPE_HD inline  // takes half the time to compile: for sources with a single instruction set
#elif defined(__GNUC__) || defined(__clang__)
// always_inline, so that a core function takes the instruction set of the kernel that calls it.
#define SINPE_HD inline __attribute__((always_inline))
#else
#define SINPE_HD inline
#endif

// SINPE_ROLLED before a loop prevents unrolling: a GPU compiler would use more registers, which reduces occupancy, to
// save branches. SINPE_UNROLLED forces unrolling, so that arrays indexed by the loop variable stay in registers.
#if defined(__CUDACC__)
#define SINPE_ROLLED _Pragma("unroll 1")
#define SINPE_UNROLLED _Pragma("unroll")
#else
#define SINPE_ROLLED
#define SINPE_UNROLLED
#endif

// For long, rarely called functions. static, because a function compiled in translation units with different
// instruction sets must not be merged by the linker.
#if defined(__CUDACC__)
#define SINPE_HD_RARE static __host__ __device__ __noinline__
#elif defined(__GNUC__) || defined(__clang__)
#define SINPE_HD_RARE static __attribute__((noinline, unused))
#else
#define SINPE_HD_RARE static
#endif

#if defined(__GNUC__) || defined(__clang__)
#define SINPE_NOINLINE __attribute__((noinline))
#else
#define SINPE_NOINLINE
#endif

namespace sinpe {

// The bits of `from` read as a `To` of the same size.
template <class To, class From>
SINPE_HD To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  To to;
#if defined(__CUDACC__)
  memcpy(&to, &from, sizeof(To));
#else
  std::memcpy(&to, &from, sizeof(To));
#endif
  return to;
}

}  // namespace sinpe
