// The encoding of a grid: which row of which axis provides which channels of a grid point. A channel depends on the
// coordinate along one axis only, so the rows of each axis are computed once, by the kernels for one-dimensional
// encodings, and shared by all grid points with the same coordinate.
#pragma once

#include "core/phase.h"

namespace sinpe {

constexpr int64_t kGridMagic = 0x53494E504547;  // "SINPEG"
constexpr int64_t kGridHeaderWords = 8;
constexpr int64_t kGroupWords = 5;
constexpr int kMaxAxes = 8;
constexpr int kMaxGroups = 64;
constexpr int64_t kMaxLength = 0x7fffffff;        // of an axis
constexpr int64_t kMaxPoints = int64_t{1} << 40;  // grid points; also the limit for channels

// The channels that one axis provides: channel c of the group is channel first + c * step of the grid. The values of
// the group begin at `offset`: (coordinates, width) row-major, or (width, coordinates) in a grid by channels.
struct ChannelGroup {
  int64_t axis, first, step, width, offset;
};

// Packed by Python (sinpe_ext/operations/grid_rows.py):
//   0 magic   1 number of words   2 1 for a grid by channels   3 n_axes   4 n_groups   5 dim   6 n_values   7 zero
// then the lengths of the axes, then axis, first, step, width and offset of each group. By channels: rows are channels
// and columns are grid points, as in a tensor whose channel dimension precedes its axes.
struct Grid {
  bool by_channels;
  int32_t n_axes, n_groups;
  int64_t dim;                                // channels
  int64_t points;                             // product of the lengths
  int64_t length[kMaxAxes], inner[kMaxAxes];  // inner: grid points from one coordinate of an axis to the next
  ChannelGroup groups[kMaxGroups];            // copies: the caller may modify the packed grid after the check

  SINPE_HD int64_t coordinate(int64_t point, int64_t axis) const { return point / inner[axis] % length[axis]; }
  // Index of the group that provides a channel (the last one if there are several), and the channel's index in that
  // group; -1 if there is none: the channel is zero.
  SINPE_HD int channel_group(int64_t channel, int64_t* group_channel) const {
    SINPE_ROLLED
    for (int k = n_groups - 1; k >= 0; --k) {
      const ChannelGroup& p = groups[k];
      const int64_t past = channel - p.first, c = p.step == 1 ? past : past / p.step;
      if (past >= 0 && c < p.width && c * p.step == past) {
        *group_channel = c;
        return k;
      }
    }
    return -1;
  }
  // Index in `values` of a group's channel at a coordinate.
  SINPE_HD int64_t at(const ChannelGroup& p, int64_t coordinate, int64_t group_channel) const {
    return p.offset +
           (by_channels ? group_channel * length[p.axis] + coordinate : coordinate * p.width + group_channel);
  }
};

// Whether a * b <= most, for a, b >= 0.
SINPE_HD bool is_product_within(int64_t a, int64_t b, int64_t most) {
  return static_cast<uint128>(a) * static_cast<uint64_t>(b) <= static_cast<uint128>(most);
}

// Unpacks `packed_grid` into `grid`. Returns false if it is not a grid of this version or refers to values beyond
// n_values. Checks every index that the kernels use later. There is no division, because on a device one thread does
// this while the others of its block wait.
SINPE_HD bool decode_grid(const int64_t* packed_grid, int64_t n_words, int64_t n_values, Grid* grid) {
  if (packed_grid == nullptr || n_words < kGridHeaderWords) return false;
  int64_t header[kGridHeaderWords];
  for (int64_t k = 0; k < kGridHeaderWords; ++k) header[k] = packed_grid[k];
  if (header[0] != kGridMagic || header[1] != n_words || header[2] < 0 || header[2] > 1 || header[3] < 1 ||
      header[3] > kMaxAxes || header[4] < 0 || header[4] > kMaxGroups || header[5] < 1 || header[5] > kMaxPoints ||
      header[6] != n_values || header[7] != 0 || n_words != kGridHeaderWords + header[3] + kGroupWords * header[4]) {
    return false;
  }
  grid->by_channels = header[2] != 0;
  grid->n_axes = static_cast<int32_t>(header[3]);
  grid->n_groups = static_cast<int32_t>(header[4]);
  grid->dim = header[5];
  grid->points = 1;
  SINPE_ROLLED
  for (int a = grid->n_axes - 1; a >= 0; --a) {
    const int64_t length = packed_grid[kGridHeaderWords + a];
    if (length < 1 || length > kMaxLength || !is_product_within(length, grid->points, kMaxPoints)) return false;
    grid->length[a] = length;
    grid->inner[a] = grid->points;
    grid->points *= length;
  }
  const int64_t* w = packed_grid + kGridHeaderWords + grid->n_axes;
  SINPE_ROLLED
  for (int k = 0; k < grid->n_groups; ++k, w += kGroupWords) {
    const ChannelGroup p = {w[0], w[1], w[2], w[3], w[4]};
    if (p.axis < 0 || p.axis >= grid->n_axes || p.first < 0 || p.step < 1 || p.width < 1 || p.offset < 0) return false;
    if (p.first >= grid->dim || !is_product_within(p.width - 1, p.step, grid->dim - 1 - p.first)) return false;
    if (p.offset > n_values || !is_product_within(p.width, grid->length[p.axis], n_values - p.offset)) return false;
    grid->groups[k] = p;
  }
  return true;
}

}  // namespace sinpe
