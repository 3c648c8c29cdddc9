// Plans constructed without Python: frequencies are doubles, so that their fractions are exact.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "core/phase.h"

struct TestPlan {
  std::vector<int64_t> words;
  sinpe::Plan plan;
};

inline int64_t bits_of(double x) {
  int64_t word;
  std::memcpy(&word, &x, sizeof word);
  return word;
}

// dim channels of frequencies in turns; layout 0 interleaved, 1 sin|cos, 2 cos|sin; own: a frequency per channel.
inline TestPlan plan_of(const std::vector<double>& turns, int64_t dim, int layout, bool own, double amplitude) {
  const int64_t sines = (dim + 1) / 2, cosines = dim / 2;
  const int64_t n0 = layout == 2 ? cosines : sines, n1 = dim - n0, n = static_cast<int64_t>(turns.size());
  double largest = 0.0;
  for (double f : turns) largest = std::fmax(largest, std::fabs(f));
  const int64_t flags = (layout == 0 ? 1 : 0) | (own ? 0 : 2) | (layout == 2 ? 4 : 8);
  TestPlan made;
  made.words = {sinpe::kPlanMagic, 16 + 5 * n, dim, n0, n1, flags, bits_of(amplitude), n, 0, 0,
                bits_of(largest),  0,          0,   0,  0,  0};
  std::vector<int64_t> high, low, whole, hi, lo;
  for (double f : turns) {
    const double scaled = std::ldexp(f - std::floor(f), 64);
    const double top = std::floor(scaled);
    high.push_back(static_cast<int64_t>(static_cast<uint64_t>(top)));
    low.push_back(static_cast<int64_t>(static_cast<uint64_t>(std::ldexp(scaled - top, 64))));
    whole.push_back(static_cast<int64_t>(std::floor(f)));
    hi.push_back(bits_of(f));
    lo.push_back(0);
  }
  for (const auto* part : {&high, &low, &whole, &hi, &lo})
    made.words.insert(made.words.end(), part->begin(), part->end());
  sinpe::decode_plan(made.words.data(), static_cast<int64_t>(made.words.size()), &made.plan);
  return made;
}

// The frequencies of the paper.
inline TestPlan make_plan(int64_t dim, int layout, bool own, double amplitude = 1.0, double base = 10000.0) {
  std::vector<double> turns;
  for (int64_t i = 0; i < (own ? dim : (dim + 1) / 2); ++i) {
    const double exponent = own ? 1.0 * static_cast<double>(i) : 2.0 * static_cast<double>(i);
    turns.push_back(std::pow(base, -exponent / static_cast<double>(dim)) / 6.283185307179586);
  }
  return plan_of(turns, dim, layout, own, amplitude);
}

// Fills in the digest of a plan's arrays, so that its rows may be kept. Not that of Python: any that differs between plans.
inline void set_digest(TestPlan* made) {
  for (size_t k = 0; k < 4; ++k) {
    uint64_t sum = 0xCBF29CE484222325u + k;
    for (size_t i = 16; i < made->words.size(); ++i)
      sum = (sum ^ static_cast<uint64_t>(made->words[i])) * 0x100000001B3u ^ sum >> 29;
    made->words[11 + k] = static_cast<int64_t>(sum);
  }
}

// A plan of one shared oscillator with a frequency of exactly f turns.
inline TestPlan one_frequency(double f, double amplitude) {
  TestPlan made = make_plan(2, 0, false, amplitude);
  std::vector<int64_t>& w = made.words;
  w[10] = bits_of(std::fabs(f));
  // |f| to 128 fractional bits (whole turns are exact), then the sign.
  const double size = std::fabs(f), turns = std::floor(size);
  sinpe::uint128 fraction = 0;
  int64_t m, whole = static_cast<int64_t>(turns);
  int e;
  sinpe::split_double(size - turns, &m, &e);
  if (m != 0 && e + 128 > -64)
    fraction =
        e + 128 >= 0 ? static_cast<sinpe::uint128>(m) << (e + 128) : static_cast<sinpe::uint128>(m >> -(e + 128));
  if (f < 0) {
    whole = fraction == 0 ? -whole : -whole - 1;
    fraction = ~fraction + 1;
  }
  w[16] = static_cast<int64_t>(static_cast<uint64_t>(fraction >> 64));
  w[17] = static_cast<int64_t>(static_cast<uint64_t>(fraction));
  w[18] = whole;
  w[19] = bits_of(f);
  w[20] = 0;
  sinpe::decode_plan(w.data(), static_cast<int64_t>(w.size()), &made.plan);
  return made;
}
