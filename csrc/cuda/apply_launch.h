// From the arguments of add and embed to the kernel of cuda/apply.h: what is checked, and how the work is cut.
#pragma once

#include <utility>

#include "core/dtype.h"
#include "core/layout.h"
#include "cuda/apply.h"

namespace sinpe {
namespace cuda {

// How often a launch should fill the device, so that the last blocks do not matter. A macro, so that a card can compare two
// (benchmarks/gpu_check.sh, VARIANT).
#if !defined(SINPE_CUDA_WAVES)
#define SINPE_CUDA_WAVES 8
#endif
constexpr int64_t kLeastTile = 512;  // values: a smaller one is not made for the sake of more blocks
constexpr int64_t kFewSlices = 8;    // of a block: with fewer, to make its tile takes longer than to use it

inline Strides strides_of(const int64_t* strides, int rank) {
  Strides t{};
  for (int d = 0; d + 2 < rank; ++d) t.slice[d] = strides[d];
  t.row = strides[rank - 2];
  t.channel = strides[rank - 1];
  return t;
}

// Of what check() has passed.
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
  const Elements elements(a.dropout, a.sizes, a.rank);
  s.of_elements = strides_of(elements.steps, a.rank);
  s.first_element = elements.base;
  s.scale = a.scale;
  s.alpha = a.alpha;
  s.scalars = scalars;
  s.seed = static_cast<uint64_t>(a.dropout.seed);
  const uint32_t drop = static_cast<uint32_t>(a.dropout.drop);
  s.drop_limit = drop_limit(drop);
  s.kept_scale = kept_scale(drop);
  return s;
}

// What the host can check; the rest a kernel does. An empty result is SINPE_OK with `empty`.
inline sinpe_status check(const DevicePlan& plan, const sinpe_add_arguments& a, bool* empty) {
  *empty = false;
  if (a.rank < 2 || a.rank > SINPE_MAX_RANK || a.sizes[a.rank - 1] != plan.dim || plan.dim < 1 || plan.dim > kMaxDim ||
      !valid_sizes(a.sizes, a.rank) || !valid_dropout(a.dropout, a.sizes, a.rank)) {
    return SINPE_BAD_ARGUMENT;
  }
  *empty = Shape(a).empty();
  if (*empty) return SINPE_OK;
  if (plan.words == nullptr || a.out == nullptr) return SINPE_BAD_ARGUMENT;
  if (a.positions_are_starts != 0 && (a.positions == nullptr || a.position_dtype != SINPE_INT64))
    return SINPE_BAD_ARGUMENT;
  return a.positions == nullptr || is_position_type(a.position_dtype) ? SINPE_OK : SINPE_BAD_ARGUMENT;
}

// Whether each row of `t` begins at a multiple of `elements` of them, its channels side by side.
template <class T>
bool rows_begin_at(const void* base, const Strides& t, int dims, int64_t elements) {
  bool even = reinterpret_cast<uintptr_t>(base) % (sizeof(T) * static_cast<uint64_t>(elements)) == 0;
  even = even && t.row % elements == 0 && t.channel == 1;
  for (int d = 0; d < dims; ++d) even = even && t.slice[d] % elements == 0;
  return even;
}

// Whether data lie in whole 16 bytes.
template <class T, Source kSource>
bool is_even_source(const Data& s) {
  constexpr int64_t kEach = 16 / static_cast<int64_t>(sizeof(T));
  if (kSource == Source::kStrided) return rows_begin_at<T>(s.x, s.of_x, s.dims, kEach);
  return reinterpret_cast<uintptr_t>(s.x) % 16 == 0 && s.weight_stride % kEach == 0;
}

// Whether each row's elements begin a counter of their own (core/philox.h).
inline bool rows_begin_counters(const Data& s) {
  bool even = s.first_element % kLanesPerCounter == 0 && s.of_elements.row % kLanesPerCounter == 0;
  for (int d = 0; d < s.dims; ++d) even = even && s.of_elements.slice[d] % kLanesPerCounter == 0;
  return even && s.of_elements.channel == 1;
}

// Whether the positions of x and its result, not the channels, lie side by side.
inline bool is_turned(const Data& s, const Shape& shape, bool draws) {
  return s.of_x.row == 1 && s.of_out.row == 1 && (s.of_x.channel != 1 || s.of_out.channel != 1) && shape.rows > 1 &&
         (!draws || s.of_elements.row == 1);
}
inline void turn(Strides* t) { std::swap(t->row, t->channel); }

template <class T, class Arithmetic, Source kSource, bool kDrop>
sinpe_status launch_apply(const DevicePlan& plan, const typename TileRows<Arithmetic>::Operand& positions,
                          const sinpe_add_arguments& a, Data s, Stream stream) {
  using Body = Apply<T, Arithmetic, kSource, kDrop>;
  const Shape shape(a);
  const bool by_sample = a.positions != nullptr && a.position_strides[0] != 0 && shape.batch > 1;
  int64_t rows = shape.rows, width = shape.dim, widest = kTile;
  s.middle = shape.middle;
  s.slices = by_sample ? shape.middle : shape.batch * shape.middle;
  if (by_sample) {
    rows *= shape.batch;
  } else if (kSource == Source::kStrided && TileRows<Arithmetic>::kWidestTurned != 0 && is_turned(s, shape, kDrop)) {
    s.turned = true;
    std::swap(rows, width);
    widest = TileRows<Arithmetic>::kWidestTurned;
    for (Strides* t : {&s.of_x, &s.of_out, &s.of_elements}) turn(t);
  }
  const int64_t wave = int64_t{Body::kBlocks} * multiprocessors(), wanted = SINPE_CUDA_WAVES * wave;
  const auto share = [](int64_t n, int64_t among) { return (n + among - 1) / among; };
  const int64_t few = Body::kEncoded ? kFewSlices : 1, most_parts = s.slices < few ? 1 : s.slices / few;
  // Low tiles before shared ones, since each of those who share a tile makes it; but no smaller than this.
  const int64_t least = share(kLeastTile, width < widest ? width : widest);
  const int64_t lowest = rows / least * share(width, widest), low = lowest < wanted ? lowest : wanted;
  const int64_t shared = share(wanted, most_parts);
  Tiling tiling(rows, width, by_sample, low > shared ? low : shared, widest);
  if (s.turned && Body::kEncoded) tiling.height = tiling.height < 2 ? 2 : tiling.height & ~1;  // no pair is parted
  const int64_t tiles = tiling.tiles();
  // Where that is not one wave, blocks with fewer slices.
  int64_t parts = share(wanted, tiles) < most_parts ? share(wanted, tiles) : most_parts;
  if (parts < share(wave, tiles)) parts = share(wave, tiles) < s.slices ? share(wave, tiles) : s.slices;
  const int64_t part = share(share(s.slices, parts), Body::kMostFlight) * Body::kMostFlight;
  const int64_t most =
      kSource == Source::kRows && kTileIds / tiling.height < kMostSlices ? kTileIds / tiling.height : kMostSlices;
  s.part = part < most ? part : most;
  if ((s.slices + s.part - 1) / s.part > kMaxBlocks) return launch_failed("more slices than a grid can have blocks");
  s.parts = Divisor(static_cast<uint32_t>((s.slices + s.part - 1) / s.part));
  const bool even = rows_begin_at<T>(s.out, s.of_out, s.dims, Body::kGroup);
  s.askew = s.of_out.channel == 1 && !even;
  bool plain = even && width % Body::kGroup == 0 && is_even_source<T, kSource>(s) && (!kDrop || rows_begin_counters(s));
  if (s.turned && s.padding_mask != nullptr) plain = false;  // padding begins and ends anywhere
  s.way = !plain ? Way::kAny : (s.scale == 1.0 && s.padding_mask == nullptr ? Way::kBare : Way::kPlain);
  s.groups = Divisor(
      static_cast<uint32_t>((tiling.width + (s.askew ? Body::kGroup - 1 : 0) + Body::kGroup - 1) / Body::kGroup));
  s.tile_groups = Divisor(s.groups.d * static_cast<uint32_t>(tiling.height));
  s.lanes = s.tile_groups.d < kThreads ? static_cast<int32_t>(kThreads / s.tile_groups.d) : 1;
  using Real = typename Body::Real;
  return launch(Body{plan, positions, tiling, s, static_cast<Real>(s.scale), static_cast<Real>(s.kept_scale)},
                tiles * s.parts.d, stream);
}

template <class T, class Arithmetic, Source kSource>
sinpe_status choose_dropout(const DevicePlan& plan, const typename TileRows<Arithmetic>::Operand& positions,
                            const sinpe_add_arguments& a, const Data& s, Stream stream) {
  if (a.dropout.drop != 0) return launch_apply<T, Arithmetic, kSource, true>(plan, positions, a, s, stream);
  return launch_apply<T, Arithmetic, kSource, false>(plan, positions, a, s, stream);
}

// Runs the kernel for checked arguments that are not empty.
template <Source kSource>
sinpe_status apply(const DevicePlan& plan, const sinpe_add_arguments& a, const Data& s, Stream stream) {
  const RowPositions positions = positions_of(a);
  return with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same<T, double>::value) {
      return choose_dropout<T, InFull, kSource>(plan, positions, a, s, stream);
    } else {
      if (in_double()) return choose_dropout<T, InDouble, kSource>(plan, positions, a, s, stream);
      return choose_dropout<T, InSingle, kSource>(plan, positions, a, s, stream);
    }
  });
}

// The arguments of rows without data: (count, dim) with rows `row_stride` elements apart.
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
