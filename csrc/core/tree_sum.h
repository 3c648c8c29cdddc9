// The order in which many terms are added.
//
// Tree summation: a node of level 1 is the sum of 64 consecutive terms, a node of level 2 is the sum of 64 consecutive
// nodes of level 1, and so on up to the root; the last node of a level has the remaining terms or nodes. A node starts
// at +0 and adds its children in order. So the bits of the sum depend only on the terms and their order, not on which
// thread computes which node, or when. For up to 64 terms this is sequential summation. A term is part of at most 64
// additions per level:
//
//   |computed - exact| <= 64 * levels * u * sum of |term|,   levels = ceil(log64(n)),
//
// to first order in the unit roundoff u; sequential summation has n * u.
#pragma once

#include "core/macros.h"

namespace sinpe {

constexpr int kTreeBits = 6;

// Number of terms below a full node of a level.
SINPE_HD constexpr int64_t terms_under(int level) { return int64_t{1} << (kTreeBits * level); }

// Levels of the tree over n terms; 1 for n = 0.
SINPE_HD int tree_levels(int64_t n) {
  int level = 1;
  while (kTreeBits * level < 63 && n > terms_under(level)) ++level;
  return level;
}

// Sums n terms with one running sum per level, starting at level 1, all initialised to +0: add(k) adds term k to the
// sum of level 1; carry(level) adds the sum of a level to that of the next and resets it to +0. The result is the sum
// of level tree_levels(n).
template <class Add, class Carry>
void tree_sum(int64_t n, const Add& add, const Carry& carry) {
  const int levels = tree_levels(n);
  for (int64_t k = 0; k < n; ++k) {
    add(k);
    for (int level = 1; level < levels && (k + 1) % terms_under(level) == 0; ++level) carry(level);
  }
  for (int level = 1; level < levels; ++level) carry(level);
}

inline double tree_sum(const double* terms, int64_t n) {
  double sums[64 / kTreeBits + 2] = {};  // by level
  tree_sum(
      n, [&](int64_t k) { sums[1] += terms[k]; },
      [&](int level) {
        sums[level + 1] += sums[level];
        sums[level] = 0.0;
      });
  return sums[tree_levels(n)];
}

// A dot product over channels has kDotSums partial sums in double: channel c is added to sum c % kDotSums, in ascending
// order of the channels. In CUDA, each of eight threads has eight consecutive ones. At the end, the four even and the
// four odd sums of each eight are added separately (sum_of_four), then those of the eights (sum_of_eight), and last the
// even and the odd total.
constexpr int kDotSums = 64;

// `at(k)` is the k-th term: a number, or a vector of them.
template <class At>
SINPE_HD auto sum_of_four(const At& at) {
  return (at(0) + at(2)) + (at(1) + at(3));
}
template <class At>
SINPE_HD auto sum_of_eight(const At& at) {
  return ((at(0) + at(4)) + (at(2) + at(6))) + ((at(1) + at(5)) + (at(3) + at(7)));
}

}  // namespace sinpe
