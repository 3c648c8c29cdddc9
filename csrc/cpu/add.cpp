// add: out = round(scale*x) + round(alpha*PE), with or without dropout, in one pass over x.
#include "cpu/apply.h"
#include "cpu/channel_maker.h"

namespace sinpe {
namespace {

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
    const auto make_work = [&] { return Apply<T>(part, pages, Shape(a).elements(), nullptr, /*by_channels=*/true); };
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
                       const auto make_work = [&] { return Apply<T>(*a, pages, shape.elements()); };
                       return for_each_tile(plan, *a, first, alpha, make_work);
                     });
}
