// Reference values of the exhaustive scan: sine and cosine of position * frequency as double-doubles. It shares no code
// with csrc: frequencies have 256 bits of a turn, computed with mpmath, a phase is their exact product with the
// position, and the difference to the nearest of 256 points of the circle goes into a Taylor series.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace truth {

// An unevaluated sum.
struct Sum {
  double hi, lo;
};

// a + b exactly, for |a| >= |b|.
inline Sum ordered_sum(double a, double b) {
  const double s = a + b;
  return {s, b - (s - a)};
}

// a + b exactly.
inline Sum exact_sum(double a, double b) {
  const double s = a + b, bb = s - a;
  return {s, (a - (s - bb)) + (b - bb)};
}

inline Sum exact_product(double a, double b) {
  const double p = a * b;
  return {p, std::fma(a, b, -p)};
}

inline Sum operator*(Sum a, Sum b) {
  const Sum p = exact_product(a.hi, b.hi);
  return ordered_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

inline Sum operator+(Sum a, Sum b) {
  const Sum s = exact_sum(a.hi, b.hi), t = exact_sum(a.lo, b.lo);
  const Sum u = ordered_sum(s.hi, s.lo + t.hi);
  return ordered_sum(u.hi, u.lo + t.lo);
}

inline Sum operator-(Sum a) { return {-a.hi, -a.lo}; }

// a + b for b much smaller than a.
inline Sum plus_small(Sum a, Sum b) {
  const Sum s = ordered_sum(a.hi, b.hi);
  return ordered_sum(s.hi, s.lo + (a.lo + b.lo));
}

struct SinCos {
  Sum sine, cosine;
};

constexpr Sum kTwoPi = {0x1.921fb54442d18p+2, 0x1.1a62633145c07p-52};
constexpr Sum kOne = {1.0, 0.0};
// 1/2!, 1/3!, ... with the signs of the series; from the eighth power on, a double is precise enough.
constexpr Sum kFactor2 = {-0.5, 0.0};
constexpr Sum kFactor3 = {-0x1.5555555555555p-3, -0x1.5555555555555p-57};
constexpr Sum kFactor4 = {0x1.5555555555555p-5, 0x1.5555555555555p-59};
constexpr Sum kFactor5 = {0x1.1111111111111p-7, 0x1.1111111111111p-63};
constexpr Sum kFactor6 = {-0x1.6c16c16c16c17p-10, 0x1.f49f49f49f49fp-65};
constexpr Sum kFactor7 = {-0x1.a01a01a01a01ap-13, -0x1.a01a01a01a01ap-73};
constexpr double kFactor8 = 0x1.a01a01a01a01ap-16, kFactor9 = 0x1.71de3a556c734p-19;
constexpr double kFactor10 = -0x1.27e4fb7789f5cp-22, kFactor11 = -0x1.ae64567f544e4p-26;
constexpr double kFactor12 = 0x1.1eed8eff8d898p-29, kFactor13 = 0x1.6124613a86d09p-33;

// sin and cos of 2 pi t, |t| <= 1/512. The truncation error is below 2^-125 for both.
inline SinCos near_zero(Sum t) {
  const Sum y = kTwoPi * t, z = y * y;
  const Sum s9 = {z.hi * (kFactor9 + z.hi * (kFactor11 + z.hi * kFactor13)), 0.0};
  const Sum s5 = plus_small(kFactor5, z * plus_small(kFactor7, s9));
  const Sum sine = plus_small(y, y * z * plus_small(kFactor3, z * s5));
  const Sum c8 = {z.hi * (kFactor8 + z.hi * (kFactor10 + z.hi * kFactor12)), 0.0};
  const Sum c4 = plus_small(kFactor4, z * plus_small(kFactor6, c8));
  return {sine, plus_small(kOne, z * plus_small(kFactor2, z * c4))};
}

// A fraction of a turn times 2^256, most significant word first.
struct Turns {
  uint64_t word[4];
};

inline Turns negated(Turns a) {
  uint64_t carry = 1;
  for (int k = 3; k >= 0; --k) {
    a.word[k] = ~a.word[k] + carry;
    carry = carry != 0 && a.word[k] == 0;
  }
  return a;
}

// n * f modulo one turn.
inline Turns product(int64_t n, const Turns& f) {
  __extension__ typedef unsigned __int128 wide;
  const uint64_t size = n < 0 ? 0 - static_cast<uint64_t>(n) : static_cast<uint64_t>(n);
  Turns p;
  wide carry = 0;
  for (int k = 3; k >= 0; --k) {
    carry += static_cast<wide>(size) * f.word[k];
    p.word[k] = static_cast<uint64_t>(carry);
    carry >>= 64;
  }
  return n < 0 ? negated(p) : p;
}

// 2^e for a normal result.
inline double power_of_two(int e) {
  const uint64_t bits = static_cast<uint64_t>(e + 1023) << 52;
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The 106 leading bits.
inline Sum leading(const Turns& a) {
  int first = 0;
  while (first < 4 && a.word[first] == 0) ++first;
  if (first == 4) return {0.0, 0.0};
  const int shift = __builtin_clzll(a.word[first]);
  const auto word = [&](int k) { return k < 4 ? a.word[k] : 0; };
  const auto shifted = [&](int k) { return word(k) << shift | (shift == 0 ? 0 : word(k + 1) >> (64 - shift)); };
  const uint64_t high = shifted(first), low = shifted(first + 1);
  const int exponent = -64 * first - shift;  // the value is high * 2^(exponent - 64) plus the following bits
  return ordered_sum(static_cast<double>(high >> 11) * power_of_two(exponent - 53),
                     static_cast<double>((high & 0x7ff) << 42 | low >> 22) * power_of_two(exponent - 106));
}

// The contents of a file of tests/support/truth_file.py: a packed plan for the library, and the formula for the
// reference.
class Truth {
 public:
  struct Pair {  // channels that share a frequency, -1 for none
    size_t frequency;
    int64_t sine, cosine;
  };

  explicit Truth(const std::string& path) {
    std::map<std::string, std::vector<uint64_t>> read = sections(path);
    for (uint64_t w : read["plan"]) plan.push_back(static_cast<int64_t>(w));
    const std::vector<uint64_t>&f = read["frequencies"], &c = read["channels"], &points = read["circle"];
    if (f.empty() || f.size() % 4 != 0 || c.empty() || c.size() % 2 != 0 || points.size() != 33 * 4) {
      throw std::runtime_error(path + ": no file of tests/support/truth_file.py");
    }
    for (size_t k = 0; k < f.size(); k += 4) frequencies.push_back({{f[k], f[k + 1], f[k + 2], f[k + 3]}});
    dim = static_cast<int64_t>(c.size() / 2);
    pairs.resize(frequencies.size(), {0, -1, -1});
    for (size_t k = 0; k < pairs.size(); ++k) pairs[k].frequency = k;
    for (int64_t k = 0; k < dim; ++k) {
      Pair& pair = pairs.at(c[static_cast<size_t>(2 * k)]);
      (c[static_cast<size_t>(2 * k + 1)] == 0 ? pair.sine : pair.cosine) = k;
    }
    // Points 0 .. 32 of 256 are given, the others follow by symmetry.
    const auto given = [&](size_t k) {
      const uint64_t* w = &points[4 * k];
      return SinCos{{as_double(w[0]), as_double(w[1])}, {as_double(w[2]), as_double(w[3])}};
    };
    for (size_t k = 0; k < 256; ++k) {
      if (k <= 32) circle_[k] = given(k);
      if (k > 32 && k < 64) circle_[k] = {circle_[64 - k].cosine, circle_[64 - k].sine};
      if (k >= 64) circle_[k] = {circle_[k - 64].cosine, -circle_[k - 64].sine};
    }
  }

  // sin and cos of n times a frequency.
  SinCos at(int64_t n, const Turns& frequency) const {
    Turns rest = product(n, frequency);
    const uint64_t nearest = (rest.word[0] + (uint64_t{1} << 55)) >> 56;
    rest.word[0] -= nearest << 56;
    const bool negative = rest.word[0] >> 63 != 0;
    const Sum size = leading(negative ? negated(rest) : rest);
    const SinCos a = circle_[nearest & 255], b = near_zero(negative ? -size : size);
    return {a.sine * b.cosine + a.cosine * b.sine, a.cosine * b.cosine + -(a.sine * b.sine)};
  }

  int64_t dim = 0;
  std::vector<int64_t> plan;
  std::vector<Turns> frequencies;
  std::vector<Pair> pairs;

 private:
  static double as_double(uint64_t bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  // Repeated: "name count", then that many hexadecimal words. Lines that start with # are comments.
  static std::map<std::string, std::vector<uint64_t>> sections(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error(path + ": cannot be read");
    std::map<std::string, std::vector<uint64_t>> found;
    for (std::string name, line; file >> name;) {
      if (name[0] == '#') {
        std::getline(file, line);
        continue;
      }
      size_t count = 0;
      file >> std::dec >> count >> std::hex;
      std::vector<uint64_t>& words = found[name];
      for (uint64_t word; words.size() < count && file >> word;) words.push_back(word);
      if (words.size() != count) throw std::runtime_error(path + ": " + name + " ends early");
    }
    return found;
  }

  SinCos circle_[256];
};

}  // namespace truth
