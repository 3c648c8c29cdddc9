// The kernel for few elements, as in a decoding step, of add, embed, table and encode: a thread computes two channels
// of a row for itself, without barriers. The time of such a call is that of its chain of loads and of loading the code
// itself, so the code is short.
#pragma once

#include "cuda/apply.h"

namespace sinpe {
namespace cuda {

// Up to this many elements per multiprocessor, a tile in shared memory takes longer than to compute each row for itself.
constexpr int64_t kFewElements = 1024;

// Out of line, because few calls have several dimensions before the sequence, or channels with oscillators of their own.
SINPE_HD_RARE int64_t slice_offset(const Data& s, const Strides& t, int64_t slice) {
  return s.slice_offset(t, false, slice);
}
template <class Arithmetic>
SINPE_HD_RARE Sample<typename Arithmetic::Real> decided_sample(const int64_t* packed_plan, int64_t osc, Position p) {
  return decided_sample<Arithmetic>(read_plan(packed_plan), packed_plan, osc, p);
}

template <class T, class Arithmetic, Source kSource>
struct FewRows {
  using Real = typename Arithmetic::Real;
  static constexpr int kPhases = 1, kThreads = 128, kBlocks = 1;
  static constexpr bool kEncodes = kSource == Source::kNone;  // the encoding alone
  struct Shared {};

  DevicePlan packed_plan;
  RowPositions positions;
  Divisor threads, rows;  // threads per row, rows per slice
  Real scale, alpha, dropout_scale;
  bool drops;
  Data s;

  template <int kPhase>
  SINPE_HD void phase(uint32_t block, int thread, Shared&) const {
    const uint32_t item = block * static_cast<uint32_t>(kThreads) + static_cast<uint32_t>(thread);
    const uint32_t line = threads.quotient(item), across = item - line * threads.d;
    const uint32_t slice = rows.quotient(line), row = line - slice * rows.d;
    if (slice < s.slices) two_channels(slice, row, across);
  }

 private:
  SINPE_HD int64_t offset(const FlatStrides& flat, const Strides& t, int64_t slice, int64_t row) const {
    return (kEncodes || s.dims <= 1 ? slice * flat.slice : slice_offset(s, t, slice)) + row * flat.row;
  }

  SINPE_HD void two_channels(int64_t slice, int64_t row, int64_t across) const {
    const int64_t sample = s.middle == 1 ? slice : slice / s.middle;
    const T* from = static_cast<const T*>(s.x);
    if constexpr (kSource == Source::kStrided) from += offset(s.flat_x, s.of_x, slice, row);
    bool is_row = true;  // of the weight
    if constexpr (kSource == Source::kRows) {
      const int64_t id = s.ids[offset(s.flat_ids, s.of_ids, slice, row)];
      is_row = static_cast<uint64_t>(id) < static_cast<uint64_t>(s.num_embeddings);
      if (is_row) from += id * s.weight_stride;
    }
    const bool padded =
        s.padding_mask != nullptr && s.padding_mask[sample * s.mask_strides[0] + row * s.mask_strides[1]] != 0;
    Real by = alpha;
    if (s.scalars.alpha != nullptr) by = static_cast<Real>(value_of(s.scalars.alpha, s.scalars.alpha_dtype));
    const uint64_t position = positions.load(sample, row);
    Plan plan{};
    const bool usable = decode_plan(packed_plan.packed, packed_plan.n_words, &plan) && plan.dim == packed_plan.dim;
    Position p{};
    const bool exists = positions.at(position, plan.start, row, &p);
    // Two channels of one oscillator, if there are such pairs.
    const bool halves = usable && plan.shared && !plan.interleaved && plan.dim == 2 * plan.n0;
    const int64_t c[2] = {halves ? across : 2 * across, halves ? across + plan.n0 : 2 * across + 1};
    const bool has_second = c[1] < packed_plan.dim;
    T value[2] = {};
    if constexpr (!kEncodes) {
      if (is_row) value[0] = from[c[0] * s.flat_x.channel];
      if (is_row && has_second) value[1] = from[c[1] * s.flat_x.channel];
    }
    Real pe[2] = {static_cast<Real>(quiet_nan()), static_cast<Real>(quiet_nan())};
    if (usable) {
      bool cosine[2];
      const int64_t osc0 = plan.channel_oscillator(c[0], &cosine[0]), osc1 = plan.channel_oscillator(c[1], &cosine[1]);
      Sample<Real> v[2] = {{pe[0], pe[0]}, {pe[0], pe[0]}};
      if (exists && osc0 >= 0) v[1] = v[0] = decided_sample<Arithmetic>(plan, packed_plan.packed, osc0, p);
      if (exists && osc1 >= 0 && osc1 != osc0) v[1] = decided_sample<Arithmetic>(packed_plan.packed, osc1, p);
      pe[0] = osc0 < 0 ? Real{0} : (cosine[0] ? v[0].c : v[0].s);
      pe[1] = osc1 < 0 ? Real{0} : (cosine[1] ? v[1].c : v[1].s);
    }
    T* to = static_cast<T*>(s.out) + offset(s.flat_out, s.of_out, slice, row);
    const bool draws = !kEncodes && drops;
    uint64_t rng_offset = 0, key = s.seed;
    if (draws) {
      rng_offset = s.first_rng_offset + static_cast<uint64_t>(offset(s.flat_rng_offsets, s.of_rng_offsets, slice, row));
      if (s.scalars.seed != nullptr) key = static_cast<uint64_t>(*s.scalars.seed);
    }
    SINPE_UNROLLED
    for (int k = 0; k < 2; ++k) {
      if (k != 0 && !has_second) return;
      Real v = pe[k];
      if constexpr (!kEncodes) {
        const Real from_x = scale * to_float(value[k]);
        v = padded ? from_x : from_x + by * pe[k];
      }
      if (draws) {
        const uint64_t e = rng_offset + static_cast<uint64_t>(c[k] * s.flat_rng_offsets.channel);
        v = philox_lane(e, key) << 16 > s.drop_limit ? v * dropout_scale : Real{0};
      }
      round_store(to + c[k] * s.flat_out.channel, is_row ? v : static_cast<Real>(quiet_nan()));
    }
  }
};

}  // namespace cuda
}  // namespace sinpe
