// Random calls, and the results of plain loops. Buffers have exactly the size that a call may access, so that
// AddressSanitizer detects any access beyond.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/launchers.h"
#include "kernels.h"
#include "plans.h"
#include "tree.h"

namespace cases {

#if defined(SINPE_CUDA_ON_HOST)
constexpr bool kHasCuda = true;  // the CUDA kernels are linked, as plain C++
#else
constexpr bool kHasCuda = false;
#endif
inline bool uses_cuda = kHasCuda;  // false: only the CPU is tested
// Whether CUDA kernels compute float32 rows as the CPU does, and not within one ULP (SINPE_EXT_CUDA_ARITHMETIC=single).
inline bool is_exact() {
  if constexpr (kHasCuda) return std::string(sinpe::cuda::arithmetic()) == "double";
  return true;
}

using sinpe::cuda::DevicePlan;
using sinpe::cuda::DeviceScalars;

#if defined(SINPE_SANITIZE)
constexpr int kFewer = 4;  // number of cases, for those that take ten times as long
#else
constexpr int kFewer = 1;
#endif

inline int64_t below(check::Random& random, int64_t n) {
  return static_cast<int64_t>(random.next() % static_cast<uint64_t>(n));
}
template <class Container>
auto one_of(check::Random& random, const Container& values) {
  return values[static_cast<size_t>(below(random, static_cast<int64_t>(std::size(values))))];
}

inline DevicePlan on_device(const TestPlan& p) {
  return {p.words.data(), static_cast<int64_t>(p.words.size()), p.plan.dim};
}

inline TestPlan random_plan(check::Random& random, int64_t dim) {
  const int layout = dim == 1 ? 0 : static_cast<int>(below(random, 3));
  const double amplitudes[] = {1.0, 1.0, 0.7, -1.25}, bases[] = {10000.0, 10000.0, 500.0, 1e30};
  return make_plan(dim, layout, below(random, 3) == 0, one_of(random, amplitudes), one_of(random, bases));
}

// A tensor's memory, starting `offset` elements into the allocation.
template <class T>
struct Buffer {
  std::vector<T> storage;
  int64_t offset = 0;
  T* data() { return storage.data() + offset; }
};

// Strides of a tensor of these sizes in one of several layouts; `span` becomes the number of elements from first to
// last.
inline void layout(check::Random& random, const int64_t* sizes, int rank, bool may_overlap, bool channels_last,
                   int64_t* strides, int64_t* span, bool turned = false) {
  std::vector<int> order;  // from the innermost dimension outwards
  for (int d = rank - 1; d >= 0; --d) order.push_back(d);
  const int64_t kind = turned ? (below(random, 2) == 0 ? 0 : 4) : below(random, 5);
  if (turned || (kind == 1 && !channels_last && rank > 1)) std::swap(order[0], order[1]);  // channels outermost
  if (kind == 2 && rank > 2) std::swap(order[1], order[static_cast<size_t>(rank - 1)]);
  int64_t step = kind == 3 && !channels_last ? 2 : 1, reach = 0;
  for (const int d : order) {
    strides[d] = step;
    step *= sizes[d];
    if (d == order[0] && kind == 4) step += below(random, 9);  // gaps between rows
  }
  if (may_overlap && rank > 2 && below(random, 4) == 0) strides[0] = 0;
  for (int d = 0; d < rank; ++d) reach += (sizes[d] - 1) * strides[d];
  *span = reach + 1;
}

template <class T>
Buffer<T> numbers(check::Random& random, int64_t span) {
  Buffer<T> b;
  b.offset = below(random, 3) == 0 ? below(random, 9) : 0;
  b.storage.resize(static_cast<size_t>(span + b.offset));
  for (T& v : b.storage) v = rounded<T>(static_cast<sinpe::accumulate_t<T>>(random.uniform() * 8 - 4));
  return b;
}

// Whether two results agree: bit by bit, or, if `slack` is not 0 and arithmetic is single, within one ULP of the
// encoding times its factor (`slack`), plus changed roundings of the sum and of the scaled sum.
template <class T>
bool agrees(T got, T want, double slack) {
  if (same(got, want)) return true;
  const double a = sinpe::to_float(got), b = sinpe::to_float(want);
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::is_same<T, double>::value || slack == 0.0 || is_exact()) return false;
  const double digits =
      std::is_same<T, float>::value ? 0x1p-22 : (std::is_same<T, sinpe::float16>::value ? 0x1p-10 : 0x1p-7);
  return std::fabs(a - b) <= slack * 0x1p-23 + std::fabs(b) * digits + 0x1p-24 * (sizeof(T) == 2);
}

// Compares the whole memory, including that between the elements, which no call may change.
template <class T>
void compare(const char* what, int64_t number, const std::vector<T>& got, const std::vector<T>& want,
             double slack = 0.0) {
  int64_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (agrees(got[i], want[i], slack) || wrong++ != 0) continue;
    std::printf("%s, case %" PRId64 ", element %zu: %.9g instead of %.9g\n", what, number, i,
                static_cast<double>(sinpe::to_float(got[i])), static_cast<double>(sinpe::to_float(want[i])));
  }
  CHECK(wrong == 0 && got.size() == want.size());
}

// f(indices, row-major number) for each element of a tensor.
template <class F>
void for_each_index(const int64_t* sizes, int rank, const F& f) {
  int64_t count = 1;
  for (int d = 0; d < rank; ++d) count *= sizes[d];
  for (int64_t number = 0; number < count; ++number) {
    int64_t at[SINPE_MAX_RANK] = {}, rest = number;
    for (int d = rank - 1; d >= 0; --d) {
      at[d] = rest % sizes[d];
      rest /= sizes[d];
    }
    f(at, number);
  }
}
inline int64_t offset_of(const int64_t* at, const int64_t* strides, int rank) {
  int64_t offset = 0;
  for (int d = 0; d < rank; ++d) offset += at[d] * strides[d];
  return offset;
}
// The RNG offset of an element.
inline uint64_t element_number(const sinpe_dropout_arguments& d, const int64_t* at, int rank, int64_t number) {
  if (d.rng_offsets != nullptr) number = d.rng_offsets[0] + offset_of(at, d.rng_offsets + 1, rank);
  return static_cast<uint64_t>(number);
}

// One call of add: arguments, and the memory that they point to.
template <class T>
struct AddCase {
  using Real = sinpe::accumulate_t<T>;
  TestPlan plan;
  sinpe_add_arguments a{};
  Buffer<T> x, out;
  std::vector<int64_t> integers, elements;
  std::vector<double> doubles;
  std::vector<float> floats, alpha;
  std::vector<uint8_t> mask;
  std::vector<int64_t> seed;
  DeviceScalars scalars{};

  // Sizes: random ones if there are none.
  explicit AddCase(check::Random& random, const std::vector<int64_t>& sizes = {}) {
    const int64_t dims[] = {1, 2, 3, 5, 7, 8, 15, 16, 31, 33, 64, 127, 128, 320, 513, 2049, 4100};
    const int64_t dim = sizes.empty() ? one_of(random, dims) : sizes.back();
    const bool wide = dim > 500;
    plan = random_plan(random, dim);
    a.rank = 2 + static_cast<int32_t>(below(random, 4));
    for (int d = 0; d < a.rank - 2; ++d) a.sizes[d] = 1 + below(random, d == 0 ? 5 : 3);
    const bool turned = below(random, 4) == 0;  // x, the result and the element numbers with channels outermost
    a.sizes[a.rank - 2] = 1 + below(random, wide ? 7 : 90);
    if (turned && below(random, 2) == 0) a.sizes[a.rank - 2] = 8 * (1 + below(random, wide ? 2 : 11));
    a.sizes[a.rank - 1] = dim;
    if (!sizes.empty()) a.rank = static_cast<int32_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), a.sizes);
    int64_t span;
    layout(random, a.sizes, a.rank, true, false, a.x_strides, &span, turned);
    x = numbers<T>(random, span);
    layout(random, a.sizes, a.rank, false, false, a.out_strides, &span, turned);
    out = numbers<T>(random, span);
    a.x = x.data();
    a.out = out.data();
    a.dtype = dtype_of<T>();
    const double factors[] = {1.0, 22.627416997969522, -0.5, 0.0};
    a.scale = one_of(random, factors);
    a.alpha = one_of(random, factors);
    set_positions(random);
    set_mask(random);
    set_dropout(random, turned);
    // The device reads the same values that the CPU is given.
    alpha = {static_cast<float>(a.alpha)};
    a.alpha = static_cast<double>(alpha[0]);
    seed = {a.dropout.seed};
    if (below(random, 2) == 0) scalars = {alpha.data(), SINPE_FLOAT32, seed.data()};
  }

  // Arguments for the device, with wrong host values where the device has its own.
  sinpe_add_arguments for_device(Buffer<T>* result) const {
    sinpe_add_arguments b = a;
    b.out = result->data();
    if (scalars.alpha != nullptr) b.alpha = 1e9;
    if (scalars.seed != nullptr) b.dropout.seed = 99;
    return b;
  }

  const int64_t* words() const { return plan.words.data(); }
  int64_t n_words() const { return static_cast<int64_t>(plan.words.size()); }

  // A row of the encoding, computed alone.
  std::vector<Real> row(int64_t batch, int64_t s) const {
    std::vector<Real> out(static_cast<size_t>(plan.plan.dim));
    const int64_t of_batch = batch * a.position_strides[0], at = of_batch + s * a.position_strides[1];
    int64_t whole = a.start + s;
    if (a.positions_are_starts != 0) whole = integers[static_cast<size_t>(of_batch)] + s;
    const bool is_given = a.positions != nullptr && a.positions_are_starts == 0;
    const int64_t size = a.position_dtype == SINPE_FLOAT32 ? 4 : 8;
    const void* position = is_given ? static_cast<const char*>(a.positions) + at * size : static_cast<void*>(&whole);
    CHECK(sinpe_encode(words(), n_words(), position, is_given ? a.position_dtype : SINPE_INT64, 1, dtype_of<Real>(),
                       out.data(), plan.plan.dim) == SINPE_OK);
    return out;
  }
  bool is_padded(int64_t batch, int64_t s) const {
    return !mask.empty() && mask[static_cast<size_t>(batch * a.mask_strides[0] + s * a.mask_strides[1])] != 0;
  }

  // dropout(scale * x + alpha * row) of each element, or without the row; x_at(indices) is the element of x.
  template <class XAt>
  Buffer<T> expected(bool adds, const XAt& x_at) const {
    Buffer<T> want = out;
    std::vector<Real> pe;
    for_each_index(a.sizes, a.rank, [&](const int64_t* at, int64_t number) {
      const int64_t batch = a.rank > 2 ? at[0] : 0, s = at[a.rank - 2], channel = at[a.rank - 1];
      if (adds && channel == 0) pe = row(batch, s);
      Real v = sinpe::to_float(x_at(at)) * static_cast<Real>(a.scale);
      if (adds && !is_padded(batch, s)) v = v + pe[static_cast<size_t>(channel)] * static_cast<Real>(a.alpha);
      const uint64_t element = element_number(a.dropout, at, a.rank, number);
      want.data()[offset_of(at, a.out_strides, a.rank)] = dropped<T>(v, a.dropout, element);
    });
    return want;
  }
  // The dot products of rows of x and of the encoding, in the order of core/tree_sum.h.
  std::vector<double> expected_dots(const double* weights) const {
    std::vector<double> dots;
    std::vector<Real> pe;
    double sums[sinpe::kDotSums] = {};
    for_each_index(a.sizes, a.rank, [&](const int64_t* at, int64_t number) {
      const int64_t batch = a.rank > 2 ? at[0] : 0, s = at[a.rank - 2], channel = at[a.rank - 1];
      if (channel == 0) pe = row(batch, s);
      const uint64_t element = element_number(a.dropout, at, a.rank, number);
      const uint32_t drop = static_cast<uint32_t>(a.dropout.drop_threshold);
      const size_t c = static_cast<size_t>(channel);
      if (drop == 0 || sinpe::is_kept(element, static_cast<uint64_t>(a.dropout.seed), drop)) {
        const double v = sinpe::to_float(x.storage[static_cast<size_t>(x.offset + offset_of(at, a.x_strides, a.rank))]);
        sums[c % sinpe::kDotSums] += v * static_cast<double>(pe[c]) * (weights == nullptr ? 1.0 : weights[c]);
      }
      if (channel + 1 < a.sizes[a.rank - 1]) return;
      const double sum = sinpe::dropout_scale(drop) * (even_sums(sums) + even_sums(sums + 1));
      dots.push_back(is_padded(batch, s) ? 0.0 : sum);
      std::fill(sums, sums + sinpe::kDotSums, 0.0);
    });
    return dots;
  }

  double slack() const {
    const double kept = a.dropout.drop_threshold == 0 || a.dropout.drop_threshold == 65536
                            ? 1.0
                            : 65536.0 / (65536 - a.dropout.drop_threshold);
    return 2.0 * std::fabs(a.alpha * plan.plan.amplitude) * kept;
  }

 private:
  void set_positions(check::Random& random) {
    const int64_t batch = a.rank > 2 ? a.sizes[0] : 1, rows = a.sizes[a.rank - 2];
    const int64_t starts[] = {0, 0, 17, -40, 3803900, (int64_t{1} << 40) + 1, INT64_MAX - 100, INT64_MIN};
    const int64_t kind = below(random, 6);
    a.start = one_of(random, starts);
    if (kind < 2) return;
    const bool by_sample = below(random, 2) == 0;
    const int64_t samples = by_sample ? batch : 1;
    if (kind == 2) {
      for (int64_t b = 0; b < samples; ++b) integers.push_back(one_of(random, starts));
      a.positions_are_starts = 1;
      a.position_dtype = SINPE_INT64;
      a.position_strides[0] = by_sample ? 1 : 0;
    } else {
      for (int64_t i = 0; i < samples * rows; ++i) {
        const bool follows = i % rows != 0 && below(random, 3) != 0;
        integers.push_back(follows ? integers.back() + 1 : one_of(random, starts) / 2 + below(random, 100));
        const double odd[] = {std::nan(""), HUGE_VAL, -0.0, 1e-30, 1e300};
        doubles.push_back(below(random, 20) == 0 ? one_of(random, odd) : random.uniform() * 1000 - 200);
        floats.push_back(static_cast<float>(doubles.back()));
      }
      a.position_dtype = kind == 3 ? SINPE_INT64 : (kind == 4 ? SINPE_FLOAT32 : SINPE_FLOAT64);
      a.position_strides[0] = by_sample ? rows : 0;
      a.position_strides[1] = 1;
    }
    a.positions = a.position_dtype == SINPE_INT64     ? static_cast<const void*>(integers.data())
                  : a.position_dtype == SINPE_FLOAT32 ? static_cast<const void*>(floats.data())
                                                      : static_cast<const void*>(doubles.data());
  }

  void set_mask(check::Random& random) {
    if (below(random, 3) != 0) return;
    const int64_t batch = a.rank > 2 ? a.sizes[0] : 1, rows = a.sizes[a.rank - 2];
    const bool by_sample = below(random, 2) == 0;
    for (int64_t i = 0; i < (by_sample ? batch : 1) * rows; ++i) mask.push_back(below(random, 3) == 0);
    a.padding_mask = mask.data();
    a.mask_strides[0] = by_sample ? rows : 0;
    a.mask_strides[1] = 1;
  }

  void set_dropout(check::Random& random, bool turned) {
    const int32_t drops[] = {0, 0, 1, 6554, 32768, 65535, 65536};
    a.dropout.drop_threshold = one_of(random, drops);
    a.dropout.seed = static_cast<int64_t>(random.next());
    if (!turned && below(random, 3) != 0) return;
    const int64_t firsts[] = {0, 3, (int64_t{1} << 35) - 48, (int64_t{1} << 35) - 50};
    elements.push_back(one_of(random, firsts));
    for (int d = 0; d < a.rank; ++d)
      elements.push_back(d + 1 == a.rank && below(random, 2) == 0 ? 1 : below(random, 5000));
    if (turned && below(random, 4) != 0) {
      const int64_t rows = a.sizes[a.rank - 2], dim = a.sizes[a.rank - 1];
      elements[static_cast<size_t>(a.rank) - 1] = 1;
      elements[static_cast<size_t>(a.rank)] = rows;
      for (int d = 0; d < a.rank - 2; ++d) elements[static_cast<size_t>(d) + 1] = rows * dim * (1 + below(random, 3));
    }
    a.dropout.rng_offsets = elements.data();
  }
};

// The sums of embed_backward: the terms of each row of the weight in the order of the tokens.
template <class T>
std::vector<T> expected_sums(const sinpe_embed_backward_arguments& b) {
  using Real = sinpe::accumulate_t<T>;
  const int64_t dim = b.sizes[b.rank - 1];
  const uint32_t drop = static_cast<uint32_t>(b.dropout.drop_threshold);
  std::vector<std::vector<Real>> terms(static_cast<size_t>(b.num_embeddings * dim));
  for_each_index(b.sizes, b.rank, [&](const int64_t* at, int64_t number) {
    const int64_t id = b.ids[offset_of(at, b.id_strides, b.rank - 1)];
    if (id == b.padding_idx || id < 0 || id >= b.num_embeddings || drop == sinpe::kDropAll) return;
    const uint64_t element = element_number(b.dropout, at, b.rank, number);
    const bool kept = drop == 0 || sinpe::is_kept(element, static_cast<uint64_t>(b.dropout.seed), drop);
    const T term = static_cast<const T*>(b.grad)[offset_of(at, b.grad_strides, b.rank)];
    terms[static_cast<size_t>(id * dim + at[b.rank - 1])].push_back(kept ? sinpe::to_float(term) : Real{0});
  });
  const Real factor = static_cast<Real>(b.scale * sinpe::dropout_scale(drop));
  std::vector<T> sums;
  for (const std::vector<Real>& of : terms) sums.push_back(of.empty() ? T{} : rounded<T>(summed_in_tree(of) * factor));
  return sums;
}

}  // namespace cases
