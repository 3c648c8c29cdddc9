// The order in which many terms are added up: a tree.
//
// A node of level 1 is the sum of 64 neighbouring terms, a node of level 2 that of 64 neighbouring nodes of level 1, and so on
// up to the one node that is the sum of all; the last node of a level has what is left for it. A node begins with +0 and
// takes its parts in their order. So the bits of the sum depend on the terms and their order alone, not on who makes which
// node or when. Up to 64 terms that is one after the other. A term goes through at most 64 additions on each level:
//
//   |computed - exact| <= 64 * levels * u * sum of |term|,   levels = ceil(log64(n)),
//
// to first order in the unit roundoff u, where n terms one after the other have n * u.
#pragma once

#include "core/macros.h"

namespace sinpe {

constexpr int kTreeBits = 6;

// Terms under a full node of a level.
SINPE_HD constexpr int64_t terms_under(int level) { return int64_t{1} << (kTreeBits * level); }

// Levels of the tree over n terms; one where there is nothing to add.
SINPE_HD int tree_levels(int64_t n) {
  int level = 1;
  while (kTreeBits * level < 63 && n > terms_under(level)) ++level;
  return level;
}

// The sum of n terms with one running sum for each level, from 1 on, all +0 before: add(k) adds term k to that of level 1;
// carry(level) adds the sum of a level to that of the next and makes it +0. The result is in that of tree_levels(n).
template <class Add, class Carry>
void tree_sum(int64_t n, const Add& add, const Carry& carry) {
  const int levels = tree_levels(n);
  for (int64_t k = 0; k < n; ++k) {
    add(k);
    for (int level = 1; level < levels && (k + 1) % terms_under(level) == 0; ++level) carry(level);
  }
  for (int level = 1; level < levels; ++level) carry(level);
}

}  // namespace sinpe
