// dropout: out = round(scale*x) with dropout and no encoding; also the gradient of add with respect to x.
#include "cpu/apply.h"

namespace sinpe {
namespace {

// Elements of a row that several dimensions are merged into, at most.
constexpr int64_t kMostMerged = 8192;

// Rows that are not computed: nothing is added.
struct NoRows {
  template <class Real>
  Rows<Real> operator()(int64_t, int64_t, int64_t n, TileMemory<Real>&) const {
    return {nullptr, n};
  }
};

template <class T>
sinpe_status dropout(const sinpe_add_arguments& a) {
  const RngOffsets offsets(a.dropout, a.sizes, a.rank);
  const Merged m(a, offsets, kMostMerged);
  sinpe_add_arguments lines = a;
  lines.padding_mask = nullptr;
  int64_t rng_offsets[1 + SINPE_MAX_RANK] = {static_cast<int64_t>(offsets.base)};
  lines.dropout.rng_offsets = rng_offsets;
  const auto put = [&](int to, int64_t size, int d) {
    lines.sizes[to] = size;
    lines.x_strides[to] = m.x[d];
    lines.out_strides[to] = m.out[d];
    rng_offsets[1 + to] = m.rng_offsets[d];
  };
  for (int d = 0; d < m.rank; ++d) put(d, m.sizes[d], d);
  if (m.rank == 1) put(1, 1, 0);  // rows of one element
  lines.rank = std::max(2, m.rank);
  const Shape shape(lines);
  const NewPages pages;
  const int64_t tile = std::max<int64_t>(kMinTileRows, kTaskElements / shape.dim / kMinTileRows * kMinTileRows);
  return for_each_row_tile<accumulate_t<T>>(
      shape, 1, std::min(shape.rows, tile), [] { return NoRows{}; },
      [&] { return Apply<T>(lines, pages, shape.elements()); }, /*zeros=*/false, /*has_rows=*/true);
}

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_dropout(const sinpe_add_arguments* a) {
  using namespace sinpe;
  if (a == nullptr || a->rank < 1 || a->rank > SINPE_MAX_RANK || !valid_sizes(a->sizes, a->rank) ||
      !valid_dropout(a->dropout, a->sizes, a->rank)) {
    return SINPE_BAD_ARGUMENT;
  }
  if (product(a->sizes, a->rank) == 0) return SINPE_OK;
  if (a->x == nullptr || a->out == nullptr) return SINPE_BAD_ARGUMENT;
  const Span written(a->out, a->sizes, a->out_strides, a->rank, size_of(a->dtype));
  if (written.overlaps(Span(a->dropout.rng_offsets, 1 + a->rank, 8))) return SINPE_BAD_ARGUMENT;
  return catch_out_of_memory(
      [&] { return with_type(a->dtype, [&](auto type) { return dropout<decltype(type)>(*a); }); });
}
