// dropout: out = round(scale*x) with dropout and no encoding; also the gradient of add with respect to x.
#include <initializer_list>

#include "cuda/apply_launch.h"

namespace sinpe {
namespace cuda {
namespace {

// Number of rows (slices of a tile of one row) into which n contiguous elements are split; 1 if no width divides n.
int64_t cut(int64_t n) {
  for (const int64_t width : {2048, 1536, 1024, 768, 512}) {
    if (n % width == 0) return n / width;
  }
  return 1;
}

// The arguments with adjacent dimensions merged; at least two dimensions.
sinpe_add_arguments merged(const sinpe_add_arguments& a, int64_t* rng_offsets) {
  const RngOffsets offsets(a.dropout, a.sizes, a.rank);
  const Merged m(a, offsets);
  sinpe_add_arguments b = a;
  const int lead = m.rank < 2 ? 1 : 0;
  b.rank = m.rank + lead;
  b.sizes[0] = 1;
  b.x_strides[0] = b.out_strides[0] = 0;
  rng_offsets[0] = static_cast<int64_t>(offsets.base);
  rng_offsets[1] = 0;
  for (int d = 0; d < m.rank; ++d) {
    b.sizes[d + lead] = m.sizes[d];
    b.x_strides[d + lead] = m.x[d];
    b.out_strides[d + lead] = m.out[d];
    rng_offsets[1 + d + lead] = m.rng_offsets[d];
  }
  const int64_t slices = lead == 1 ? cut(b.sizes[1]) : 1;
  if (slices > 1) {
    b.rank = 3;
    const int64_t width = b.sizes[1] / slices;
    const auto split = [&](int64_t* of, int64_t step) {  // (slices, 1, width)
      of[0] = width * step;
      of[1] = 0;
      of[2] = step;
    };
    split(b.x_strides, m.x[0]);
    split(b.out_strides, m.out[0]);
    split(rng_offsets + 1, m.rng_offsets[0]);
    b.sizes[0] = slices;
    b.sizes[1] = 1;
    b.sizes[2] = width;
  }
  b.dropout.rng_offsets = rng_offsets;
  b.positions = nullptr;
  b.positions_are_starts = 0;
  b.padding_mask = nullptr;
  return b;
}

}  // namespace
}  // namespace cuda
}  // namespace sinpe

sinpe_status sinpe::cuda::dropout(const sinpe_add_arguments& a, const DeviceScalars& scalars, Stream stream) {
  if (a.rank < 1 || a.rank > SINPE_MAX_RANK || !valid_sizes(a.sizes, a.rank) ||
      !valid_dropout(a.dropout, a.sizes, a.rank)) {
    return SINPE_BAD_ARGUMENT;
  }
  if (product(a.sizes, a.rank) == 0) return SINPE_OK;
  if (a.x == nullptr || a.out == nullptr) return SINPE_BAD_ARGUMENT;
  int64_t rng_offsets[1 + SINPE_MAX_RANK];
  const sinpe_add_arguments b = merged(a, rng_offsets);
  const Data s = data_of(b, scalars);
  return with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    return choose_dropout<T, Unencoded<accumulate_t<T>>, Source::kStrided>(DevicePlan{}, positions_of(b), b, s, stream);
  });
}
