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
