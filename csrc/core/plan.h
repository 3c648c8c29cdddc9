// The frequency plan: the constants of one encoding, packed by Python (sinpe_ext/encodings/plan.py) into 64-bit words.
// Kernels have no code for any convention: the plan defines which oscillator provides which channel, and the frequency
// of each oscillator in turns per position.
//
//   oscillator   one frequency: the sine and the cosine of position times frequency
//   stream       the channels that are sines, or those that are cosines. If interleaved, stream 0 is channels 0, 2, ...
//                and stream 1 is channels 1, 3, ...; otherwise stream 0 is the first n0 and stream 1 the next n1
#pragma once

#include "core/macros.h"

namespace sinpe {

constexpr int64_t kPlanMagic = 0x53494E504531;  // "SINPE1"
constexpr int64_t kPlanHeaderWords = 16;
constexpr int64_t kPlanArrays = 5;
constexpr int kPlanDigestAt = 11, kPlanDigestWords = 4;  // words of the header: a digest of the arrays; zero: none
constexpr int64_t kMaxDim = int64_t{1} << 40;

// One oscillator's frequency f in turns per position: whole + frac / 2^128, and the same f as turns_hi + turns_lo.
struct Frequency {
  uint64_t frac_hi, frac_lo;
  int64_t whole;
  double turns_hi, turns_lo;
};

struct Plan {
  int64_t dim;    // channels of a row
  int64_t n0;     // channels of stream 0
  int64_t n1;     // channels of stream 1; the remaining dim - n0 - n1 channels are zero
  int64_t n_osc;  // oscillators: one per pair when shared, one per channel otherwise (stream 0's first)
  int64_t start;  // position of row 0 when positions are implicit
  bool interleaved;
  bool shared;  // channel i of both streams uses oscillator i
  int q0, q1;   // quarter turns added to the phase of a stream: 0 sine, 1 cosine
  double amplitude;
  double max_turns;        // largest |turns_hi|: determines the positions for which the fast phase is valid
  const int64_t* frac_hi;  // [n_osc], unsigned
  const int64_t* frac_lo;  // [n_osc], unsigned
  const int64_t* whole;    // [n_osc]
  const double* turns_hi;  // [n_osc]
  const double* turns_lo;  // [n_osc]
  const int64_t* header;   // [kPlanHeaderWords] of the packed plan; null for a part of one

  SINPE_HD int64_t oscillator(int stream, int64_t i) const { return shared || stream == 0 ? i : n0 + i; }
  // Index of the oscillator of a channel, -1 if the channel is zero; *cosine: whether the channel is its cosine.
  SINPE_HD int64_t channel_oscillator(int64_t channel, bool* cosine) const {
    const bool second = interleaved ? (channel & 1) != 0 : channel >= n0;
    const int64_t i = interleaved ? channel >> 1 : (second ? channel - n0 : channel);
    *cosine = (second ? q1 : q0) != 0;
    return i < (second ? n1 : n0) ? oscillator(second ? 1 : 0, i) : -1;
  }
  // Whether each oscillator provides the sine and the cosine of a pair of channels.
  SINPE_HD bool are_pairs() const { return shared && q0 != q1 && n0 == n1 && dim == 2 * n0; }
  SINPE_HD Frequency frequency(int64_t osc) const {
    return {static_cast<uint64_t>(frac_hi[osc]), static_cast<uint64_t>(frac_lo[osc]), whole[osc], turns_hi[osc],
            turns_lo[osc]};
  }
};

// The plan in `packed_plan`, unchecked: decode_plan() must have accepted it before. `header`: its first words, or a copy.
SINPE_HD Plan read_plan(const int64_t* packed_plan, const int64_t* header) {
  const int64_t n = header[7], flags = header[5];
  const int64_t* arrays = packed_plan + kPlanHeaderWords;
  // The last two arrays were written as doubles, so they are read as such.
  return {header[2],
          header[3],
          header[4],
          n,
          header[8],
          (flags & 1) != 0,
          (flags & 2) != 0,
          static_cast<int>(flags >> 2 & 1),
          static_cast<int>(flags >> 3 & 1),
          bit_cast<double>(header[6]),
          bit_cast<double>(header[10]),
          arrays,
          arrays + n,
          arrays + 2 * n,
          reinterpret_cast<const double*>(arrays + 3 * n),
          reinterpret_cast<const double*>(arrays + 4 * n),
          packed_plan};
}
SINPE_HD Plan read_plan(const int64_t* packed_plan) { return read_plan(packed_plan, packed_plan); }

// Unpacks `packed_plan` into `plan`. Returns false, and no oscillators, if it is not a plan of this version. Checks every
// count that the kernels use later.
SINPE_HD bool decode_plan(const int64_t* packed_plan, int64_t n_words, Plan* plan) {
  if (packed_plan == nullptr || n_words < kPlanHeaderWords) return false;
  int64_t header[kPlanHeaderWords];
  for (int64_t k = 0; k < kPlanHeaderWords; ++k) header[k] = packed_plan[k];
  // No early return: a compiler would load each word only after the branch before it, and a device would wait for each.
  // Unsigned, so that sums and differences of invalid counts wrap; a negative count is larger than any valid one.
  const auto count = [&](int k) { return static_cast<uint64_t>(header[k]); };
  const uint64_t dim = count(2), n0 = count(3), n1 = count(4), flags = count(5), n = count(7);
  const bool interleaved = (flags & 1) != 0, shared = (flags & 2) != 0;
  bool good = (header[0] == kPlanMagic) & (header[1] == n_words) & (flags <= 15);
  good &= (dim - 1 < static_cast<uint64_t>(kMaxDim)) & (n0 <= dim) & (n1 <= dim - n0);
  good &= bit_cast<double>(header[10]) >= 0.0;
  good &= !interleaved | (n0 - n1 <= 1);
  good &= (n == (shared ? (n0 > n1 ? n0 : n1) : n0 + n1)) & (count(1) == kPlanHeaderWords + kPlanArrays * n);
  header[7] = good ? header[7] : 0;
  *plan = read_plan(packed_plan, header);
  return good;
}

}  // namespace sinpe
