// The kernel of add and add_grid for a tile of the encoding: out = round(scale*x) + the tile, with or without dropout.
#pragma once

#include "cpu/tiles.h"

namespace sinpe {

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
      elementwise<T>().add(x, pe, out, count, n * shape_.dim, scale_, dropout_, rng_offset, stores_);
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
    const auto add = elementwise<T>().add;
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

}  // namespace sinpe
