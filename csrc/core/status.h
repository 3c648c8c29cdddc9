// Messages of sinpe_status, for the CPU and CUDA libraries.
#pragma once

#include "sinpe/sinpe.h"

namespace sinpe {

inline const char* status_text(sinpe_status status) {
  switch (status) {
    case SINPE_OK: return "no error";
    case SINPE_BAD_PLAN: return "plan: not a frequency plan of this library version; export or build it again";
    case SINPE_BAD_ARGUMENT:
      return "argument: null pointer, negative size, unknown type, a size that does not fit the plan, or an out that "
             "overlaps an operand";
    case SINPE_OUT_OF_RANGE: return "positions: start + length goes beyond the range of int64";
    case SINPE_NO_MEMORY: return "out of memory";
    case SINPE_BAD_ID: return "ids: an id is negative or not below the number of rows of weight";
    case SINPE_LAUNCH_FAILED: return "CUDA: a kernel could not be launched";
  }
  return "unknown status";
}

}  // namespace sinpe
