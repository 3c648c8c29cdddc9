// From C++ exceptions to the statuses of the C interface, under parallel_for as well.
#pragma once

#include <atomic>
#include <new>
#include <stdexcept>

#include "core/dtype.h"
#include "core/layout.h"
#include "core/parallel.h"
#include "sinpe/sinpe.h"

namespace sinpe {

// Elements below which a second thread costs more than it brings.
constexpr int64_t kGrain = 32768;

// parallel_for whose body may run out of memory: an exception must not cross a thread pool's C boundary.
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

// Runs fn, whose allocations may fail.
template <class F>
sinpe_status or_no_memory(const F& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return SINPE_NO_MEMORY;
  } catch (const std::length_error&) {  // a vector longer than any memory
    return SINPE_NO_MEMORY;
  }
}

}  // namespace sinpe
