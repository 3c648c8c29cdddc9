// Launches of the kernel in cuda/apply.h: argument checks and partition of the work.
#pragma once

#include <utility>

#include "core/layout.h"
#include "cuda/few_rows.h"

namespace sinpe {
namespace cuda {

constexpr int64_t kMinTileValues = 512;  // in values: tiles are not made smaller than this to get more blocks

inline Strides strides_of(const int64_t* strides, int rank) {
  Strides t{};
  for (int d = 0; d + 2 < rank; ++d) t.slice[d] = strides[d];
  t.row = strides[rank - 2];
  t.channel = strides[rank - 1];
  return t;
}

// The arguments must have passed check().
inline Data data_of(const sinpe_add_arguments& a, const DeviceScalars& scalars) {
  Data s{};
  s.x = a.x;
  s.out = a.out;
  s.padding_mask = a.padding_mask;
  s.mask_strides[0] = a.mask_strides[0];
  s.mask_strides[1] = a.mask_strides[1];
  s.dims = a.rank - 2;
  for (int d = 0; d < s.dims; ++d) s.sizes[d] = a.sizes[d];
  s.of_x = strides_of(a.x_strides, a.rank);
  s.of_out = strides_of(a.out_strides, a.rank);
  const RngOffsets rng_offsets(a.dropout, a.sizes, a.rank);
  s.of_rng_offsets = strides_of(rng_offsets.strides, a.rank);
  s.first_rng_offset = rng_offsets.base;
  s.scale = a.scale;
  s.alpha = a.alpha;
  s.scalars = scalars;
  s.seed = static_cast<uint64_t>(a.dropout.seed);
  const uint32_t drop = static_cast<uint32_t>(a.dropout.drop_threshold);
  s.drop_limit = drop_limit(drop);
  s.dropout_scale = dropout_scale(drop);
  return s;
}

// Checks what the host can check; kernels check the contents of device memory. For an empty result, sets *empty and
// returns SINPE_OK.
inline sinpe_status check(const DevicePlan& plan, const sinpe_add_arguments& a, bool* empty) {
  *empty = false;
  if (a.rank < 2 || a.rank > SINPE_MAX_RANK || a.sizes[a.rank - 1] != plan.dim || plan.dim < 1 || plan.dim > kMaxDim ||
      !valid_sizes(a.sizes, a.rank) || !valid_dropout(a.dropout, a.sizes, a.rank)) {
    return SINPE_BAD_ARGUMENT;
  }
  *empty = Shape(a).empty();
  if (*empty) return SINPE_OK;
  if (plan.packed == nullptr || a.out == nullptr) return SINPE_BAD_ARGUMENT;
  if (a.positions_are_starts != 0 && (a.positions == nullptr || a.position_dtype != SINPE_INT64))
    return SINPE_BAD_ARGUMENT;
  return a.positions == nullptr || is_position_type(a.position_dtype) ? SINPE_OK : SINPE_BAD_ARGUMENT;
}

// Whether each row of `t` begins at a multiple of `elements` elements and has contiguous channels.
template <class T>
bool rows_begin_at(const void* base, const Strides& t, int dims, int64_t elements) {
  bool even = reinterpret_cast<uintptr_t>(base) % (sizeof(T) * static_cast<uint64_t>(elements)) == 0;
  even = even && t.row % elements == 0 && t.channel == 1;
  for (int d = 0; d < dims; ++d) even = even && t.slice[d] % elements == 0;
  return even;
}

// Whether the rows of the source begin at multiples of 16 bytes.
template <class T, Source kSource>
bool is_even_source(const Data& s) {
  constexpr int64_t kEach = 16 / static_cast<int64_t>(sizeof(T));
  if (kSource == Source::kStrided) return rows_begin_at<T>(s.x, s.of_x, s.dims, kEach);
  return reinterpret_cast<uintptr_t>(s.x) % 16 == 0 && s.weight_stride % kEach == 0;
}

// Whether each row begins at the first element of a Philox block (core/philox.h), and its channels have consecutive RNG
// offsets.
inline bool rows_begin_counters(const Data& s) {
  bool even = s.first_rng_offset % kLanesPerCounter == 0 && s.of_rng_offsets.row % kLanesPerCounter == 0;
  for (int d = 0; d < s.dims; ++d) even = even && s.of_rng_offsets.slice[d] % kLanesPerCounter == 0;
  return even && s.of_rng_offsets.channel == 1;
}

// Whether x and its result are contiguous along the positions instead of the channels.
inline bool is_transposed(const Data& s, const Shape& shape, bool draws) {
  return s.of_x.row == 1 && s.of_out.row == 1 && (s.of_x.channel != 1 || s.of_out.channel != 1) && shape.rows > 1 &&
         (!draws || s.of_rng_offsets.row == 1);
}
inline void transpose(Strides* t) { std::swap(t->row, t->channel); }

// Launches the kernel for rows of `width` channels; transposed, for channels of `width` positions.
template <class T, class Arithmetic, Source kSource, bool kDrop, bool kAligned>
sinpe_status launch_tiles(const DevicePlan& plan, const typename TileRows<Arithmetic>::Operand& positions, int64_t rows,
                          int64_t width, bool by_sample, Data s, Stream stream) {
  using Body = Apply<T, Arithmetic, kSource, kDrop, kAligned>;
  const int64_t widest = s.transposed ? TileRows<Arithmetic>::kMaxTransposedWidth : kTile;
  const int64_t wave = int64_t{Body::kBlocks} * multiprocessors(), wanted = Body::kWaves * wave;
  const auto share = [](int64_t n, int64_t among) { return (n + among - 1) / among; };
  const int64_t most_parts = s.slices < Body::kMinSlices ? 1 : s.slices / Body::kMinSlices;
  // Prefer tiles with fewer rows to tiles that several blocks share, since each of these computes the tile; but no
  // smaller than this.
  const int64_t least = share(kMinTileValues, width < widest ? width : widest);
  const int64_t lowest = rows / least * share(width, widest), low = lowest < wanted ? lowest : wanted;
  const int64_t shared = share(wanted, most_parts);
  Tiling tiling(rows, width, by_sample, low > shared ? low : shared, widest);
  if (s.transposed && Body::kEncoded)
    tiling.height = tiling.height < 2 ? 2 : tiling.height & ~1;  // keep pairs of channels together
  const int64_t tiles = tiling.tiles();
  // If that is less than one wave, use fewer slices per block.
  int64_t parts = share(wanted, tiles) < most_parts ? share(wanted, tiles) : most_parts;
  if (parts < share(wave, tiles)) parts = share(wave, tiles) < s.slices ? share(wave, tiles) : s.slices;
  const int64_t part = share(share(s.slices, parts), Body::kMaxInFlight) * Body::kMaxInFlight;
  const int64_t most =
      kSource == Source::kRows && kTileIds / tiling.height < kMaxSlices ? kTileIds / tiling.height : kMaxSlices;
  s.part = part < most ? part : most;
  parts = share(s.slices, s.part);
  if (parts > kMaxBlocks || tiles > kMaxBlocks) return launch_failed("more slices or rows than a grid can have blocks");
  s.tiles = Divisor(static_cast<uint32_t>(tiles));
  s.groups = Divisor(
      static_cast<uint32_t>((tiling.width + (s.misaligned ? Body::kGroup - 1 : 0) + Body::kGroup - 1) / Body::kGroup));
  s.tile_groups = Divisor(s.groups.d * static_cast<uint32_t>(tiling.height));
  s.lanes = s.tile_groups.d < kThreads ? static_cast<int32_t>(kThreads / s.tile_groups.d) : 1;
  using Real = typename Body::Real;
  return launch(Body{plan, positions, tiling, s, static_cast<Real>(s.scale), static_cast<Real>(s.dropout_scale)},
                tiles * parts, stream);
}

template <class T, class Arithmetic, Source kSource, bool kDrop>
sinpe_status launch_apply(const DevicePlan& plan, const typename TileRows<Arithmetic>::Operand& positions,
                          const sinpe_add_arguments& a, Data s, Stream stream) {
  const Shape shape(a);
  const bool by_sample = a.positions != nullptr && a.position_strides[0] != 0 && shape.batch > 1;
  int64_t rows = by_sample ? shape.rows * shape.batch : shape.rows, width = shape.dim;
  s.middle = shape.middle;
  s.slices = by_sample ? shape.middle : shape.batch * shape.middle;
  if (!by_sample && kSource == Source::kStrided && TileRows<Arithmetic>::kMaxTransposedWidth != 0 &&
      is_transposed(s, shape, kDrop)) {
    s.transposed = true;
    std::swap(rows, width);
    for (Strides* t : {&s.of_x, &s.of_out, &s.of_rng_offsets}) transpose(t);
  }
  constexpr int64_t kGroup = kGroupOf<T, kDrop>;
  const bool even = rows_begin_at<T>(s.out, s.of_out, s.dims, kGroup);
  s.misaligned = s.of_out.channel == 1 && !even;
  s.simple = s.scale == 1.0 && s.padding_mask == nullptr;
  s.aligned = even && width % kGroup == 0 && is_even_source<T, kSource>(s) && (!kDrop || rows_begin_counters(s)) &&
              !(s.transposed && s.padding_mask != nullptr);  // padding begins and ends at any position
  return s.aligned
             ? launch_tiles<T, Arithmetic, kSource, kDrop, true>(plan, positions, rows, width, by_sample, s, stream)
             : launch_tiles<T, Arithmetic, kSource, kDrop, false>(plan, positions, rows, width, by_sample, s, stream);
}

template <class T, class Arithmetic, Source kSource>
sinpe_status choose_dropout(const DevicePlan& plan, const typename TileRows<Arithmetic>::Operand& positions,
                            const sinpe_add_arguments& a, const Data& s, Stream stream) {
  if (a.dropout.drop_threshold != 0) return launch_apply<T, Arithmetic, kSource, true>(plan, positions, a, s, stream);
  return launch_apply<T, Arithmetic, kSource, false>(plan, positions, a, s, stream);
}

// Launches the kernel. The arguments must be checked and not empty.
template <Source kSource>
sinpe_status apply(const DevicePlan& plan, const sinpe_add_arguments& a, const Data& s, Stream stream) {
  return with_arithmetic(a.dtype, [&](auto type, auto arithmetic) {
    return choose_dropout<decltype(type), decltype(arithmetic), kSource>(plan, positions_of(a), a, s, stream);
  });
}

// Whether the kernel for few elements is used, and its launch.
inline bool are_few(const sinpe_add_arguments& a) { return Shape(a).elements() <= kFewElements * multiprocessors(); }
template <Source kSource>
sinpe_status apply_few(const DevicePlan& plan, const sinpe_add_arguments& a, Data s, Stream stream) {
  const Shape shape(a);
  const auto flat = [](const Strides& t) { return FlatStrides{t.slice[0], t.row, t.channel}; };
  s.flat_x = flat(s.of_x), s.flat_out = flat(s.of_out), s.flat_ids = flat(s.of_ids);
  s.flat_rng_offsets = flat(s.of_rng_offsets);
  s.middle = shape.middle, s.slices = shape.batch * shape.middle;
  return with_arithmetic(a.dtype, [&](auto type, auto arithmetic) {
    using Body = FewRows<decltype(type), decltype(arithmetic), kSource>;
    using Real = typename Body::Real;
    const Body body{plan,
                    positions_of(a),
                    Divisor(static_cast<uint32_t>((shape.dim + 1) / 2)),
                    Divisor(static_cast<uint32_t>(shape.rows)),
                    static_cast<Real>(s.scale),
                    static_cast<Real>(s.alpha),
                    static_cast<Real>(s.dropout_scale),
                    a.dropout.drop_threshold != 0,
                    s};
    const int64_t items = s.slices * shape.rows * body.threads.d;
    return launch(body, (items + Body::kThreads - 1) / Body::kThreads, stream);
  });
}
extern template sinpe_status apply_few<Source::kNone>(const DevicePlan&, const sinpe_add_arguments&, Data,
                                                      Stream);  // in encode.cu

// Arguments for the rows of an encoding alone: (count, dim), with rows `row_stride` elements apart.
inline sinpe_add_arguments rows_alone(int64_t count, int64_t dim, sinpe_dtype dtype, void* out, int64_t row_stride) {
  sinpe_add_arguments a{};
  a.rank = 2;
  a.sizes[0] = count;
  a.sizes[1] = dim;
  a.out_strides[0] = row_stride;
  a.out_strides[1] = 1;
  a.out = out;
  a.dtype = dtype;
  a.alpha = 1.0;
  return a;
}

}  // namespace cuda
}  // namespace sinpe
