// encode: rows at arbitrary positions.
#include "cuda/apply_launch.h"
#include "cuda/runs.h"

template sinpe_status sinpe::cuda::apply_few<sinpe::cuda::Source::kNone>(const DevicePlan&, const sinpe_add_arguments&,
                                                                         Data, Stream);

sinpe_status sinpe::cuda::encode(const DevicePlan& plan, const void* positions, sinpe_dtype position_dtype,
                                 int64_t count, sinpe_dtype dtype, void* out, int64_t row_stride, Stream stream) {
  if (count < 0 || row_stride < plan.dim || (count > 0 && positions == nullptr)) return SINPE_BAD_ARGUMENT;
  sinpe_add_arguments a = rows_alone(count, plan.dim, dtype, out, row_stride);
  a.positions = positions;
  a.position_dtype = position_dtype;
  a.position_strides[1] = 1;
  bool empty;
  const sinpe_status status = check(plan, a, &empty);
  if (status != SINPE_OK || empty) return status;
  if (are_few(a)) return apply_few<Source::kNone>(plan, a, data_of(a, {}), stream);
  return position_dtype == SINPE_INT64 ? run_rows<PositionKind::kInteger, false>(plan, a, {}, stream)
                                       : run_rows<PositionKind::kFloat, false>(plan, a, {}, stream);
}
