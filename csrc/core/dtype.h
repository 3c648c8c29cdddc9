// Dispatch from a dtype of the C interface to the C++ element type.
#pragma once

#include "core/round.h"
#include "sinpe/sinpe.h"

namespace sinpe {

// Calls fn(T{}), where T is the element type of `dtype`.
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

// The scalar at `number` as double. `dtype` must be a floating-point type.
SINPE_HD double value_of(const void* number, sinpe_dtype dtype) {
  switch (dtype) {
    case SINPE_FLOAT64: return *static_cast<const double*>(number);
    case SINPE_BFLOAT16: return static_cast<double>(to_float(*static_cast<const bfloat16*>(number)));
    case SINPE_FLOAT16: return static_cast<double>(to_float(*static_cast<const float16*>(number)));
    default: return static_cast<double>(*static_cast<const float*>(number));
  }
}

}  // namespace sinpe
