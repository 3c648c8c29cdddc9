// add: out = round(scale*x) + round(alpha*PE), with or without dropout, while x streams past.
#include "cuda/apply_launch.h"

sinpe_status sinpe::cuda::add(const DevicePlan& plan, const sinpe_add_arguments& a, const DeviceScalars& scalars,
                              Stream stream) {
  bool empty;
  const sinpe_status status = check(plan, a, &empty);
  if (status != SINPE_OK || empty) return status;
  if (a.x == nullptr) return SINPE_BAD_ARGUMENT;
  return apply<Source::kStrided>(plan, a, data_of(a, scalars), stream);
}
