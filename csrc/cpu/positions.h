// The positions of rows, and the rows at these positions.
#pragma once

#include "core/layout.h"
#include "cpu/populate.h"
#include "cpu/row_maker.h"

namespace sinpe {

// Positions of the rows of one batch element.
class Positions {
 public:
  Positions(const sinpe_add_arguments& a, int64_t first) : a_(a), first_(first) {}
  bool shared_by_batch() const { return a_.positions == nullptr || a_.position_strides[0] == 0; }

  // Whether the rows of a batch element have consecutive positions; first() is the position of the first.
  bool are_consecutive() const { return a_.positions == nullptr || a_.positions_are_starts != 0; }
  int64_t first(int64_t batch) const {
    if (a_.positions == nullptr) return first_;
    return static_cast<const int64_t*>(a_.positions)[batch * a_.position_strides[0]];
  }

  // For integers: the lowest and the highest position of all rows. Returns false for floats.
  bool range(const Shape& shape, int64_t* lowest, int64_t* highest) const {
    if (a_.positions == nullptr) {
      *lowest = first_, *highest = first_ + (shape.rows - 1);
      return true;
    }
    if (a_.position_dtype != SINPE_INT64) return false;
    *lowest = INT64_MAX, *highest = INT64_MIN;
    const int64_t step = are_consecutive() ? std::max<int64_t>(1, shape.rows - 1) : 1;  // the first and last are enough
    for (int64_t b = 0; b < (shared_by_batch() ? 1 : shape.batch); ++b) {
      for (int64_t row = 0; row < shape.rows; row += step) {
        const int64_t p = integer_at(b, row);
        *lowest = std::min(*lowest, p), *highest = std::max(*highest, p);
      }
    }
    return true;
  }

  // The position of a row of a batch element, if positions are integers.
  int64_t integer_at(int64_t batch, int64_t row) const {
    if (are_consecutive()) return first(batch) + row;
    return static_cast<const int64_t*>(a_.positions)[batch * a_.position_strides[0] + row * a_.position_strides[1]];
  }

  // Whether positions of the first `position_sets` batch elements have a run that is worth an anchor. Tests only every
  // kShortestRun-th position: a run of twice that length is always found, and computing a shorter one separately costs
  // little.
  bool have_runs(int64_t position_sets, int64_t rows) const {
    if (are_consecutive()) return true;
    if (a_.position_dtype != SINPE_INT64) return false;
    const int64_t step = a_.position_strides[1];
    for (int64_t b = 0; b < position_sets; ++b) {
      const int64_t* p = static_cast<const int64_t*>(a_.positions) + b * a_.position_strides[0];
      for (int64_t row = 0; row + kShortestRun <= rows; row += kShortestRun)
        if (run(p + row * step, step, kShortestRun) == kShortestRun) return true;
    }
    return false;
  }

  // n rows from `row`, `stride` elements from one to the next.
  template <class T>
  void rows(RowMaker& maker, int64_t batch, int64_t row, int64_t n, T* out, int64_t stride) const {
    if (are_consecutive()) return maker.consecutive(first(batch) + row, n, out, stride);
    const int64_t step = a_.position_strides[1], at = batch * a_.position_strides[0] + row * step;
    switch (a_.position_dtype) {
      case SINPE_INT64: return rows_at(maker, static_cast<const int64_t*>(a_.positions) + at, step, n, out, stride);
      case SINPE_FLOAT32: return rows_at(maker, static_cast<const float*>(a_.positions) + at, step, n, out, stride);
      default: return rows_at(maker, static_cast<const double*>(a_.positions) + at, step, n, out, stride);
    }
  }

 private:
  template <class P, class T>
  static void rows_at(RowMaker& maker, const P* p, int64_t step, int64_t n, T* out, int64_t stride) {
    constexpr bool kIntegers = std::is_same<P, int64_t>::value;
    const bool in_blocks = maker.makes_blocks(kIntegers);
    for (int64_t r = 0, count = 1; r < n; r += count) {
      const P* const from = p + r * step;
      T* const to = out + r * stride;
      if (in_blocks) {
        count = std::min(kBlockRows, n - r);
        if (step == 1) {
          maker.block(count, [&](int64_t k) { return position_of(from[k]); }, to, stride);
        } else {
          maker.block(count, [&](int64_t k) { return position_of(from[k * step]); }, to, stride);
        }
      } else if constexpr (kIntegers) {
        count = run(from, step, n - r);
        maker.consecutive(*from, count, to, stride);
      } else {
        maker.one(position_of(*from), to);
      }
    }
  }
  static Position position_of(int64_t p) { return integer_position(p); }
  static Position position_of(double p) { return float_position(p); }

  // The length of the run of consecutive integers that p begins, at most n.
  static int64_t run(const int64_t* p, int64_t step, int64_t n) {
    int64_t count = 1;
    for (; count < n && *p != INT64_MAX && p[step] == *p + 1; p += step) ++count;
    return count;
  }

  const sinpe_add_arguments& a_;
  int64_t first_;
};

// table and encode: `count` rows of the first batch element in memory, about `tile` at a time.
template <class T>
sinpe_status write_rows(const Plan& plan, const Positions& positions, int64_t count, int64_t tile, Stores stores,
                        T* out, int64_t stride) {
  const bool has_runs = !std::is_same<T, double>::value && positions.have_runs(1, count);
  const std::unique_ptr<RowState> steps = shared_steps(plan, has_runs ? count : 0);
  const NewPages pages;
  return parallel_status(count, std::max(tile, kGrain / plan.dim), [&](int64_t begin, int64_t end) {
    const StoreFence fence(stores);
    RowMaker maker(plan, steps.get(), stores);
    PagesAhead ahead(pages, out + begin * stride, out + end * stride);
    for (int64_t row = begin; row < end; row += tile) {
      const int64_t n = std::min(tile, end - row);
      ahead.until(out + (row + n) * stride);
      positions.rows(maker, 0, row, n, out + row * stride, stride);
    }
  });
}

}  // namespace sinpe
