// Sorting the tokens of an embedding by their ids.
#pragma once

#include "cuda/launch.h"

namespace sinpe {
namespace cuda {

// The ids in ascending order and, for each, the row-major index of its token; equal ids in the order of their tokens.
// Ids that are not rows of the weight are replaced by `rows`, so that they are last.
struct SortedIds {
  const int64_t *ids, *tokens;
};

// Sorts `count` ids, an array with these sizes and strides. scratch: sort_scratch(count, rows) bytes of device memory,
// 16-byte aligned, which also hold the result.
sinpe_status sort_ids(const int64_t* ids, const int64_t* sizes, const int64_t* strides, int dims, int64_t count,
                      int64_t rows, void* scratch, Stream stream, SortedIds* sorted);
int64_t sort_scratch(int64_t count, int64_t rows);

}  // namespace cuda
}  // namespace sinpe
