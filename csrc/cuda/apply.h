// The kernel of add, dropout and embed: a tile of the encoding is computed in shared memory and applied to the slices
// of the data that need its rows; data are read once and written once. If there are too few tiles for the device,
// several blocks share the slices of a tile, and each computes the tile. (Rows that are not shared by slices:
// cuda/runs.h.)
#pragma once

#include "core/dtype.h"
#include "cuda/draw.h"
#include "cuda/rows.h"

namespace sinpe {
namespace cuda {

// Source of the data: x; rows of a weight, selected by ids; or none, for the encoding alone (cuda/few_rows.h).
enum class Source { kStrided, kRows, kNone };

constexpr int kSliceDims = SINPE_MAX_RANK - 2;

// Strides of one tensor: those of the dimensions before the sequence, of the sequence and of the channels.
struct Strides {
  int64_t slice[kSliceDims];
  int64_t row, channel;
};

// Those of a tensor with one dimension before the sequence.
struct FlatStrides {
  int64_t slice, row, channel;
};

// The parameters of a call that describe its data. A kernel's arguments are loaded from memory, too: what every call of
// few elements reads (cuda/few_rows.h) comes first, side by side.
struct Data {
  const void* x;
  void* out;
  FlatStrides flat_x, flat_out, flat_ids, flat_rng_offsets;  // of few elements
  // Number of slices: batch * middle, or middle if the rows of tiles include the batch.
  int64_t middle, slices;
  const uint8_t* padding_mask;
  int64_t mask_strides[2];
  DeviceScalars scalars;
  int32_t dims;  // number of dimensions before the sequence
  uint32_t drop_limit;
  const int64_t* ids;
  int64_t num_embeddings, weight_stride;
  uint64_t first_rng_offset, seed;
  double scale, alpha, dropout_scale;
  int64_t sizes[kSliceDims];
  Strides of_x, of_out, of_ids, of_rng_offsets;
  Divisor tiles;    // number of tiles
  int64_t part;     // slices per block, at most kMaxSlices
  bool misaligned;  // some row of the result begins at a misaligned address
  // Whether every row of every operand begins and ends at a multiple of 16 bytes (and of the eight elements of a Philox
  // block), and whether the scale is 1 and there is no padding mask.
  bool aligned, simple;
  bool transposed;  // see Apply
  Divisor groups;   // groups per row of a tile
  Divisor tile_groups;
  int32_t lanes;  // threads of a block per group of a tile: they take different slices

  // Memory offset of a slice. If the rows of tiles include the batch, its dimension is not part of the slice.
  SINPE_HD int64_t slice_offset(const Strides& t, bool by_sample, int64_t slice) const {
    const int skip = by_sample ? 1 : 0;
    return offset_at(sizes + skip, t.slice + skip, dims - skip, slice);
  }
};

constexpr int kMaxSlices = 64;

// Consecutive channels that a thread processes at once: 16 bytes, or the eight elements of one Philox block.
template <class T, bool kDrop>
constexpr int kGroupOf = kDrop || sizeof(T) == 2 ? 8 : 16 / static_cast<int>(sizeof(T));

// The ids of a tile's rows in all of its slices, loaded before the rows of the weight that they select.
constexpr int kTileIds = 512;
template <Source>
struct TileIds {};
template <>
struct TileIds<Source::kRows> {
  int64_t of[kTileIds];  // (slice, row)
};

// Memory offsets of a row of a tile, or of a slice. The offset of an element is their sum.
struct alignas(16) Offsets {
  int64_t x, out, ids, mask;
  uint64_t rng_offset;
};

// Threads process what is contiguous in memory: channels, or positions if x is transposed (its channel dimension comes
// first). In a transposed tile the rows are channels and the columns are positions, and the strides in Data are
// exchanged accordingly.
// kAligned: Data::aligned; a kernel for both cases would need more registers. The faster loop for Data::simple, kSimple,
// is part of the aligned kernel.
template <class T, class Arithmetic, Source kSource, bool kDrop, bool kAligned>
struct Apply {
  using Real = typename Arithmetic::Real;
  static_assert(std::is_same<Real, accumulate_t<T>>::value, "an arithmetic of T's accumulation type");
  static constexpr bool kEncoded = TileRows<Arithmetic>::kEncoded;
  static constexpr int kPhases = kEncoded ? 3 : 2;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kGroup = kGroupOf<T, kDrop>;
  // Minimum number of blocks per multiprocessor, which limits registers, and number of slices that a thread processes
  // at once, so that their loads are in flight together. The fastest on an H100 (benchmarks/README.md).
  static constexpr bool kShort = sizeof(T) == 2, kStrided = kSource == Source::kStrided;
  static constexpr int kBlocks = sizeof(T) == 8 ? 2 : (kAligned && kStrided != (kDrop && kShort) ? 4 : 3);
  static constexpr int kMaxInFlight =
      kDrop ? (kShort ? (kStrided ? 4 : 2) : (sizeof(T) == 4 && !kStrided ? 2 : 1)) : (kStrided ? 2 : 4);
  // Target number of waves of a launch, and least number of slices of a block if the GPU is full. Blocks of few slices,
  // in the order of the data, keep the memory that is in use at any time small; with more, the tile is used more often.
  static constexpr bool kQuick = kStrided && TileRows<Arithmetic>::kSampled;  // rows of a grid take longer
  static constexpr int kWaves = !kEncoded ? 64 : (kQuick ? (kShort ? 16 : 32) : (kShort ? 4 : 8));
  static constexpr int kMinSlices = !kEncoded ? 2 : (kQuick ? 4 : 8);

  struct Shared {
    TileRows<Arithmetic> rows;
    Tile tile;
    int32_t slices;
    Offsets row[kTileRows], slice[kMaxSlices];
    TileIds<kSource> ids;
    Real alpha;
    Draws draws;
  };

  DevicePlan plan;
  typename TileRows<Arithmetic>::Operand positions;  // input of the rows: positions, or the values of a grid
  Tiling tiling;
  Data s;
  Real scale, dropout_scale;  // s.scale and s.dropout_scale as Real

  template <int kPhase>
  SINPE_HD void phase(uint32_t block, int thread, Shared& shared) const {
    if constexpr (kPhase == 0) {
      const uint32_t part = s.tiles.quotient(block), index = block - part * s.tiles.d;
      const Tile tile = tile_at(tiling, index);
      const int64_t first = static_cast<int64_t>(part) * s.part;
      const int32_t slices = static_cast<int32_t>(first + s.part < s.slices ? s.part : s.slices - first);
      if constexpr (kSource == Source::kStrided) prefetch_slices(tile, first, slices, thread);
      if constexpr (kEncoded) {
        // In a transposed tile, the rows of the encoding are columns.
        const Tile rows = s.transposed ? Tile{tile.channel, tile.width, tile.row, tile.height} : tile;
        shared.rows.begin(plan, tiling, positions, rows,
                          s.transposed ? TileStrides{1, tile.width} : TileStrides{tile.width, 1}, thread);
      }
      const int at = thread - kThreads / 2;
      if (thread < tile.height) {
        int64_t sample = 0, row = tile.row + thread;
        if constexpr (TileRows<Arithmetic>::kSampled) {
          if (tiling.by_sample) sample = shared.rows.batch[thread], row = shared.rows.row[thread];
        }
        shared.row[thread] = row_offsets(tile, sample, row);
      }
      if (at >= 0 && at < slices) shared.slice[at] = slice_offsets(first + at);
      if (kDrop) shared.draws.begin(s.seed, s.scalars.seed, thread, kThreads);
      if (thread != kThreads - 1) return;
      const double alpha = s.scalars.alpha == nullptr ? s.alpha : value_of(s.scalars.alpha, s.scalars.alpha_dtype);
      shared.alpha = static_cast<Real>(alpha);
      shared.tile = tile;
      shared.slices = slices;
    } else if constexpr (kPhase + 1 < kPhases) {
      if constexpr (kSource == Source::kRows) {
        const int32_t height = shared.tile.height;
        SINPE_ROLLED
        for (int32_t i = thread; i < height * shared.slices; i += kThreads) {
          const int32_t slice = i / height, r = i - slice * height;
          const int64_t id = s.ids[shared.row[r].ids + shared.slice[slice].ids];
          shared.ids.of[i] = id;
          if (kAligned && slice < s.lanes * kMaxInFlight &&
              static_cast<uint64_t>(id) < static_cast<uint64_t>(s.num_embeddings)) {
            const T* row = static_cast<const T*>(s.x) + id * s.weight_stride + shared.tile.channel;
            SINPE_ROLLED
            for (int32_t c = 0; c < shared.tile.width; c += kLine) prefetch(row + c);
          }
        }
      }
      shared.rows.fill(positions, shared.alpha, thread);
    } else if (kAligned && s.simple) {
      stream<true>(shared.tile, shared.slices, thread, shared);
    } else {
      stream<false>(shared.tile, shared.slices, thread, shared);
    }
  }

 private:
  static constexpr int kLine = 128 / static_cast<int>(sizeof(T));  // elements of a cache line

  // Starts to load the first data of a block, so that they are on their way while its rows of the encoding are computed.
  SINPE_HD void prefetch_slices(const Tile& tile, int64_t first, int32_t slices, int thread) const {
    if (!kAligned || s.transposed || tiling.by_sample) return;
    const int32_t some = s.lanes * kMaxInFlight < slices ? s.lanes * kMaxInFlight : slices;
    const int32_t lines = (tile.width + kLine - 1) / kLine, of_slice = lines * tile.height;
    SINPE_ROLLED
    for (int32_t i = thread; i < of_slice * some; i += kThreads) {
      const int32_t slice = i / of_slice, within = i - slice * of_slice, r = within / lines, line = within - r * lines;
      prefetch(static_cast<const T*>(s.x) + s.slice_offset(s.of_x, false, first + slice) + (tile.row + r) * s.of_x.row +
               tile.channel + line * kLine);
    }
  }

  SINPE_HD Offsets row_offsets(const Tile& tile, int64_t lead, int64_t row) const {
    const auto offset = [&](const Strides& t) { return lead * t.slice[0] + row * t.row + tile.channel * t.channel; };
    const int64_t position = s.transposed ? tile.channel : row;
    return {offset(s.of_x), offset(s.of_out), offset(s.of_ids), lead * s.mask_strides[0] + position * s.mask_strides[1],
            s.first_rng_offset + static_cast<uint64_t>(offset(s.of_rng_offsets))};
  }
  SINPE_HD Offsets slice_offsets(int64_t slice) const {
    const auto offset = [&](const Strides& t) { return s.slice_offset(t, tiling.by_sample, slice); };
    return {offset(s.of_x), offset(s.of_out), offset(s.of_ids),
            tiling.by_sample ? 0 : slice / s.middle * s.mask_strides[0],
            static_cast<uint64_t>(offset(s.of_rng_offsets))};
  }

  template <bool kSimple>
  SINPE_HD void stream(const Tile& tile, int32_t slices, int thread, const Shared& shared) const {
    const uint32_t groups = s.groups.d * static_cast<uint32_t>(tile.height);
    // If the tile has fewer groups than the block has threads, several threads (lanes) per group share the slices.
    const uint32_t lane = s.lanes == 1 ? 0 : s.tile_groups.quotient(static_cast<uint32_t>(thread));
    if (lane >= static_cast<uint32_t>(s.lanes)) return;
    SINPE_ROLLED
    for (uint32_t g = static_cast<uint32_t>(thread) - lane * s.tile_groups.d; g < groups; g += kThreads) {
      const uint32_t r = s.groups.quotient(g), u = g - r * s.groups.d;
      group<kSimple>(tile, static_cast<int32_t>(r), static_cast<int32_t>(u * kGroup), static_cast<int32_t>(lane),
                     slices, shared);
    }
  }

  // Processes one group of channels of a row, from channel c of the tile, in the slices of a lane.
  template <bool kSimple>
  SINPE_HD void group(const Tile& tile, int32_t r, int32_t c, int32_t lane, int32_t slices,
                      const Shared& shared) const {
    const Offsets row = shared.row[r];  // a local copy, because the compiler must assume that stores modify it
    T* out = static_cast<T*>(s.out) + row.out;
    // If rows are misaligned, groups begin at multiples of 16 bytes; the first and the last group of a row are shorter.
    if (!kAligned && s.misaligned) {
      const uintptr_t first = reinterpret_cast<uintptr_t>(out + shared.slice[0].out);
      c -= static_cast<int32_t>(first / sizeof(T)) & (kGroup - 1);
    }
    Range range{0, c < tile.width ? kGroup : 0};
    if (!kAligned) range = {c < 0 ? -c : 0, tile.width - c < kGroup ? tile.width - c : kGroup};
    if (range.from >= range.to) return;
    const Real* encoding = nullptr;
    if constexpr (kEncoded) encoding = shared.rows.pe + r * tile.width + c;
    const T* x = static_cast<const T*>(s.x) + row.x;
    uint64_t rng_offset = row.rng_offset;
    if (kAligned) x += c, out += c, rng_offset += static_cast<uint64_t>(c);
    const int32_t first = kAligned ? 0 : c;  // remaining channel offset
    // As many as there are registers for. With dropout, fewer unless kSimple, or if no instruction converts bfloat16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    constexpr bool kMany = false;
#else
    constexpr bool kMany = kSimple;
#endif
    constexpr int kFew = kAligned ? 2 : 1;
    constexpr int kInFlight = kMany || !kDrop || kMaxInFlight < kFew ? kMaxInFlight : kFew;
    SINPE_ROLLED
    for (int32_t slice = lane * kInFlight; slice < slices; slice += s.lanes * kInFlight) {
      Draw drawn[kInFlight];
      Raw<T, kGroup> raw[kInFlight];
      bool exists[kInFlight];
      // Past the end, the last slice is repeated, with the same result, to avoid a branch.
      const int32_t left = slices - 1 - slice;
      const auto at = [&](int k) { return slice + (k < left ? k : left); };
      SINPE_UNROLLED
      for (int k = 0; k < kInFlight; ++k) {
        const T* from = x;
        exists[k] = true;
        if constexpr (kSource == Source::kStrided) {
          from += shared.slice[at(k)].x;
        } else {  // no load for an id that is not a row of the weight
          const int64_t id = shared.ids.of[at(k) * tile.height + r];
          exists[k] = static_cast<uint64_t>(id) < static_cast<uint64_t>(s.num_embeddings);
          if (exists[k]) from += id * s.weight_stride;
        }
        if (exists[k]) {
          load<T, kGroup, kAligned>(from, first, s.of_x.channel, range, &raw[k]);
        } else {
          raw[k].fill(kDrop ? 0 : 0x7fff7fff);  // NaN in every type, and so is its sum
        }
      }
      // While these loads are in flight. The branch keeps the compiler from serialising the loads of the mask.
      uint32_t padded[kInFlight] = {};
      if (!kSimple && kInFlight > 1 && s.padding_mask != nullptr) {
        SINPE_UNROLLED
        for (int k = 0; k < kInFlight; ++k) padded[k] = padding(row.mask + shared.slice[at(k)].mask, c, range);
      }
      SINPE_UNROLLED
      for (int k = 0; k < kInFlight && kDrop; ++k)
        drawn[k] = draw_of(rng_offset + shared.slice[at(k)].rng_offset, first, shared);
      Real pe[kGroup];
      if constexpr (kEncoded) load_values<kAligned>(encoding, range, pe);
      SINPE_UNROLLED
      for (int k = 0; k < kInFlight; ++k) {
        Real v[kGroup];
        if (!kSimple && kInFlight == 1 && s.padding_mask != nullptr)
          padded[k] = padding(row.mask + shared.slice[at(k)].mask, c, range);
        combine<kSimple>(padded[k], exists[k], pe, raw[k], drawn[k], v);
        store<T, kGroup, kAligned>(out + shared.slice[at(k)].out, first, s.of_out.channel, range, v);
      }
    }
  }

  // The random bits of the group that begins `first` channels after an element.
  SINPE_HD Draw draw_of(uint64_t rng_offset, int32_t first, const Shared& shared) const {
    if constexpr (kAligned) return shared.draws.counter(rng_offset);
    const uint64_t step = static_cast<uint64_t>(s.of_rng_offsets.channel);
    return shared.draws.of(rng_offset + static_cast<uint64_t>(first) * step, step);
  }

  // Padding bits of a group's elements: all or none if they share a position.
  SINPE_HD uint32_t padding(int64_t first, int32_t c, Range range) const {
    if (kAligned || !s.transposed) return s.padding_mask[first] != 0 ? ~uint32_t{0} : 0;
    uint32_t bits = 0;
    SINPE_ROLLED
    for (int k = range.from; k < range.to; ++k)
      bits |= static_cast<uint32_t>(s.padding_mask[first + (c + k) * s.mask_strides[1]] != 0) << k;
    return bits;
  }

  // round(scale*x) + round(alpha*PE), then dropout.
  template <bool kSimple>
  SINPE_HD void combine(uint32_t padding, bool exists, const Real* pe, const Raw<T, kGroup>& raw, const Draw& drawn,
                        Real* v) const {
    raw.values(v);
    SINPE_UNROLLED
    for (int k = 0; k < kGroup; ++k) {
      if constexpr (!kSimple) v[k] = scale * v[k];
      const bool padded = !kSimple && (kAligned ? padding != 0 : (padding >> k & 1) != 0);
      if constexpr (kEncoded) v[k] = padded ? v[k] : v[k] + pe[k];
      if constexpr (kDrop) v[k] = drawn.keeps(k, s.drop_limit) ? v[k] * dropout_scale : Real{0};
      if constexpr (kSource == Source::kRows && kDrop) v[k] = exists ? v[k] : static_cast<Real>(quiet_nan());
    }
  }
};

}  // namespace cuda
}  // namespace sinpe
