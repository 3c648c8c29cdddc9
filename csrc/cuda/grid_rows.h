// Rows of a grid as a block of threads puts them together: a tile in shared memory, from the axes' rows in device memory.
// What is no grid gives NaN.
#pragma once

#include "core/grid.h"
#include "cuda/rows.h"

namespace sinpe {
namespace cuda {

// The axes' rows, times alpha, in the accumulation type.
struct GridValues {
  const void* values;
  int64_t n_values;
  int64_t rows;  // places, or channels of a grid by channels
};

template <class Number>
struct Gathered {
  using Real = Number;
};

template <class Number>
struct TileRows<Gathered<Number>> {
  using Real = Number;
  using Operand = GridValues;
  static constexpr bool kEncoded = true;
  alignas(16) Real pe[kTile];
  Grid grid;
  bool usable;
  int64_t batch[kTileRows], row[kTileRows];

  // By all: the grid, checked. `words` are the grid's.
  SINPE_HD void begin(const DevicePlan& words, const Tiling&, const GridValues& from, const Tile& tile, int thread) {
    if (thread == kThreads - 1) {
      usable = decode_grid(words.words, words.n_words, from.n_values, &grid) &&
               words.dim == (grid.by_channels ? grid.places : grid.dim) &&
               from.rows == (grid.by_channels ? grid.dim : grid.places);
    }
    if (thread >= tile.height) return;
    batch[thread] = 0;
    row[thread] = tile.row + thread;
  }

  // By all, thereafter. Threads take columns, and walk down some of the rows.
  SINPE_HD void fill(const GridValues& from, const Tile& tile, Real alpha, int thread) {
    const Real* values = static_cast<const Real*>(from.values);
    const int32_t lanes = tile.width < kThreads ? kThreads / tile.width : 1;
    const int32_t lane = tile.width < kThreads ? thread / tile.width : 0;
    const int32_t depth = (tile.height + lanes - 1) / lanes, first = lane * depth;
    const int32_t last = first + depth < tile.height ? first + depth : tile.height;
    if (lane >= lanes) return;
    SINPE_ROLLED
    for (int32_t item = thread - lane * tile.width; item < tile.width; item += kThreads) {
      const Real nothing = usable ? alpha * Real{0} : static_cast<Real>(quiet_nan());
      SINPE_ROLLED
      for (int32_t r = first; r < last; ++r) pe[r * tile.width + item] = nothing;
      if (!usable) continue;
      if (grid.by_channels) {
        down_channels(values, tile, item, first, last, alpha);
      } else {
        down_places(values, tile, item, first, last, alpha);
      }
    }
  }

 private:
  // One channel at the places of some rows.
  SINPE_HD void down_places(const Real* values, const Tile& tile, int32_t item, int32_t first, int32_t last,
                            Real alpha) {
    int64_t c;
    const int k = grid.feeding(tile.channel + item, &c);
    if (k < 0 || first >= last) return;
    const GridPiece p = grid.piece(k);
    const int64_t inner = grid.inner[p.axis], length = grid.length[p.axis], place = tile.row + first;
    int64_t coordinate = grid.coordinate(place, p.axis), left = inner - place % inner;
    SINPE_ROLLED
    for (int32_t r = first; r < last; ++r) {
      pe[r * tile.width + item] = alpha * values[grid.at(p, coordinate, c)];
      if (--left != 0) continue;
      left = inner;
      coordinate = coordinate + 1 == length ? 0 : coordinate + 1;
    }
  }

  // One place at the channels of some rows.
  SINPE_HD void down_channels(const Real* values, const Tile& tile, int32_t item, int32_t first, int32_t last,
                              Real alpha) {
    const int64_t low = tile.row + first, high = tile.row + last;
    SINPE_ROLLED
    for (int k = 0; k < grid.n_pieces; ++k) {
      const GridPiece p = grid.piece(k);
      const int64_t coordinate = grid.coordinate(tile.channel + item, p.axis);
      const int64_t skipped = low > p.first ? (low - p.first + p.step - 1) / p.step : 0;
      SINPE_ROLLED
      for (int64_t c = skipped; c < p.width && p.first + c * p.step < high; ++c) {
        const int32_t r = static_cast<int32_t>(p.first + c * p.step - tile.row);
        pe[r * tile.width + item] = alpha * values[grid.at(p, coordinate, c)];
      }
    }
  }
};

}  // namespace cuda
}  // namespace sinpe
