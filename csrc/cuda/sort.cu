// The sort is CUB's radix sort, by as many bits as the number of rows has.
#include "cuda/sort.h"

#include "core/layout.h"
#include "cuda/rows.h"
#if defined(__CUDACC__)
#include <cub/device/device_radix_sort.cuh>
#else
#include <algorithm>
#endif

namespace sinpe {
namespace cuda {
namespace {

// Two buffers for the ids, which become the keys, and two for the tokens.
struct Buffers {
  uint64_t* keys[2];
  int64_t* tokens[2];
  void* temporary;  // CUB's
};

int64_t buffer_words(int64_t count) { return (count + 1) / 2 * 2; }  // keeps the alignment of 16 bytes

Buffers buffers_in(void* scratch, int64_t count) {
  uint64_t* words = static_cast<uint64_t*>(scratch);
  const int64_t n = buffer_words(count);
  return {{words, words + n},
          {reinterpret_cast<int64_t*>(words + 2 * n), reinterpret_cast<int64_t*>(words + 3 * n)},
          words + 4 * n};
}

// Writes the keys and the indices of the tokens.
struct Unsorted {
  static constexpr int kPhases = 1, kThreads = cuda::kThreads, kBlocks = 4;
  struct Shared {};

  const int64_t* ids;
  uint64_t* keys;
  int64_t* tokens;
  int64_t count, rows;
  int32_t dims;
  int64_t sizes[SINPE_MAX_RANK], strides[SINPE_MAX_RANK];

  template <int kPhase>
  SINPE_HD void phase(uint32_t block, int thread, Shared&) const {
    const int64_t token = static_cast<int64_t>(block) * kThreads + thread;
    if (token >= count) return;
    const int64_t id = ids[offset_at(sizes, strides, dims, token)];
    keys[token] = static_cast<uint64_t>(id < 0 || id >= rows ? rows : id);
    tokens[token] = token;
  }
};

#if defined(__CUDACC__)

// With temporary == nullptr, only sets *bytes to the size of CUB's temporary memory.
cudaError_t radix_sort(void* temporary, size_t* bytes, cub::DoubleBuffer<uint64_t>* keys,
                       cub::DoubleBuffer<int64_t>* tokens, int64_t count, int64_t rows, Stream stream) {
  int bits = 1;  // of the largest key
  while (bits < 63 && rows >> bits != 0) ++bits;
  return cub::DeviceRadixSort::SortPairs(temporary, *bytes, *keys, *tokens, count, 0, bits,
                                         static_cast<cudaStream_t>(stream));
}

#endif

int64_t temporary_bytes(int64_t count, int64_t rows) {
#if defined(__CUDACC__)
  size_t bytes = 0;
  cub::DoubleBuffer<uint64_t> keys;
  cub::DoubleBuffer<int64_t> tokens;
  if (radix_sort(nullptr, &bytes, &keys, &tokens, count, rows, nullptr) != cudaSuccess) return 0;  // the sort will fail
  return static_cast<int64_t>((bytes + 15) / 16 * 16);
#else
  (void)count, (void)rows;
  return 0;
#endif
}

}  // namespace

int64_t sort_scratch(int64_t count, int64_t rows) {
  return 4 * buffer_words(count) * int64_t{sizeof(uint64_t)} + temporary_bytes(count, rows);
}

sinpe_status sort_ids(const int64_t* ids, const int64_t* sizes, const int64_t* strides, int dims, int64_t count,
                      int64_t rows, void* scratch, Stream stream, SortedIds* sorted) {
  const Buffers b = buffers_in(scratch, count);
  *sorted = {reinterpret_cast<const int64_t*>(b.keys[0]), b.tokens[0]};
  if (count == 0) return SINPE_OK;
  Unsorted unsorted{ids, b.keys[0], b.tokens[0], count, rows, dims, {}, {}};
  for (int d = 0; d < dims; ++d) {
    unsorted.sizes[d] = sizes[d];
    unsorted.strides[d] = strides[d];
  }
  const sinpe_status status = launch(unsorted, (count + kThreads - 1) / kThreads, stream);
  if (status != SINPE_OK) return status;
#if defined(__CUDACC__)
  cub::DoubleBuffer<uint64_t> keys(b.keys[0], b.keys[1]);
  cub::DoubleBuffer<int64_t> tokens(b.tokens[0], b.tokens[1]);
  size_t bytes = static_cast<size_t>(temporary_bytes(count, rows));
  const cudaError_t error = radix_sort(b.temporary, &bytes, &keys, &tokens, count, rows, stream);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // so that the next launch does not report it
    return launch_failed(cudaGetErrorString(error));
  }
  *sorted = {reinterpret_cast<const int64_t*>(keys.Current()), tokens.Current()};
#else
  std::stable_sort(b.tokens[0], b.tokens[0] + count, [&](int64_t p, int64_t q) { return b.keys[0][p] < b.keys[0][q]; });
  for (int64_t i = 0; i < count; ++i) b.keys[1][i] = b.keys[0][b.tokens[0][i]];
  *sorted = {reinterpret_cast<const int64_t*>(b.keys[1]), b.tokens[0]};
#endif
  return SINPE_OK;
}

}  // namespace cuda
}  // namespace sinpe
