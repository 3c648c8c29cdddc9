// The interface to the thread pool. Kernels call parallel_for; the implementation is chosen at link time: torch's pool
// (csrc/torch/parallel.cpp), or OpenMP or std::thread (csrc/cpu/parallel_standalone.cpp).
#pragma once

#include <cstdint>

namespace sinpe {

using RangeFunction = void (*)(int64_t begin, int64_t end, void* context);

// Calls fn on disjoint ranges that cover [0, n), each at least `grain` long if n allows. fn must not throw.
void parallel_ranges(int64_t n, int64_t grain, RangeFunction fn, void* context);

// Threads that a large parallel_for would use.
int64_t parallel_threads();

template <class F>
void parallel_for(int64_t n, int64_t grain, const F& f) {
  if (n <= 0) return;
  if (n <= grain) return f(int64_t{0}, n);
  parallel_ranges(
      n, grain, [](int64_t begin, int64_t end, void* context) { (*static_cast<const F*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace sinpe
