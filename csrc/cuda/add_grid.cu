// add_grid: out = round(scale*x) + the rows of the grid's axes, with or without dropout, in one pass over x.
#include "cuda/apply_launch.h"
#include "cuda/grid_rows.h"

sinpe_status sinpe::cuda::add_grid(const DevicePlan& grid, const void* values, int64_t n_values,
                                   const sinpe_add_arguments& arguments, const DeviceScalars& scalars, Stream stream) {
  sinpe_add_arguments a = arguments;
  a.positions = nullptr;
  a.positions_are_starts = 0;
  const bool countable = a.rank >= 2 && a.rank <= SINPE_MAX_RANK && valid_sizes(a.sizes, a.rank);
  if (countable && a.sizes[a.rank - 1] == 0 && valid_dropout(a.dropout, a.sizes, a.rank))
    return SINPE_OK;  // a grid by channels without points
  bool empty;
  const sinpe_status status = check(grid, a, &empty);
  if (status != SINPE_OK || empty) return status;
  if (a.x == nullptr || n_values < 0 || (n_values > 0 && values == nullptr)) return SINPE_BAD_ARGUMENT;
  const Span written = span_of_out(a), axes(values, n_values, a.dtype == SINPE_FLOAT64 ? 8 : 4);
  if (!has_no_overlap(written, grid.packed, grid.n_words, a) || written.overlaps(axes)) return SINPE_BAD_ARGUMENT;
  const Data s = data_of(a, scalars);
  const GridValues from{values, n_values, a.sizes[a.rank - 2], a.padding_mask != nullptr};
  return with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    return choose_dropout<T, Gathered<accumulate_t<T>>, Source::kStrided>(grid, from, a, s, stream);
  });
}
