// Rows of the encoding, computed by a block of threads: a tile of rows in shared memory. No table is stored in device
// memory. Invalid plans, and positions that are not finite, give NaN.
#pragma once

#include "core/dtype.h"
#include "core/layout.h"
#include "core/run.h"
#include "cuda/access.h"
#include "cuda/launch.h"

namespace sinpe {
namespace cuda {

constexpr int kThreadBits = 8, kThreads = 1 << kThreadBits;
constexpr int kTile = 2048;    // values per tile: eight per thread
constexpr int kTileRows = 64;  // maximum rows per tile

// Partition of the rows and channels into tiles. If positions differ between samples, the rows include the batch
// dimension.
struct Tiling {
  int64_t rows;  // total
  int64_t dim;
  int32_t height, width;  // per tile
  Divisor columns;        // columns of tiles
  bool by_sample;
  // `wanted`: target number of tiles; tiles have fewer rows if there would be fewer. `widest`: maximum width of a tile.
  // `values`: maximum number of values of a tile.
  Tiling(int64_t n_rows, int64_t n_dim, bool per_sample, int64_t wanted, int64_t widest = kTile, int64_t values = kTile)
      : rows(n_rows),
        dim(n_dim),
        height(1),
        width(static_cast<int32_t>(n_dim < widest ? n_dim : widest)),
        columns(static_cast<uint32_t>((n_dim + widest - 1) / widest)),
        by_sample(per_sample) {
    const int64_t fit = values / width, most = fit < kTileRows ? fit : kTileRows;
    const int64_t share = n_rows / ((wanted + columns.d - 1) / columns.d);
    height = static_cast<int32_t>(share < 1 ? 1 : (share < most ? share : most));
  }
  int64_t tiles() const { return (rows + height - 1) / height * columns.d; }
};

// The tile that a block processes.
struct Tile {
  int64_t row;      // first
  int32_t height;   // existing rows
  int64_t channel;  // first
  int32_t width;    // existing channels
};

SINPE_HD Tile tile_at(const Tiling& t, uint32_t index) {
  const uint32_t down = t.columns.quotient(index), across = index - down * t.columns.d;
  const int64_t row = static_cast<int64_t>(down) * t.height, channel = static_cast<int64_t>(across) * t.width;
  const int64_t height = t.rows - row, width = t.dim - channel;
  return {row, height < t.height ? static_cast<int32_t>(height) : t.height, channel,
          width < t.width ? static_cast<int32_t>(width) : t.width};
}

// The positions of the rows.
struct RowPositions {
  const void* positions;  // null: implicit
  sinpe_dtype dtype;
  bool are_starts;
  int64_t strides[2];
  int64_t start, rows;  // per sample

  // What is loaded for the position of a row: its bits, or those of its sample's start. A device does not wait for it
  // yet.
  SINPE_HD uint64_t load(int64_t batch, int64_t row) const {
    if (positions == nullptr) return 0;
    const int64_t i = batch * strides[0] + (are_starts ? 0 : row * strides[1]);
    if (dtype == SINPE_FLOAT32) return static_cast<const uint32_t*>(positions)[i];
    return static_cast<const uint64_t*>(positions)[i];
  }
  // Sets *p to the position of a row; returns false if it is NaN, infinite or beyond int64.
  SINPE_HD bool at(uint64_t loaded, int64_t plan_start, int64_t row, Position* p) const {
    int64_t value = static_cast<int64_t>(loaded);
    bool exists = true;
    if (positions == nullptr) {
      exists = add_positions(plan_start, start, &value) && add_positions(value, row, &value);
    } else if (are_starts) {
      exists = add_positions(value, row, &value);
    } else if (dtype != SINPE_INT64) {
      *p = float_position(dtype == SINPE_FLOAT32 ? static_cast<double>(bit_cast<float>(low_half(loaded)))
                                                 : bit_cast<double>(loaded));
      return p->d - p->d == 0.0;
    }
    *p = integer_position(value);
    return exists;
  }
  SINPE_HD bool at(const DevicePlan& plan, int64_t batch, int64_t row, Position* p) const {
    const int64_t plan_start = positions == nullptr && plan.n_words >= kPlanHeaderWords ? plan.packed[8] : 0;
    return at(load(batch, row), plan_start, row, p);
  }
};

inline RowPositions positions_of(const sinpe_add_arguments& a) {
  return {a.positions, a.position_dtype,   a.positions_are_starts != 0, {a.position_strides[0], a.position_strides[1]},
          a.start,     a.sizes[a.rank - 2]};
}

SINPE_HD double quiet_nan() { return bit_cast<double>(uint64_t{0x7ff8000000000000}); }

// The sample of a finite position, with its rounding decided: by the direct formula if that decides it.
template <class Arithmetic>
SINPE_HD Sample<typename Arithmetic::Real> decided_sample(const Plan& plan, const int64_t* packed_plan, int64_t osc,
                                                          Position p) {
  const FastRange fast_range(plan);
  Run<Arithmetic, false> run;
  Undecided undecided;
  undecided.add(!run.begin(plan, osc, p, 1, fast_range) || !fast_range.contains(p.d));
  const auto v = run.at(fast_range, p, amplitude_of(plan.amplitude), &undecided);
  return undecided.any() ? resolved_sample<Arithmetic>(packed_plan, osc, p) : v;
}

// Strides of a tile in shared memory.
struct TileStrides {
  int32_t row, channel;
};

// A tile of the encoding, shared by the threads of a block. `Arithmetic` is one of core/sample.h.
template <class Arithmetic, int kValues = kTile>
struct TileRows {
  using Real = typename Arithmetic::Real;
  using Operand = RowPositions;
  static constexpr bool kEncoded = true, kSampled = true;  // there is an encoding; positions may differ between samples
  static constexpr int64_t kMaxTransposedWidth = kTileRows;  // of a transposed tile, in positions
  alignas(16) Real pe[kValues];
  Tile tile;
  TileStrides tile_strides;
  Plan plan;
  Amplitude amplitude;
  FastRange fast_range;
  bool usable;
  int64_t batch[kTileRows], row[kTileRows];  // sample of each of the tile's rows, and row within it
  Position position[kTileRows];
  bool exists[kTileRows];  // the position

  // Called by all threads: unpacks and checks the plan, and loads the positions of the tile.
  SINPE_HD void begin(const DevicePlan& packed_plan, const Tiling& tiling, const RowPositions& positions,
                      const Tile& of, const TileStrides& strides, int thread) {
    if (thread == kThreads - 1) {
      tile = of;
      tile_strides = strides;
      usable = decode_plan(packed_plan.packed, packed_plan.n_words, &plan) && plan.dim == packed_plan.dim;
      amplitude = amplitude_of(usable ? plan.amplitude : 1.0);
      if (usable) fast_range = FastRange(plan);
    }
    if (thread >= of.height) return;
    const int64_t flat = of.row + thread, sample = tiling.by_sample ? flat / positions.rows : 0;
    batch[thread] = sample;
    row[thread] = flat - sample * positions.rows;
    exists[thread] = positions.at(packed_plan, batch[thread], row[thread], &position[thread]);
  }

  // Called by all threads after a barrier: computes the tile of alpha * PE. Each thread takes an oscillator (or a
  // channel, if each has its own) and iterates over some of the rows.
  SINPE_HD void fill(const RowPositions&, Real alpha, int thread) {
    const bool whole = tile.width == plan.dim;
    const bool pairs = usable && plan.are_pairs() && (whole || plan.interleaved);
    const int32_t items = pairs ? tile.width / 2 : tile.width;
    // The number of lanes is a power of two, which avoids a division.
    int shift = 0;
    SINPE_ROLLED
    while (kThreads >> (shift + 1) >= items) ++shift;
    const int32_t lane = thread >> (kThreadBits - shift), depth = (tile.height + (1 << shift) - 1) >> shift;
    const int32_t from = lane * depth, to = from + depth < tile.height ? from + depth : tile.height;
    if (from < to) {
      SINPE_ROLLED
      for (int32_t item = thread & ((kThreads >> shift) - 1); item < items; item += kThreads) {
        const Feed feed = pairs ? pair(tile, item) : channel(tile, item);
        if (feed.osc >= 0) {
          walk(feed, from, to, tile_strides, alpha);
        } else {
          SINPE_ROLLED
          for (int32_t r = from; r < to; ++r)
            pe[r * tile_strides.row + item * tile_strides.channel] =
                usable ? alpha * Real{0} : static_cast<Real>(quiet_nan());
        }
      }
    }
  }

 private:
  // An oscillator and the columns of the tile for its sine and cosine; -1 for none.
  struct Feed {
    int64_t osc;
    int32_t sine, cosine;
  };

  // For a whole row, or a part of an interleaved one.
  SINPE_HD Feed pair(const Tile& tile, int32_t item) const {
    const int32_t first = plan.interleaved ? 2 * item : item;
    const int32_t second = first + (plan.interleaved ? 1 : static_cast<int32_t>(plan.n0));
    return {tile.channel / 2 + item, plan.q0 == 0 ? first : second, plan.q0 == 0 ? second : first};
  }

  SINPE_HD Feed channel(const Tile& tile, int32_t item) const {
    if (!usable) return {-1, item, -1};
    bool cosine;
    const int64_t osc = plan.channel_oscillator(tile.channel + item, &cosine);
    return osc < 0 ? Feed{-1, item, -1} : Feed{osc, cosine ? -1 : item, cosine ? item : -1};
  }

  // Computes rows [from, to) of a feed's columns. If a rounding is undecided, all rows are recomputed after the loop,
  // so that the loop itself has no code for it.
  SINPE_HD void walk(const Feed& feed, int32_t from, int32_t to, const TileStrides& tile_strides, Real alpha) {
    // With one column, both values are written to it, which is faster than a test per row.
    const bool feeds_sine = feed.sine >= 0, feeds_cosine = feed.cosine >= 0;
    Real* sine = pe + from * tile_strides.row + (feeds_sine ? feed.sine : feed.cosine) * tile_strides.channel;
    Real* cosine = pe + from * tile_strides.row + (feeds_cosine ? feed.cosine : feed.sine) * tile_strides.channel;
    const Amplitude a = amplitude;  // local copies, which stores cannot alias
    const FastRange local_range = fast_range;
    Run<Arithmetic, false> run;
    bool undecided = !run.begin(plan, feed.osc, {}, 0, local_range);
    SINPE_ROLLED
    for (int32_t r = from; r < to && !undecided; ++r) {
      const Position p = position[r];
      Undecided row;
      row.add(!exists[r]);
      if (Run<Arithmetic, false>::kCallerChecksRange) row.add(!local_range.contains(p.d));
      const Sample<Real> v = run.at(local_range, p, a, &row);
      undecided = row.any();
      *sine = alpha * (feeds_sine ? v.s : v.c);
      *cosine = alpha * (feeds_cosine ? v.c : v.s);
      sine += tile_strides.row;
      cosine += tile_strides.row;
    }
    if (!undecided) return;
    walk_exact(feed, from, to, tile_strides, alpha);
  }

  SINPE_HD void walk_exact(const Feed& feed, int32_t from, int32_t to, const TileStrides& tile_strides, Real alpha) {
    SINPE_ROLLED
    for (int32_t r = from; r < to; ++r) {
      Sample<Real> v{static_cast<Real>(quiet_nan()), static_cast<Real>(quiet_nan())};
      if (exists[r]) v = resolved_sample<Arithmetic>(plan, feed.osc, position[r]);
      if (feed.sine >= 0) pe[r * tile_strides.row + feed.sine * tile_strides.channel] = alpha * v.s;
      if (feed.cosine >= 0) pe[r * tile_strides.row + feed.cosine * tile_strides.channel] = alpha * v.c;
    }
  }
};

// Calls run(type, arithmetic) for elements of a type and for the arithmetic of the current device.
template <class Run>
sinpe_status with_arithmetic(sinpe_dtype dtype, const Run& run) {
  return with_type(dtype, [&](auto type) {
    if constexpr (std::is_same<decltype(type), double>::value) {
      return run(type, InFull{});
    } else {
      return in_double() ? run(type, InDouble{}) : run(type, InSingle{});
    }
  });
}

// No encoding: dropout only.
template <class Number>
struct Unencoded {
  using Real = Number;
};
template <class Number>
struct TileRows<Unencoded<Number>> {
  using Operand = RowPositions;
  static constexpr bool kEncoded = false, kSampled = false;
  static constexpr int64_t kMaxTransposedWidth = kTile;
};

}  // namespace cuda
}  // namespace sinpe
