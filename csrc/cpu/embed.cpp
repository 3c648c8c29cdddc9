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
        scale_(static_cast<Real>(a_.scale)),
        between_rows_(slices_between_rows(a_, a_.out_strides)) {}

  void operator()(int64_t first, int64_t last, int64_t row, int64_t n, const Real* pe) {
    for_each_block(first, last, between_rows_, kAddSlices, [&](int64_t slice, int64_t count) {
      const int64_t* ids[kMostSlices];
      T* out[kMostSlices];
      uint64_t rng_offset[kMostSlices];
      for (int64_t k = 0; k < count; ++k) {
        ids[k] = e_.ids + slice_offset(a_, e_.id_strides, slice + k) + row * id_row();
        find_out(slice + k, row, out + k, rng_offset + k);
        if (k == 0 || between_rows_ == 1) populate(slice + k, row, n);
      }
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t k = 0; k < count; k += kAddSlices) {
          const int few = static_cast<int>(std::min<int64_t>(kAddSlices, count - k));
          const int64_t next = k + few < count ? k + few : 0;  // in this row, or the first of the next one
          for (int64_t j = next; j < std::min(next + few, count) && (next > 0 || r + 1 < n); ++j)
            prefetch_row(weight_of(ids[j][next > 0 ? 0 : id_row()]), shape_.dim);
          add(few, slice + k, row + r, pe + r * shape_.dim, ids + k, out + k, rng_offset + k);
        }
        for (int64_t k = 0; k < count; ++k) {
          ids[k] += id_row();
          out[k] += out_row();
          rng_offset[k] += static_cast<uint64_t>(rng_offset_row());
        }
      }
    });
  }

  const NewPages& pages() const { return pages_; }
  T* to(int64_t slice, int64_t row) const {
    return static_cast<T*>(a_.out) + slice_offset(a_, a_.out_strides, slice) + row * out_row();
  }
  // To be called before n rows of a slice are written, and of those that lie between them.
  void populate(int64_t slice, int64_t row, int64_t n) const {
    if (pages_.is_empty() || out_row() != between_rows_ * shape_.dim) return;
    pages_.populate(to(slice, row), n * out_row() * static_cast<int64_t>(sizeof(T)));
  }
  // For for_each_streamed_row.
  // Dropout of 16-bit elements, or with short vectors, is limited by arithmetic, and tiles need less of it.
  bool can_stream() const {
    const bool is_worth_it = a_.dropout.drop_threshold == 0 || (sizeof(T) == 4 && row_kernels().lanes > 2);
    return a_.padding_mask == nullptr && is_worth_it;
  }
  StreamOptions stream_options() const {
    return {static_cast<float>(scale_), static_cast<float>(a_.alpha), dropout_, Stores::kCached};
  }
  void find(int64_t slice, int64_t row, const T** x, T** out, uint64_t* rng_offset) const {
    *x = weight_of(e_.ids[slice_offset(a_, e_.id_strides, slice) + row * id_row()]);
    find_out(slice, row, out, rng_offset);
  }

 private:
  void find_out(int64_t slice, int64_t row, T** out, uint64_t* rng_offset) const {
    *out = to(slice, row);
    *rng_offset = rng_offsets_.base +
                  static_cast<uint64_t>(slice_offset(a_, rng_offsets_.strides, slice) + row * rng_offset_row());
  }

  // The same row of `count` slices, which share its encoding.
  void add(int count, int64_t slice, int64_t row, const Real* pe, const int64_t* const* ids, T* const* out,
           const uint64_t* rng_offset) const {
    const T* x[kAddSlices];
    for (int k = 0; k < count; ++k) x[k] = weight_of(*ids[k]);
    const auto add_rows = row_kernels().of<T>().add;
    if (a_.padding_mask == nullptr) {
      return add_rows(x, pe, out, count, shape_.dim, scale_, dropout_, rng_offset, Stores::kCached);
    }
    for (int k = 0; k < count; ++k) {
      const Real* encoding = padding_.at(slice + k, row) ? nullptr : pe;
      add_rows(x + k, encoding, out + k, 1, shape_.dim, scale_, dropout_, rng_offset + k, Stores::kCached);
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
  int64_t between_rows_;
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
