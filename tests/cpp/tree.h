// The sums defined by core/tree_sum.h, implemented directly.
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

// The even of a dot product's 64 partial sums; of + 1: the odd ones.
inline double even_sums(const double* of) {
  double eight[8];
  for (int k = 0; k < 8; ++k) eight[k] = (of[8 * k] + of[8 * k + 4]) + (of[8 * k + 2] + of[8 * k + 6]);
  return ((eight[0] + eight[4]) + (eight[2] + eight[6])) + ((eight[1] + eight[5]) + (eight[3] + eight[7]));
}
