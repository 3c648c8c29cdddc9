// Conversion of C++ exceptions to the statuses of the C interface, also within parallel_for.
#pragma once

#include <atomic>
#include <new>
#include <stdexcept>

#include "core/dtype.h"
#include "core/layout.h"
#include "core/parallel.h"
#include "sinpe/sinpe.h"

namespace sinpe {

// Minimum number of elements per thread: with fewer, a second thread costs more than it saves.
constexpr int64_t kGrain = 32768;

// parallel_for for a body that may throw std::bad_alloc: exceptions must not propagate through a thread pool's C
// interface.
template <class F>
sinpe_status parallel_status(int64_t n, int64_t grain, const F& f) {
  std::atomic<bool> failed{false};
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    try {
      f(begin, end);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  });
  return failed ? SINPE_NO_MEMORY : SINPE_OK;
}

// Runs fn; returns SINPE_NO_MEMORY if an allocation fails.
template <class F>
sinpe_status catch_out_of_memory(const F& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return SINPE_NO_MEMORY;
  } catch (const std::length_error&) {  // a vector larger than max_size()
    return SINPE_NO_MEMORY;
  }
}

}  // namespace sinpe
