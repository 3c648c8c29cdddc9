// Where things lie: offsets of row-major indices, and the numbers that dropout counts elements by.
#pragma once

#include "core/philox.h"
#include "cpu/elementwise.h"
#include "sinpe/sinpe.h"

namespace sinpe {

// Offset of the index-th place of the n dimensions `sizes`, counted row-major.
inline int64_t offset_at(const int64_t* sizes, const int64_t* strides, int n, int64_t index) {
  int64_t offset = 0;
  for (int d = n - 1; d > 0; --d) {
    offset += index % sizes[d] * strides[d];
    index /= sizes[d];
  }
  return n > 0 ? offset + index * strides[0] : 0;
}

// False for a negative size and for more elements than int64 counts.
inline bool valid_sizes(const int64_t* sizes, int rank) {
  int64_t all = 1;
  bool counted = true, empty = false;
  for (int d = 0; d < rank; ++d) {
    if (sizes[d] < 0) return false;
    empty = empty || sizes[d] == 0;
    counted = counted && !__builtin_mul_overflow(all, sizes[d], &all);
  }
  return counted || empty;
}

inline int64_t product(const int64_t* sizes, int n) {
  int64_t all = 1;
  for (int d = 0; d < n; ++d) all *= sizes[d];
  return all;
}

inline bool valid_dropout(const sinpe_dropout_arguments& a) { return a.drop >= 0 && a.drop <= kDropAll; }

// The numbers of a tensor's elements: base + the sum of index * steps.
struct Elements {
  uint64_t base = 0;
  int64_t steps[SINPE_MAX_RANK] = {};

  Elements(const sinpe_dropout_arguments& a, const int64_t* sizes, int rank) {
    if (a.elements != nullptr) {
      base = static_cast<uint64_t>(a.elements[0]);
      for (int d = 0; d < rank; ++d) steps[d] = a.elements[1 + d];
      return;
    }
    int64_t step = 1;
    for (int d = rank - 1; d >= 0; --d) {
      steps[d] = step;
      step *= sizes[d];
    }
  }
};

// What a kernel is told of dropout; `step` lies between an element's number and its neighbour's in the row.
inline Dropout dropout_of(const sinpe_dropout_arguments& a, int64_t step) {
  const uint32_t drop = static_cast<uint32_t>(a.drop);
  return {static_cast<uint64_t>(a.seed), static_cast<uint64_t>(step), drop, kept_scale(drop)};
}

}  // namespace sinpe
