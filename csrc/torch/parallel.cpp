// Kernels run on torch's own thread pool: no second OpenMP runtime, and torch.set_num_threads is obeyed.
#include "core/parallel.h"

#include <torch/csrc/stable/ops.h>

namespace sinpe {

int64_t parallel_threads() { return static_cast<int64_t>(torch::stable::get_num_threads()); }

void parallel_ranges(int64_t n, int64_t grain, RangeFunction fn, void* context) {
  torch::stable::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) { fn(begin, end, context); });
}

}  // namespace sinpe
