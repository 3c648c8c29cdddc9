// Rows of a grid, computed by a block of threads: a tile in shared memory, gathered from the rows of the axes in device
// memory. An invalid grid gives NaN.
#pragma once

#include "core/grid.h"
#include "cuda/rows.h"

namespace sinpe {
namespace cuda {

// The rows of the axes, times alpha, in the accumulation type.
struct GridValues {
  const void* values;
  int64_t n_values;
  int64_t rows;    // grid points, or channels in a grid by channels
  bool is_masked;  // not allowed in a grid by channels
};

// The coordinate along one axis of grid points that are `step` apart: computed by one division, then incremented.
struct Walk {
  int64_t inner, length;                 // grid points per coordinate; number of coordinates
  int64_t coordinate, within;            // of the grid point; its index among the points with this coordinate
  int64_t step_coordinate, step_within;  // increments for one step

  Walk() = default;
  SINPE_HD Walk(const Grid& grid, int64_t axis, int64_t point, int64_t step)
      : inner(grid.inner[axis]), length(grid.length[axis]) {
    const int64_t passed = point / inner, stepped = step / inner;
    within = point - passed * inner;
    coordinate = passed % length;
    step_within = step - stepped * inner;
    step_coordinate = stepped % length;
  }
  SINPE_HD void next() {
    within += step_within;
    coordinate += step_coordinate;
    if (within >= inner) {
      within -= inner;
      ++coordinate;
    }
    if (coordinate >= length) coordinate -= length;
  }
};

template <class Number>
struct Gathered {
  using Real = Number;
};

template <class Number>
struct TileRows<Gathered<Number>> {
  using Real = Number;
  using Operand = GridValues;
  static constexpr bool kEncoded = true, kSampled = false;
  static constexpr int64_t kMaxTransposedWidth = 0;  // not used: in a grid by channels the points are contiguous
  static constexpr int kInFlight = 4;                // loads in flight per thread
  alignas(16) Real pe[kTile];
  Tile tile;
  Grid grid;
  bool usable;
  int32_t coordinates[kMaxAxes][kTileRows];  // of the tile's rows if they are grid points

  // Called by all threads: unpacks and checks the grid, and computes the coordinates of the rows. `packed_grid` is the
  // packed grid.
  SINPE_HD void begin(const DevicePlan& packed_grid, const Tiling&, const GridValues& from, const Tile& of,
                      const TileStrides&, int thread) {
    if (thread == kThreads - 1) {
      tile = of;
      usable = decode_grid(packed_grid.packed, packed_grid.n_words, from.n_values, &grid) &&
               packed_grid.dim == (grid.by_channels ? grid.points : grid.dim) &&
               from.rows == (grid.by_channels ? grid.dim : grid.points) && !(grid.by_channels && from.is_masked);
    }
    if (thread >= of.height) return;
    // Concurrently with the check, not after it, so lengths may be invalid here.
    const int64_t axes = packed_grid.n_words < kGridHeaderWords ? 0 : packed_grid.packed[3];
    if (axes < 1 || axes > kMaxAxes || packed_grid.n_words < kGridHeaderWords + axes) return;
    int64_t point = of.row + thread;
    SINPE_ROLLED
    for (int64_t a = axes - 1; a >= 0; --a) {
      const int64_t length = packed_grid.packed[kGridHeaderWords + a];
      if (length < 1) return;
      const int64_t passed = point / length;
      coordinates[a][thread] = static_cast<int32_t>(point - passed * length);
      point = passed;
    }
  }

  // Called by all threads after a barrier. Each thread takes a column and iterates over some of the rows.
  SINPE_HD void fill(const GridValues& from, Real, int thread) {
    const int32_t lanes = tile.width < kThreads ? kThreads / tile.width : 1;
    const int32_t lane = tile.width < kThreads ? thread / tile.width : 0;
    const int32_t depth = (tile.height + lanes - 1) / lanes, first = lane * depth;
    const int32_t last = first + depth < tile.height ? first + depth : tile.height;
    if (lane >= lanes) return;
    const Real* values = static_cast<const Real*>(from.values);
    const int32_t item = thread - lane * tile.width;
    if (usable && grid.by_channels) {
      fill_channels(values, item, first, last);
    } else {
      fill_points(values, item, first, last);
    }
  }

 private:
  // Columns are channels: `item` and every kThreads-th one after it, at the grid points of some rows.
  SINPE_HD void fill_points(const Real* values, int32_t item, int32_t first, int32_t last) {
    SINPE_ROLLED
    for (; item < tile.width; item += kThreads) {
      int64_t c = 0;
      const int k = usable ? grid.channel_group(tile.channel + item, &c) : -1;
      Real* to = pe + first * tile.width + item;
      if (k < 0) {
        const Real nothing = usable ? Real{0} : static_cast<Real>(quiet_nan());
        SINPE_ROLLED
        for (int32_t r = first; r < last; ++r, to += tile.width) *to = nothing;
        continue;
      }
      const ChannelGroup& p = grid.groups[k];
      const int32_t* coordinate = coordinates[p.axis];
      const Real* column = values + p.offset + c;
      SINPE_ROLLED
      for (int32_t r = first; r < last; r += kInFlight) {
        Real v[kInFlight];
        SINPE_UNROLLED
        for (int i = 0; i < kInFlight; ++i) v[i] = r + i < last ? column[coordinate[r + i] * p.width] : Real{0};
        SINPE_UNROLLED
        for (int i = 0; i < kInFlight; ++i, to += tile.width) {
          if (r + i < last) *to = v[i];
        }
      }
    }
  }

  // Columns are grid points: `item` and every kThreads-th one after it, for the channels of some rows.
  SINPE_HD void fill_channels(const Real* values, int32_t item, int32_t first, int32_t last) {
    Walk start;
    int64_t axis = -1;
    SINPE_ROLLED
    for (int32_t r = first; r < last; ++r) {
      Real* to = pe + r * tile.width;
      int64_t c = 0;
      const int k = grid.channel_group(tile.row + r, &c);
      if (k < 0) {
        SINPE_ROLLED
        for (int32_t i = item; i < tile.width; i += kThreads) to[i] = Real{0};
        continue;
      }
      const ChannelGroup& p = grid.groups[k];
      if (p.axis != axis) {
        axis = p.axis;
        start = Walk(grid, axis, tile.channel + item, kThreads);
      }
      const Real* channel = values + p.offset + c * start.length;
      Walk walk = start;
      SINPE_ROLLED
      for (int32_t i = item; i < tile.width; i += kInFlight * kThreads) {
        Real v[kInFlight];
        SINPE_UNROLLED
        for (int j = 0; j < kInFlight; ++j, walk.next()) {
          v[j] = i + j * kThreads < tile.width ? channel[walk.coordinate] : Real{0};
        }
        SINPE_UNROLLED
        for (int j = 0; j < kInFlight; ++j) {
          if (i + j * kThreads < tile.width) to[i + j * kThreads] = v[j];
        }
      }
    }
  }
};

}  // namespace cuda
}  // namespace sinpe
