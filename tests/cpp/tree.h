// The sum defined by core/tree_sum.h, implemented directly.
#pragma once

#include <cstddef>
#include <vector>

// Sums of 64 neighbours, then sums of 64 of these, until one is left.
template <class Real>
Real summed_in_tree(std::vector<Real> terms) {
  do {
    std::vector<Real> sums((terms.size() + 63) / 64);
    for (size_t i = 0; i < terms.size(); ++i) sums[i / 64] += terms[i];
    terms = sums;
  } while (terms.size() > 1);
  return terms.empty() ? Real{0} : terms[0];
}
