// csrc/core against identities: phases and roundings. (test_bounds.cpp measures the errors.)
#include <cmath>
#include <initializer_list>

#include "check.h"
#include "core/exact.h"
#include "core/rotate.h"
#include "cpu/rows.h"
#include "plans.h"

namespace {

using sinpe::DD;

// The rest of the fast phase at the ends of its range, where the rounding of the product has the largest effect; and
// phases of fractional positions.
void test_phase() {
  check::Random random;
  double largest = 0;
  for (int k = 0; k < 40000; ++k) {
    const double hi = 0x1p-8 * (1.0 + random.uniform()), lo = hi * 0x1p-54 * (random.uniform() < 0.5 ? 1.9 : -1.9);
    const double p = std::floor(0x1p45 / hi * (1.0 - random.uniform() * 0x1p-10));
    uint64_t quarter;
    largest = std::fmax(largest, std::fabs(sinpe::fast_phase(p, hi, lo, &quarter)));
  }
  std::printf("largest rest of the fast phase %.6f\n", largest);
  CHECK(largest <= 0.131 && largest > 0.128);
  // Fractional positions: p = m / 8 has the phase of m at an eighth of the frequency.
  for (int k = 0; k < 40000; ++k) {
    const double turns = random.uniform() * 3.0 - 1.5;
    const double eighth = turns / 8;
    const auto frequency = [](double f) {
      const double size = std::fabs(f), scaled = std::ldexp(size - std::floor(size), 64), top = std::floor(scaled);
      uint64_t hi = static_cast<uint64_t>(top), lo = static_cast<uint64_t>(std::ldexp(scaled - top, 64));
      int64_t whole = static_cast<int64_t>(std::floor(size));
      if (f < 0) {  // two's complement over whole : hi : lo
        lo = ~lo + 1;
        hi = ~hi + (lo == 0);
        whole = ~whole + (hi == 0 && lo == 0);
      }
      return sinpe::Frequency{hi, lo, whole, f, 0.0};
    };
    const int64_t m = static_cast<int64_t>(random.next()) >> (20 + random.next() % 30);
    const sinpe::Reduced a =
        sinpe::reduce_position(sinpe::float_position(static_cast<double>(m) / 8), frequency(turns));
    const sinpe::Reduced b = sinpe::reduce_position(sinpe::integer_position(m), frequency(eighth));
    const double difference = (a.quadrant - b.quadrant) * 0.25 + (a.t.hi - b.t.hi);
    CHECK(std::fabs(difference - std::nearbyint(difference)) < 0x1p-54);
  }
}

// Nearest value of a 16-bit format by search among its neighbours, in double.
template <class T>
void check_rounding(float x) {
  T got;
  sinpe::round_store(&got, x);
  const double value = x, rounded = sinpe::to_float(got);
  for (int step : {-1, 1}) {
    T neighbour{static_cast<uint16_t>(got.bits + step)};
    const double other = sinpe::to_float(neighbour);
    if (!std::isfinite(other) || !std::isfinite(rounded)) continue;
    const double mine = std::fabs(rounded - value), theirs = std::fabs(other - value);
    CHECK(mine < theirs || (mine == theirs && (got.bits & 1) == 0) || (mine == theirs && rounded == other));
  }
}

void test_rounding() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const sinpe::float16 h{static_cast<uint16_t>(bits)};
    const sinpe::bfloat16 b{static_cast<uint16_t>(bits)};
    sinpe::float16 h2;
    sinpe::bfloat16 b2;
    sinpe::round_store(&h2, sinpe::to_float(h));
    sinpe::round_store(&b2, sinpe::to_float(b));
    const float hf = sinpe::to_float(h), bf = sinpe::to_float(b);
    CHECK(hf != hf ? sinpe::to_float(h2) != sinpe::to_float(h2) : h2.bits == h.bits);
    CHECK(bf != bf ? sinpe::to_float(b2) != sinpe::to_float(b2) : b2.bits == b.bits);
  }
  check::Random random;
  for (int k = 0; k < 100000; ++k) {
    const float x = static_cast<float>(std::ldexp(random.uniform() - 0.5, 17 - static_cast<int>(random.next() % 44)));
    check_rounding<sinpe::float16>(x);
    check_rounding<sinpe::bfloat16>(x);
  }
  sinpe::float16 overflow;
  sinpe::round_store(&overflow, 65520.0f);
  CHECK(overflow.bits == 0x7c00);
  sinpe::round_store(&overflow, 65519.0f);
  CHECK(overflow.bits == 0x7bff);
  // A midpoint of two floats, with a low part that breaks the tie in either direction.
  const double midpoint = 1.0 + 0x1p-24;
  CHECK(sinpe::round_to_float({midpoint, 0.0}) == 1.0f);
  CHECK(sinpe::round_to_float({midpoint, 0x1p-80}) == 1.0f + 0x1p-23f);
  CHECK(sinpe::round_to_float({midpoint, -0x1p-80}) == 1.0f);
  CHECK(sinpe::round_to_float({-midpoint, -0x1p-80}) == -1.0f - 0x1p-23f);
}

// Whether ends_differ is right, for v within 64 doubles of 4000 random floats and midpoints, and a random e of up to 40
// doubles: if it reports nothing, every double strictly between the ends rounds to the float of v.
void test_ends_differ() {
  check::Random random;
  int64_t decided = 0, reported = 0, could_be = 0;
  for (int k = 0; k < 4000; ++k) {
    const double size = std::ldexp(1.0 + random.uniform(), static_cast<int>(random.next() % 128) - 125);
    const double boundary = sinpe::bit_cast<double>(sinpe::bit_cast<uint64_t>(size) >> 28 << 28);
    const double ulp = std::ldexp(1.0, std::ilogb(boundary) - 52), sign = random.next() % 2 == 0 ? 1.0 : -1.0;
    for (int step = -64; step <= 64; ++step) {
      const double v = sign * (boundary + step * ulp), e = ulp * (1 + random.next() % 40);
      const bool is_reported = sinpe::ends_differ(v, e) >> sinpe::kUndecidedBit != 0;
      const float low = static_cast<float>(std::nextafter(v - e, v)),
                  high = static_cast<float>(std::nextafter(v + e, v));
      const bool differ = low != high;
      reported += is_reported;
      could_be += differ;
      decided += !is_reported;
      if (!is_reported) CHECK(!differ && low == static_cast<float>(v));
    }
  }
  std::printf("ends_differ: %lld reported, %lld with two floats between the ends, %lld decided\n",
              static_cast<long long>(reported), static_cast<long long>(could_be), static_cast<long long>(decided));
  CHECK(could_be > 0 && decided > 0 && reported < 3 * could_be);
  // Values no larger than their bound, and bounds of the smallest size.
  for (int k = 0; k < 40000; ++k) {
    const double e = sinpe::kMinNormalValue * std::ldexp(1.0 + random.uniform(), static_cast<int>(random.next() % 4));
    CHECK(sinpe::ends_differ(e * (2.0 * random.uniform() - 1.0), e) >> sinpe::kUndecidedBit != 0);
    const double more = e * (1.0 + 0x1p-3 * random.uniform());
    for (double v : {e, -e, more, -more}) CHECK(sinpe::ends_differ(v, e) >> sinpe::kUndecidedBit != 0);
  }
  CHECK(sinpe::ends_differ(0.0, 0.0) == 0);
}

// Every float from 2^-15 to 2 near a midpoint of bfloat16: if near_midpoint reports nothing, the float and its
// neighbours round to the same bits, those of near_bfloat16.
void test_near_bfloat16() {
  int64_t reported = 0;
  for (uint32_t upper = 0x3800; upper < 0x4000; ++upper) {
    for (uint32_t low : {0x0000u, 0x8000u}) {
      for (int step = -40; step <= 40; ++step) {
        const uint32_t bits = (upper << 16 | low) + static_cast<uint32_t>(step), sum = sinpe::near_bfloat16(bits);
        if (sinpe::near_midpoint(sum)) {
          ++reported;
          CHECK(low == 0x8000);
          continue;
        }
        for (uint32_t other : {bits - 1, bits, bits + 1}) CHECK(sum >> 16 == sinpe::bfloat16_bits(other));
      }
    }
  }
  CHECK(reported == 0x800 * 5);
}

}  // namespace

int main() {
  test_ends_differ();
  test_near_bfloat16();
  test_phase();
  test_rounding();
  return check::finish("test_core");
}
