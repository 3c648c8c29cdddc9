// embed: out = round(scale*weight[id]) + round(alpha*PE), with or without dropout: a gather fused with the addition of
// the encoding.
#include "cuda/apply_launch.h"

sinpe_status sinpe::cuda::embed(const DevicePlan& plan, const sinpe_embed_arguments& e, const DeviceScalars& scalars,
                                Stream stream) {
  const sinpe_add_arguments& a = e.add;
  bool empty;
  const sinpe_status status = check(plan, a, &empty);
  if (status != SINPE_OK || empty) return status;
  if (e.ids == nullptr || e.num_embeddings < 0 || (e.num_embeddings > 0 && a.x == nullptr) ||
      (plan.dim > 1 && a.out_strides[a.rank - 1] != 1)) {
    return SINPE_BAD_ARGUMENT;
  }
  Data s = data_of(a, scalars);
  s.ids = e.ids;
  s.num_embeddings = e.num_embeddings;
  s.weight_stride = e.weight_stride;
  for (int d = 0; d < s.dims; ++d) s.of_ids.slice[d] = e.id_strides[d];
  s.of_ids.row = e.id_strides[a.rank - 2];
  s.of_x = Strides{};  // rows of the weight: only the channel stride is used
  s.of_x.channel = 1;
  return are_few(a) ? apply_few<Source::kRows>(plan, a, s, stream) : apply<Source::kRows>(plan, a, s, stream);
}
