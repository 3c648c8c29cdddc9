// row_dots: the dot product of each row of a gradient with its row of the encoding, which is computed tile by tile.
#include "cpu/tiles.h"

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
    options_ = {shape.dim, a.x_strides[a.rank - 2], rng_offsets_.strides[a.rank - 2], angular_frequencies, factor,
                dropout};
    if (shape.dim > 1 && channel_ != 1) gathered_.resize(static_cast<size_t>(shape.dim));
  }

  void operator()(int64_t first, int64_t last, int64_t row, int64_t n, const Real* pe) {
    const auto dots = row_kernels().of<T>().dots;
    for (int64_t slice = first; slice < last; ++slice) {
      const T* x = static_cast<const T*>(a_.x) + slice_offset(a_, a_.x_strides, slice) + row * options_.row_stride;
      const uint64_t rng_offset =
          rng_offsets_.base +
          static_cast<uint64_t>(slice_offset(a_, rng_offsets_.strides, slice) + row * options_.rng_step);
      double* out = static_cast<double*>(a_.out) + slice * shape_.rows + row;
      if (a_.padding_mask == nullptr && gathered_.empty()) {
        dots(x, pe, out, n, rng_offset, options_);
        continue;
      }
      for (int64_t r = 0; r < n; ++r) {
        out[r] = 0.0;
        if (padding_.at(slice, row + r)) continue;
        dots(dense(x + r * options_.row_stride), pe + r * shape_.dim, out + r, 1,
             rng_offset + static_cast<uint64_t>(r * options_.rng_step), options_);
      }
    }
  }

 private:
  const T* dense(const T* x) {
    if (gathered_.empty()) return x;
    for (int64_t c = 0; c < shape_.dim; ++c) gathered_[static_cast<size_t>(c)] = x[c * channel_];
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
