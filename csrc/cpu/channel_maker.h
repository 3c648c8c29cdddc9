// Tiles by channels, for x and out whose positions follow each other in memory: each row has one channel at consecutive
// positions. The kernels make rows of channels; these are made for some channels at a time and turned.
#pragma once

#include "cpu/tiles.h"
#include "cpu/transpose.h"

namespace sinpe {

constexpr int64_t kMostColumns = 2048;  // positions of a tile
constexpr int64_t kStrip = 64;          // channels that are made at once, at kBlockRows positions

// Channels of a tile of kTileOfMany values.
inline int64_t channels_per_tile(int64_t columns) {
  return std::max<int64_t>(kStrip / 2, kTileOfMany / columns / kMinTileRows * kMinTileRows);
}

// `count` channels of a plan as a plan of their own: from the i-th of one stream, or (pairs) from the i-th of either,
// first those of one stream, then those of the other.
inline Plan part_of(const Plan& plan, int stream, int64_t i, int64_t count, bool pairs) {
  const int64_t osc = plan.oscillator(stream, i);
  Plan part = plan;
  part.interleaved = false;
  part.shared = pairs;
  part.dim = count;
  part.n0 = (count + 1) / 2;  // kernels fill vectors with two streams: those of one are the halves of its channels
  part.n1 = count - part.n0;
  part.n_osc = pairs ? part.n0 : count;
  if (!pairs) part.q0 = part.q1 = stream == 0 ? plan.q0 : plan.q1;
  part.frac_hi += osc;
  part.frac_lo += osc;
  part.whole += osc;
  part.turns_hi += osc;
  part.turns_lo += osc;
  part.header = nullptr;
  return part;
}

// For one thread: channels of rows [row, row + columns) of a plan, times alpha.
template <class Real>
class ChannelMaker {
 public:
  ChannelMaker(const Plan& plan, const Positions& positions, const KeptRows& kept, int64_t row, int64_t columns,
               Real alpha)
      : plan_(plan), positions_(positions), kept_(kept), row_(row), columns_(columns), alpha_(alpha) {}

  // n channels from `channel`, with the positions of a position set.
  Rows<Real> operator()(int64_t position_set, int64_t channel, int64_t n, TileMemory<Real>& tile) {
    for (int64_t c = 0; c < n; c += kStrip) {
      const int64_t count = std::min(kStrip, n - c);
      Real* const out = tile.data() + c * columns_;
      if (kept_.found()) {
        turn_kept(position_set, channel + c, count, out);
      } else {
        strip(position_set, channel + c, count, out);
      }
    }
    return {tile.data(), n};
  }

 private:
  static constexpr int64_t kFewRows = 16;  // of consecutive positions, for which a copy costs more than it saves

  void strip(int64_t position_set, int64_t channel, int64_t n, Real* out) {
    const int64_t end = channel + n, step = plan_.interleaved ? 2 : 1;
    if (plan_.interleaved && plan_.shared && channel % 2 == 0 && end <= plan_.n0 + plan_.n1) {
      const Plan part = part_of(plan_, 0, channel / 2, n, /*pairs=*/true);
      return make(part, position_set, out, [&](int64_t k) { return k < part.n0 ? 2 * k : 2 * (k - part.n0) + 1; });
    }
    if (end > plan_.n0 + plan_.n1) std::fill(out, out + n * columns_, Real{0} * alpha_);
    for (int stream = 0; stream < 2; ++stream) {
      // The stream's channels are begin + i * step.
      const int64_t begin = stream == 0 ? 0 : (plan_.interleaved ? 1 : plan_.n0),
                    count = stream == 0 ? plan_.n0 : plan_.n1;
      const int64_t from = std::max<int64_t>(0, (channel - begin + step - 1) / step);
      const int64_t to = std::min(count, (end - begin + step - 1) / step);
      if (from >= to) continue;
      const Plan part = part_of(plan_, stream, from, to - from, /*pairs=*/false);
      make(part, position_set, out, [&](int64_t k) { return begin + (from + k) * step - channel; });
    }
  }

  // The channels of `part`: the k-th is the row_of(k)-th of `out`.
  template <class RowOf>
  void make(const Plan& part, int64_t position_set, Real* out, const RowOf& row_of) {
    const std::unique_ptr<RowState> steps = shared_steps(part, std::is_same<Real, double>::value ? 0 : columns_);
    RowMaker maker(part, steps.get());
    for (int64_t r = 0; r < columns_; r += kBlockRows) {
      const int64_t count = std::min(kBlockRows, columns_ - r);
      positions_.rows(maker, position_set, row_ + r, count, rows_, part.dim);
      turn(rows_, part.dim, part.dim, count, out + r, row_of);
    }
  }

  // n channels of kept rows. More than a few are copied first, as rows a power of 2 apart displace each other in the cache.
  void turn_kept(int64_t position_set, int64_t channel, int64_t n, Real* out) {
    if constexpr (std::is_same<Real, float>::value) {
      for (int64_t r = 0; r < columns_; r += kBlockRows) {
        const int64_t count = std::min(kBlockRows, columns_ - r);
        int64_t run;
        const float* first = kept_.at(positions_.integer_at(position_set, row_ + r), &run) + channel;
        if (count <= kFewRows && count <= run && positions_.are_consecutive()) {
          turn(first, plan_.dim, n, count, out + r, [](int64_t k) { return k; });
          continue;
        }
        for (int64_t k = 0; k < count; ++k) {
          const float* row = kept_.at(positions_.integer_at(position_set, row_ + r + k), &run);
          std::copy_n(row + channel, n, rows_ + k * n);
        }
        turn(rows_, n, n, count, out + r, [](int64_t k) { return k; });
      }
    }
  }

  // Columns [0, n) of `count` rows, `stride` apart, as rows of `out`, times alpha: column k as row row_of(k).
  template <class RowOf>
  void turn(const Real* rows, int64_t stride, int64_t n, int64_t count, Real* out, const RowOf& row_of) const {
    transpose(
        rows, stride, count, n, [&](int64_t k) { return out + row_of(k) * columns_; },
        [this](auto v) { return v * alpha_; });
  }

  const Plan& plan_;
  const Positions& positions_;
  const KeptRows& kept_;
  int64_t row_, columns_;
  Real alpha_;
  alignas(64) Real rows_[kBlockRows * kStrip];
};

}  // namespace sinpe
