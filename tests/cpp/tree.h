// The sum that core/tree_sum.h defines, made in the plainest way.
#pragma once

#include <cstddef>
#include <vector>

// Each 64 neighbours become their sum, and those each 64 again, until one is left.
template <class Real>
Real summed_in_tree(std::vector<Real> terms) {
  do {
    std::vector<Real> sums((terms.size() + 63) / 64);
    for (size_t i = 0; i < terms.size(); ++i) sums[i / 64] += terms[i];
    terms = sums;
  } while (terms.size() > 1);
  return terms.empty() ? Real{0} : terms[0];
}
