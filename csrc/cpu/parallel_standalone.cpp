// Threads for builds without torch: OpenMP in the CMake library, threads started by each call in the NumPy module.
#include "core/parallel.h"

#include <algorithm>

#include "cpu/own_threads.h"

#if defined(SINPE_OPENMP)
#include <omp.h>
#else
#include <cstdlib>
#include <thread>
#endif

namespace sinpe {

#if defined(SINPE_OPENMP)

int64_t parallel_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

#else

// OMP_NUM_THREADS also controls NumPy's own libraries.
int64_t parallel_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const long wanted = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  static const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());  // the system reads a file
  return wanted > 0 ? std::min<int64_t>(wanted, 4 * cores) : cores;
}

#endif

void parallel_ranges(int64_t n, int64_t grain, RangeFunction fn, void* context) {
  const int64_t parts = std::max<int64_t>(1, std::min(parallel_threads(), n / std::max<int64_t>(1, grain)));
#if defined(SINPE_OPENMP)
  if (!created_by_fork()) {
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static, 1)
    for (int64_t k = 0; k < parts; ++k) fn(n * k / parts, n * (k + 1) / parts, context);
    return;
  }
#endif
  own_thread_ranges(n, parts, fn, context);
}

}  // namespace sinpe
