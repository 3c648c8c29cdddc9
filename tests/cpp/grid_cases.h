// Grids and random calls of add_grid, and the results of plain loops. Buffers have exactly the size that the call may
// access, so that AddressSanitizer detects any access beyond; results are initialized to NaN.
#pragma once

#include "cases.h"
#include "core/grid.h"

namespace cases {

constexpr int kGridHeader = static_cast<int>(sinpe::kGridHeaderWords);

struct TestGroup {
  int64_t axis, first, step, width;
};

struct TestGrid {
  bool by_channels = false;
  int64_t dim = 0, places = 1, n_values = 0;
  std::vector<int64_t> lengths, words;

  int64_t n_words() const { return static_cast<int64_t>(words.size()); }
};

// The packed grid, with the values of its groups stored one after the other.
inline TestGrid make_grid(bool by_channels, const std::vector<int64_t>& lengths, int64_t dim,
                          const std::vector<TestGroup>& groups) {
  TestGrid g{by_channels, dim, 1, 0, lengths, {}};
  std::vector<int64_t> tail = lengths;
  for (const int64_t length : lengths) g.places *= length;
  for (const TestGroup& p : groups) {
    tail.insert(tail.end(), {p.axis, p.first, p.step, p.width, g.n_values});
    g.n_values += p.width * lengths[static_cast<size_t>(p.axis)];
  }
  g.words = {sinpe::kGridMagic,
             kGridHeader + static_cast<int64_t>(tail.size()),
             by_channels,
             static_cast<int64_t>(lengths.size()),
             static_cast<int64_t>(groups.size()),
             dim,
             g.n_values,
             0};
  g.words.insert(g.words.end(), tail.begin(), tail.end());
  return g;
}

// Index into `values` for each channel of each place, place by place, -1 for a zero channel. If two groups write a
// channel, the last one counts. `w` must be a valid packed grid.
inline std::vector<int64_t> value_indices(const std::vector<int64_t>& w) {
  const size_t axes = static_cast<size_t>(w[3]), dim = static_cast<size_t>(w[5]);
  const int64_t *lengths = w.data() + kGridHeader, *groups = lengths + axes;
  std::vector<int64_t> coordinates(axes, 0), found;
  for (;;) {
    std::vector<int64_t> of_place(dim, -1);
    for (const int64_t* p = groups; p < groups + 5 * w[4]; p += 5) {
      const int64_t at = coordinates[static_cast<size_t>(p[0])], length = lengths[p[0]];
      for (int64_t c = 0; c < p[3]; ++c) {
        of_place[static_cast<size_t>(p[1] + c * p[2])] = p[4] + (w[2] != 0 ? c * length + at : at * p[3] + c);
      }
    }
    found.insert(found.end(), of_place.begin(), of_place.end());
    size_t a = axes;
    while (a > 0 && ++coordinates[a - 1] == lengths[a - 1]) coordinates[--a] = 0;
    if (a == 0) return found;
  }
}

// Arranged as in conventions (blocks, all sines before all cosines, interleaved), or in any other order, with gaps.
inline TestGrid random_grid(check::Random& random) {
  const bool by_channels = below(random, 2) == 0;
  const int64_t few[] = {1, 2, 3, 5, 7}, many[] = {1, 300, 2047, 2049, 4500}, widths[] = {1, 2, 3, 8, 16, 24, 33, 64};
  std::vector<int64_t> lengths;
  const int64_t axes = below(random, 12) == 0 ? 8 : 1 + below(random, 4);
  const bool long_axis = below(random, 4) == 0;
  for (int64_t a = 0; a < axes; ++a) lengths.push_back(axes == 8 ? 1 + below(random, 2) : one_of(random, few));
  if (long_axis) lengths[static_cast<size_t>(below(random, axes))] = axes < 4 ? one_of(random, many) / axes + 1 : 40;
  int64_t width = one_of(random, widths), kind = below(random, 4);
  if (!long_axis && below(random, 6) == 0) width = 300 + below(random, 900);
  if (long_axis) width = std::min<int64_t>(width, 8);
  std::vector<TestGroup> groups;
  int64_t dim = kind == 1 ? 2 * axes * width : axes * width;
  for (int64_t a = 0; a < axes; ++a) {
    if (kind == 0) groups.push_back({axes - 1 - a, a * width, 1, width});
    if (kind == 1) groups.push_back({a, a * width, 1, width});
    if (kind == 1) groups.push_back({a, (axes + a) * width, 1, width});
    if (kind == 2) groups.push_back({a, a, axes, width});
  }
  if (kind == 3) {
    dim = 1 + below(random, 90);
    for (int64_t k = below(random, 6); k-- > 0;) {
      const int64_t first = below(random, dim), step = 1 + below(random, 5);
      groups.push_back({below(random, axes), first, step, 1 + below(random, (dim - 1 - first) / step + 1)});
    }
  }
  if (below(random, 3) == 0) dim += 1 + below(random, 9);
  return make_grid(by_channels, lengths, dim, groups);
}

// By channels, with more places than a tile holds values: all axes but one fit, or some, or none.
inline TestGrid random_volume(check::Random& random) {
  const std::vector<int64_t> volumes[] = {{5, 60, 70}, {300, 64}, {2, 129, 130}, {20001}, {1, 17000, 2}};
  const std::vector<int64_t> lengths = one_of(random, volumes);
  return make_grid(true, lengths, 3, {{static_cast<int64_t>(lengths.size()) - 1, 0, 1, 1}, {0, 2, 1, 1}});
}

template <class T>
struct GridCase {
  using Real = sinpe::accumulate_t<T>;
  TestGrid grid;
  sinpe_add_arguments a{};
  Buffer<T> x, out;
  std::vector<Real> values;
  std::vector<int64_t> elements, seed;
  std::vector<uint8_t> mask;
  bool in_place;

  explicit GridCase(check::Random& random) : GridCase(random, random_grid(random)) {}

  GridCase(check::Random& random, const TestGrid& of) : grid(of), in_place(below(random, 4) == 0) {
    a.rank = 2 + static_cast<int32_t>(below(random, 4));
    a.sizes[a.rank - 2] = grid.by_channels ? grid.dim : grid.places;
    a.sizes[a.rank - 1] = grid.by_channels ? grid.places : grid.dim;
    const int64_t size = grid.dim * grid.places, most = size < 200 ? 150 : (size < 5000 ? 5 : 2);
    for (int d = 0; d < a.rank - 2; ++d) a.sizes[d] = 1 + below(random, d == 0 ? most : 2);
    int64_t span;
    layout(random, a.sizes, a.rank, !in_place, false, a.x_strides, &span);
    x = numbers<T>(random, span);
    if (in_place) std::memcpy(a.out_strides, a.x_strides, sizeof a.x_strides);
    if (!in_place) layout(random, a.sizes, a.rank, false, false, a.out_strides, &span);
    out = in_place ? x : numbers<T>(random, span);
    if (!in_place) out.storage.assign(out.storage.size(), rounded<T>(static_cast<Real>(std::nan(""))));
    for (int64_t i = 0; i < grid.n_values; ++i) {
      values.push_back(below(random, 50) == 0 ? Real{-0.0} : static_cast<Real>(random.uniform() * 2 - 1));
    }
    a.dtype = dtype_of<T>();
    const double factors[] = {1.0, 22.627416997969522, -0.5, 0.0};
    a.scale = one_of(random, factors);
    // Fields that add_grid does not read.
    a.alpha = std::nan("");
    a.start = INT64_MAX;
    a.positions = &a;
    a.positions_are_starts = 1;
    a.position_dtype = SINPE_FLOAT16;
    a.position_strides[0] = a.position_strides[1] = 1000;
    set_mask(random);
    set_dropout(random);
    seed = {a.dropout.seed};
  }

  // The arguments of a call that writes to `result`, which is initialized from `out`.
  sinpe_add_arguments call(Buffer<T>* result) const {
    *result = out;
    sinpe_add_arguments b = a;
    b.x = in_place ? result->data() : x.storage.data() + x.offset;
    b.out = result->data();
    return b;
  }

  // The whole memory of the result; elements that no stride reaches are unchanged.
  std::vector<T> expected() const {
    Buffer<T> want = out;
    const std::vector<int64_t> indices = value_indices(grid.words);
    for_each_index(a.sizes, a.rank, [&](const int64_t* at, int64_t number) {
      const int64_t row = at[a.rank - 2], column = at[a.rank - 1], batch = a.rank > 2 ? at[0] : 0;
      const int64_t channel = grid.by_channels ? row : column, place = grid.by_channels ? column : row;
      const int64_t value = indices[static_cast<size_t>(place * grid.dim + channel)];
      const T from = x.storage[static_cast<size_t>(x.offset + offset_of(at, a.x_strides, a.rank))];
      const Real product = sinpe::to_float(from) * static_cast<Real>(a.scale);
      const bool padded = !mask.empty() && mask[static_cast<size_t>(batch * a.mask_strides[0] + row)] != 0;
      const Real pe = value < 0 ? Real{0} : values[static_cast<size_t>(value)];
      want.data()[offset_of(at, a.out_strides, a.rank)] =
          dropped<T>(padded ? product : product + pe, a.dropout, element_number(a.dropout, at, a.rank, number));
    });
    return want.storage;
  }

 private:
  void set_mask(check::Random& random) {
    if (grid.by_channels || below(random, 3) != 0) return;
    const bool by_sample = a.rank > 2 && below(random, 2) == 0;
    for (int64_t i = 0; i < (by_sample ? a.sizes[0] : 1) * grid.places; ++i) mask.push_back(below(random, 3) == 0);
    a.padding_mask = mask.data();
    a.mask_strides[0] = by_sample ? grid.places : 0;
    a.mask_strides[1] = 1;
  }

  void set_dropout(check::Random& random) {
    const int32_t drops[] = {0, 0, 1, 6554, 32768, 65535, 65536};
    a.dropout.drop_threshold = one_of(random, drops);
    a.dropout.seed = static_cast<int64_t>(random.next());
    if (below(random, 3) != 0) return;
    elements.push_back(below(random, 2) == 0 ? 3 : (int64_t{1} << 35) - 50);
    for (int d = 0; d < a.rank; ++d) {
      elements.push_back(d + 1 == a.rank && below(random, 2) == 0 ? 1 : below(random, 5000));
    }
    // Half of them row by row, as torch's channels-first tensors.
    if (below(random, 2) == 0) elements[static_cast<size_t>(a.rank - 1)] = a.sizes[a.rank - 1] * elements.back();
    a.dropout.rng_offsets = elements.data();
  }
};

// Whether the words are a valid grid for n_values values: the rule of core/grid.h, without overflow.
inline bool is_grid(const std::vector<int64_t>& w, int64_t n_values) {
  using sinpe::int128;
  const auto among = [](int128 v, int128 least, int128 most) { return v >= least && v <= most; };
  const int64_t size = static_cast<int64_t>(w.size());
  if (size < kGridHeader || w[0] != sinpe::kGridMagic || w[1] != size || !among(w[2], 0, 1)) return false;
  if (!among(w[3], 1, 8) || !among(w[4], 0, 64) || !among(w[5], 1, int64_t{1} << 40)) return false;
  if (w[6] != n_values || w[7] != 0 || size != kGridHeader + w[3] + 5 * w[4]) return false;
  int128 places = 1;
  for (int64_t a = 0; a < w[3]; ++a) {
    const int64_t length = w[static_cast<size_t>(kGridHeader + a)];
    if (!among(length, 1, INT32_MAX) || !among(places *= length, 1, int64_t{1} << 40)) return false;
  }
  for (int64_t k = 0; k < w[4]; ++k) {
    const int64_t* p = w.data() + kGridHeader + w[3] + 5 * k;
    if (!among(p[0], 0, w[3] - 1) || p[1] < 0 || p[2] < 1 || p[3] < 1 || p[4] < 0) return false;
    if (p[1] + static_cast<int128>(p[3] - 1) * p[2] >= w[5]) return false;
    if (p[4] + static_cast<int128>(p[3]) * w[static_cast<size_t>(kGridHeader + p[0])] > n_values) return false;
  }
  return true;
}

// Calls check(words) for a grid with one word changed to each of several invalid values, and with too few and too many
// words.
template <class F>
void with_lies(const TestGrid& grid, const F& check) {
  const int64_t odd[] = {INT64_MIN,        -1,       0, 1, 2, 3, 5, 9, 65, int64_t{1} << 31, (int64_t{1} << 40) + 1,
                         int64_t{1} << 62, INT64_MAX};
  for (size_t k = 0; k < grid.words.size(); ++k) {
    std::vector<int64_t> words = grid.words;
    for (const int64_t value : odd) {
      words[k] = value;
      check(words);
    }
    for (const int64_t more : {-1, 1}) {
      words[k] = grid.words[k] + more;
      check(words);
    }
    check(std::vector<int64_t>(grid.words.begin(), grid.words.begin() + static_cast<std::ptrdiff_t>(k)));
  }
  std::vector<int64_t> longer = grid.words;
  longer.push_back(0);
  check(longer);
}

}  // namespace cases
