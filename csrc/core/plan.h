// The frequency plan: the constants of one encoding, packed by Python (sinpe_ext/encodings/plan.py) into 64-bit words. Kernels know
// no convention: a plan says which oscillator feeds which channel, and each oscillator's frequency in turns per position.
#pragma once

#include "core/macros.h"

namespace sinpe {

constexpr int64_t kPlanMagic = 0x53494E504531;  // "SINPE1"
constexpr int64_t kPlanHeaderWords = 16;
constexpr int64_t kPlanArrays = 5;
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
  bool shared;  // channel i of both streams runs on oscillator i
  int q0, q1;   // quarter turns added to a stream's phase: 0 sine, 1 cosine
  double amplitude;
  double max_turns;        // largest |turns_hi|: decides which positions the fast phase may take
  const int64_t* frac_hi;  // [n_osc], unsigned
  const int64_t* frac_lo;  // [n_osc], unsigned
  const int64_t* whole;    // [n_osc]
  const double* turns_hi;  // [n_osc]
  const double* turns_lo;  // [n_osc]

  SINPE_HD int64_t oscillator(int stream, int64_t i) const { return shared || stream == 0 ? i : n0 + i; }
  // The oscillator of a channel, -1 for none, and whether the channel is its cosine.
  SINPE_HD int64_t feeding(int64_t channel, bool* cosine) const {
    const bool second = interleaved ? (channel & 1) != 0 : channel >= n0;
    const int64_t i = interleaved ? channel >> 1 : (second ? channel - n0 : channel);
    *cosine = (second ? q1 : q0) != 0;
    return i < (second ? n1 : n0) ? oscillator(second ? 1 : 0, i) : -1;
  }
  SINPE_HD Frequency frequency(int64_t osc) const {
    return {static_cast<uint64_t>(frac_hi[osc]), static_cast<uint64_t>(frac_lo[osc]), whole[osc], turns_hi[osc],
            turns_lo[osc]};
  }
};

// The plan that `words` hold. Unchecked: of words that decode_plan() has passed.
SINPE_HD Plan read_plan(const int64_t* words) {
  const int64_t n = words[7], flags = words[5];
  const int64_t* arrays = words + kPlanHeaderWords;
  // The words of the last two arrays hold doubles; reading them through double* is how the buffer was filled.
  return {words[2],
          words[3],
          words[4],
          n,
          words[8],
          (flags & 1) != 0,
          (flags & 2) != 0,
          static_cast<int>(flags >> 2 & 1),
          static_cast<int>(flags >> 3 & 1),
          bit_cast<double>(words[6]),
          bit_cast<double>(words[10]),
          arrays,
          arrays + n,
          arrays + 2 * n,
          reinterpret_cast<const double*>(arrays + 3 * n),
          reinterpret_cast<const double*>(arrays + 4 * n)};
}

// Reads `words` into `plan`; false when the words are not a plan of this version. Every count that a kernel later trusts
// is checked here.
SINPE_HD bool decode_plan(const int64_t* words, int64_t n_words, Plan* plan) {
  if (words == nullptr || n_words < kPlanHeaderWords) return false;
  int64_t header[kPlanHeaderWords];  // read at once: on a device one wait instead of one for each condition
  for (int64_t k = 0; k < kPlanHeaderWords; ++k) header[k] = words[k];
  if (header[0] != kPlanMagic || header[1] != n_words) return false;
  const int64_t dim = header[2], n0 = header[3], n1 = header[4], flags = header[5], n = header[7];
  const bool interleaved = (flags & 1) != 0, shared = (flags & 2) != 0;
  if (flags < 0 || flags > 15 || dim < 1 || dim > kMaxDim || n0 < 0 || n1 < 0 || n0 > dim || n1 > dim - n0)
    return false;
  if (!(bit_cast<double>(header[10]) >= 0.0)) return false;
  if (interleaved && n0 != n1 && n0 != n1 + 1) return false;
  if (n != (shared ? (n0 > n1 ? n0 : n1) : n0 + n1)) return false;
  if (n_words != kPlanHeaderWords + kPlanArrays * n) return false;
  *plan = read_plan(words);
  return true;
}

}  // namespace sinpe
