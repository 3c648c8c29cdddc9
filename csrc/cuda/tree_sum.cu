// tree_sum: the sum of many doubles in the order of core/tree_sum.h. A block sums two levels of the tree.
#include "core/tree_sum.h"
#include "cuda/launch.h"

namespace sinpe {
namespace cuda {
namespace {

constexpr int kNode = 1 << kTreeBits;           // terms of a node
constexpr int64_t kBlockTerms = kNode * kNode;  // terms of a block, of a node of the second level

struct TreeSum {
  static constexpr int kPhases = 3, kThreads = 256, kBlocks = 1;
  struct Shared {
    double terms[kNode][kNode + 1];  // padded, so that neighbouring nodes use different banks
    double nodes[kNode];
  };

  const double* terms;
  int64_t n;
  double* sums;  // one per block

  template <int kPhase>
  SINPE_HD void phase(uint32_t block, int thread, Shared& shared) const {
    const int64_t first = block * kBlockTerms, left = n - first;
    if constexpr (kPhase == 0) {
      for (int k = thread; k < kBlockTerms && k < left; k += kThreads)
        shared.terms[k / kNode][k % kNode] = terms[first + k];
    } else if constexpr (kPhase == 1) {
      if (thread < kNode) shared.nodes[thread] = sum(shared.terms[thread], left - int64_t{thread} * kNode);
    } else {
      if (thread == 0) sums[block] = sum(shared.nodes, (left + kNode - 1) / kNode);
    }
  }

 private:
  SINPE_HD static double sum(const double* children, int64_t count) {
    double total = 0.0;
    for (int k = 0; k < kNode && k < count; ++k) total += children[k];
    return total;
  }
};

int64_t blocks_for(int64_t n) { return n > kBlockTerms ? (n + kBlockTerms - 1) / kBlockTerms : 1; }

}  // namespace
}  // namespace cuda
}  // namespace sinpe

int64_t sinpe::cuda::tree_sum_scratch(int64_t n) {
  int64_t sums = 0;
  while (n > kBlockTerms) sums += n = blocks_for(n);
  return sums * int64_t{sizeof(double)};
}

sinpe_status sinpe::cuda::tree_sum(const double* terms, int64_t n, double* out, void* scratch, Stream stream) {
  if (n < 0 || out == nullptr || (n > 0 && terms == nullptr) || (scratch == nullptr && tree_sum_scratch(n) != 0))
    return SINPE_BAD_ARGUMENT;
  double* sums = static_cast<double*>(scratch);
  for (; n > kBlockTerms; n = blocks_for(n)) {
    const sinpe_status status = launch(TreeSum{terms, n, sums}, blocks_for(n), stream);
    if (status != SINPE_OK) return status;
    terms = sums;
    sums += blocks_for(n);
  }
  return launch(TreeSum{terms, n, out}, 1, stream);
}
