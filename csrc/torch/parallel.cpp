// Kernels run on torch's thread pool: no second OpenMP runtime, and torch.set_num_threads applies.
#include "core/parallel.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "cpu/own_threads.h"

namespace sinpe {

int64_t parallel_threads() { return static_cast<int64_t>(torch::stable::get_num_threads()); }

void parallel_ranges(int64_t n, int64_t grain, RangeFunction fn, void* context) {
  if (created_by_fork()) {
    const int64_t most = n / std::max<int64_t>(1, grain);
    return own_thread_ranges(n, std::max<int64_t>(1, std::min(parallel_threads(), most)), fn, context);
  }
  torch::stable::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) { fn(begin, end, context); });
}

}  // namespace sinpe
