// add: out = round(scale*x) + round(alpha*PE), with or without dropout, in one pass over x.
#include "cuda/apply_launch.h"
#include "cuda/runs.h"

namespace sinpe {
namespace cuda {
namespace {

// Whether no two rows of x share a row of the encoding, and the rows of x, of the result and of the positions are evenly
// spaced. Then `flat` receives the arguments with two dimensions.
bool flatten(const sinpe_add_arguments& a, sinpe_add_arguments* flat) {
  const Shape shape(a);
  const bool steps = a.positions_are_starts != 0 && shape.rows > 1;
  const bool shares = shape.middle > 1 || (shape.batch > 1 && (a.positions == nullptr || a.position_strides[0] == 0));
  if (steps || shares || a.dropout.drop_threshold != 0 || a.padding_mask != nullptr) return false;
  const int last = a.rank - 1, row = a.rank - 2;
  *flat = rows_alone(shape.batch * shape.rows, shape.dim, a.dtype, a.out, a.out_strides[row]);
  flat->x = a.x;
  flat->x_strides[0] = a.x_strides[row];
  flat->scale = a.scale;
  flat->alpha = a.alpha;
  flat->start = a.start;
  flat->positions = a.positions;
  flat->position_dtype = a.position_dtype;
  flat->position_strides[1] = a.position_strides[1];
  if (shape.batch > 1 && shape.rows == 1) {
    flat->x_strides[0] = a.x_strides[0];
    flat->out_strides[0] = a.out_strides[0];
  }
  if (shape.rows == 1) flat->position_strides[1] = a.position_strides[0];
  const auto follow = [&](const int64_t* strides) { return strides[0] == strides[row] * shape.rows; };
  const bool behind =
      shape.batch == 1 || shape.rows == 1 ||
      (follow(a.x_strides) && follow(a.out_strides) && a.position_strides[0] == a.position_strides[1] * shape.rows);
  return behind && (shape.dim == 1 || (a.x_strides[last] == 1 && a.out_strides[last] == 1));
}

}  // namespace
}  // namespace cuda
}  // namespace sinpe

sinpe_status sinpe::cuda::add(const DevicePlan& plan, const sinpe_add_arguments& a, const DeviceScalars& scalars,
                              Stream stream) {
  bool empty;
  const sinpe_status status = check(plan, a, &empty);
  if (status != SINPE_OK || empty) return status;
  if (a.x == nullptr || !has_no_overlap(span_of_out(a), plan.packed, plan.n_words, a)) return SINPE_BAD_ARGUMENT;
  const Data s = data_of(a, scalars);
  if (are_few(a)) return apply_few<Source::kStrided>(plan, a, s, stream);
  sinpe_add_arguments flat;
  if (flatten(a, &flat)) return add_rows(plan, flat, scalars, stream);
  return apply<Source::kStrided>(plan, a, s, stream);
}
