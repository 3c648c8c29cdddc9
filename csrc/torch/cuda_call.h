// What a call needs of its CUDA device: that it is the current one, the stream that PyTorch uses on it, and the operands
// that kernels read there.
//
// With SINPE_EMULATED the launchers are loops on the CPU (cuda/launch.h): the same binding, for tensors on the CPU.
#pragma once

#include "cuda/launchers.h"
#include "torch/arguments.h"

#ifdef SINPE_EMULATED
#define SINPE_CUDA_KEY CPU
#else
#define SINPE_CUDA_KEY CUDA
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#endif

namespace sinpe_torch {

namespace cuda = sinpe::cuda;

#ifndef SINPE_EMULATED

using CurrentStream = AOTITorchError (*)(int32_t device_index, void** stream);

// Found in the libtorch_cuda that is loaded. Neither linked, since this library loads where torch is for the CPU alone,
// nor a weak symbol, since torch loads its libraries locally.
inline CurrentStream current_stream_function() {
  void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  void* found = dlsym(library != nullptr ? library : RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream");
  expect(found != nullptr, "torch: expected aoti_torch_get_current_cuda_stream in libtorch_cuda.so, got none; ",
         "install a PyTorch that has CUDA");
  return reinterpret_cast<CurrentStream>(found);
}

inline cuda::Stream current_stream(int32_t device_index) {
  static const CurrentStream function = current_stream_function();
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(function(device_index, &stream));
  return stream;
}

#endif

inline void launched(sinpe_status status) {
  if (status == SINPE_LAUNCH_FAILED) refuse(sinpe::status_text(status), ": ", cuda::launch_error());
  succeed(status);
}

// One call on the device of `t`, its first operand.
struct Call {
  Device device;
#ifndef SINPE_EMULATED
  torch::stable::accelerator::DeviceGuard guard;
  cuda::Stream stream;
  Call(const char* name, const Tensor& t)
      : device(cuda_device(name, t)), guard(device.index), stream(current_stream(device.index)) {
    launched(cuda::use_device(device.index));
  }

 private:
  static Device cuda_device(const char* name, const Tensor& t) {
    const Device device = Device::of(t);
    if (device.type != aoti_torch_device_type_cuda()) {
      refuse(name, ": expected a tensor on cuda, as another operand is, got one on ", device.text(), "; move it there");
    }
    return device;
  }
#else
  cuda::Stream stream = nullptr;
  Call(const char* name, const Tensor& t) : device(Device::cpu()) { device.expect(name, t); }
#endif
};

// `dim`: the channels of the rows to be made, as the plan's are checked on the device.
inline cuda::DevicePlan plan_of(const Call& call, const Tensor& plan, int64_t dim, const char* name = "plan") {
  const Words words(call.device, plan, name);
  return {words.data, words.size, dim};
}

inline cuda::DeviceScalars scalars_of(const Call& call, const Optional& alpha, const Optional& seed, int64_t drop) {
  cuda::DeviceScalars scalars{};
  scalars.alpha = alpha_of(call.device, alpha, &scalars.alpha_dtype);
  scalars.seed = seed_of(call.device, seed, drop);
  return scalars;
}

}  // namespace sinpe_torch
