// table: consecutive rows of an encoding.
#include "cuda/apply_launch.h"
#include "cuda/runs.h"

sinpe_status sinpe::cuda::table(const DevicePlan& plan, int64_t start, int64_t length, sinpe_dtype dtype, void* out,
                                int64_t row_stride, Stream stream) {
  if (length < 0 || row_stride < plan.dim) return SINPE_BAD_ARGUMENT;
  sinpe_add_arguments a = rows_alone(length, plan.dim, dtype, out, row_stride);
  a.start = start;
  bool empty;
  const sinpe_status status = check(plan, a, &empty);
  if (status != SINPE_OK || empty) return status;
  if (!has_no_overlap(span_of_out(a), plan.packed, plan.n_words, a)) return SINPE_BAD_ARGUMENT;
  if (are_few(a)) return apply_few<Source::kNone>(plan, a, data_of(a, {}), stream);
  return run_rows<PositionKind::kConsecutive, false>(plan, a, {}, stream);
}
