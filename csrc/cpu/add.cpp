// add and add_grid: out = round(scale*x) + round(alpha*PE), with or without dropout, in one pass over x. `add` computes
// the rows of the encoding; `add_grid` combines the rows of a grid's axes, to which alpha has been applied.
#include <cstring>

#include "core/grid.h"
#include "cpu/channel_maker.h"
#include "cpu/tiles.h"

namespace sinpe {
namespace {

constexpr int64_t kShortRow = 256;  // channels of a row for which several slices are added at once

// One thread's work on a tile of rows: `pe` has the encoding, which is added to each slice of x. By channels, a row has
// one channel at consecutive positions, to which the strides of the padding mask belong.
template <class T>
class TileAdder {
 public:
  using Real = accumulate_t<T>;
  using Element = T;
  static constexpr bool kStreams = true;
  // `elements`: of the whole out, of which `a` may be a part.
  TileAdder(const sinpe_add_arguments& a, const Shape& shape, const NewPages& pages, int64_t elements, bool by_channels)
      : a_(a),
        shape_(shape),
        pages_(pages),
        padding_(a, shape),
        rng_offsets_(a.dropout, a.sizes, a.rank),
        dropout_(dropout_of(a.dropout, rng_offsets_.strides[a.rank - 1])),
        x_row_(a.x_strides[a.rank - 2]),
        out_row_(a.out_strides[a.rank - 2]),
        x_column_(shape.dim == 1 ? 1 : a.x_strides[a.rank - 1]),
        out_column_(shape.dim == 1 ? 1 : a.out_strides[a.rank - 1]),
        rng_offset_row_(rng_offsets_.strides[a.rank - 2]),
        between_rows_(slices_between_rows(a, a.out_strides)),
        scale_(static_cast<Real>(a.scale)),
        // A new output's pages are in the cache: the system has just filled them with zeros.
        stores_(pages.is_empty() && a.out != a.x ? stores_for(elements * kSize, elements * kSize) : Stores::kCached),
        fence_(stores_) {
    const bool dense = x_column_ == 1 && out_column_ == 1;
    const bool rows_follow = rng_offset_row_ == shape.dim * rng_offsets_.strides[a.rank - 1];
    can_stream_ = dense && a.padding_mask == nullptr;
    whole_tile_ =
        can_stream_ && x_row_ == shape.dim && out_row_ == shape.dim && (a.dropout.drop_threshold == 0 || rows_follow);
    drops_eight_ = by_channels && can_stream_ && a.dropout.drop_threshold != 0 && rng_offset_row_ == 1 &&
                   dropout_.step % kLanesPerCounter == 0;
    if (x_column_ != 1) x_dense_.resize(static_cast<size_t>(shape.dim));
    if (out_column_ != 1) out_dense_.resize(static_cast<size_t>(shape.dim));
    if (by_channels && a.padding_mask != nullptr) masked_.resize(static_cast<size_t>(shape.dim));
  }

  void operator()(int64_t first, int64_t last, int64_t row, int64_t n, const Real* pe) {
    if (!whole_tile_) {
      return for_each_block(first, last, between_rows_, 1,
                            [&](int64_t slice, int64_t count) { row_by_row(slice, count, row, n, pe); });
    }
    const T* x[kAddSlicesInPlace];
    T* out[kAddSlicesInPlace];
    uint64_t rng_offset[kAddSlicesInPlace];
    const int at_once = a_.out == a_.x ? kAddSlicesInPlace : kAddSlices;
    for (int64_t slice = first; slice < last;) {
      int count = 0;
      for (; count < at_once && slice < last; ++count, ++slice) {
        find(slice, row, x + count, out + count, rng_offset + count);
        populate(slice, row, n);
      }
      // `add` of rows_apply.inc, as compiled for this CPU.
      row_kernels().of<T>().add(x, pe, out, count, n * shape_.dim, scale_, dropout_, rng_offset, stores_);
    }
  }

  const NewPages& pages() const { return pages_; }
  T* to(int64_t slice, int64_t row) const {
    return static_cast<T*>(a_.out) + slice_offset(a_, a_.out_strides, slice) + row * out_row_;
  }
  // To be called before n rows of a slice are written, and of those that lie between them.
  void populate(int64_t slice, int64_t row, int64_t n) const {
    if (pages_.is_empty() || out_column_ != 1 || out_row_ != between_rows_ * shape_.dim) return;
    pages_.populate(to(slice, row), n * out_row_ * kSize);
  }
  // For for_each_streamed_row. Tiles are faster with dropout, which is limited by arithmetic, and for short rows (0.6
  // to 1.1 of the time, Zen 4).
  bool can_stream() const { return can_stream_ && a_.dropout.drop_threshold == 0 && shape_.dim >= 1024; }
  StreamOptions stream_options() const {
    return {static_cast<float>(scale_), static_cast<float>(a_.alpha), dropout_, stores_};
  }
  void find(int64_t slice, int64_t row, const T** x, T** out, uint64_t* rng_offset) const {
    *x = static_cast<const T*>(a_.x) + slice_offset(a_, a_.x_strides, slice) + row * x_row_;
    *out = to(slice, row);
    *rng_offset = rng_offsets_.base +
                  static_cast<uint64_t>(slice_offset(a_, rng_offsets_.strides, slice) + row * rng_offset_row_);
  }

 private:
  static constexpr int64_t kSize = sizeof(T);

  // n rows of `count` slices, each row of all of them before the next one.
  void row_by_row(int64_t slice, int64_t count, int64_t row, int64_t n, const Real* pe) {
    const T* x[kMostSlices];
    T* out[kMostSlices];
    uint64_t rng_offset[kMostSlices];
    for (int64_t k = 0; k < count; ++k) find(slice + k, row, x + k, out + k, rng_offset + k);
    populate(slice, row, n);
    int64_t r = 0;
    if (drops_eight_ && count == 1 && rng_offset[0] % kLanesPerCounter == 0) {
      for (; r + kLanesPerCounter <= n; r += kLanesPerCounter) eight_rows(x[0], out[0], rng_offset[0], r, pe);
      next_row(x, out, rng_offset, count, r);
    }
    // A kernel call for a single slice costs as much as some dozens of elements. For long rows, the order of memory
    // matters more.
    const int most = a_.dropout.drop_threshold != 0 ? kAddSlicesInPlace : kAddSlices;
    const int64_t at_once = can_stream_ && shape_.dim <= kShortRow ? most : 1;
    for (; r < n; ++r, next_row(x, out, rng_offset, count, 1)) {
      const Real* encoding = pe + r * shape_.dim;
      for (int64_t k = 0; k < count; k += at_once) {
        if (at_once == 1) {
          one_row(x[k], masked(encoding, slice + k, row + r), out[k], rng_offset[k]);
        } else {
          row_kernels().of<T>().add(x + k, encoding, out + k, static_cast<int>(std::min(at_once, count - k)),
                                    shape_.dim, scale_, dropout_, rng_offset + k, stores_);
        }
      }
    }
  }

  void next_row(const T** x, T** out, uint64_t* rng_offset, int64_t count, int64_t rows) const {
    for (int64_t k = 0; k < count; ++k) {
      x[k] += rows * x_row_;
      out[k] += rows * out_row_;
      rng_offset[k] += static_cast<uint64_t>(rows * rng_offset_row_);
    }
  }

  void eight_rows(const T* x, T* out, uint64_t rng_offset, int64_t r, const Real* pe) const {
    const T* from[kLanesPerCounter];
    T* to[kLanesPerCounter];
    const Real* rows[kLanesPerCounter];
    for (int k = 0; k < kLanesPerCounter; ++k) {
      from[k] = x + (r + k) * x_row_;
      to[k] = out + (r + k) * out_row_;
      rows[k] = pe + (r + k) * shape_.dim;
    }
    row_kernels().of<T>().drop_eight(from, rows, to, shape_.dim, scale_, dropout_,
                                     rng_offset + static_cast<uint64_t>(r));
  }

  // What is added to a row of a slice: null for scale * x alone. x - 0 is x, so that -0 masks single positions.
  const Real* masked(const Real* encoding, int64_t slice, int64_t row) {
    if (masked_.empty()) return padding_.at(slice, row) ? nullptr : encoding;
    const uint8_t* mask = padding_.of(slice);
    for (size_t i = 0; i < masked_.size(); ++i, mask += padding_.step())
      masked_[i] = *mask != 0 ? -Real{0} : encoding[i];
    return masked_.data();
  }

  void one_row(const T* x, const Real* encoding, T* out, uint64_t rng_offset) {
    T* const to = out_dense_.empty() ? out : out_dense_.data();
    for (size_t c = 0; c < x_dense_.size(); ++c) x_dense_[c] = x[static_cast<int64_t>(c) * x_column_];
    if (!x_dense_.empty()) x = x_dense_.data();
    row_kernels().of<T>().add(&x, encoding, &to, 1, shape_.dim, scale_, dropout_, &rng_offset,
                              to == out ? stores_ : Stores::kCached);
    for (size_t c = 0; c < out_dense_.size(); ++c) out[static_cast<int64_t>(c) * out_column_] = to[c];
  }

  const sinpe_add_arguments& a_;
  const Shape& shape_;
  NewPages pages_;
  Padding padding_;
  RngOffsets rng_offsets_;
  Dropout dropout_;
  int64_t x_row_, out_row_, x_column_, out_column_, rng_offset_row_, between_rows_;
  Real scale_;
  Stores stores_;
  StoreFence fence_;
  bool can_stream_, whole_tile_, drops_eight_;
  std::vector<T> x_dense_, out_dense_;
  std::vector<Real> masked_;
};

}  // namespace
}  // namespace sinpe

namespace sinpe {
namespace {

// Calls add(part, first column) for at most `most` columns of all rows at a time, as a tile of whole rows may not fit a
// cache.
template <class T, class F>
sinpe_status for_each_part(const sinpe_add_arguments& a, int64_t most, const F& add) {
  const int column = a.rank - 1;
  const RngOffsets offsets(a.dropout, a.sizes, a.rank);
  int64_t rng_offsets[1 + SINPE_MAX_RANK];
  std::copy(offsets.strides, offsets.strides + a.rank, rng_offsets + 1);
  sinpe_add_arguments part = a;
  part.dropout.rng_offsets = rng_offsets;
  sinpe_status status = SINPE_OK;
  for (int64_t c = 0; c < a.sizes[column] && status == SINPE_OK; c += most) {
    part.sizes[column] = std::min(most, a.sizes[column] - c);
    part.x = static_cast<const T*>(a.x) + c * a.x_strides[column];
    part.out = static_cast<T*>(a.out) + c * a.out_strides[column];
    if (a.padding_mask != nullptr) part.padding_mask = a.padding_mask + c * a.mask_strides[1];
    rng_offsets[0] = static_cast<int64_t>(offsets.base + static_cast<uint64_t>(c * offsets.strides[column]));
    status = add(part, c);
  }
  return status;
}

// add where positions, not channels, follow each other in the memory of out: rows and columns change places.
template <class T>
sinpe_status add_by_channels(const Plan& plan, const sinpe_add_arguments& a, int64_t first) {
  using Real = accumulate_t<T>;
  const int row = a.rank - 2, column = a.rank - 1;
  const Positions positions(a, first);
  const RngOffsets offsets(a.dropout, a.sizes, a.rank);
  const NewPages pages;
  sinpe_add_arguments turned = a;
  int64_t rng_offsets[1 + SINPE_MAX_RANK] = {static_cast<int64_t>(offsets.base)};
  std::copy(offsets.strides, offsets.strides + a.rank, rng_offsets + 1);
  turned.dropout.rng_offsets = rng_offsets;
  for (int64_t* of : {turned.sizes, turned.x_strides, turned.out_strides, rng_offsets + 1})
    std::swap(of[row], of[column]);
  const int64_t position_sets = positions.shared_by_batch() ? 1 : Shape(a).batch;
  KeptRows kept;
  find_kept<Real>(plan, positions, Shape(a), &kept);
  return for_each_part<T>(turned, kMostColumns, [&](const sinpe_add_arguments& part, int64_t position) {
    const Shape shape(part);
    const auto make_rows = [&] {
      return ChannelMaker<Real>(plan, positions, kept, position, shape.dim, static_cast<Real>(a.alpha));
    };
    const auto make_work = [&] { return TileAdder<T>(part, shape, pages, Shape(a).elements(), /*by_channels=*/true); };
    return for_each_row_tile<Real>(shape, position_sets, std::min(shape.rows, channels_per_tile(shape.dim)), make_rows,
                                   make_work);
  });
}

bool is_by_channels(const sinpe_add_arguments& a) {
  const int row = a.rank - 2, column = a.rank - 1;
  return a.sizes[row] > 1 && a.sizes[column] > 1 && std::abs(a.out_strides[row]) < std::abs(a.out_strides[column]);
}

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_add(const int64_t* packed_plan, int64_t n_words, const sinpe_add_arguments* a) {
  using namespace sinpe;
  const auto no_overlap = [&] { return has_no_overlap(span_of_out(*a), packed_plan, n_words, *a); };
  return run_checked(packed_plan, n_words, a, no_overlap,
                     [&](auto type, const Plan& plan, const Shape& shape, int64_t first) {
                       using T = decltype(type);
                       if (is_by_channels(*a)) return add_by_channels<T>(plan, *a, first);
                       const auto alpha = static_cast<accumulate_t<T>>(a->alpha);
                       const NewPages pages;
                       const auto make_work = [&] { return TileAdder<T>(*a, shape, pages, shape.elements(), false); };
                       return for_each_tile(plan, *a, first, alpha, make_work);
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
    const auto make_work = [&] { return TileAdder<T>(part, shape, pages, Shape(a).elements(), false); };
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
