// add: out = round(scale*x) + round(alpha*PE), the encoding made tile by tile while x streams past; no table in memory.
#include "cpu/dispatch.h"
#include "cpu/row_maker.h"

namespace sinpe {
namespace {

using Arguments = sinpe_add_arguments;

// Type in which products and the sum are rounded.
template <class T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};

void add_rows(const float* const* x, const float* pe, float* const* out, int count, int64_t n, float scale) {
  row_kernels().add_float(x, pe, out, count, n, scale);
}
void add_rows(const double* const* x, const double* pe, double* const* out, int count, int64_t n, double scale) {
  row_kernels().add_double(x, pe, out, count, n, scale);
}
void add_rows(const bfloat16* const* x, const float* pe, bfloat16* const* out, int count, int64_t n, float scale) {
  row_kernels().add_bfloat16(x, pe, out, count, n, scale);
}
void add_rows(const float16* const* x, const float* pe, float16* const* out, int count, int64_t n, float scale) {
  row_kernels().add_float16(x, pe, out, count, n, scale);
}

// Shapes of one call: x seen as (batch, middle, rows, dim), middle being all dimensions between batch and sequence.
struct Shape {
  int64_t batch, middle, rows, dim;
};

Shape shape_of(const Arguments& a) {
  Shape shape{a.rank > 2 ? a.sizes[0] : 1, 1, a.sizes[a.rank - 2], a.sizes[a.rank - 1]};
  for (int d = 1; d < a.rank - 2; ++d) shape.middle *= a.sizes[d];
  return shape;
}

int64_t offset_of(const Arguments& a, const int64_t* strides, int64_t batch, int64_t middle) {
  int64_t offset = a.rank > 2 ? batch * strides[0] : 0;
  for (int d = a.rank - 3; d >= 1; --d) {
    offset += middle % a.sizes[d] * strides[d];
    middle /= a.sizes[d];
  }
  return offset;
}

// Positions of the rows of one batch element.
class Positions {
 public:
  Positions(const Arguments& a, int64_t first) : a_(a), first_(first) {}
  bool shared_by_batch() const { return a_.positions == nullptr || a_.position_strides[0] == 0; }

  template <class Real>
  void rows(RowMaker& maker, int64_t batch, int64_t row, int64_t n, Real* out, int64_t dim) const {
    if (a_.positions == nullptr) return maker.run(first_ + row, n, out, dim);
    const int64_t at = batch * a_.position_strides[0], step = a_.position_strides[1];
    if (a_.positions_are_starts != 0) {
      return maker.run(static_cast<const int64_t*>(a_.positions)[at] + row, n, out, dim);
    }
    for (int64_t r = 0; r < n;) {
      if (a_.position_dtype != SINPE_INT64) {
        const int64_t i = at + (row + r) * step;
        const double p = a_.position_dtype == SINPE_FLOAT32 ? static_cast<const float*>(a_.positions)[i]
                                                            : static_cast<const double*>(a_.positions)[i];
        maker.one(float_position(p), out + r * dim);
        ++r;
        continue;
      }
      const int64_t* p = static_cast<const int64_t*>(a_.positions) + at + (row + r) * step;
      int64_t run = 1;
      while (r + run < n && p[(run - 1) * step] != INT64_MAX && p[run * step] == p[(run - 1) * step] + 1) ++run;
      maker.run(*p, run, out + r * dim, dim);
      r += run;
    }
  }

 private:
  const Arguments& a_;
  int64_t first_;
};

// One call's work on a tile of rows: the encoding is in `pe`, and each (batch, middle) slice of x passes by.
template <class T>
class TileAdder {
 public:
  using Acc = typename Accumulate<T>::type;
  TileAdder(const Arguments& a, const Shape& shape)
      : a_(a),
        shape_(shape),
        x_row_(a.x_strides[a.rank - 2]),
        out_row_(a.out_strides[a.rank - 2]),
        x_channel_(a.x_strides[a.rank - 1]),
        out_channel_(a.out_strides[a.rank - 1]),
        scale_(static_cast<Acc>(a.scale)) {
    const bool dense = shape.dim == 1 || (x_channel_ == 1 && out_channel_ == 1);
    whole_tile_ = dense && a.padding_mask == nullptr && x_row_ == shape.dim && out_row_ == shape.dim;
    if (!dense) gathered_.resize(static_cast<size_t>(2 * shape.dim));
  }

  // Slices [first, last) of x, each slice = batch * middle + its place in the middle.
  void operator()(int64_t first, int64_t last, int64_t row, int64_t n, const Acc* pe) {
    if (!whole_tile_) {
      for (int64_t slice = first; slice < last; ++slice) row_by_row(slice, row, n, pe);
      return;
    }
    const T* x[kAddSlices];
    T* out[kAddSlices];
    for (int64_t slice = first; slice < last;) {
      int count = 0;
      for (; count < kAddSlices && slice < last; ++count, ++slice) {
        x[count] = from(slice, row);
        out[count] = to(slice, row);
      }
      add_rows(x, pe, out, count, n * shape_.dim, scale_);
    }
  }

 private:
  const T* from(int64_t slice, int64_t row) const {
    const int64_t at = offset_of(a_, a_.x_strides, slice / shape_.middle, slice % shape_.middle);
    return static_cast<const T*>(a_.x) + at + row * x_row_;
  }
  T* to(int64_t slice, int64_t row) const {
    const int64_t at = offset_of(a_, a_.out_strides, slice / shape_.middle, slice % shape_.middle);
    return static_cast<T*>(a_.out) + at + row * out_row_;
  }

  void row_by_row(int64_t slice, int64_t row, int64_t n, const Acc* pe) {
    const T* x = from(slice, row);
    T* out = to(slice, row);
    const uint8_t* mask = a_.padding_mask;
    if (mask != nullptr) mask += slice / shape_.middle * a_.mask_strides[0] + row * a_.mask_strides[1];
    for (int64_t r = 0; r < n; ++r) {
      const bool padded = mask != nullptr && mask[r * a_.mask_strides[1]] != 0;
      one_row(x + r * x_row_, padded ? nullptr : pe + r * shape_.dim, out + r * out_row_);
    }
  }

  void one_row(const T* x, const Acc* pe, T* out) {
    if (gathered_.empty()) return add_rows(&x, pe, &out, 1, shape_.dim, scale_);
    const T* dense_x = gathered_.data();
    T *gathered = gathered_.data(), *dense_out = gathered + shape_.dim;
    for (int64_t c = 0; c < shape_.dim; ++c) gathered[c] = x[c * x_channel_];
    add_rows(&dense_x, pe, &dense_out, 1, shape_.dim, scale_);
    for (int64_t c = 0; c < shape_.dim; ++c) out[c * out_channel_] = dense_out[c];
  }

  const Arguments& a_;
  const Shape& shape_;
  int64_t x_row_, out_row_, x_channel_, out_channel_;
  Acc scale_;
  bool whole_tile_;
  std::vector<T> gathered_;
};

template <class T>
sinpe_status add(const Plan& plan, const Arguments& a, int64_t first) {
  using Acc = typename Accumulate<T>::type;
  const Shape shape = shape_of(a);
  const Positions positions(a, first);
  const int64_t tile = std::min(shape.rows, tile_rows(shape.dim));
  const int64_t tiles = (shape.rows + tile - 1) / tile;
  // Slices of x that pass by one tile of the encoding; too few tiles for the threads: the slices are split as well.
  const int64_t groups = positions.shared_by_batch() ? 1 : shape.batch;
  const int64_t slices = shape.batch * shape.middle / groups;
  const int64_t wanted = 4 * parallel_threads();
  const int64_t parts = std::max<int64_t>(1, std::min(slices, (wanted + groups * tiles - 1) / (groups * tiles)));
  const std::unique_ptr<RowState> steps = shared_steps(plan, std::is_same<T, double>::value ? 0 : shape.rows);
  const int64_t work = std::max<int64_t>(1, tile * shape.dim * ((slices + parts - 1) / parts));
  const Acc alpha = static_cast<Acc>(a.alpha);

  return parallel_status(groups * parts * tiles, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) {
    RowMaker maker(plan, steps.get());
    TileAdder<T> add_tile(a, shape);
    std::vector<Acc> pe(static_cast<size_t>(tile * shape.dim));
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item % tiles * tile, part = item / tiles % parts, group = item / tiles / parts;
      const int64_t n = std::min(tile, shape.rows - row);
      positions.rows(maker, group, row, n, pe.data(), shape.dim);
      if (alpha != Acc{1}) {
        for (int64_t i = 0; i < n * shape.dim; ++i) pe[static_cast<size_t>(i)] *= alpha;
      }
      add_tile(group * slices + slices * part / parts, group * slices + slices * (part + 1) / parts, row, n, pe.data());
    }
  });
}

bool valid(const Plan& plan, const Arguments& a) {
  if (a.rank < 2 || a.rank > SINPE_MAX_RANK || a.sizes[a.rank - 1] != plan.dim) return false;
  for (int d = 0; d < a.rank; ++d) {
    if (a.sizes[d] < 0) return false;
  }
  return a.positions_are_starts == 0 || (a.positions != nullptr && a.position_dtype == SINPE_INT64);
}

bool is_position_type(sinpe_dtype t) { return t == SINPE_INT64 || t == SINPE_FLOAT32 || t == SINPE_FLOAT64; }

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_add(const int64_t* words, int64_t n_words, const sinpe_add_arguments* a) {
  using namespace sinpe;
  Plan plan;
  if (!decode_plan(words, n_words, &plan)) return SINPE_BAD_PLAN;
  if (a == nullptr || !valid(plan, *a)) return SINPE_BAD_ARGUMENT;
  const Shape shape = shape_of(*a);
  if (shape.batch == 0 || shape.middle == 0 || shape.rows == 0) return SINPE_OK;
  if (a->x == nullptr || a->out == nullptr) return SINPE_BAD_ARGUMENT;
  int64_t first = 0;
  if (a->positions == nullptr) {
    if (!first_position(plan.start, a->start, shape.rows, &first)) return SINPE_OUT_OF_RANGE;
  } else if (!is_position_type(a->position_dtype)) {
    return SINPE_BAD_ARGUMENT;
  } else if (a->positions_are_starts != 0) {
    for (int64_t b = 0; b < shape.batch; ++b) {
      const int64_t start = static_cast<const int64_t*>(a->positions)[b * a->position_strides[0]];
      if (!first_position(0, start, shape.rows, &first)) return SINPE_OUT_OF_RANGE;
    }
  }
  try {
    return with_type(a->dtype, [&](auto type) { return add<decltype(type)>(plan, *a, first); });
  } catch (const std::bad_alloc&) {
    return SINPE_NO_MEMORY;
  }
}
