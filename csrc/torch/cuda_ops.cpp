// The operators on CUDA, implemented by the launchers of cuda/launchers.h, on PyTorch's current stream. All operands
// are on one device, including the plan; the host does not read them and does not wait for the device.
//
// With SINPE_EMULATED, launches are loops on the CPU (cuda/launch.h): the same binding, for tensors on the CPU.
#include "cuda/launchers.h"
#include "torch/operators.h"

#ifdef SINPE_EMULATED
#define SINPE_CUDA_KEY CPU
#else
#define SINPE_CUDA_KEY CUDA
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#endif

namespace {

using namespace sinpe_torch;
using sinpe::Arguments;
namespace cuda = sinpe::cuda;

#ifndef SINPE_EMULATED

using CurrentStream = AOTITorchError (*)(int32_t device_index, void** stream);

// Looked up in the loaded libtorch_cuda. Not linked, because this library can also be loaded with a CPU-only PyTorch;
// not a weak symbol, because torch loads its libraries with local symbols.
CurrentStream current_stream_function() {
  void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  void* symbol = dlsym(library != nullptr ? library : RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream");
  expect(symbol != nullptr, "torch: expected aoti_torch_get_current_cuda_stream in libtorch_cuda.so, got none; ",
         "install a PyTorch that has CUDA");
  return reinterpret_cast<CurrentStream>(symbol);
}

cuda::Stream current_stream(int32_t device_index) {
  static const CurrentStream function = current_stream_function();
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(function(device_index, &stream));
  return stream;
}

#endif

// The operators on CUDA (core/operators.h).
struct Call {
  static constexpr bool kReadsMemory = false;
#ifndef SINPE_EMULATED
  static constexpr int32_t kDeviceType = sinpe::kCudaMemory;
  int32_t device;
  torch::stable::accelerator::DeviceGuard guard;
  cuda::Stream stream;
  explicit Call(int32_t index) : device(index), guard(index), stream(current_stream(index)) {
    check(cuda::use_device(index));
  }
#else
  static constexpr int32_t kDeviceType = sinpe::kHostMemory;
  int32_t device;
  cuda::Stream stream = nullptr;
  explicit Call(int32_t index) : device(index) {}
#endif

  static void check(sinpe_status status) {
    expect(status != SINPE_LAUNCH_FAILED, sinpe::status_text(status), ": ", cuda::launch_error());
    sinpe::check_status(status);
  }
  static void register_output(const void*, int64_t) {}

  // The contents of operands are checked on the device.
  static int64_t dim_of(const cuda::DevicePlan& plan) { return plan.dim; }
  static sinpe_status examine(Op, const Arguments*) { return SINPE_OK; }

  sinpe_status run(Op op, const Arguments* g) const {
    const cuda::DevicePlan& plan = g->plan;
    const cuda::DeviceScalars& s = g->scalars;
    const sinpe_add_arguments& a = g->embed.add;
    const sinpe_embed_backward_arguments& b = g->embed_backward;
    const View* axis_rows = g->axis_rows;
    switch (op) {
      case Op::kTable: return cuda::table(plan, a.start, a.sizes[0], a.dtype, a.out, a.out_strides[0], stream);
      case Op::kEncode:
        return cuda::encode(plan, a.positions, a.position_dtype, a.sizes[0], a.dtype, a.out, a.out_strides[0], stream);
      case Op::kAdd:
        if (axis_rows == nullptr) return cuda::add(plan, a, s, stream);
        return cuda::add_grid(plan, axis_rows->data, axis_rows->sizes[0], a, s, stream);
      case Op::kDropout: return cuda::dropout(a, s, stream);
      case Op::kRowDots:
        return cuda::row_dots(plan, a, g->angular_frequencies, memory(cuda::row_dots_scratch(a)).mutable_data_ptr(), s,
                              stream);
      case Op::kAddBackward:
        return cuda::add_backward(plan, a, g->dots, memory(cuda::row_dots_scratch(a)).mutable_data_ptr(), s, stream);
      case Op::kTreeSum:
        return cuda::tree_sum(static_cast<const double*>(a.x), a.sizes[0], static_cast<double*>(a.out),
                              memory(cuda::tree_sum_scratch(a.sizes[0])).mutable_data_ptr(), stream);
      case Op::kEmbed: return cuda::embed(plan, g->embed, s, stream);
      case Op::kEmbedBackward:  // without memory for the ids, which may be expanded
        if (b.num_embeddings == 0 || b.sizes[b.rank - 1] == 0) return SINPE_OK;
        return cuda::embed_backward(b, memory(cuda::embed_backward_scratch(b)).mutable_data_ptr(), s, stream);
    }
    return SINPE_BAD_ARGUMENT;
  }

  // Memory from PyTorch's caching allocator; `bytes` must be a multiple of 8.
  Tensor memory(int64_t bytes) const {
    return new_tensor({nullptr, kDeviceType, device, 1, SINPE_FLOAT64, {bytes / 8}, {1}});
  }
};

bool is_ready(int32_t device) {
  try {
    return !cuda::is_capturing(Call(device).stream);
  } catch (...) {  // the caller then lets Python make the call, which raises the error
    return false;
  }
}

const sinpe::Kernels kKernels{sizeof(sinpe::Kernels), /*in_host_memory=*/false, /*max_elements=*/int64_t{1} << 31,
                              is_ready, sinpe::run_operator<Call>};

std::string cuda_arithmetic() { return cuda::arithmetic(); }

#ifdef SINPE_EMULATED
std::string cpu_isa() { return "emulated"; }
#endif

}  // namespace

const sinpe::Kernels& sinpe_torch::kernels() { return kKernels; }
extern "C" SINPE_API const sinpe::Kernels* sinpe_kernels() { return &kKernels; }

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, SINPE_CUDA_KEY, m) { implement(m); }

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CompositeExplicitAutograd, m) {
  m.impl("cuda_arithmetic", TORCH_BOX(&cuda_arithmetic));
#ifdef SINPE_EMULATED
  m.impl("cpu_isa", TORCH_BOX(&cpu_isa));
#endif
}
