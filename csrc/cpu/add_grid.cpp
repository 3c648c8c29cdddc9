// add_grid: out = round(scale*x) + the rows of the grid's axes, with or without dropout, in one pass over x.
#include <cstring>

#include "core/grid.h"
#include "cpu/tile_adder.h"

namespace sinpe {
namespace {

// Computes rows of a grid from the values of its axes, for one thread. Channels that no piece provides are not written:
// they stay zero.
template <class Real>
class PointRows {
 public:
  PointRows(const Grid& grid, const Real* values) : grid_(grid), values_(values) {}

  // n grid points from `point`, `dim` channels each.
  void operator()(int64_t, int64_t point, int64_t n, Real* pe) const {
    for (int k = 0; k < grid_.n_pieces; ++k) {
      const GridPiece& p = grid_.pieces[k];
      const int64_t inner = grid_.inner[p.axis], length = grid_.length[p.axis];
      int64_t coordinate = grid_.coordinate(point, p.axis), left = inner - point % inner;
      Real* row = pe + p.first;
      for (int64_t r = 0; r < n; ++r, row += grid_.dim) {
        const Real* from = values_ + grid_.at(p, coordinate, 0);
        if (p.step == 1 && p.width >= 16) {
          std::memcpy(row, from, static_cast<size_t>(p.width) * sizeof(Real));
        } else {
          for (int64_t c = 0; c < p.width; ++c) row[c * p.step] = from[c];
        }
        if (--left != 0) continue;
        left = inner;
        coordinate = coordinate + 1 == length ? 0 : coordinate + 1;
      }
    }
  }

 private:
  const Grid& grid_;
  const Real* values_;
};

// The same for a grid by channels: a row is one channel at `width` consecutive grid points, from a multiple of `width`.
template <class Real>
class ChannelRows {
 public:
  ChannelRows(const Grid& grid, const Real* values, int64_t width)
      : grid_(grid), values_(values), width_(width), parts_(grid.points / width) {}

  void operator()(int64_t, int64_t row, int64_t n, Real* pe) const {
    for (int64_t r = row; r < row + n; ++r, pe += width_) {
      int64_t c;
      const int k = grid_.channel_piece(r / parts_, &c);
      if (k < 0) {
        std::fill(pe, pe + width_, Real{0});
      } else {
        part_of_row(grid_.pieces[k], c, r % parts_ * width_, pe);
      }
    }
  }

 private:
  // Either all points of the row have the same coordinate, or the row covers every coordinate the same number of times.
  void part_of_row(const GridPiece& p, int64_t c, int64_t point, Real* pe) const {
    const int64_t inner = grid_.inner[p.axis], length = grid_.length[p.axis];
    const Real* from = values_ + grid_.at(p, 0, c);
    Real* const end = pe + width_;
    if (inner >= width_) return std::fill(pe, end, from[grid_.coordinate(point, p.axis)]);
    while (pe < end) {
      if (inner == 1) {
        std::memcpy(pe, from, static_cast<size_t>(length) * sizeof(Real));
        pe += length;
        continue;
      }
      for (int64_t coordinate = 0; coordinate < length; ++coordinate, pe += inner) {
        std::fill(pe, pe + inner, from[coordinate]);
      }
    }
  }

  const Grid& grid_;
  const Real* values_;
  int64_t width_, parts_;
};

constexpr int64_t kTileValues = 16384;  // values per tile: stays in the cache while it is applied to the slices

// The arguments of a call by channels whose rows are split into parts, so that a tile of rows does not have to hold all
// grid points. A part covers as many of the last axes as fit. Only for rows that are contiguous in memory.
struct Parts {
  sinpe_add_arguments a;
  int64_t rng_offsets[1 + SINPE_MAX_RANK];

  Parts(const Grid& grid, const sinpe_add_arguments& arguments) : a(arguments) {
    const int row = a.rank - 2, column = a.rank - 1;
    const auto follow = [&](const int64_t* strides) { return strides[row] == a.sizes[column] * strides[column]; };
    const bool has_rng_offsets = a.dropout.rng_offsets != nullptr;
    if (!follow(a.x_strides) || !follow(a.out_strides) || (has_rng_offsets && !follow(a.dropout.rng_offsets + 1)))
      return;
    int axis = 0;
    while (axis + 1 < grid.n_axes && grid.inner[axis] > kTileValues) ++axis;
    const int64_t width = grid.inner[axis];
    if (grid.points <= kTileValues || width < 64) return;
    a.sizes[row] *= grid.points / width;
    a.sizes[column] = width;
    a.x_strides[row] = width * a.x_strides[column];
    a.out_strides[row] = width * a.out_strides[column];
    if (!has_rng_offsets) return;
    std::copy(a.dropout.rng_offsets, a.dropout.rng_offsets + 1 + a.rank, rng_offsets);
    rng_offsets[1 + row] = width * rng_offsets[1 + column];
    a.dropout.rng_offsets = rng_offsets;
  }
};

template <class T, class Rows>
sinpe_status run(const sinpe_add_arguments& a, const Rows& rows) {
  const Shape shape(a);
  const int64_t tile = std::max<int64_t>(1, std::min<int64_t>(64, kTileValues / shape.dim));
  const NewPages pages;
  const auto start = [&] { return TileAdder<T>(a, shape, pages); };
  return for_each_row_tile<accumulate_t<T>>(shape, 1, std::min(shape.rows, tile), rows, start);
}

template <class T>
sinpe_status run(const Grid& grid, const void* values, const sinpe_add_arguments& a) {
  using Real = accumulate_t<T>;
  const Real* from = static_cast<const Real*>(values);
  if (!grid.by_channels) return run<T>(a, [&] { return PointRows<Real>(grid, from); });
  const Parts parts(grid, a);
  return run<T>(parts.a, [&] { return ChannelRows<Real>(grid, from, parts.a.sizes[a.rank - 1]); });
}

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_add_grid(const int64_t* packed_grid, int64_t n_words, const void* values,
                                       int64_t n_values, const sinpe_add_arguments* a) {
  using namespace sinpe;
  if (a == nullptr || a->rank < 2 || a->rank > SINPE_MAX_RANK || n_values < 0 || !valid_sizes(a->sizes, a->rank) ||
      !valid_dropout(a->dropout, a->sizes, a->rank)) {
    return SINPE_BAD_ARGUMENT;
  }
  const Shape shape(*a);
  if (shape.empty() || shape.dim == 0) return SINPE_OK;
  Grid grid;
  if (!decode_grid(packed_grid, n_words, n_values, &grid)) return SINPE_BAD_PLAN;
  const bool fits = shape.rows == (grid.by_channels ? grid.dim : grid.points) &&
                    shape.dim == (grid.by_channels ? grid.points : grid.dim);
  if (!fits || (grid.by_channels && a->padding_mask != nullptr) || a->x == nullptr || a->out == nullptr ||
      (n_values > 0 && values == nullptr)) {
    return SINPE_BAD_ARGUMENT;
  }
  const Span written = span_of_out(*a);
  if (!has_no_overlap(written, packed_grid, n_words, *a, /*reads_positions=*/false) ||
      written.overlaps(Span(values, n_values, a->dtype == SINPE_FLOAT64 ? 8 : 4))) {
    return SINPE_BAD_ARGUMENT;
  }
  return catch_out_of_memory(
      [&] { return with_type(a->dtype, [&](auto type) { return run<decltype(type)>(grid, values, *a); }); });
}
