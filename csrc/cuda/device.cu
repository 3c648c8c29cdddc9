// Properties of the device that launches depend on, and launch errors.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "cuda/launch.h"

namespace sinpe {
namespace cuda {
namespace {

thread_local const char* last_launch_error = "no error";
thread_local int current_device = -1;  // the current device if use_device has set it, else -1

#if !defined(__CUDACC__)
void count_device_query() { on_host::counters().device_queries += current_device < 0 ? 1 : 0; }
#endif

enum class Choice { kByDevice, kSingle, kDouble };

Choice chosen_arithmetic() {
  static const Choice choice = [] {
    const char* text = std::getenv("SINPE_EXT_CUDA_ARITHMETIC");
    if (text != nullptr && std::strcmp(text, "single") == 0) return Choice::kSingle;
    return text != nullptr && std::strcmp(text, "double") == 0 ? Choice::kDouble : Choice::kByDevice;
  }();
  return choice;
}

#if defined(__CUDACC__)

// Clears an error that is not caused by a launch, so that the next launch does not report it.
int clear_error() {
  (void)cudaGetLastError();
  return 0;
}

// An attribute of the current device, cached: the query takes longer than the host's part of a launch.
int attribute(cudaDeviceAttr which, std::atomic<int>* known) {
  constexpr int kMaxDevices = 64;
  int device = current_device;
  if (device < 0 && cudaGetDevice(&device) != cudaSuccess) return clear_error();
  std::atomic<int>* slot = device < kMaxDevices ? known + device : nullptr;
  const int before = slot == nullptr ? 0 : slot->load(std::memory_order_relaxed);
  if (before != 0) return before;
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) return clear_error();
  if (slot != nullptr) slot->store(value, std::memory_order_relaxed);
  return value;
}

std::atomic<int> known_multiprocessors[64], known_ratios[64];

#endif

}  // namespace

int multiprocessors() {
#if defined(__CUDACC__)
  const int count = attribute(cudaDevAttrMultiProcessorCount, known_multiprocessors);
  return count > 0 ? count : 1;
#else
  count_device_query();
  if (on_host::settings().multiprocessors > 0) return on_host::settings().multiprocessors;
  // There is no device: the number varies, also between the queries of a launch, so that tests cover every partition of
  // the work.
  constexpr int kCounts[] = {1, 132, 6, 20, 48};
  static std::atomic<uint32_t> calls{0};
  return kCounts[(calls++ * 2654435761u >> 16) % 5];
#endif
}

sinpe_status use_device(int device) {
  current_device = -1;
#if defined(__CUDACC__)
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current != device) {
    const cudaError_t error = cudaSetDevice(device);
    if (error != cudaSuccess) {
      clear_error();
      return launch_failed(cudaGetErrorString(error));
    }
  }
#else
  on_host::counters().device_queries += 1;
  if (device < 0) return launch_failed("a device has a number from 0 on");
#endif
  current_device = device;
  return SINPE_OK;
}

bool in_double() {
#if !defined(__CUDACC__)
  count_device_query();
#endif
  if (chosen_arithmetic() != Choice::kByDevice) return chosen_arithmetic() == Choice::kDouble;
#if defined(__CUDACC__)
  return attribute(cudaDevAttrSingleToDoublePrecisionPerfRatio, known_ratios) == 2;
#else
  return true;
#endif
}

bool is_capturing(Stream stream) {
#if defined(__CUDACC__)
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  if (error != cudaSuccess) clear_error();
  return error != cudaSuccess || status != cudaStreamCaptureStatusNone;
#else
  (void)stream;
  return false;
#endif
}

sinpe_status launch_failed(const char* why) {
  last_launch_error = why;
  return SINPE_LAUNCH_FAILED;
}

const char* launch_error() { return last_launch_error; }

const char* arithmetic() {
  current_device = -1;  // the current device may have changed
  return in_double() ? "double" : "single";
}

#if !defined(__CUDACC__)

on_host::Settings& on_host::settings() {
  static Settings settings = [] {
    Settings initial;
    initial.skips = std::getenv("CUDA_ON_HOST_SKIPS_LAUNCHES") != nullptr;
    return initial;
  }();
  return settings;
}

on_host::Counters& on_host::counters() {
  static Counters counters{};
  return counters;
}

on_host::Order on_host::next_order() {
  static std::atomic<uint32_t> launches{0};
  const Order order = settings().order;
  return order == Order::kVarying ? static_cast<Order>(launches++ % 3) : order;
}

std::vector<uint32_t> on_host::ordered(int64_t n, Order order, uint64_t salt) {
  std::vector<uint32_t> rng_offsets(static_cast<size_t>(n));
  std::iota(rng_offsets.begin(), rng_offsets.end(), 0u);
  if (order == Order::kDescending) std::reverse(rng_offsets.begin(), rng_offsets.end());
  if (order == Order::kShuffled)
    std::shuffle(rng_offsets.begin(), rng_offsets.end(), std::minstd_rand(static_cast<uint32_t>(salt) + 1));
  return rng_offsets;
}

#endif

}  // namespace cuda
}  // namespace sinpe
