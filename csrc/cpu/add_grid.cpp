// add_grid: out = round(scale*x) + the rows of the grid's axes, with or without dropout, while x streams past.
#include <cstring>

#include "core/grid.h"
#include "cpu/tile_adder.h"

namespace sinpe {
namespace {

// One thread's maker of rows from the axes' values. Channels that no piece feeds stay zero: no row is written there.
template <class Real>
class PlaceRows {
 public:
  PlaceRows(const Grid& grid, const Real* values) : grid_(grid), values_(values) {}

  // n places from `place` on, `dim` channels each.
  void operator()(int64_t, int64_t place, int64_t n, Real* pe) const {
    for (int k = 0; k < grid_.n_pieces; ++k) {
      const GridPiece p = grid_.piece(k);
      const int64_t inner = grid_.inner[p.axis], length = grid_.length[p.axis];
      int64_t coordinate = grid_.coordinate(place, p.axis), left = inner - place % inner;
      Real* row = pe + p.first;
      for (int64_t r = 0; r < n; ++r, row += grid_.dim) {
        const Real* from = values_ + grid_.at(p, coordinate, 0);
        if (p.step == 1) {
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

// The same of a grid by channels: a row is one channel at all places.
template <class Real>
class ChannelRows {
 public:
  ChannelRows(const Grid& grid, const Real* values) : grid_(grid), values_(values) {}

  void operator()(int64_t, int64_t channel, int64_t n, Real* pe) const {
    for (int64_t r = 0; r < n; ++r, pe += grid_.places) {
      int64_t c;
      const int k = grid_.feeding(channel + r, &c);
      if (k < 0) {
        std::fill(pe, pe + grid_.places, Real{0});
        continue;
      }
      const GridPiece p = grid_.piece(k);
      const int64_t inner = grid_.inner[p.axis], length = grid_.length[p.axis];
      const Real* from = values_ + grid_.at(p, 0, c);
      for (int64_t place = 0; place < grid_.places;) {
        if (inner == 1) {
          std::memcpy(pe + place, from, static_cast<size_t>(length) * sizeof(Real));
          place += length;
          continue;
        }
        for (int64_t coordinate = 0; coordinate < length; ++coordinate, place += inner) {
          std::fill(pe + place, pe + place + inner, from[coordinate]);
        }
      }
    }
  }

 private:
  const Grid& grid_;
  const Real* values_;
};

template <class T>
sinpe_status run(const Grid& grid, const void* values, const sinpe_add_arguments& a, const Shape& shape) {
  using Real = accumulate_t<T>;
  const Real* from = static_cast<const Real*>(values);
  const int64_t tile = std::min(shape.rows, std::max<int64_t>(1, std::min<int64_t>(64, 65536 / shape.dim)));
  const auto start = [&] { return TileAdder<T>(a, shape); };
  if (grid.by_channels) {
    return over_row_tiles<Real>(shape, 1, tile, [&] { return ChannelRows<Real>(grid, from); }, start);
  }
  return over_row_tiles<Real>(shape, 1, tile, [&] { return PlaceRows<Real>(grid, from); }, start);
}

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_add_grid(const int64_t* words, int64_t n_words, const void* values, int64_t n_values,
                                       const sinpe_add_arguments* a) {
  using namespace sinpe;
  if (a == nullptr || a->rank < 2 || a->rank > SINPE_MAX_RANK || n_values < 0 || !valid_sizes(a->sizes, a->rank) ||
      !valid_dropout(a->dropout)) {
    return SINPE_BAD_ARGUMENT;
  }
  const Shape shape(*a);
  if (shape.empty() || shape.dim == 0) return SINPE_OK;
  Grid grid;
  if (!decode_grid(words, n_words, n_values, &grid)) return SINPE_BAD_PLAN;
  const bool fits = shape.rows == (grid.by_channels ? grid.dim : grid.places) &&
                    shape.dim == (grid.by_channels ? grid.places : grid.dim);
  if (!fits || (grid.by_channels && a->padding_mask != nullptr) || a->x == nullptr || a->out == nullptr ||
      (n_values > 0 && values == nullptr)) {
    return SINPE_BAD_ARGUMENT;
  }
  return or_no_memory(
      [&] { return with_type(a->dtype, [&](auto type) { return run<decltype(type)>(grid, values, *a, shape); }); });
}
