// Threads for builds without torch: OpenMP in the CMake library, std::thread in the NumPy module (a pool that outlives the
// call would not survive fork; threads started and joined per call do).
#include "core/parallel.h"

#include <algorithm>

#if defined(SINPE_OPENMP)
#include <omp.h>
#else
#include <cstdlib>
#include <system_error>
#include <thread>
#include <vector>
#endif

namespace sinpe {

#if defined(SINPE_OPENMP)

int64_t parallel_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

void parallel_ranges(int64_t n, int64_t grain, RangeFunction fn, void* context) {
  const int64_t parts = std::max<int64_t>(1, std::min(parallel_threads(), n / std::max<int64_t>(1, grain)));
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static, 1)
  for (int64_t k = 0; k < parts; ++k) fn(n * k / parts, n * (k + 1) / parts, context);
}

#else

// OMP_NUM_THREADS is the setting that NumPy's own libraries obey.
int64_t parallel_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const long wanted = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return wanted > 0 ? std::min<int64_t>(wanted, 4 * cores) : cores;
}

void parallel_ranges(int64_t n, int64_t grain, RangeFunction fn, void* context) {
  const int64_t parts = std::max<int64_t>(1, std::min(parallel_threads(), n / std::max<int64_t>(1, grain)));
  std::vector<std::thread> threads;
  int64_t started = 1;  // part 0 is the caller's
  try {
    threads.reserve(static_cast<size_t>(parts));
    for (; started < parts; ++started) {
      threads.emplace_back(fn, n * started / parts, n * (started + 1) / parts, context);
    }
  } catch (const std::system_error&) {
    // The system refuses more threads: the caller does the rest.
  }
  fn(0, n / parts, context);
  for (int64_t k = started; k < parts; ++k) fn(n * k / parts, n * (k + 1) / parts, context);
  for (std::thread& thread : threads) thread.join();
}

#endif

}  // namespace sinpe
