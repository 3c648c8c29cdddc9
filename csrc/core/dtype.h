// From the number of a dtype in the C interface to the type of an element.
#pragma once

#include "core/round.h"
#include "sinpe/sinpe.h"

namespace sinpe {

// Calls fn(T{}) with the element type that `dtype` names.
template <class F>
sinpe_status with_type(sinpe_dtype dtype, const F& fn) {
  switch (dtype) {
    case SINPE_FLOAT32: return fn(float{});
    case SINPE_FLOAT64: return fn(double{});
    case SINPE_BFLOAT16: return fn(bfloat16{});
    case SINPE_FLOAT16: return fn(float16{});
    default: return SINPE_BAD_ARGUMENT;
  }
}

}  // namespace sinpe
