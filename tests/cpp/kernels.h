// The row kernels that this CPU supports, and element types for tests of all of them.
#pragma once

#include <vector>

#include "cpu/rows.h"
#include "sinpe/sinpe.h"

inline std::vector<const sinpe::RowKernels*> kernel_sets() {
  std::vector<const sinpe::RowKernels*> sets = {&sinpe::kRowKernelsDefault};
#if defined(SINPE_X86_LEVELS)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(&sinpe::kRowKernelsV3);
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) sets.push_back(&sinpe::kRowKernelsV4);
#endif
  return sets;
}

template <class T>
constexpr sinpe_dtype dtype_of() {
  return std::is_same<T, float>::value             ? SINPE_FLOAT32
         : std::is_same<T, double>::value          ? SINPE_FLOAT64
         : std::is_same<T, sinpe::bfloat16>::value ? SINPE_BFLOAT16
                                                   : SINPE_FLOAT16;
}

// v rounded to T.
template <class T>
T rounded(sinpe::accumulate_t<T> v) {
  T out;
  sinpe::round_store(&out, v);
  return out;
}

template <class T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// The result of dropout for one element v.
template <class T>
T dropped(sinpe::accumulate_t<T> v, const sinpe_dropout_arguments& d, uint64_t element) {
  if (d.drop_threshold == 0) return rounded<T>(v);
  const uint32_t drop = static_cast<uint32_t>(d.drop_threshold);
  if (!sinpe::is_kept(element, static_cast<uint64_t>(d.seed), drop)) return T{};
  return rounded<T>(v * static_cast<sinpe::accumulate_t<T>>(65536.0 / (65536 - d.drop_threshold)));
}
