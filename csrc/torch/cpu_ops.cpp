// The operators on the CPU, whose kernels are those of the C interface, sinpe.h.
#include "torch/operators.h"

const sinpe::Kernels& sinpe_torch::kernels() { return sinpe::cpu_kernels(); }
extern "C" SINPE_API const sinpe::Kernels* sinpe_kernels() { return &sinpe_torch::kernels(); }

static std::string cpu_isa() { return sinpe_isa(); }

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CPU, m) { sinpe_torch::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CompositeExplicitAutograd, m) { m.impl("cpu_isa", TORCH_BOX(&cpu_isa)); }
