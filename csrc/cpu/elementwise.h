// Elementwise kernels for elements of type T, with or without dropout.
#pragma once

#include "core/philox.h"
#include "core/round.h"
#include "core/tree_sum.h"
#include "cpu/stores.h"

namespace sinpe {

// Slices of x per load of the encoding: those of four streams of memory, which lie a power of two apart as a rule. Eight
// streams take 7 % longer (Xeon). In place, two take a fifth longer than four, on one thread (Zen 4).
constexpr int kAddSlices = 2, kAddSlicesInPlace = 4;

template <class T>
struct Elementwise {
  using Real = accumulate_t<T>;
  // out[k][i] = scale * x[k][i] + row[i] for `count` slices of x, at most kAddSlicesInPlace, rounded to Real after each
  // step, then dropout, then rounded to T. `row` already contains round(alpha*PE); if it is null, scale * x alone.
  // first[k] is the RNG offset of x[k][0], not read without dropout. x[k] and out[k] may be the same memory. `stores` is
  // ignored with dropout, and without a row.
  void (*add)(const T* const* x, const Real* row, T* const* out, int count, int64_t n, Real scale,
              const Dropout& dropout, const uint64_t* first, Stores stores);
  // The sum of x[i] * row[i] * weights[i] over the elements that are not dropped, in double, without the factor
  // 1 / (1 - p), which the caller applies. weights may be null: ones.
  double (*dot)(const T* x, const Real* row, const double* weights, int64_t n, const Dropout& dropout, uint64_t first);
  // sum[i] += x[i] for the elements that are not dropped.
  void (*accumulate)(const T* x, Real* sum, int64_t n, const Dropout& dropout, uint64_t first);
  // out[i] = factor * row[i], rounded to Real, then to T.
  void (*round)(const Real* row, Real factor, T* out, int64_t n);
};

// Prefetches the first elements of a row that is used soon: the hardware cannot predict rows that are selected by ids.
template <class T>
SINPE_HD void prefetch_row(const T* row, int64_t n) {
#if defined(__GNUC__) || defined(__clang__)
  constexpr int64_t kLine = 64, kMaxBytes = 1024;  // bytes
  const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
  for (int64_t k = 0; k < bytes && k < kMaxBytes; k += kLine)
    __builtin_prefetch(reinterpret_cast<const char*>(row) + k, 0, 2);
#endif
}

}  // namespace sinpe
