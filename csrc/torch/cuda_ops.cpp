// The operators on CUDA, implemented by the launchers of cuda/launchers.h, on PyTorch's current stream. All operands
// are on one device, including the plan; the host does not read them and does not wait for the device.
//
// With SINPE_EMULATED, launches are loops on the CPU (cuda/launch.h): the same binding, for tensors on the CPU.
#include "core/dtype.h"
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

void check_launch(sinpe_status status) {
  if (status == SINPE_LAUNCH_FAILED) throw_error(sinpe::status_text(status), ": ", cuda::launch_error());
  check_status(status);
}

struct Call {
  Device device;
#ifndef SINPE_EMULATED
  torch::stable::accelerator::DeviceGuard guard;
  cuda::Stream stream;
  Call(const char* name, const Tensor& t) : Call(cuda_device(name, t)) {}
  explicit Call(const Device& on) : device(on), guard(on.index), stream(current_stream(on.index)) {
    check_launch(cuda::use_device(on.index));
  }

  static Device cuda_device(const char* name, const Tensor& t) {
    const Device device = Device::of(t);
    if (device.type != aoti_torch_device_type_cuda()) {
      throw_error(name, ": expected a tensor on cuda, as another operand is, got one on ", device.text(),
                  "; move it there");
    }
    return device;
  }
#else
  cuda::Stream stream = nullptr;
  Call(const char* name, const Tensor& t) : device(Device::cpu()) { device.expect(name, t); }
  explicit Call(const Device&) : device(Device::cpu()) {}
#endif
  cuda::DeviceScalars scalars{};

  Tensor register_output(Tensor out) const { return out; }

  // The contents are checked on the device.
  cuda::DevicePlan plan(const Tensor& plan, int64_t dim, const char* name = "plan") const {
    const PackedArray packed_plan(device, plan, name);
    return {packed_plan.data, packed_plan.size, dim};
  }
  void expect_dim(const cuda::DevicePlan&, int64_t dim) const {
    expect(dim >= 1, "dim: expected 1 or more, got ", dim);
  }

  // Scalars on the device are read by the kernel.
  void set_alpha(const Optional& alpha, sinpe_add_arguments* a) {
    if (is_host_number(alpha)) {
      sinpe_dtype dtype;
      const void* number = alpha_of(Device::cpu(), alpha, &dtype);
      a->alpha = sinpe::value_of(number, dtype);
    } else {
      scalars.alpha = alpha_of(device, alpha, &scalars.alpha_dtype);
    }
  }
  void set_seed(const Optional& seed, int64_t drop_threshold, sinpe_dropout_arguments* d) {
    if (is_host_number(seed)) {
      d->seed = *seed_of(Device::cpu(), seed, drop_threshold);
    } else {
      scalars.seed = seed_of(device, seed, drop_threshold);
    }
  }

  // Memory from PyTorch's caching allocator; `bytes` must be a multiple of 8.
  Tensor memory(int64_t bytes) const { return new_dense(device, {bytes / 8}, SINPE_FLOAT64); }

  void table(const cuda::DevicePlan& plan, int64_t start, int64_t length, sinpe_dtype dtype, void* out,
             int64_t stride) const {
    check_launch(cuda::table(plan, start, length, dtype, out, stride, stream));
  }
  void encode(const cuda::DevicePlan& plan, const void* positions, sinpe_dtype position_dtype, int64_t count,
              sinpe_dtype dtype, void* out, int64_t stride) const {
    check_launch(cuda::encode(plan, positions, position_dtype, count, dtype, out, stride, stream));
  }
  void add(const cuda::DevicePlan& plan, const sinpe_add_arguments& a) const {
    check_launch(cuda::add(plan, a, scalars, stream));
  }
  void add_grid(const cuda::DevicePlan& grid, const void* values, int64_t n_values,
                const sinpe_add_arguments& a) const {
    check_launch(cuda::add_grid(grid, values, n_values, a, scalars, stream));
  }
  void dropout(const sinpe_add_arguments& a) const { check_launch(cuda::dropout(a, scalars, stream)); }
  void row_dots(const cuda::DevicePlan& plan, const sinpe_add_arguments& a, const double* angular_frequencies) const {
    Tensor scratch = memory(cuda::row_dots_scratch(a));
    check_launch(cuda::row_dots(plan, a, angular_frequencies, scratch.mutable_data_ptr(), scalars, stream));
  }
  void add_backward(const cuda::DevicePlan& plan, const sinpe_add_arguments& a, double* dots) const {
    Tensor scratch = memory(cuda::row_dots_scratch(a));
    check_launch(cuda::add_backward(plan, a, dots, scratch.mutable_data_ptr(), scalars, stream));
  }
  void tree_sum(const double* terms, int64_t n, double* out) const {
    Tensor scratch = memory(cuda::tree_sum_scratch(n));
    check_launch(cuda::tree_sum(terms, n, out, scratch.mutable_data_ptr(), stream));
  }
  void embed(const cuda::DevicePlan& plan, const sinpe_embed_arguments& e) const {
    check_launch(cuda::embed(plan, e, scalars, stream));
  }
  void embed_backward(const sinpe_embed_backward_arguments& b) const {
    if (b.num_embeddings == 0 || b.sizes[b.rank - 1] == 0) return;  // no memory for the ids, which may be expanded
    Tensor scratch = memory(cuda::embed_backward_scratch(b));
    check_launch(cuda::embed_backward(b, scratch.mutable_data_ptr(), scalars, stream));
  }
};

// The table of core/kernels.h.

template <class Launch>
sinpe_status launched(int32_t device, const Launch& launch) {
  try {
    const Call call(Device{aoti_torch_device_type_cuda(), device});
    return launch(call.stream);
  } catch (...) {  // the caller then takes the general path, which raises the error
    return SINPE_LAUNCH_FAILED;
  }
}

const sinpe::Kernels kernels{
    sizeof(sinpe::Kernels),
    /*in_host_memory=*/false,
    int64_t{1} << 31,
    [](int32_t device) {
      return launched(device, [](cuda::Stream stream) {
               return cuda::is_capturing(stream) ? SINPE_LAUNCH_FAILED : SINPE_OK;
             }) == SINPE_OK;
    },
    [](int32_t device, const sinpe::DevicePlan& plan, int64_t start, int64_t length, sinpe_dtype dtype, void* out,
       int64_t row_stride) {
      return launched(device, [&](cuda::Stream stream) {
        return cuda::table(plan, start, length, dtype, out, row_stride, stream);
      });
    },
    [](int32_t device, const sinpe::DevicePlan& plan, const void* positions, sinpe_dtype position_dtype, int64_t count,
       sinpe_dtype dtype, void* out, int64_t row_stride) {
      return launched(device, [&](cuda::Stream stream) {
        return cuda::encode(plan, positions, position_dtype, count, dtype, out, row_stride, stream);
      });
    },
    [](int32_t device, const sinpe::DevicePlan& plan, const sinpe_add_arguments& a, const sinpe::DeviceScalars& scalars,
       bool) { return launched(device, [&](cuda::Stream stream) { return cuda::add(plan, a, scalars, stream); }); },
    [](int32_t device, const sinpe::DevicePlan& grid, const void* values, int64_t n_values,
       const sinpe_add_arguments& a, bool) {
      return launched(device,
                      [&](cuda::Stream stream) { return cuda::add_grid(grid, values, n_values, a, {}, stream); });
    },
    [](int32_t device, const sinpe_add_arguments& a, bool) {
      return launched(device, [&](cuda::Stream stream) { return cuda::dropout(a, {}, stream); });
    },
    /*alpha_gradient=*/nullptr,
    [](int32_t device, const sinpe::DevicePlan& plan, sinpe_embed_arguments* e, const sinpe::DeviceScalars& scalars) {
      return launched(device, [&](cuda::Stream stream) { return cuda::embed(plan, *e, scalars, stream); });
    },
};

std::string cuda_arithmetic() { return cuda::arithmetic(); }

#ifdef SINPE_EMULATED
std::string cpu_isa() { return "emulated"; }
#endif

}  // namespace

extern "C" SINPE_API const sinpe::Kernels* sinpe_kernels() { return &kernels; }

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, SINPE_CUDA_KEY, m) { Operators<Call>::implement(m); }

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CompositeExplicitAutograd, m) {
  m.impl("cuda_arithmetic", TORCH_BOX(&cuda_arithmetic));
#ifdef SINPE_EMULATED
  m.impl("cpu_isa", TORCH_BOX(&cpu_isa));
#endif
}
