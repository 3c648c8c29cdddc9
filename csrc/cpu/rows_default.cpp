// Row kernels for the compiler's target instruction set (baseline x86-64, or arm64 with NEON).
#define SINPE_LANES 2
#include "cpu/rows.h"

#define SINPE_ISA isa_default
#define SINPE_ISA_NAME "default"
#define SINPE_KERNELS kRowKernelsDefault
#include "cpu/rows.inc"
