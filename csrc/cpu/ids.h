// Token ids: iteration in row-major order, the range check before anything is written, and prefetching of their rows.
#pragma once

#include "core/layout.h"

namespace sinpe {

// Calls fn(token, id) for every id while fn returns true. `token` is the row-major index over the n dimensions `sizes`.
template <class F>
bool each_id(const int64_t* ids, const int64_t* sizes, const int64_t* strides, int n, const F& fn) {
  const int64_t width = sizes[n - 1], step = strides[n - 1], rows = product(sizes, n - 1);
  for (int64_t row = 0, token = 0; row < rows; ++row) {
    const int64_t* id = ids + offset_at(sizes, strides, n - 1, row);
    for (int64_t i = 0; i < width; ++i, ++token) {
      if (!fn(token, id[i * step])) return false;
    }
  }
  return true;
}

// Returns false if an id is not a row of the weight; *bad is then the first such id.
inline bool check_ids(const int64_t* ids, const int64_t* sizes, const int64_t* strides, int n, int64_t num_embeddings,
                      int64_t* bad) {
  return each_id(ids, sizes, strides, n, [&](int64_t, int64_t id) {
    if (static_cast<uint64_t>(id) < static_cast<uint64_t>(num_embeddings)) return true;
    *bad = id;
    return false;
  });
}

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
