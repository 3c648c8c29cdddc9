// Emulated launches, for compilers other than nvcc: blocks run one after the other, and the threads of a block are the
// iterations of a loop per phase. No device is needed, so AddressSanitizer and UBSan can check the kernels.
//
// Shared memory is initialised to NaN. Tests vary the order of threads and blocks, which a device does not define, and
// remove a barrier to verify that its absence is detected.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <typeinfo>
#include <vector>

#include "cuda/launchers.h"

namespace sinpe {
namespace cuda {
namespace on_host {

// Order of the threads of a block and of the blocks. kVarying: a different one of the other three for every launch.
enum class Order : int32_t { kAscending, kDescending, kShuffled, kVarying };

struct Settings {
  Order order = Order::kVarying;
  int32_t dropped_barrier = -1;  // index of the removed barrier, 0 for the one after the first phase; -1 for none
  int32_t multiprocessors = 0;   // of the emulated device; 0: varies from launch to launch
  bool skips = false;            // launches do nothing: for the host's time (tools/cuda_on_host)
  void (*launch_hook)(const char* body, int32_t phases) = nullptr;  // if not null, called with each launched functor
};

// Counts since the start of the process.
struct Counters {
  int64_t device_queries;  // queries that would go to the CUDA runtime
  int64_t launches;
};
Counters& counters();

// The settings of the process.
Settings& settings();

// The order of the next launch: never kVarying.
Order next_order();

// 0, 1, ..., n - 1 in the given order; `salt` seeds a shuffle.
std::vector<uint32_t> ordered(int64_t n, Order order, uint64_t salt);

template <class Body, int kPhase>
void run_phase(const Body& body, uint32_t block, int thread, typename Body::Shared& shared) {
  body.template phase<kPhase>(block, thread, shared);
  if constexpr (kPhase + 1 < Body::kPhases) {
    if (settings().dropped_barrier == kPhase) run_phase<Body, kPhase + 1>(body, block, thread, shared);
  }
}

template <class Body, int kPhase>
void run_phases(const Body& body, uint32_t block, Order order, typename Body::Shared& shared) {
  if (kPhase == 0 || settings().dropped_barrier != kPhase - 1) {
    for (const uint32_t thread : ordered(Body::kThreads, order, uint64_t{block} * Body::kPhases + kPhase))
      run_phase<Body, kPhase>(body, block, static_cast<int>(thread), shared);
  }
  if constexpr (kPhase + 1 < Body::kPhases) run_phases<Body, kPhase + 1>(body, block, order, shared);
}

template <class Body>
void run(const Body& body, int64_t blocks) {
  counters().launches += 1;
  if (settings().skips) return;
  if (settings().launch_hook != nullptr) settings().launch_hook(typeid(Body).name(), Body::kPhases);
  const std::unique_ptr<typename Body::Shared> shared(new typename Body::Shared);
  const Order order = next_order();
  for (const uint32_t block : ordered(blocks, order, 0)) {
    std::memset(static_cast<void*>(shared.get()), 0xff, sizeof *shared);  // undefined on a device; here NaN
    run_phases<Body, 0>(body, block, order, *shared);
  }
}

}  // namespace on_host
}  // namespace cuda
}  // namespace sinpe
