// Row kernels for x86-64-v4 (AVX-512). Attributes instead of compiler flags: torch's build tools have no flags per file.
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

// Standard headers first: what they define must keep the baseline instruction set.
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
// gcc 12 sees its own AVX-512 headers' deliberately undefined operands (GCC bug 105593).
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
