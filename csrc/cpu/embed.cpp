// embed: out = round(scale*weight[id]) + round(alpha*PE), with or without dropout: a gather fused with the addition of
// the encoding.
#include "cpu/apply.h"

extern "C" sinpe_status sinpe_embed(const int64_t* packed_plan, int64_t n_words, sinpe_embed_arguments* e) {
  using namespace sinpe;
  Plan plan;
  if (!decode_plan(packed_plan, n_words, &plan)) return SINPE_BAD_PLAN;
  if (e == nullptr) return SINPE_BAD_ARGUMENT;
  const sinpe_add_arguments& a = e->add;
  int64_t first;
  const sinpe_status checked = check_arguments(plan, a, &first);
  if (checked != SINPE_OK) return checked;
  const Shape shape(a);
  if (shape.empty()) return SINPE_OK;
  if (e->ids == nullptr || e->num_embeddings < 0 || (plan.dim > 1 && a.out_strides[a.rank - 1] != 1)) {
    return SINPE_BAD_ARGUMENT;
  }
  if (!check_ids(e->ids, a.sizes, e->id_strides, a.rank - 1, e->num_embeddings, &e->bad_id)) return SINPE_BAD_ID;
  const int64_t weight[] = {e->num_embeddings, plan.dim}, strides[] = {e->weight_stride, 1};
  const Span written = span_of_out(a);
  if (a.x == nullptr || a.out == nullptr || !has_no_overlap(written, packed_plan, n_words, a) ||
      written.overlaps(Span(e->ids, a.sizes, e->id_strides, a.rank - 1, 8)) ||
      written.overlaps(Span(a.x, weight, strides, 2, size_of(a.dtype)))) {
    return SINPE_BAD_ARGUMENT;
  }
  return catch_out_of_memory([&] {
    return with_type(a.dtype, [&](auto type) {
      using T = decltype(type);
      const auto alpha = static_cast<accumulate_t<T>>(a.alpha);
      const NewPages pages;
      return for_each_tile(plan, a, first, alpha, [&] { return Apply<T>(a, pages, shape.elements(), e); });
    });
  });
}
