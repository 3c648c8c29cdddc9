// add: out = round(scale*x) + round(alpha*PE), with or without dropout, in one pass over x.
#include "cpu/tile_adder.h"

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
