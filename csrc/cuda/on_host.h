// How a launch runs where nvcc does not compile: blocks one after the other, and the threads of a block as the turns of a
// loop, phase after phase. Nothing of a device is needed, so AddressSanitizer and UBSan see what the kernels do.
//
// Shared memory begins as NaN. Tests turn what a device leaves open, the order of threads and blocks, and take a barrier out
// to see that something fails without it. A launch can be handed to someone else instead, who runs the same kernel's machine
// code (tools/cuda_sass).
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

// Of the threads of a block and of the blocks; kVarying: another of the three with every launch.
enum class Order : int32_t { kAscending, kDescending, kShuffled, kVarying };

struct Launch {
  const char* body;  // the functor's type, as typeid names it
  const void* bytes;
  int64_t size, blocks;
  int32_t threads, phases;
};

struct Settings {
  Order order = Order::kVarying;
  int32_t dropped_barrier = -1;  // of a kernel: 0 for the one after the first phase, and so on; -1 for none
  int32_t multiprocessors = 0;   // of the device that is not there; 0: another number with every launch
  int32_t in_double = -1;        // whether float32 rows are made in double precision there; -1: arithmetic()'s default
  bool (*taken)(const Launch*) = nullptr;  // true where it ran the launch itself
};

// Since the process began: how often kernels took their long way, and what launches would ask a device.
struct Noted {
  int64_t careful_rows;  // samples that exact arithmetic settled
  int64_t questions;     // to the CUDA runtime
  int64_t launches;
};
Noted& noted();

// Of this process.
Settings& settings();

// The order of the next launch: never kVarying.
Order next_order();

// 0, 1, ..., n - 1 in such an order; `salt` tells one shuffle from the next.
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
  noted().launches += 1;
  const Launch launch{typeid(Body).name(), &body, sizeof body, blocks, Body::kThreads, Body::kPhases};
  if (settings().taken != nullptr && settings().taken(&launch)) return;
  const std::unique_ptr<typename Body::Shared> shared(new typename Body::Shared);
  const Order order = next_order();
  for (const uint32_t block : ordered(blocks, order, 0)) {
    std::memset(static_cast<void*>(shared.get()), 0xff, sizeof *shared);  // as undefined as on a device: NaN
    run_phases<Body, 0>(body, block, order, *shared);
  }
}

}  // namespace on_host
}  // namespace cuda
}  // namespace sinpe
