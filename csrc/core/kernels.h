// The kernels of one type of device as a struct of function pointers (Kernels): what its library offers to a caller
// without torch. And the operands that they take.
#pragma once

#include <cstdint>

#include "sinpe/sinpe.h"

namespace sinpe {

// dtype of a View: the values of sinpe_dtype, kBool, or kOtherType.
constexpr int32_t kBool = 5, kOtherType = -1;
constexpr int32_t kHostMemory = 1, kCudaMemory = 2;  // as DLPack numbers device types

// A tensor as the operators read or write it. All its elements must be within its memory.
struct View {
  void* data;
  int32_t device_type, device;  // device: number of a CUDA device; any for the host
  int32_t rank, dtype;
  int64_t sizes[SINPE_MAX_RANK], strides[SINPE_MAX_RANK];  // in elements
};

// An operand of an operator.
struct Operand {
  enum Kind : int32_t { kNone, kTensor, kInt, kFloat, kInts } kind;
  int32_t count;  // kInts: number of integers
  union {
    const View* tensor;
    int64_t integer;  // also bool, and a dtype as sinpe_dtype
    double number;
    const int64_t* integers;
  };
};

// The operators of sinpe_ext/records.py; core/operators.h lists their operands.
enum class Op : int32_t { kTable, kEncode, kAdd, kDropout, kRowDots, kAddBackward, kTreeSum, kEmbed, kEmbedBackward };

// A packed plan or grid in the memory of the device, and the number of channels that its rows must have.
struct DevicePlan {
  const int64_t* packed;
  int64_t n_words;
  int64_t dim;
};

// Scalars that a kernel reads in the memory of the device, so that the host does not wait for them and a replayed CUDA
// graph uses their new values.
struct DeviceScalars {
  const void* alpha;        // null: the arguments' alpha
  sinpe_dtype alpha_dtype;  // of *alpha
  const int64_t* seed;      // null: the arguments' dropout.seed
};

// All pointers refer to memory of the device, except to the arguments themselves. No function throws.
struct Kernels {
  int64_t bytes;         // sizeof(Kernels) in the library; a caller built from other sources refuses the struct
  bool in_host_memory;   // whether the operands are in the host's memory, and are read before the functions return
  int64_t max_elements;  // of the result of a call; larger ones are left to the operators that Python calls
  // Whether run() may be called now: not while a CUDA graph is captured, which would keep the addresses of the operands.
  bool (*is_ready)(int32_t device);
  // Runs an operator on the current stream of `device`. operands: those of the operator, then the results, which the
  // caller has allocated. is_new: whether it did so for this call, so that their pages have not been written.
  // check_only: do everything up to the first write. Returns null, or an error message that is valid until this
  // thread's next call.
  const char* (*run)(Op op, int32_t device, const Operand* operands, int32_t count, bool is_new, bool check_only);
};

// The kernels of the CPU (cpu/kernels.cpp).
const Kernels& cpu_kernels();

}  // namespace sinpe
