// row_dots: the dot product of each row of a gradient with its row of the encoding; add_backward: this and the gradient
// with respect to x, as by dropout, in one pass over the gradient. The order of summation is that of the CPU
// (core/tree_sum.h). So the bits equal the CPU's if those of the encoding do. Rows wider than a tile take one launch per
// tile, each continuing with the partial sums of the previous one.
#include "core/tree_sum.h"
#include "cuda/apply_launch.h"

namespace sinpe {
namespace cuda {
namespace {

constexpr int kSumsEach = 8;                         // partial sums per thread: eight channels, one Philox block
constexpr int kTeam = kDotSums / kSumsEach;          // threads that share a row, which they read in whole cache lines
constexpr int kDotsEach = 4;                         // dot products of a team, one after the other
constexpr int kDots = kThreads / kTeam * kDotsEach;  // per block
template <class Real>
constexpr int kValues =
    sizeof(Real) == 8 ? kTile : 2 * kTile;  // of a tile: enough rows for all dot products of a block

template <class T, class Arithmetic, bool kDrop>
struct RowDots {
  using Real = typename Arithmetic::Real;
  static constexpr int kPhases = 4, kThreads = cuda::kThreads;
  static constexpr int kBlocks = std::is_same<Real, double>::value ? 1 : 2;
  static constexpr int kInFlight =
      sizeof(T) == 2 ? 4 : 2;  // eight channels each, of which as many are loaded while these are added

  struct Shared {
    TileRows<Arithmetic, kValues<Real>> rows;
    double sums[kDots][2 * kTeam + 1];  // two for each thread; padded, so that neighbouring dots use different banks
    Draws draws;
  };

  DevicePlan plan;
  RowPositions positions;
  Tiling tiling;  // a single column of tiles
  Data s;         // of_out: strides of `to`
  double* dots;
  T* to;                      // gradient with respect to x, or null
  Real scale, dropout_scale;  // s.scale and s.dropout_scale as Real
  const double* angular_frequencies;
  int64_t channel;  // first channel of the tiles of this launch
  double* partial;  // kDotSums per row, passed from launch to launch; null for a single launch

  template <int kPhase>
  SINPE_HD void phase(uint32_t block, int thread, Shared& shared) const {
    const uint32_t part = s.tiles.quotient(block), index = block - part * s.tiles.d;
    Tile tile = tile_at(tiling, index);
    tile.channel = channel;
    tile.width = static_cast<int32_t>(tiling.dim - channel < kTile ? tiling.dim - channel : kTile);
    const int64_t first = static_cast<int64_t>(part) * s.part;
    if constexpr (kPhase == 0) {
      shared.rows.begin(plan, tiling, positions, tile, {tile.width, 1}, thread);
      if (kDrop) shared.draws.begin(s.seed, s.scalars.seed, thread, kThreads);
    } else if constexpr (kPhase == 1) {
      shared.rows.fill(positions, Real{1}, thread);
    } else if constexpr (kPhase == 2) {
      const int c = thread % kTeam * kSumsEach;
      SINPE_ROLLED
      for (int k = 0; k < kDotsEach; ++k) {
        const int dot = thread / kTeam * kDotsEach + k, r = dot / static_cast<int>(s.part);
        const int64_t slice = first + dot % static_cast<int>(s.part);
        if (r >= tile.height || slice >= s.slices) continue;
        double* const sums = shared.sums[dot] + 2 * (thread % kTeam);
        if (s.aligned) {
          sum<true>(tile, shared, r, slice, c, sums);
        } else {
          sum<false>(tile, shared, r, slice, c, sums);
        }
      }
    } else {
      const int r = thread / static_cast<int>(s.part);
      const int64_t slice = first + thread % static_cast<int>(s.part);
      if (thread >= kDots || r >= tile.height || slice >= s.slices || !is_last(tile)) return;
      const auto total = [&](int odd) { return sum_of_eight([&](int k) { return shared.sums[thread][2 * k + odd]; }); };
      finish(shared, r, slice, total(0) + total(1));
    }
  }

 private:
  SINPE_HD bool is_last(const Tile& tile) const { return tile.channel + tile.width == tiling.dim; }

  // Index of a slice among all slices of the batch.
  SINPE_HD int64_t whole_slice(int64_t batch, int64_t slice) const {
    return tiling.by_sample ? batch * s.middle + slice : slice;
  }

  SINPE_HD int64_t offset(const Strides& t, int64_t batch, int64_t slice) const {
    return (tiling.by_sample ? batch * t.slice[0] : 0) + s.slice_offset(t, tiling.by_sample, slice);
  }

  // The offset of a tile's row in a slice.
  SINPE_HD int64_t row_offset(const Tile& tile, const Strides& t, int64_t batch, int64_t slice, int64_t row) const {
    return offset(t, batch, slice) + row * t.row + tile.channel * t.channel;
  }

  // Eight channels each, from channel c of the tile.
  struct Loaded {
    Raw<T, kSumsEach> raw[kInFlight];
  };
  SINPE_HD static Range range_at(const Tile& tile, int32_t c) {
    const int32_t left = tile.width - c;
    return {0, left < kSumsEach ? (left < 0 ? 0 : left) : kSumsEach};
  }
  template <bool kAligned>
  SINPE_HD void fetch(const Tile& tile, const T* x, int32_t c, Loaded* loaded) const {
    SINPE_UNROLLED
    for (int i = 0; i < kInFlight; ++i) {
      const int32_t at = c + i * kDotSums;
      if (at < tile.width) load<T, kSumsEach, kAligned>(x, at, s.of_x.channel, range_at(tile, at), &loaded->raw[i]);
    }
  }

  // Channels c, c + 1, ..., c + 7 of the tile and of every kDotSums that follow, each added to its own sum. Writes the
  // totals of the even and the odd ones.
  template <bool kAligned>
  SINPE_HD void sum(const Tile& tile, const Shared& shared, int r, int64_t slice, int32_t c, double* sums) const {
    const int64_t batch = shared.rows.batch[r], row = shared.rows.row[r];
    const T* x = static_cast<const T*>(s.x) + row_offset(tile, s.of_x, batch, slice, row);
    const uint64_t rng_offset =
        s.first_rng_offset + static_cast<uint64_t>(row_offset(tile, s.of_rng_offsets, batch, slice, row));
    T* out = to == nullptr ? nullptr : to + row_offset(tile, s.of_out, batch, slice, row);
    double* carried = nullptr;  // where a launch stores the sums for the next one
    if (partial != nullptr) carried = partial + (whole_slice(batch, slice) * positions.rows + row) * kDotSums + c;
    double total[kSumsEach] = {};
    SINPE_UNROLLED
    for (int k = 0; k < kSumsEach; ++k) {
      if (tile.channel != 0) total[k] = carried[k];
    }
    // The next loads are in flight while the sums are computed.
    Loaded next{};
    fetch<kAligned>(tile, x, c, &next);
    SINPE_ROLLED
    while (c < tile.width) {
      const Loaded current = next;
      const int32_t first = c;
      c += kInFlight * kDotSums;
      fetch<kAligned>(tile, x, c, &next);
      SINPE_UNROLLED
      for (int i = 0; i < kInFlight; ++i) {
        const int32_t at = first + i * kDotSums;
        if (at < tile.width) add<kAligned>(tile, shared, r, at, rng_offset, current.raw[i], out, total);
      }
    }
    if (is_last(tile)) {
      SINPE_UNROLLED
      for (int odd = 0; odd < 2; ++odd) sums[odd] = sum_of_four([&](int k) { return total[2 * k + odd]; });
    } else {
      SINPE_UNROLLED
      for (int k = 0; k < kSumsEach; ++k) carried[k] = total[k];
    }
  }

  template <bool kAligned>
  SINPE_HD void add(const Tile& tile, const Shared& shared, int r, int32_t c, uint64_t rng_offset,
                    const Raw<T, kSumsEach>& raw, T* out, double* total) const {
    const Range range = range_at(tile, c);
    const uint64_t step = kAligned ? 1 : static_cast<uint64_t>(s.of_rng_offsets.channel);
    Draw drawn{};
    if constexpr (kDrop) {
      const uint64_t first = rng_offset + static_cast<uint64_t>(c) * step;
      drawn = kAligned ? shared.draws.counter(first) : shared.draws.of(first, step);
    }
    Real v[kSumsEach], pe[kSumsEach];
    raw.values(v);
    const auto kept = [&](int k) { return !kDrop || drawn.keeps(k, s.drop_limit); };
    if (out != nullptr) {
      Real g[kSumsEach];
      SINPE_UNROLLED
      for (int k = 0; k < kSumsEach; ++k) {
        g[k] = scale * v[k];
        if constexpr (kDrop) g[k] = kept(k) ? g[k] * dropout_scale : Real{0};
      }
      store<T, kSumsEach, kAligned>(out, c, s.of_out.channel, range, g);
    }
    load_values<kAligned>(shared.rows.pe + r * tile.width + c, range, pe);
    const auto counts = [&](int k) { return (kAligned || k < range.to) && kept(k); };
    if (angular_frequencies != nullptr) {
      SINPE_UNROLLED
      for (int k = 0; k < kSumsEach; ++k) {
        if (!counts(k)) continue;
        total[k] += static_cast<double>(v[k]) * static_cast<double>(pe[k]) * angular_frequencies[tile.channel + c + k];
      }
      return;
    }
    SINPE_UNROLLED
    for (int k = 0; k < kSumsEach; ++k) {
      const double a = static_cast<double>(v[k]), b = static_cast<double>(pe[k]);
      // Unless they are doubles, their product is exact, and the sum is rounded once in either case.
      if (counts(k)) total[k] = std::is_same<Real, double>::value ? total[k] + a * b : sinpe::fma(a, b, total[k]);
    }
  }

  SINPE_HD void finish(const Shared& shared, int r, int64_t slice, double sum) const {
    const int64_t batch = shared.rows.batch[r], row = shared.rows.row[r];
    const int64_t whole = whole_slice(batch, slice), sample = whole / s.middle;
    const bool padded =
        s.padding_mask != nullptr && s.padding_mask[sample * s.mask_strides[0] + row * s.mask_strides[1]] != 0;
    dots[whole * positions.rows + row] = padded ? 0.0 : (kDrop ? s.dropout_scale : 1.0) * sum;
  }
};

template <class T, class Arithmetic>
sinpe_status launch_dots(const DevicePlan& plan, const sinpe_add_arguments& a, double* dots, void* to,
                         const double* angular_frequencies, double* partial, Data s, Stream stream) {
  const Shape shape(a);
  const bool by_sample = a.positions != nullptr && a.position_strides[0] != 0 && shape.batch > 1;
  s.middle = shape.middle;
  s.slices = by_sample ? shape.middle : shape.batch * shape.middle;
  Tiling tiling(by_sample ? shape.rows * shape.batch : shape.rows, shape.dim, by_sample, multiprocessors(), kTile,
                kValues<accumulate_t<T>>);
  tiling.columns = Divisor(1);
  s.part = kDots / tiling.height < s.slices ? kDots / tiling.height : s.slices;
  const int64_t parts = (s.slices + s.part - 1) / s.part;
  if (parts > kMaxBlocks || tiling.tiles() > kMaxBlocks)
    return launch_failed("more slices or rows than a grid can have blocks");
  s.tiles = Divisor(static_cast<uint32_t>(tiling.tiles()));
  s.aligned = shape.dim % kSumsEach == 0 && rows_begin_at<T>(a.x, s.of_x, s.dims, kSumsEach) &&
              (to == nullptr || rows_begin_at<T>(to, s.of_out, s.dims, kSumsEach)) &&
              (a.dropout.drop_threshold == 0 || rows_begin_counters(s));
  const int64_t blocks = tiling.tiles() * parts;
  sinpe_status status = SINPE_OK;
  for (int64_t channel = 0; channel < shape.dim && status == SINPE_OK; channel += kTile) {
    const auto run = [&](auto drops) {
      using Body = RowDots<T, Arithmetic, decltype(drops)::value>;
      using Real = typename Body::Real;
      return launch(Body{plan, positions_of(a), tiling, s, dots, static_cast<T*>(to), static_cast<Real>(s.scale),
                         static_cast<Real>(s.dropout_scale), angular_frequencies, channel, partial},
                    blocks, stream);
    };
    status = a.dropout.drop_threshold != 0 ? run(std::true_type{}) : run(std::false_type{});
  }
  return status;
}

sinpe_status choose_dots(const DevicePlan& plan, const sinpe_add_arguments& a, double* dots, void* to,
                         const double* angular_frequencies, void* scratch, const DeviceScalars& scalars,
                         Stream stream) {
  bool empty;
  const sinpe_status status = check(plan, a, &empty);
  if (status != SINPE_OK || empty) return status;
  if (a.x == nullptr || (scratch == nullptr && row_dots_scratch(a) != 0)) return SINPE_BAD_ARGUMENT;
  double* partial = static_cast<double*>(scratch);
  const Data s = data_of(a, scalars);
  return with_arithmetic(a.dtype, [&](auto type, auto arithmetic) {
    return launch_dots<decltype(type), decltype(arithmetic)>(plan, a, dots, to, angular_frequencies, partial, s,
                                                             stream);
  });
}

}  // namespace
}  // namespace cuda
}  // namespace sinpe

int64_t sinpe::cuda::row_dots_scratch(const sinpe_add_arguments& a) {
  const int64_t rows = product(a.sizes, a.rank - 1);
  return a.sizes[a.rank - 1] > kTile ? rows * kDotSums * int64_t{sizeof(double)} : 0;
}

sinpe_status sinpe::cuda::row_dots(const DevicePlan& plan, const sinpe_add_arguments& a,
                                   const double* angular_frequencies, void* scratch, const DeviceScalars& scalars,
                                   Stream stream) {
  return choose_dots(plan, a, static_cast<double*>(a.out), nullptr, angular_frequencies, scratch, scalars, stream);
}

sinpe_status sinpe::cuda::add_backward(const DevicePlan& plan, const sinpe_add_arguments& a, double* dots,
                                       void* scratch, const DeviceScalars& scalars, Stream stream) {
  if (dots == nullptr) return SINPE_BAD_ARGUMENT;
  return choose_dots(plan, a, dots, a.out, nullptr, scratch, scalars, stream);
}
