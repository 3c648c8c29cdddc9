// embed: out = round(scale*weight[id]) + round(alpha*PE), with or without dropout: a gather fused with the addition of
// the encoding.
#include "cpu/ids.h"
#include "cpu/tiles.h"

namespace sinpe {
namespace {

template <class T>
class TileEmbedder {
 public:
  using Real = accumulate_t<T>;
  using Element = T;
  static constexpr bool kStreams = true;
  TileEmbedder(const sinpe_embed_arguments& e, const Shape& shape, const NewPages& pages)
      : e_(e),
        a_(e.add),
        shape_(shape),
        pages_(pages),
        padding_(a_, shape),
        rng_offsets_(a_.dropout, a_.sizes, a_.rank),
        dropout_(dropout_of(a_.dropout, rng_offsets_.strides[a_.rank - 1])),
        scale_(static_cast<Real>(a_.scale)) {}

  void operator()(int64_t first, int64_t last, int64_t row, int64_t n, const Real* pe) {
    for (int64_t slice = first; slice < last; slice += kAddSlices) {
      const int count = static_cast<int>(std::min<int64_t>(kAddSlices, last - slice));
      for (int k = 0; k < count; ++k) {
        begin(k, slice + k, row);
        populate(slice + k, row, n);
      }
      for (int64_t r = 0; r < n; ++r) {
        for (int k = 0; k < count && r + 1 < n; ++k) prefetch_row(weight_of(ids_[k][id_row()]), shape_.dim);
        one_row(count, slice, row + r, pe + r * shape_.dim);
      }
    }
  }

  // To be called before n rows of a slice are written.
  void populate(int64_t slice, int64_t row, int64_t n) const {
    if (out_row() != shape_.dim) return;
    pages_.populate(static_cast<T*>(a_.out) + slice_offset(a_, a_.out_strides, slice) + row * out_row(),
                    n * shape_.dim * static_cast<int64_t>(sizeof(T)));
  }
  // For for_each_streamed_row.
  bool can_stream() const { return a_.padding_mask == nullptr && is_worth_streaming<T>(a_); }
  StreamOptions stream_options() const {
    return {static_cast<float>(scale_), static_cast<float>(a_.alpha), dropout_, Stores::kCached};
  }
  void find(int64_t slice, int64_t row, const T** x, T** out, uint64_t* rng_offset) const {
    *x = weight_of(e_.ids[slice_offset(a_, e_.id_strides, slice) + row * id_row()]);
    *out = static_cast<T*>(a_.out) + slice_offset(a_, a_.out_strides, slice) + row * out_row();
    *rng_offset = rng_offsets_.base +
                  static_cast<uint64_t>(slice_offset(a_, rng_offsets_.strides, slice) + row * rng_offset_row());
  }

 private:
  void begin(int k, int64_t slice, int64_t row) {
    ids_[k] = e_.ids + slice_offset(a_, e_.id_strides, slice) + row * id_row();
    out_[k] = static_cast<T*>(a_.out) + slice_offset(a_, a_.out_strides, slice) + row * out_row();
    rng_offset_[k] = rng_offsets_.base +
                     static_cast<uint64_t>(slice_offset(a_, rng_offsets_.strides, slice) + row * rng_offset_row());
  }

  // The same row of `count` slices, which share its encoding; then advances to the next row.
  void one_row(int count, int64_t slice, int64_t row, const Real* pe) {
    const T* x[kAddSlices];
    for (int k = 0; k < count; ++k) x[k] = weight_of(*ids_[k]);
    const auto add = row_kernels().of<T>().add;
    if (a_.padding_mask == nullptr) {
      add(x, pe, out_, count, shape_.dim, scale_, dropout_, rng_offset_, Stores::kCached);
    } else {
      for (int k = 0; k < count; ++k) {
        const Real* encoding = padding_.at(slice + k, row) ? nullptr : pe;
        add(x + k, encoding, out_ + k, 1, shape_.dim, scale_, dropout_, rng_offset_ + k, Stores::kCached);
      }
    }
    for (int k = 0; k < count; ++k) {
      ids_[k] += id_row();
      out_[k] += out_row();
      rng_offset_[k] += static_cast<uint64_t>(rng_offset_row());
    }
  }

  const T* weight_of(int64_t id) const { return static_cast<const T*>(a_.x) + id * e_.weight_stride; }
  int64_t id_row() const { return e_.id_strides[a_.rank - 2]; }
  int64_t out_row() const { return a_.out_strides[a_.rank - 2]; }
  int64_t rng_offset_row() const { return rng_offsets_.strides[a_.rank - 2]; }

  const sinpe_embed_arguments& e_;
  const sinpe_add_arguments& a_;
  const Shape& shape_;
  NewPages pages_;
  Padding padding_;
  RngOffsets rng_offsets_;
  Dropout dropout_;
  Real scale_;
  const int64_t* ids_[kAddSlices];
  T* out_[kAddSlices];
  uint64_t rng_offset_[kAddSlices];
};

}  // namespace
}  // namespace sinpe

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
      return for_each_tile(plan, a, first, alpha, [&] { return TileEmbedder<T>(*e, shape, pages); });
    });
  });
}
