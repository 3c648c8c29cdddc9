// What the row kernels do to elements of type T, with or without dropout.
#pragma once

#include "core/philox.h"
#include "core/round.h"

namespace sinpe {

constexpr int kAddSlices = 2;         // slices of x that share one load of the encoding
constexpr int kDotAccumulators = 16;  // interleaved partial sums of a dot: its order is that of every instruction set

template <class T>
struct Elementwise {
  using Real = accumulate_t<T>;
  // out[k][i] = scale * x[k][i] + row[i] for `count` slices of x, at most kAddSlices, rounded to Real after each step,
  // then dropout, then rounded to T; row already holds round(alpha*PE). Null row: scale * x alone. first[k] is the
  // element of x[k][0], not read without dropout. x[k] and out[k] may be one memory.
  void (*add)(const T* const* x, const Real* row, T* const* out, int count, int64_t n, Real scale,
              const Dropout& dropout, const uint64_t* first);
  // The sum of x[i] * row[i] * weights[i] over kept elements, in double. Null weights: ones. The kept scale is the
  // caller's.
  double (*dot)(const T* x, const Real* row, const double* weights, int64_t n, const Dropout& dropout, uint64_t first);
  // sum[i] += x[i] where kept.
  void (*accumulate)(const T* x, Real* sum, int64_t n, const Dropout& dropout, uint64_t first);
  // out[i] = factor * row[i], rounded to Real, then to T.
  void (*round)(const Real* row, Real factor, T* out, int64_t n);
};

// Asks for the first elements of a row that is used soon: rows that ids pick lie where no hardware prefetcher looks.
template <class T>
SINPE_HD void prefetch_row(const T* row, int64_t n) {
#if defined(__GNUC__) || defined(__clang__)
  constexpr int64_t kLine = 64, kMost = 1024;  // bytes
  const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
  for (int64_t k = 0; k < bytes && k < kMost; k += kLine)
    __builtin_prefetch(reinterpret_cast<const char*>(row) + k, 0, 2);
#endif
}

}  // namespace sinpe
