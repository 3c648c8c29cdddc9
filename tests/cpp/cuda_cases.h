// Random calls of the CUDA kernel bodies, run here as loops (cuda/launch.h), and the CPU's results. Buffers have
// exactly the size that a call may access, so that AddressSanitizer detects any access beyond.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/launchers.h"
#include "kernels.h"
#include "plans.h"

namespace cases {

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

// Whether two results agree: bit by bit with double arithmetic, otherwise within one ULP of the encoding times its
// factor (`slack`), plus changed roundings of the sum and of the scaled sum.
template <class T>
bool agrees(T got, T want, double slack) {
  if (same(got, want)) return true;
  const double a = sinpe::to_float(got), b = sinpe::to_float(want);
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::is_same<T, double>::value || std::string(sinpe::cuda::arithmetic()) == "double") return false;
  const double digits =
      std::is_same<T, float>::value ? 0x1p-22 : (std::is_same<T, sinpe::float16>::value ? 0x1p-10 : 0x1p-7);
  return std::fabs(a - b) <= slack * 0x1p-23 + std::fabs(b) * digits + 0x1p-24 * (sizeof(T) == 2);
}

// One call of add: arguments, and the memory that they point to.
template <class T>
struct AddCase {
  TestPlan plan;
  sinpe_add_arguments a{};
  Buffer<T> x, out;
  std::vector<int64_t> integers, elements;
  std::vector<double> doubles;
  std::vector<float> floats, alpha;
  std::vector<uint8_t> mask;
  std::vector<int64_t> seed;
  DeviceScalars scalars{};

  explicit AddCase(check::Random& random) {
    const int64_t dims[] = {1, 2, 3, 5, 7, 8, 15, 16, 31, 33, 64, 127, 128, 320, 513, 2049, 4100};
    const int64_t dim = one_of(random, dims);
    const bool wide = dim > 500;
    plan = random_plan(random, dim);
    a.rank = 2 + static_cast<int32_t>(below(random, 4));
    for (int d = 0; d < a.rank - 2; ++d) a.sizes[d] = 1 + below(random, d == 0 ? 5 : 3);
    const bool turned = below(random, 4) == 0;  // x, the result and the element numbers with channels outermost
    a.sizes[a.rank - 2] = 1 + below(random, wide ? 7 : 90);
    if (turned && below(random, 2) == 0) a.sizes[a.rank - 2] = 8 * (1 + below(random, wide ? 2 : 11));
    a.sizes[a.rank - 1] = dim;
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

// Compares all elements that the strides address, and checks that the memory between them is unchanged.
template <class T>
void compare(const char* what, int64_t number, const int64_t* sizes, const int64_t* strides, int rank, Buffer<T>& got,
             Buffer<T>& want, double slack) {
  std::vector<int64_t> index(static_cast<size_t>(rank), 0);
  int64_t wrong = 0;
  for (;;) {
    int64_t at = 0;
    for (int d = 0; d < rank; ++d) at += index[static_cast<size_t>(d)] * strides[d];
    if (!agrees(got.data()[at], want.data()[at], slack) && wrong++ == 0) {
      std::printf("%s, case %" PRId64 ", element %" PRId64 ": %.9g instead of %.9g\n", what, number, at,
                  static_cast<double>(sinpe::to_float(got.data()[at])),
                  static_cast<double>(sinpe::to_float(want.data()[at])));
    }
    int d = rank - 1;
    for (; d >= 0 && ++index[static_cast<size_t>(d)] == sizes[d]; --d) index[static_cast<size_t>(d)] = 0;
    if (d < 0) break;
  }
  CHECK(wrong == 0);
}

}  // namespace cases
