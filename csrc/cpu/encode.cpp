// encode: rows at arbitrary positions.
#include "cpu/positions.h"

extern "C" sinpe_status sinpe_encode(const int64_t* packed_plan, int64_t n_words, const void* positions,
                                     sinpe_dtype position_dtype, int64_t count, sinpe_dtype dtype, void* out,
                                     int64_t row_stride) {
  using namespace sinpe;
  Plan plan;
  if (!decode_plan(packed_plan, n_words, &plan)) return SINPE_BAD_PLAN;
  if (count < 0 || row_stride < plan.dim || (count > 0 && (positions == nullptr || out == nullptr))) {
    return SINPE_BAD_ARGUMENT;
  }
  const int64_t sizes[] = {count, plan.dim}, strides[] = {row_stride, 1};
  const Span written(out, sizes, strides, 2, size_of(dtype));
  if (written.overlaps(Span(packed_plan, n_words, 8)) ||
      written.overlaps(Span(positions, count, size_of(position_dtype)))) {
    return SINPE_BAD_ARGUMENT;
  }
  if (!is_position_type(position_dtype)) return SINPE_BAD_ARGUMENT;
  sinpe_add_arguments of_rows{};
  of_rows.positions = positions;
  of_rows.position_dtype = position_dtype;
  of_rows.position_strides[1] = 1;
  return catch_out_of_memory([&] {
    return with_type(dtype, [&](auto type) {
      auto* const rows = static_cast<decltype(type)*>(out);
      return write_rows(plan, Positions(of_rows, 0), count, kBlockRows, Stores::kCached, rows, row_stride);
    });
  });
}
