// Rows of any result type at any positions, for one thread. A run is a number of rows at consecutive positions: its
// first row, the anchor, is computed directly from its position, and each following one by rotation of the row before,
// with a new anchor every kAnchorRows rows. Other rows are computed directly (cpu/rows_direct.inc), or entry by entry
// for positions outside the range of the fast phase (core/rotate.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "cpu/exceptions.h"
#include "cpu/rows.h"

namespace sinpe {

// Shorter runs are faster row by row than with an anchor; for runs shorter than kShortestCall, computing the steps does
// not pay.
constexpr int64_t kShortestRun = 4;
constexpr int64_t kShortestCall = 12;

// Values of the encoding per tile: 256 KiB of float32, well within a second-level cache, for many slices; for a single
// one, what the first-level cache holds. Measured with one slice, Zen 4: 12,288 instead of 65,536 take 0.7 to 0.95 of
// the time.
constexpr int64_t kTileOfMany = 65536, kTileOfOne = 12288;
inline int64_t tile_rows(int64_t dim, int64_t values) {
  return std::max<int64_t>(4, std::min<int64_t>(64, values / dim));
}

// A state that only has the steps, cos and sin of the angles of the rotation, computed once per call and shared by its
// threads; nullptr if no run is long enough.
inline std::unique_ptr<RowState> shared_steps(const Plan& plan, int64_t longest_run) {
  if (longest_run < kShortestCall) return nullptr;
  std::unique_ptr<RowState> state(new RowState(plan));
  state->compute_steps();
  return state;
}

class RowMaker {
 public:
  // `steps` may be null if consecutive() and stream() are not used for runs. `stores`: those of the rows that are
  // rotated.
  RowMaker(const Plan& plan, const RowState* steps, Stores stores = Stores::kCached)
      : plan_(plan), kernels_(row_kernels()), steps_(steps), stores_(stores) {}

  // n consecutive rows, starting at an integer position.
  template <class T>
  void consecutive(int64_t position, int64_t n, T* out, int64_t stride) {
    if (std::is_same<T, double>::value || steps_ == nullptr || (n < kShortestRun && !continues(position))) {
      for (int64_t r = 0; r < n; ++r) one(integer_position(position + r), out + r * stride);
      return;
    }
    if (position == 0) {
      row_at_zero(out);
      ++position, --n, out += stride;
    }
    while (n > 0) {
      const int64_t k = begin(position, n);
      kernels_.of<T>().rotate(*state_, position, k, out, stride, stores_);
      position = end(position, k);
      out += k * stride;
      n -= k;
    }
  }

  // Adds n consecutive rows of the encoding to n rows of data, whose addresses rows_of(first, count) returns. Requires
  // steps.
  template <class T, class RowsOf>
  void stream(int64_t position, int64_t n, const RowsOf& rows_of, const StreamOptions& options) {
    for (int64_t r = 0; r < n;) {
      const int64_t k = begin(position, std::min<int64_t>(n - r, kStreamedRows));
      const StreamedRows<T> rows = rows_of(r, k);
      kernels_.of<T>().stream(*state_, position, k, rows, options);
      position = end(position, k);
      r += k;
    }
  }

  // Whether block() is used, and not consecutive() or one(): for few channels, unless integers have runs.
  bool makes_blocks(bool integers) const {
    return fills_no_panel(plan_) || (has_few_channels(plan_) && (!integers || steps_ == nullptr));
  }

  // Rows at n <= kBlockRows positions, position(0), position(1), ..., if has_few_channels().
  template <class T, class PositionOf>
  void block(int64_t n, const PositionOf& position, T* out, int64_t stride) {
    double p[kBlockRows] = {};
    for (int64_t r = 0; r < n; ++r) p[r] = position(r).d;
    // fast_position() of each, without branches, of which random signs would mispredict half.
    int fast = 1;
    for (int64_t r = 0; r < n; ++r) {
      const double size = std::fabs(p[r]);
      fast &= static_cast<int>(size < kFastPosition) & static_cast<int>(size * plan_.max_turns < kFastProduct);
    }
    if (fast != 0 && kernels_.of<T>().block(plan_, p, n, out, stride, &near_zeros_)) return;
    for (int64_t r = 0; r < n; ++r) one(position(r), out + r * stride);
  }

  template <class T>
  void one(Position p, T* row) {
    if constexpr (sizeof(T) == 2) {
      scratch_.resize(static_cast<size_t>(plan_.dim));
      one(p, scratch_.data());
      kernels_.of<T>().round(scratch_.data(), 1.0f, row, plan_.dim);
    } else {
      if (p.d - p.d != 0.0) return fill_nan(row);
      if (fast_position(p, plan_)) return kernels_.of<T>().direct(plan_, p.d, row);
      exact_row(plan_, p, row);
    }
  }

 private:
  // next_ wraps after the last int64, to a position that is not its successor.
  bool continues(int64_t position) const {
    return since_anchor_ >= 0 && next_ == static_cast<uint64_t>(position) && position != INT64_MIN &&
           since_anchor_ < kAnchorRows;
  }

  // Sets the state to a position; returns how many of n rows can be computed from it.
  int64_t begin(int64_t position, int64_t n) {
    if (state_ == nullptr) {
      state_.reset(new RowState(plan_));
      state_->share_steps(*steps_);
    }
    if (!continues(position)) set_anchor(position);
    return std::min(n, kAnchorRows - since_anchor_);
  }
  // Advances the state by n rows after a position; returns the next one.
  int64_t end(int64_t position, int64_t n) {
    since_anchor_ += n;
    next_ = static_cast<uint64_t>(position) + static_cast<uint64_t>(n);
    return static_cast<int64_t>(next_);
  }

  void set_anchor(int64_t position) {
    const Position p = integer_position(position);
    const Lanes& lanes = state_->lanes;
    const bool fast = fast_position(p, plan_);
    kernels_.anchor(*state_, p.d, fast);
    for (int stream = 0; !fast && stream < (lanes.pairs ? 1 : 2); ++stream) {
      const int q = lanes.pairs ? 0 : (stream == 0 ? plan_.q0 : plan_.q1);
      for (int64_t i = 0; i < lanes.osc_count[stream]; ++i) {
        const int64_t lane = lanes.begin[stream] + i, osc = lanes.osc_base[stream] + i;
        state_->value[lane] = exact_double_entry(plan_, p, osc, q);
        state_->ahead[lane] = exact_double_entry(plan_, p, osc, q + 1);
      }
    }
    since_anchor_ = 0;
  }

  // Its cosines are the amplitude. A walk would find their roundings undecided, since their bounds differ in the
  // exponent, and would be repeated for all of its rows.
  template <class T>
  void row_at_zero(T* row) const {
    const int64_t step = plan_.interleaved ? 2 : 1, second = plan_.interleaved ? 1 : plan_.n0;
    const float sine = static_cast<float>(plan_.amplitude * 0.0), cosine = static_cast<float>(plan_.amplitude);
    for (int64_t i = 0; i < plan_.n0; ++i) round_store(row + i * step, plan_.q0 != 0 ? cosine : sine);
    for (int64_t i = 0; i < plan_.n1; ++i) round_store(row + second + i * step, plan_.q1 != 0 ? cosine : sine);
    zero_tail(plan_, row);
  }

  template <class Real>
  void fill_nan(Real* row) {
    std::fill(row, row + plan_.n0 + plan_.n1, std::numeric_limits<Real>::quiet_NaN());
    zero_tail(plan_, row);
  }

  const Plan& plan_;
  const RowKernels& kernels_;
  const RowState* steps_;
  Stores stores_;
  std::unique_ptr<RowState> state_;
  uint64_t next_ = 0;
  int64_t since_anchor_ = -1;
  int near_zeros_ = 0;
  std::vector<float> scratch_;
};

}  // namespace sinpe
