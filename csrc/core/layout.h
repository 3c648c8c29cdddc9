// Memory layout: offsets of row-major indices, address ranges of tensors, and the RNG offsets of elements for dropout.
#pragma once

#include "core/philox.h"
#include "core/plan.h"
#include "sinpe/sinpe.h"

namespace sinpe {

// Memory offset of the element with row-major index `index` in a tensor of n dimensions.
SINPE_HD int64_t offset_at(const int64_t* sizes, const int64_t* strides, int n, int64_t index) {
  int64_t offset = 0;
  SINPE_ROLLED
  for (int d = n - 1; d > 0; --d) {
    offset += index % sizes[d] * strides[d];
    index /= sizes[d];
  }
  return n > 0 ? offset + index * strides[0] : 0;
}

// False if a size is negative or the number of elements does not fit int64.
inline bool valid_sizes(const int64_t* sizes, int rank) {
  int64_t all = 1;
  bool counted = true, empty = false;
  for (int d = 0; d < rank; ++d) {
    if (sizes[d] < 0) return false;
    empty = empty || sizes[d] == 0;
    counted = counted && !__builtin_mul_overflow(all, sizes[d], &all);
  }
  return counted || empty;
}

inline int64_t product(const int64_t* sizes, int n) {
  int64_t all = 1;
  for (int d = 0; d < n; ++d) all *= sizes[d];
  return all;
}

// The address range of a tensor, gaps included.
struct Span {
  uintptr_t begin = 0, end = 0;

  Span(const void* data, int64_t count, int64_t item) : Span(data, &count, nullptr, 1, item) {}
  // Strides in elements, possibly negative; nullptr for a contiguous tensor. Unsigned arithmetic, so that invalid
  // strides wrap instead of causing undefined behaviour.
  Span(const void* data, const int64_t* sizes, const int64_t* strides, int rank, int64_t item) {
    if (data == nullptr) return;
    begin = end = reinterpret_cast<uintptr_t>(data);
    uintptr_t step = static_cast<uintptr_t>(item);
    for (int d = rank - 1; d >= 0; --d) {
      if (sizes[d] == 0) {
        begin = end = 0;
        return;
      }
      const bool backward = strides != nullptr && strides[d] < 0;
      const uintptr_t stride =
          strides == nullptr ? step : static_cast<uintptr_t>(strides[d]) * static_cast<uintptr_t>(item);
      (backward ? begin : end) += static_cast<uintptr_t>(sizes[d] - 1) * stride;
      step *= static_cast<uintptr_t>(sizes[d]);
    }
    end += static_cast<uintptr_t>(item);
  }
  bool overlaps(const Span& other) const { return begin < other.end && other.begin < end; }
};

// False if the drop threshold is invalid, a stride of the RNG offsets is negative, or an RNG offset relative to the
// base does not fit int64.
inline bool valid_dropout(const sinpe_dropout_arguments& a, const int64_t* sizes, int rank) {
  if (a.drop_threshold < 0 || a.drop_threshold > kDropAll) return false;
  int64_t last = 0, reach;  // relative to the base, which is unsigned and may wrap
  for (int d = 0; a.rng_offsets != nullptr && d < rank; ++d) {
    const int64_t step = a.rng_offsets[1 + d];
    if (step < 0 || __builtin_mul_overflow(step, sizes[d], &reach) || __builtin_add_overflow(last, reach, &last)) {
      return false;
    }
  }
  return true;
}

// RNG offsets of a tensor's elements: base + the sum of index * stride over the dimensions.
struct RngOffsets {
  uint64_t base = 0;
  int64_t strides[SINPE_MAX_RANK] = {};

  RngOffsets(const sinpe_dropout_arguments& a, const int64_t* sizes, int rank) {
    if (a.rng_offsets != nullptr) {
      base = static_cast<uint64_t>(a.rng_offsets[0]);
      for (int d = 0; d < rank; ++d) strides[d] = a.rng_offsets[1 + d];
      return;
    }
    int64_t step = 1;
    for (int d = rank - 1; d >= 0; --d) {
      strides[d] = step;
      step *= sizes[d];
    }
  }
};

// The dropout parameters of a kernel call. `step` is the difference between the RNG offsets of neighbouring elements of
// a row.
inline Dropout dropout_of(const sinpe_dropout_arguments& a, int64_t step) {
  const uint32_t drop_threshold = static_cast<uint32_t>(a.drop_threshold);
  return {static_cast<uint64_t>(a.seed), static_cast<uint64_t>(step), drop_threshold, dropout_scale(drop_threshold)};
}

// The dimensions of x and out in the order of their memory, that of out's strides, after neighbouring dimensions are
// merged where the strides of x, of out and of the RNG offsets allow it: the last one while it has at most `most` elements.
struct Merged {
  int rank = 0;
  int64_t sizes[SINPE_MAX_RANK], x[SINPE_MAX_RANK], out[SINPE_MAX_RANK], rng_offsets[SINPE_MAX_RANK];

  Merged(const sinpe_add_arguments& a, const RngOffsets& offsets, int64_t most = INT64_MAX) {
    const bool has_dropout = a.dropout.drop_threshold != 0;
    for (int d = 0; d < a.rank; ++d) {
      if (a.sizes[d] == 1) continue;
      int at = rank++;
      for (; at > 0 && out[at - 1] < a.out_strides[d]; --at)
        put(at, sizes[at - 1], x[at - 1], out[at - 1], rng_offsets[at - 1]);
      put(at, a.sizes[d], a.x_strides[d], a.out_strides[d], has_dropout ? offsets.strides[d] : 0);
    }
    if (rank == 0) put(rank++, 1, 1, 1, 1);
    int last = 0;
    for (int d = 1; d < rank; ++d) {
      const bool follows = x[last] == x[d] * sizes[d] && out[last] == out[d] * sizes[d] &&
                           rng_offsets[last] == rng_offsets[d] * sizes[d] &&
                           (d < rank - 1 || sizes[last] <= most / sizes[d]);
      const int64_t size = follows ? sizes[last] * sizes[d] : sizes[d];
      put(follows ? last : ++last, size, x[d], out[d], rng_offsets[d]);
    }
    rank = last + 1;
  }

 private:
  void put(int d, int64_t size, int64_t x_stride, int64_t out_stride, int64_t step) {
    sizes[d] = size;
    x[d] = x_stride;
    out[d] = out_stride;
    rng_offsets[d] = step;
  }
};

// Sets *sum to a + b; returns false on int64 overflow.
SINPE_HD bool add_positions(int64_t a, int64_t b, int64_t* sum) {
  const uint64_t s = static_cast<uint64_t>(a) + static_cast<uint64_t>(b);
  *sum = static_cast<int64_t>(s);
  return ((static_cast<uint64_t>(a) ^ s) & (static_cast<uint64_t>(b) ^ s)) >> 63 == 0;
}

// Sets *first to the first of `length` consecutive positions; returns false if one of them does not fit int64.
SINPE_HD bool first_position(int64_t plan_start, int64_t start, int64_t length, int64_t* first) {
  int64_t last;
  return add_positions(plan_start, start, first) && (length == 0 || add_positions(*first, length - 1, &last));
}

SINPE_HD constexpr int64_t size_of(sinpe_dtype t) {
  return t == SINPE_FLOAT64 || t == SINPE_INT64 ? 8 : t == SINPE_FLOAT32 ? 4 : 2;
}

inline bool is_position_type(sinpe_dtype t) { return t == SINPE_INT64 || t == SINPE_FLOAT32 || t == SINPE_FLOAT64; }

// x as (batch, middle, rows, dim), where middle stands for all dimensions between batch and sequence. A slice is a
// (batch, middle) pair; its index is batch * middle + the index within middle.
struct Shape {
  int64_t batch, middle, rows, dim;
  explicit Shape(const sinpe_add_arguments& a)
      : batch(a.rank > 2 ? a.sizes[0] : 1), middle(1), rows(a.sizes[a.rank - 2]), dim(a.sizes[a.rank - 1]) {
    uint64_t slices = 1;  // may overflow if another size is 0
    for (int d = 1; d < a.rank - 2; ++d) slices *= static_cast<uint64_t>(a.sizes[d]);
    middle = static_cast<int64_t>(slices);
  }
  bool empty() const { return batch == 0 || middle == 0 || rows == 0; }
  int64_t elements() const { return batch * middle * rows * dim; }
};

// The address range of out, which has the shape of x.
inline Span span_of_out(const sinpe_add_arguments& a) {
  return Span(a.out, a.sizes, a.out_strides, a.rank, size_of(a.dtype));
}

// Whether the output memory overlaps none of the operands that determine how elements are computed: the packed plan or
// grid, the positions, the padding mask and the RNG offsets. Kernels read these again after the checks, while they
// write.
inline bool has_no_overlap(const Span& written, const int64_t* packed_plan, int64_t n_words,
                           const sinpe_add_arguments& a, bool reads_positions = true) {
  const Shape shape(a);
  const int64_t rows[] = {shape.batch, shape.rows}, starts[] = {shape.batch, 1};
  return !written.overlaps(Span(packed_plan, n_words, 8)) &&
         !written.overlaps(Span(a.dropout.rng_offsets, 1 + a.rank, 8)) &&
         !written.overlaps(Span(reads_positions ? a.positions : nullptr, a.positions_are_starts != 0 ? starts : rows,
                                a.position_strides, 2, size_of(a.position_dtype))) &&
         !written.overlaps(Span(a.padding_mask, rows, a.mask_strides, 2, 1));
}

}  // namespace sinpe
