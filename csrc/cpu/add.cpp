// add and add_grid: out = round(scale*x) + round(alpha*PE), with or without dropout, in one pass over x. `add` computes the
// rows of the encoding; `add_grid` combines the rows of a grid's axes, to which alpha has been applied.
#include <cstring>

#include "core/grid.h"
#include "cpu/tiles.h"

namespace sinpe {
namespace {

// One thread's work on a tile of rows: `pe` has the encoding, which is added to each slice of x.
template <class T>
class TileAdder {
 public:
  using Real = accumulate_t<T>;
  using Element = T;
  static constexpr bool kStreams = true;
  TileAdder(const sinpe_add_arguments& a, const Shape& shape, const NewPages& pages)
      : a_(a),
        shape_(shape),
        pages_(pages),
        padding_(a, shape),
        rng_offsets_(a.dropout, a.sizes, a.rank),
        dropout_(dropout_of(a.dropout, rng_offsets_.strides[a.rank - 1])),
        x_row_(a.x_strides[a.rank - 2]),
        out_row_(a.out_strides[a.rank - 2]),
        x_channel_(a.x_strides[a.rank - 1]),
        out_channel_(a.out_strides[a.rank - 1]),
        rng_offset_row_(rng_offsets_.strides[a.rank - 2]),
        scale_(static_cast<Real>(a.scale)),
        // A new output's pages are in the cache: the system has just filled them with zeros.
        stores_(pages.is_empty() && a.out != a.x ? stores_for(bytes(shape), bytes(shape)) : Stores::kCached),
        fence_(stores_) {
    const bool dense = shape.dim == 1 || (x_channel_ == 1 && out_channel_ == 1);
    const bool rows_follow = rng_offset_row_ == shape.dim * rng_offsets_.strides[a.rank - 1];
    can_stream_ = dense && a.padding_mask == nullptr;
    whole_tile_ =
        can_stream_ && x_row_ == shape.dim && out_row_ == shape.dim && (a.dropout.drop_threshold == 0 || rows_follow);
    if (!dense) gathered_.resize(static_cast<size_t>(2 * shape.dim));
  }

  void operator()(int64_t first, int64_t last, int64_t row, int64_t n, const Real* pe) {
    if (!whole_tile_) {
      for (int64_t slice = first; slice < last; ++slice) row_by_row(slice, row, n, pe);
      return;
    }
    const T* x[kAddSlicesInPlace];
    T* out[kAddSlicesInPlace];
    uint64_t rng_offset[kAddSlicesInPlace];
    const int at_once = a_.out == a_.x ? kAddSlicesInPlace : kAddSlices;
    for (int64_t slice = first; slice < last;) {
      int count = 0;
      for (; count < at_once && slice < last; ++count, ++slice) {
        x[count] = from(slice, row);
        out[count] = to(slice, row);
        populate(slice, row, n);
        rng_offset[count] = rng_offset_of(slice, row);
      }
      // `add` of rows_apply.inc, as compiled for this CPU.
      row_kernels().of<T>().add(x, pe, out, count, n * shape_.dim, scale_, dropout_, rng_offset, stores_);
    }
  }

  // To be called before n rows of a slice are written.
  void populate(int64_t slice, int64_t row, int64_t n) const {
    const bool follow = out_row_ == shape_.dim && (out_channel_ == 1 || shape_.dim == 1);
    if (follow) pages_.populate(to(slice, row), n * shape_.dim * static_cast<int64_t>(sizeof(T)));
  }
  // For for_each_streamed_row.
  bool can_stream() const { return can_stream_ && is_worth_streaming<T>(a_); }
  StreamOptions stream_options() const {
    return {static_cast<float>(scale_), static_cast<float>(a_.alpha), dropout_, stores_};
  }
  void find(int64_t slice, int64_t row, const T** x, T** out, uint64_t* rng_offset) const {
    *x = from(slice, row);
    *out = to(slice, row);
    *rng_offset = rng_offset_of(slice, row);
  }

 private:
  static int64_t bytes(const Shape& shape) { return shape.elements() * int64_t{sizeof(T)}; }
  const T* from(int64_t slice, int64_t row) const {
    return static_cast<const T*>(a_.x) + slice_offset(a_, a_.x_strides, slice) + row * x_row_;
  }
  T* to(int64_t slice, int64_t row) const {
    return static_cast<T*>(a_.out) + slice_offset(a_, a_.out_strides, slice) + row * out_row_;
  }
  uint64_t rng_offset_of(int64_t slice, int64_t row) const {
    return rng_offsets_.base +
           static_cast<uint64_t>(slice_offset(a_, rng_offsets_.strides, slice) + row * rng_offset_row_);
  }

  void row_by_row(int64_t slice, int64_t row, int64_t n, const Real* pe) {
    populate(slice, row, n);
    const T* x = from(slice, row);
    T* out = to(slice, row);
    const uint64_t rng_offset = rng_offset_of(slice, row);
    for (int64_t r = 0; r < n; ++r) {
      one_row(x + r * x_row_, padding_.at(slice, row + r) ? nullptr : pe + r * shape_.dim, out + r * out_row_,
              rng_offset + static_cast<uint64_t>(r * rng_offset_row_));
    }
  }

  void one_row(const T* x, const Real* pe, T* out, uint64_t rng_offset) {
    const auto add = row_kernels().of<T>().add;
    if (gathered_.empty()) return add(&x, pe, &out, 1, shape_.dim, scale_, dropout_, &rng_offset, stores_);
    const T* dense_x = gathered_.data();
    T *gathered = gathered_.data(), *dense_out = gathered + shape_.dim;
    for (int64_t c = 0; c < shape_.dim; ++c) gathered[c] = x[c * x_channel_];
    add(&dense_x, pe, &dense_out, 1, shape_.dim, scale_, dropout_, &rng_offset, Stores::kCached);
    for (int64_t c = 0; c < shape_.dim; ++c) out[c * out_channel_] = dense_out[c];
  }

  const sinpe_add_arguments& a_;
  const Shape& shape_;
  NewPages pages_;
  Padding padding_;
  RngOffsets rng_offsets_;
  Dropout dropout_;
  int64_t x_row_, out_row_, x_channel_, out_channel_, rng_offset_row_;
  Real scale_;
  Stores stores_;
  StoreFence fence_;
  bool can_stream_, whole_tile_;
  std::vector<T> gathered_;
};

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_add(const int64_t* packed_plan, int64_t n_words, const sinpe_add_arguments* a) {
  using namespace sinpe;
  const auto no_overlap = [&] { return has_no_overlap(span_of_out(*a), packed_plan, n_words, *a); };
  return run_checked(packed_plan, n_words, a, no_overlap,
                     [&](auto type, const Plan& plan, const Shape& shape, int64_t first) {
                       using T = decltype(type);
                       const auto alpha = static_cast<accumulate_t<T>>(a->alpha);
                       const NewPages pages;
                       return for_each_tile(plan, *a, first, alpha, [&] { return TileAdder<T>(*a, shape, pages); });
                     });
}

namespace sinpe {
namespace {

// ------------------------------------------------------------------------------------------ add_grid

// Computes rows of a grid from the values of its axes, for one thread. Channels that no group provides are not written:
// they stay zero.
template <class Real>
class PointRows {
 public:
  PointRows(const Grid& grid, const Real* values) : grid_(grid), values_(values) {}

  // n grid points from `point`, `dim` channels each.
  void operator()(int64_t, int64_t point, int64_t n, Real* pe) const {
    for (int k = 0; k < grid_.n_groups; ++k) {
      const ChannelGroup& p = grid_.groups[k];
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
      : grid_(grid), values_(values), width_(width), rows_per_channel_(grid.points / width) {}

  void operator()(int64_t, int64_t row, int64_t n, Real* pe) const {
    for (int64_t r = row; r < row + n; ++r, pe += width_) {
      int64_t c;
      const int k = grid_.channel_group(r / rows_per_channel_, &c);
      if (k < 0) {
        std::fill(pe, pe + width_, Real{0});
      } else {
        fill_row(grid_.groups[k], c, r % rows_per_channel_ * width_, pe);
      }
    }
  }

 private:
  // Either all points of the row have the same coordinate, or the row covers every coordinate the same number of times.
  void fill_row(const ChannelGroup& p, int64_t c, int64_t point, Real* pe) const {
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
  int64_t width_, rows_per_channel_;
};

constexpr int64_t kTileValues = 16384;  // values per tile: stays in the cache while it is applied to the slices

// The arguments of a call by channels whose rows are split into shorter ones, so that a tile of rows does not have to
// hold all grid points. A shorter row covers as many of the last axes as fit. Only for rows that are contiguous in
// memory.
struct SplitRows {
  sinpe_add_arguments a;
  int64_t rng_offsets[1 + SINPE_MAX_RANK];

  SplitRows(const Grid& grid, const sinpe_add_arguments& arguments) : a(arguments) {
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

template <class T, class MakeRows>
sinpe_status add_rows(const sinpe_add_arguments& a, const MakeRows& make_rows) {
  const Shape shape(a);
  const int64_t tile = std::max<int64_t>(1, std::min<int64_t>(64, kTileValues / shape.dim));
  const NewPages pages;
  const auto make_work = [&] { return TileAdder<T>(a, shape, pages); };
  return for_each_row_tile<accumulate_t<T>>(shape, 1, std::min(shape.rows, tile), make_rows, make_work);
}

template <class T>
sinpe_status add_grid(const Grid& grid, const void* values, const sinpe_add_arguments& a) {
  using Real = accumulate_t<T>;
  const Real* from = static_cast<const Real*>(values);
  if (!grid.by_channels) return add_rows<T>(a, [&] { return PointRows<Real>(grid, from); });
  const SplitRows split(grid, a);
  return add_rows<T>(split.a, [&] { return ChannelRows<Real>(grid, from, split.a.sizes[a.rank - 1]); });
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
