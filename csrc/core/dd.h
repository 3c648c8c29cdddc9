// Double-double arithmetic: an unevaluated sum hi + lo of two doubles, about 106 bits.
#pragma once

#include "core/vec.h"

namespace sinpe {

template <class V>
struct DoubleDouble {
  V hi, lo;
};
using DD = DoubleDouble<double>;

// a + b exactly.
//   Types: V   Error: 0   Valid range: |a| >= |b| or a == 0, no overflow
template <class V>
SINPE_HD DoubleDouble<V> quick_two_sum(V a, V b) {
  const V s = a + b;
  return {s, b - (s - a)};
}

// a + b exactly.
//   Types: V   Error: 0   Valid range: no overflow
template <class V>
SINPE_HD DoubleDouble<V> two_sum(V a, V b) {
  const V s = a + b;
  const V v = s - a;
  return {s, (a - (s - v)) + (b - v)};
}

// a * b exactly.
//   Types: V   Error: 0   Valid range: no overflow, product above 2^-969
template <class V>
SINPE_HD DoubleDouble<V> two_prod(V a, V b) {
  const V p = a * b;
  return {p, fma(a, b, -p)};
}

//   Types: DD<V> + DD<V>   Max error: 2^-104 relative to |a| + |b|   Valid range: no overflow
template <class V>
SINPE_HD DoubleDouble<V> dd_add(DoubleDouble<V> a, DoubleDouble<V> b) {
  DoubleDouble<V> s = two_sum(a.hi, b.hi);
  DoubleDouble<V> t = two_sum(a.lo, b.lo);
  s = quick_two_sum(s.hi, s.lo + t.hi);
  return quick_two_sum(s.hi, s.lo + t.lo);
}

//   Types: DD<V> * V   Max error: 2^-104 relative   Valid range: as two_prod
template <class V>
SINPE_HD DoubleDouble<V> dd_mul(DoubleDouble<V> a, V b) {
  const DoubleDouble<V> p = two_prod(a.hi, b);
  return quick_two_sum(p.hi, fma(a.lo, b, p.lo));
}

//   Types: DD<V> * DD<V>   Max error: 2^-103 relative   Valid range: as two_prod
template <class V>
SINPE_HD DoubleDouble<V> dd_mul(DoubleDouble<V> a, DoubleDouble<V> b) {
  const DoubleDouble<V> p = two_prod(a.hi, b.hi);
  return quick_two_sum(p.hi, p.lo + fma(a.hi, b.lo, a.lo * b.hi));
}

}  // namespace sinpe
