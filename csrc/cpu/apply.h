// What add, add_grid and embed do with a tile of rows.
#pragma once

#include "cpu/tiles.h"

namespace sinpe {

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

}  // namespace sinpe
