// add_grid: the same as add, with the rows of a grid's axes, to which alpha has been applied, combined for each point.
#include <cstring>

#include "core/grid.h"
#include "cpu/apply.h"

namespace sinpe {
namespace {

// Computes rows of a grid from the values of its axes, for one thread. Channels that no group provides are not written:
// they stay zero.
template <class Real>
class PointRows {
 public:
  PointRows(const Grid& grid, const Real* values) : grid_(grid), values_(values) {}

  // n grid points from `point`, `dim` channels each.
  Rows<Real> operator()(int64_t, int64_t point, int64_t n, TileMemory<Real>& tile) const {
    for (int k = 0; k < grid_.n_groups; ++k) {
      const ChannelGroup& p = grid_.groups[k];
      const int64_t inner = grid_.inner[p.axis], length = grid_.length[p.axis];
      int64_t coordinate = grid_.coordinate(point, p.axis), left = inner - point % inner;
      Real* row = tile.data() + p.first;
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
    return {tile.data(), n};
  }

 private:
  const Grid& grid_;
  const Real* values_;
};

// The same for a grid by channels: a row is one channel at `width` consecutive grid points, from `first`.
template <class Real>
class ChannelRows {
 public:
  ChannelRows(const Grid& grid, const Real* values, int64_t first, int64_t width)
      : grid_(grid), values_(values), first_(first), width_(width) {}

  Rows<Real> operator()(int64_t, int64_t row, int64_t n, TileMemory<Real>& tile) const {
    Real* pe = tile.data();
    for (int64_t r = row; r < row + n; ++r, pe += width_) {
      int64_t c;
      const int k = grid_.channel_group(r, &c);
      if (k < 0) {
        std::fill_n(pe, width_, Real{0});
      } else {
        points(grid_.groups[k], c, pe);
      }
    }
    return {tile.data(), n};
  }

 private:
  void points(const ChannelGroup& p, int64_t c, Real* pe) const {
    const int64_t inner = grid_.inner[p.axis], length = grid_.length[p.axis];
    const Real* from = values_ + grid_.at(p, 0, c);
    Real* const end = pe + width_;
    int64_t coordinate = grid_.coordinate(first_, p.axis), left = inner - first_ % inner;
    while (pe < end) {
      // Along the last axis, a run has all coordinates that are left; along others, one coordinate several times.
      const int64_t n = std::min(inner == 1 ? length - coordinate : left, end - pe);
      if (inner == 1) {
        std::copy_n(from + coordinate, n, pe);
      } else {
        std::fill_n(pe, n, from[coordinate]);
      }
      pe += n;
      left = inner;
      coordinate = inner == 1 || coordinate + 1 == length ? 0 : coordinate + 1;
    }
  }

  const Grid& grid_;
  const Real* values_;
  int64_t first_, width_;
};

constexpr int64_t kTileValues = 16384;  // values per tile: stays in the cache while it is applied to the slices

template <class T>
sinpe_status add_grid(const Grid& grid, const void* values, const sinpe_add_arguments& a) {
  using Real = accumulate_t<T>;
  const Real* from = static_cast<const Real*>(values);
  const NewPages pages;
  const auto add_rows = [&](const sinpe_add_arguments& part, const auto& make_rows) {
    const Shape shape(part);
    const int64_t tile = std::max<int64_t>(1, std::min<int64_t>(64, kTileValues / shape.dim));
    const auto make_work = [&] { return Apply<T>(part, pages, Shape(a).elements()); };
    return for_each_row_tile<Real>(shape, 1, std::min(shape.rows, tile), make_rows, make_work, /*zeros=*/true);
  };
  if (!grid.by_channels) return add_rows(a, [&] { return PointRows<Real>(grid, from); });
  return for_each_part<T>(a, kTileValues, [&](const sinpe_add_arguments& part, int64_t first) {
    return add_rows(part, [&] { return ChannelRows<Real>(grid, from, first, part.sizes[part.rank - 1]); });
  });
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
      [&] { return with_type(a->dtype, [&](auto type) { return add_grid<decltype(type)>(grid, values, *a); }); });
}
