// What add, add_grid, embed and dropout do with a tile of rows: out = dropout(round(scale*x) + row), for each slice.
#pragma once

#include "cpu/ids.h"
#include "cpu/tiles.h"

namespace sinpe {

// One thread's work. By channels, a row has one channel at consecutive positions, to which the strides of the padding
// mask belong.
template <class T>
class Apply {
 public:
  using Real = accumulate_t<T>;
  using Element = T;
  static constexpr bool kStreams = true;

  // `elements`: of the whole out, of which `a` may be a part. `embed`: whose `add` is `a`, or null.
  Apply(const sinpe_add_arguments& a, const NewPages& pages, int64_t elements,
        const sinpe_embed_arguments* embed = nullptr, bool by_channels = false)
      : a_(a),
        embed_(embed),
        shape_(a),
        pages_(pages),
        padding_(a, shape_),
        rng_offsets_(a.dropout, a.sizes, a.rank),
        dropout_(dropout_of(a.dropout, rng_offsets_.strides[a.rank - (shape_.dim == 1 ? 2 : 1)])),
        // (Of rows of one element, the next element is that of the next row.)
        ids_row_(embed != nullptr ? embed->id_strides[a.rank - 2] : 0),
        x_row_(embed != nullptr ? 0 : a.x_strides[a.rank - 2]),
        out_row_(a.out_strides[a.rank - 2]),
        x_column_(embed != nullptr ? 1 : a.x_strides[a.rank - (shape_.dim == 1 ? 2 : 1)]),
        out_column_(embed != nullptr ? 1 : a.out_strides[a.rank - (shape_.dim == 1 ? 2 : 1)]),
        rng_row_(rng_offsets_.strides[a.rank - 2]),
        between_rows_(slices_between_rows(a, a.out_strides)),
        scale_(static_cast<Real>(a.scale)),
        kernels_(row_kernels().of<T>()),
        // A new output's pages are in the cache: the system has just filled them with zeros.
        stores_(pages.is_empty() && a.out != a.x && embed == nullptr ? stores_for(elements * kSize, elements * kSize)
                                                                     : Stores::kCached),
        fence_(stores_),
        drops_(a.dropout.drop_threshold != 0),
        dense_(x_column_ == 1 && out_column_ == 1 && a.padding_mask == nullptr),
        joined_(embed == nullptr && a.padding_mask == nullptr && x_row_ == shape_.dim * x_column_ &&
                out_row_ == shape_.dim * out_column_ &&
                (!drops_ || static_cast<uint64_t>(rng_row_) == static_cast<uint64_t>(shape_.dim) * dropout_.step)),
        drops_eight_(dense_ && drops_ && rng_row_ == 1 && embed == nullptr) {
    for (int d = 0; drops_eight_ && d < a.rank; ++d)
      drops_eight_ = d == a.rank - 2 || rng_offsets_.strides[d] % kLanesPerCounter == 0;
    // Of long rows of x, the order of memory matters more than the number of calls of the kernel.
    if (!dense_ || (embed == nullptr && !joined_ && shape_.dim > kShortRow)) {
      at_once_ = 1;
    } else if (embed == nullptr && !joined_) {
      at_once_ = drops_ ? kAddSlicesInPlace : kMostSlices;
    } else {
      at_once_ = a.out == a.x ? kAddSlicesInPlace : kAddSlices;
    }
    const size_t piece = static_cast<size_t>(std::min(kPiece, shape_.rows * shape_.dim));
    if (x_column_ != 1) x_dense_.resize(piece);
    if (out_column_ != 1) out_dense_.resize(piece);
    if (by_channels && a.padding_mask != nullptr) masked_.resize(static_cast<size_t>(shape_.dim));
  }

  // Rows whose elements follow each other at equal distances are one line, as is otherwise each row.
  void operator()(int64_t first, int64_t last, int64_t row, int64_t n, const Real* pe) {
    const int64_t lines = joined_ ? 1 : n, width = joined_ ? n * shape_.dim : shape_.dim;
    const int64_t others = std::min<int64_t>(at_once_, kAddSlicesInPlace);
    for_each_block(first, last, between_rows_, others, [&](int64_t slice, int64_t count) {
      const T* x[kMostSlices];
      const int64_t* ids[kMostSlices];
      T* out[kMostSlices];
      uint64_t rng_offset[kMostSlices];
      for (int64_t k = 0; k < count; ++k) {
        if (embed_ != nullptr) ids[k] = ids_of(slice + k, row);
        find(slice + k, row, x + k, out + k, rng_offset + k);
        if (k == 0 || between_rows_ == 1) populate(slice + k, row, n);
      }
      const auto advance = [&](int64_t rows) {
        for (int64_t k = 0; k < count; ++k) {
          x[k] += rows * x_row_;
          out[k] += rows * out_row_;
          rng_offset[k] += static_cast<uint64_t>(rows * rng_row_);
        }
      };
      int64_t r = 0;
      if (drops_eight_ && rng_offset[0] % kLanesPerCounter == 0) {
        for (; r + kLanesPerCounter <= n; r += kLanesPerCounter, advance(kLanesPerCounter)) {
          for (int64_t k = 0; k < count; ++k)
            eight_lines(x[k], out[k], rng_offset[k], pe == nullptr ? nullptr : pe + r * shape_.dim);
        }
      }
      for (; r < lines; ++r, advance(1)) {
        const Real* const encoding = pe == nullptr ? nullptr : pe + r * shape_.dim;
        for (int64_t k = 0; k < count; k += at_once_) {
          const int64_t few = std::min<int64_t>(at_once_, count - k);
          if (embed_ != nullptr) {
            for (int64_t j = k; j < k + few; ++j) x[j] = line_of(ids[j][r * ids_row_]);
            prefetch_next(ids, count, k + few, r, n);
          }
          if (dense_) {
            add(x + k, encoding, out + k, static_cast<int>(few), width, rng_offset + k, stores_);
          } else {
            one_line(x[k], masked(encoding, slice + k, row + r), out[k], width, rng_offset[k]);
          }
        }
      }
    });
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

  // For for_each_streamed_row. Tiles are faster with dropout of 16-bit elements, of short vectors, or of x, which are
  // limited by arithmetic, and for short rows of x (0.6 to 1.1 of the time, Zen 4).
  bool can_stream() const {
    if (embed_ == nullptr) return dense_ && !drops_ && shape_.dim >= 1024;
    return dense_ && (!drops_ || (sizeof(T) == 4 && row_kernels().lanes > 2));
  }
  StreamOptions stream_options() const {
    return {static_cast<float>(scale_), static_cast<float>(a_.alpha), dropout_, stores_};
  }
  void find(int64_t slice, int64_t row, const T** x, T** out, uint64_t* rng_offset) const {
    *x = embed_ != nullptr ? line_of(*ids_of(slice, row))
                           : static_cast<const T*>(a_.x) + slice_offset(a_, a_.x_strides, slice) + row * x_row_;
    *out = to(slice, row);
    *rng_offset =
        rng_offsets_.base + static_cast<uint64_t>(slice_offset(a_, rng_offsets_.strides, slice) + row * rng_row_);
  }

 private:
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kPiece = 8192;    // elements that are gathered at once
  static constexpr int64_t kShortRow = 256;  // channels of a row of x of which several slices are added at once

  // embed: the ids of a slice from a row on, and the line of x that an id selects.
  const int64_t* ids_of(int64_t slice, int64_t row) const {
    return embed_->ids + slice_offset(a_, embed_->id_strides, slice) + row * ids_row_;
  }
  const T* line_of(int64_t id) const { return static_cast<const T*>(a_.x) + id * embed_->weight_stride; }
  // The lines that are added next: from the k-th slice on, or the first ones of the next row. (Always inlined: GCC drops
  // calls of functions that only prefetch.)
  SINPE_HD void prefetch_next(const int64_t* const* ids, int64_t count, int64_t k, int64_t r, int64_t n) const {
    if (k == count) k = 0, ++r;
    for (const int64_t end = std::min(k + at_once_, count); k < end && r < n; ++k)
      prefetch_row(line_of(ids[k][r * ids_row_]), shape_.dim);
  }

  void add(const T* const* x, const Real* row, T* const* out, int count, int64_t n, const uint64_t* rng_offset,
           Stores stores) const {
    kernels_.add(x, row, out, count, n, scale_, dropout_, rng_offset, stores);
  }

  void eight_lines(const T* x, T* out, uint64_t rng_offset, const Real* pe) const {
    const T* from[kLanesPerCounter];
    T* to[kLanesPerCounter];
    const Real* rows[kLanesPerCounter];
    for (int k = 0; k < kLanesPerCounter; ++k) {
      from[k] = x + k * x_row_;
      to[k] = out + k * out_row_;
      rows[k] = pe == nullptr ? nullptr : pe + k * shape_.dim;
    }
    kernels_.drop_eight(from, rows, to, shape_.dim, scale_, dropout_, rng_offset);
  }

  // What is added to a row of a slice: null for scale * x alone. x - 0 is x, so that -0 masks single positions.
  const Real* masked(const Real* encoding, int64_t slice, int64_t row) {
    if (masked_.empty()) return padding_.at(slice, row) ? nullptr : encoding;
    const uint8_t* const mask = padding_.of(slice);
    Real* const to = masked_.data();
    const int64_t n = shape_.dim, step = padding_.step();
    for (int64_t i = 0; i < n && step == 1; ++i) to[i] = mask[i] != 0 ? -Real{0} : encoding[i];
    for (int64_t i = 0; i < n && step != 1; ++i) to[i] = mask[i * step] != 0 ? -Real{0} : encoding[i];
    return to;
  }

  // A line in pieces that are gathered from x and scattered to out.
  void one_line(const T* x, const Real* encoding, T* out, int64_t width, uint64_t rng_offset) {
    for (int64_t i = 0; i < width; i += kPiece) {
      const int64_t n = std::min(kPiece, width - i);
      const T* from = x + i * x_column_;
      T *const end = out + i * out_column_, *const to = out_dense_.empty() ? end : out_dense_.data();
      if (T* const dense = x_dense_.data(); dense != nullptr) {
        for (int64_t k = 0, step = x_column_; k < n; ++k) dense[k] = from[k * step];
        from = dense;
      }
      add(&from, encoding == nullptr ? nullptr : encoding + i, &to, 1, n, &rng_offset,
          to == end ? stores_ : Stores::kCached);
      for (int64_t k = 0, step = out_column_; k < n && to != end; ++k) end[k * step] = to[k];
      rng_offset += static_cast<uint64_t>(n) * dropout_.step;
    }
  }

  const sinpe_add_arguments& a_;
  const sinpe_embed_arguments* embed_;
  Shape shape_;
  NewPages pages_;
  Padding padding_;
  RngOffsets rng_offsets_;
  Dropout dropout_;
  int64_t ids_row_, x_row_, out_row_, x_column_, out_column_, rng_row_, between_rows_;
  Real scale_;
  const KernelsOf<T>& kernels_;
  Stores stores_;
  StoreFence fence_;
  bool drops_, dense_, joined_, drops_eight_;
  int64_t at_once_;
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
