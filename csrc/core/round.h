// Roundings: double-double to float, float to the 16-bit types and back. All to nearest, ties to even.
#pragma once

#include "core/dd.h"

namespace sinpe {

struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

// The type in which products and sums of T are rounded.
template <class T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};
template <class T>
using accumulate_t = typename Accumulate<T>::type;

// A sine whose magnitude is below this may be rounded to a subnormal float, of which the spacing is larger relative to
// the value.
constexpr double kMinNormalValue = 0x1p-125;

// The test of whether the error bound of a value leaves its rounding to float undecided: bit 28 or a higher bit of
// ends_differ(v, e) is set.
//
// Doubles of magnitude 2^-126 or more whose low 28 bits are zero are the floats and the midpoints of neighbouring
// floats. If v - e and v + e agree in all other bits, both lie in one interval [m, m'), where m and m' are neighbours
// of that kind. The true value lies strictly between the computed ends, because every bound e exceeds the error of v by
// more than the roundings of v - e and v + e. So it is neither m nor m', no midpoint is between it and v, and both
// round to the same float. The test also reports intervals that contain a float instead of a midpoint, about as many.
//   Valid range: e >= kMinNormalValue, or |v| >= kMinNormalValue, or |v| <= e. If |v| <= e, the signs of the ends differ, or
//   their exponents do, or both are 0. If |v| > e and v - e is below 2^-126, the exponents differ.
constexpr int kUndecidedBit = 28;
template <class V>
SINPE_HD bits_t<V> ends_differ(V v, V e) {
  return bit_cast<bits_t<V>>(v - e) ^ bit_cast<bits_t<V>>(v + e);
}

// Rounding to bfloat16 of a value of which only a float is known that is at most one float from the correctly rounded
// one: the sum's upper half, unless near_midpoint(sum). In the sum, a midpoint of bfloat16 has the low half 2, because
// its float has 0x8000. If the low half is 0 to 4, the float is within two floats of a midpoint, or is one, and the
// rounding is undecided. Otherwise the neighbours of the float are on its side of the midpoint, and adding 0x8002 moves
// a float above the midpoint into the next upper half, as rounding does, and one below it not.
//   Types: uint32_t or a vector of it, the bits of the float   Valid range: finite floats
template <class U>
SINPE_HD U near_bfloat16(U bits) {
  return bits + 0x8002;
}
template <class U>
SINPE_HD auto near_midpoint(U sum) {
  return (sum & 0xffff) < 5;
}

// hi + lo rounded once.
//   Types: DD -> float   Error: 0 (correctly rounded)   Valid range: |lo| <= ulp(hi)/2; subnormal results included
SINPE_HD float round_to_float(DD v) {
  // Round to odd in 53 bits first, which avoids double rounding at a midpoint.
  if (v.lo != 0.0) {
    uint64_t bits = bit_cast<uint64_t>(v.hi);
    if ((v.lo < 0.0) != (v.hi < 0.0)) bits -= 1;
    v.hi = bit_cast<double>(bits | 1);
  }
  return static_cast<float>(v.hi);
}

// The value of a float16, whose bits are the low 16 bits of each U (uint32_t and float, or vectors of them). Subnormals
// are correct because the scaling is a float multiplication by a power of two.
//   Error: 0   Valid range: every float16
template <class U, class F>
SINPE_HD F float16_value(U bits) {
  const U magnitude = (bits & 0x7fff) << 13;
  const U special = (0 - ((0x0f7fffff - magnitude) >> 31)) & 0x7f800000;  // inf and NaN
  const F scaled = bit_cast<F>(magnitude) * 0x1p112f;
  return bit_cast<F>(bit_cast<U>(scaled) | special | (bits & 0x8000) << 16);
}

SINPE_HD double to_float(double x) { return x; }
SINPE_HD float to_float(float x) { return x; }
SINPE_HD float to_float(bfloat16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
SINPE_HD float to_float(float16 x) { return float16_value<uint32_t, float>(x.bits); }

// The bits of the 16-bit formats from those of a float, in integer operations that are the same for scalars and
// vectors: U is uint32_t and F float, or vectors of them. NaN becomes the quiet NaN, overflow becomes infinity.
//   Error: correctly rounded, subnormals included   Valid range: every float
template <class U>
SINPE_HD U bfloat16_bits(U bits) {
  const U rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const U nan = 0 - ((0x7f800000 - (bits & 0x7fffffff)) >> 31);
  return (rounded & ~nan) | (nan & 0x7fc0);
}

template <class U, class F>
SINPE_HD U float16_bits(U bits) {
  const U magnitude = bits & 0x7fffffff;
  const U normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  // Below 2^-14, adding 0.5 leaves the bits of the subnormal at the bottom, rounded by the addition.
  const U small = bit_cast<U>(bit_cast<F>(magnitude) + 0.5f) - 0x3f000000;
  const U is_small = 0 - ((magnitude - 0x38800000) >> 31), fits = 0 - ((magnitude - 0x477ff000) >> 31);
  const U nan = 0 - ((0x7f800000 - magnitude) >> 31);
  const U finite = (small & is_small) | (normal & ~is_small);
  return (bits >> 16 & 0x8000) | (finite & fits) | (0x7c00 & ~fits) | (0x0200 & nan);
}

SINPE_HD void round_store(double* out, double x) { *out = x; }
SINPE_HD void round_store(float* out, float x) { *out = x; }
SINPE_HD void round_store(bfloat16* out, float x) {
  out->bits = static_cast<uint16_t>(bfloat16_bits(bit_cast<uint32_t>(x)));
}
SINPE_HD void round_store(float16* out, float x) {
  out->bits = static_cast<uint16_t>(float16_bits<uint32_t, float>(bit_cast<uint32_t>(x)));
}

}  // namespace sinpe
