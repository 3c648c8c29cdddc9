// The part of add for which no two rows of x share a row of the encoding, in a file of its own, which compiles at the
// same time as add.cu.
#include "cuda/runs.h"

sinpe_status sinpe::cuda::add_rows(const DevicePlan& plan, const sinpe_add_arguments& a, const DeviceScalars& scalars,
                                   Stream stream) {
  if (a.positions == nullptr) return run_rows<PositionKind::kConsecutive, true>(plan, a, scalars, stream);
  return a.position_dtype == SINPE_INT64 ? run_rows<PositionKind::kInteger, true>(plan, a, scalars, stream)
                                         : run_rows<PositionKind::kFloat, true>(plan, a, scalars, stream);
}
