// Transposition in blocks of 16 bytes x 16 bytes.
#pragma once

#include <cstdint>
#include <cstring>

namespace sinpe {

// The lower halves of two vectors of 16 bytes, interleaved; with `upper`, the upper halves.
template <bool upper, class V>
V interleaved(V a, V b) {
  constexpr int n = sizeof(V) / sizeof(a[0]), i = upper ? n / 2 : 0;
  if constexpr (n == 2) return __builtin_shufflevector(a, b, i, i + n);
  if constexpr (n == 4) return __builtin_shufflevector(a, b, i, i + n, i + 1, i + 1 + n);
  if constexpr (n == 8)
    return __builtin_shufflevector(a, b, i, i + n, i + 1, i + 1 + n, i + 2, i + 2 + n, i + 3, i + 3 + n);
}

// Writes column k of a matrix, f(value) for each of its values, from column(k) on. Rows are `stride` apart.
template <class T, class Column, class F>
void transpose(const T* from, int64_t stride, int64_t rows, int64_t columns, const Column& column, const F& f) {
  constexpr int n = 16 / sizeof(T);
  typedef T Vector __attribute__((vector_size(16)));
  const int64_t block_columns = columns / n * n, block_rows = rows / n * n;
  for (int64_t k = 0; k < block_columns; k += n) {
    T* to[n];
    for (int i = 0; i < n; ++i) to[i] = column(k + i);
    for (int64_t row = 0; row < block_rows; row += n) {
      Vector v[n], next[n];
      for (int i = 0; i < n; ++i) std::memcpy(v + i, from + (row + i) * stride + k, sizeof v[i]);
      for (int step = 1; step < n; step *= 2) {
        for (int i = 0; i < n / 2; ++i) {
          next[2 * i] = interleaved<false>(v[i], v[i + n / 2]);
          next[2 * i + 1] = interleaved<true>(v[i], v[i + n / 2]);
        }
        std::memcpy(v, next, sizeof v);
      }
      for (int i = 0; i < n; ++i) {
        v[i] = f(v[i]);
        std::memcpy(to[i] + row, v + i, sizeof v[i]);
      }
    }
  }
  for (int64_t k = 0; k < columns; ++k) {
    T* const to = column(k);
    for (int64_t row = k < block_columns ? block_rows : 0; row < rows; ++row) to[row] = f(from[row * stride + k]);
  }
}

}  // namespace sinpe
