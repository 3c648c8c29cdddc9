// Row kernels for x86-64-v3 (AVX2 and FMA). The instruction set is set by attributes, because torch's build tools do
// not support flags per file.
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

// Standard headers first, so that their functions are compiled for the baseline instruction set.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx,avx2,fma,bmi,bmi2,f16c,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#endif

#define SINPE_LANES 4
#include "cpu/rows.h"

#define SINPE_ISA isa_v3
#define SINPE_ISA_NAME "v3"
#define SINPE_KERNELS kRowKernelsV3
#include "cpu/rows.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
