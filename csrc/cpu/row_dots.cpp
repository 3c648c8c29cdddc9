// row_dots: the dot product of each row of a gradient with its row of the encoding, which is computed tile by tile.
#include "cpu/tiles.h"
#include "cpu/transpose.h"

namespace sinpe {
namespace {

template <class T>
class TileDots {
 public:
  using Real = accumulate_t<T>;
  static constexpr bool kStreams = false;
  TileDots(const sinpe_add_arguments& a, const Shape& shape, const double* angular_frequencies)
      : a_(a),
        shape_(shape),
        padding_(a, shape),
        rng_offsets_(a.dropout, a.sizes, a.rank),
        channel_(a.x_strides[a.rank - 1]) {
    const Dropout dropout = dropout_of(a.dropout, rng_offsets_.strides[a.rank - 1]);
    const double factor = a.dropout.drop_threshold != 0 ? dropout.scale : 1.0;
    const bool gathers = shape.dim > 1 && channel_ != 1;
    // An odd number of cache lines, so that rows do not displace each other.
    constexpr int64_t line = 64 / sizeof(T);
    const int64_t gathered_row = ((shape.dim + line - 1) / line | 1) * line;
    if (gathers) gathered_.resize(static_cast<size_t>(kGathered * gathered_row));
    options_ = {shape.dim,
                gathers ? gathered_row : a.x_strides[a.rank - 2],
                rng_offsets_.strides[a.rank - 2],
                angular_frequencies,
                factor,
                dropout};
  }

  void operator()(int64_t first, int64_t last, int64_t row, int64_t n, const Real* pe) {
    for_each_block(first, last, slices_between_rows(a_, a_.x_strides), 1, [&](int64_t slice, int64_t count) {
      // Rows of one slice at a time, or one row of all slices; as many as are gathered, if they have to be.
      const int64_t at_once = count > 1 ? 1 : gathered_.empty() ? n : kGathered;
      for (int64_t r = 0; r < n; r += at_once) {
        for (int64_t k = slice; k < slice + count; ++k) rows(k, row + r, std::min(at_once, n - r), pe + r * shape_.dim);
      }
    });
  }

 private:
  // Rows that are gathered at once; two cache lines of each channel, where channels come first.
  static constexpr int64_t kGathered = 128 / sizeof(T);

  void rows(int64_t slice, int64_t row, int64_t n, const Real* pe) {
    const T* x = static_cast<const T*>(a_.x) + slice_offset(a_, a_.x_strides, slice) + row * a_.x_strides[a_.rank - 2];
    uint64_t rng_offset = rng_offsets_.base + static_cast<uint64_t>(slice_offset(a_, rng_offsets_.strides, slice) +
                                                                    row * options_.rng_step);
    if (!gathered_.empty()) x = gather(x, n);
    double* out = static_cast<double*>(a_.out) + slice * shape_.rows + row;
    const auto dots = row_kernels().of<T>().dots;
    if (a_.padding_mask == nullptr) return dots(x, pe, out, n, rng_offset, options_);
    for (int64_t r = 0; r < n; ++r, x += options_.row_stride, pe += shape_.dim) {
      out[r] = 0.0;
      if (!padding_.at(slice, row + r)) dots(x, pe, out + r, 1, rng_offset, options_);
      rng_offset += static_cast<uint64_t>(options_.rng_step);
    }
  }

  const T* gather(const T* x, int64_t n) {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, T>;
    const int64_t row = a_.x_strides[a_.rank - 2];
    if (row == 1) {
      Bits* const to = reinterpret_cast<Bits*>(gathered_.data());
      transpose(
          reinterpret_cast<const Bits*>(x), channel_, shape_.dim, n,
          [&](int64_t r) { return to + r * options_.row_stride; }, [](auto v) { return v; });
    }
    for (int64_t r = 0; r < n && row != 1; ++r) {
      T* const to = gathered_.data() + r * options_.row_stride;
      for (int64_t c = 0; c < shape_.dim; ++c) to[c] = x[r * row + c * channel_];
    }
    return gathered_.data();
  }

  const sinpe_add_arguments& a_;
  const Shape& shape_;
  Padding padding_;
  RngOffsets rng_offsets_;
  DotOptions options_;
  int64_t channel_;
  std::vector<T> gathered_;
};

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_row_dots(const int64_t* packed_plan, int64_t n_words, const sinpe_add_arguments* a,
                                       const double* angular_frequencies) {
  using namespace sinpe;
  const auto no_overlap = [&] {
    const Span sums(a->out, a->sizes, nullptr, a->rank - 1, 8);
    return has_no_overlap(sums, packed_plan, n_words, *a) &&
           !sums.overlaps(Span(angular_frequencies, a->sizes[a->rank - 1], 8)) &&
           !sums.overlaps(Span(a->x, a->sizes, a->x_strides, a->rank, size_of(a->dtype)));
  };
  return run_checked(packed_plan, n_words, a, no_overlap,
                     [&](auto type, const Plan& plan, const Shape& shape, int64_t first) {
                       using T = decltype(type);
                       return for_each_tile(plan, *a, first, accumulate_t<T>{1},
                                            [&] { return TileDots<T>(*a, shape, angular_frequencies); });
                     });
}
