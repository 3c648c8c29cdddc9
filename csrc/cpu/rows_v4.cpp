// Row kernels for x86-64-v4 (AVX-512). The instruction set is set by attributes, because torch's build tools do not
// support flags per file.
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

// Standard headers first, so that their functions are compiled for the baseline instruction set.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#if defined(__clang__)
#pragma clang attribute push(                                                                                       \
    __attribute__((target("avx,avx2,fma,bmi,bmi2,f16c,lzcnt,popcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512cd"))), \
    apply_to = function)
#else
#pragma GCC push_options
// gcc 12 warns about deliberately undefined operands in its own AVX-512 headers (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#endif

#define SINPE_LANES 8
#include "cpu/rows.h"

#define SINPE_ISA isa_v4
#define SINPE_ISA_NAME "v4"
#define SINPE_KERNELS kRowKernelsV4
#include "cpu/rows.inc"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
