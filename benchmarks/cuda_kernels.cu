// The CUDA kernels without torch: device time of each launcher, next to a copy and a fill of the same bytes, and a
// checksum of its result, which must not change with a kernel's layout.
//
//   nvcc -std=c++17 -O3 -fmad=false -arch=native -Icsrc -Icsrc/include -Itests/cpp benchmarks/cuda_kernels.cu \
//     csrc/cuda/*.cu -o build/time_cuda_kernels
//   build/time_cuda_kernels            # or: build/time_cuda_kernels add_ encode_    (names that contain one of these)
//
// Large tensors have 2^27 elements: ten calls in a row, and the median of nine such times. Calls on a few rows are
// twenty nodes of a graph. Input is random, but the same in each run.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/launchers.h"
#include "plans.h"

namespace {

using namespace sinpe::cuda;

constexpr int64_t kBatch = 32, kLength = 4096, kDim = 1024, kElements = kBatch * kLength * kDim;
constexpr int64_t kVocabulary = 32000, kPositions = 1000000;
constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "time_cuda_kernels: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
void check(sinpe_status status) {
  if (status == SINPE_OK) return;
  const bool launch = status == SINPE_LAUNCH_FAILED;
  std::fprintf(stderr, "time_cuda_kernels: %s\n", launch ? sinpe::cuda::launch_error() : "a launcher refused a call");
  std::exit(1);
}

__device__ uint64_t mixed(uint64_t i) {
  i = i * kMultiplier + 12345;
  i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9;
  return i ^ i >> 27;
}
// The launchers' types of 32 and 16 bits: uniform in +-2 * size, rounded towards zero.
__global__ void fill_random(void* out, int64_t n, sinpe_dtype dtype, float size) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const float v = (static_cast<float>(mixed(static_cast<uint64_t>(i)) >> 40) * 0x1p-22f - 2.0f) * size;
    if (dtype == SINPE_FLOAT32) static_cast<float*>(out)[i] = v;
    if (dtype == SINPE_BFLOAT16) static_cast<uint16_t*>(out)[i] = static_cast<uint16_t>(__float_as_uint(v) >> 16);
    if (dtype == SINPE_FLOAT16)
      asm volatile("{.reg .f16 h; cvt.rz.f16.f32 h, %1; st.b16 [%0], h;}" ::"l"(static_cast<uint16_t*>(out) + i), "f"(v)
                   : "memory");
  }
}
__global__ void fill_below(int64_t* out, int64_t n, uint64_t limit) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    out[i] = static_cast<int64_t>(mixed(static_cast<uint64_t>(i)) % limit);
}
__global__ void add_checksum(const uint32_t* words, int64_t n, unsigned long long* sum) {
  unsigned long long part = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    part += mixed(words[i] + kMultiplier * static_cast<uint64_t>(i));
  atomicAdd(sum, part);
}
__global__ void __launch_bounds__(512) copy(const uint4* from, uint4* to) {
  const int64_t i = blockIdx.x * int64_t{1024} + threadIdx.x;
  const uint4 a = from[i], b = from[i + 512];
  to[i] = a;
  to[i + 512] = b;
}
// A block copies 4 KiB of each of some slices, in the order of the kernel of add; with all slices, of a whole batch.
__global__ void __launch_bounds__(256) copy_slices(const uint4* from, uint4* to, int64_t slice_size, int slices) {
  const int64_t tiles = slice_size / 256, part = blockIdx.x / tiles;
  const int64_t first = part * slices * slice_size + (blockIdx.x - part * tiles) * 256 + threadIdx.x;
  for (int k = 0; k < slices; ++k) to[first + k * slice_size] = from[first + k * slice_size];
}
__global__ void __launch_bounds__(512) fill(uint4* to) {
  const int64_t i = blockIdx.x * int64_t{1024} + threadIdx.x;
  to[i] = to[i + 512] = uint4{1, 2, 3, 4};
}

template <class T>
T* allocate(int64_t n) {
  void* p;
  check(cudaMalloc(&p, static_cast<size_t>(n) * sizeof(T)));
  return static_cast<T*>(p);
}

DevicePlan on_device(const TestPlan& plan) {
  const int64_t n = static_cast<int64_t>(plan.words.size());
  int64_t* words = allocate<int64_t>(n);
  check(cudaMemcpy(words, plan.words.data(), static_cast<size_t>(n) * 8, cudaMemcpyHostToDevice));
  return {words, n, plan.plan.dim};
}

struct Call {
  std::string name;
  std::function<sinpe_status()> run;
  const void* result;
  int64_t result_bytes, moved_bytes;  // moved: 0 for a few rows
};

class Timer {
 public:
  Timer() {
    check(cudaStreamCreate(&stream));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
    sum_ = allocate<unsigned long long>(1);
  }
  cudaStream_t stream;

  void report(const Call& call) {
    check(cudaMemset(const_cast<void*>(call.result), 0xff, static_cast<size_t>(call.result_bytes)));  // NaN
    check(call.run());
    check(cudaStreamSynchronize(stream));
    check(cudaMemset(sum_, 0, 8));
    add_checksum<<<1024, 256>>>(static_cast<const uint32_t*>(call.result), call.result_bytes / 4, sum_);
    unsigned long long sum;
    check(cudaMemcpy(&sum, sum_, 8, cudaMemcpyDeviceToHost));
    const double us = call.moved_bytes != 0 ? of_calls(call) : of_graph(call);
    std::printf("%-24s %8.2f us", call.name.c_str(), us);
    std::printf(call.moved_bytes != 0 ? " %6.0f GB/s" : "            ",
                static_cast<double>(call.moved_bytes) / us / 1e3);
    std::printf("  %016llx\n", sum);
  }

 private:
  // The median time of `run`, per call, if it makes so many calls.
  double median(int calls, const std::function<void()>& run) {
    std::vector<float> times;
    for (int k = 0; k < 10; ++k) {
      check(cudaEventRecord(begin_, stream));
      run();
      check(cudaEventRecord(end_, stream));
      check(cudaEventSynchronize(end_));
      float ms;
      check(cudaEventElapsedTime(&ms, begin_, end_));
      if (k != 0) times.push_back(ms);
    }
    std::nth_element(times.begin(), times.begin() + 4, times.end());
    return 1e3 * static_cast<double>(times[4]) / calls;
  }
  double of_calls(const Call& call) {
    return median(10, [&] {
      for (int k = 0; k < 10; ++k) check(call.run());
    });
  }
  double of_graph(const Call& call) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int k = 0; k < 20; ++k) check(call.run());
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&replay, graph, 0));
    const double us = median(400, [&] {
      for (int k = 0; k < 20; ++k) check(cudaGraphLaunch(replay, stream));
    });
    check(cudaGraphExecDestroy(replay));
    check(cudaGraphDestroy(graph));
    return us;
  }

  cudaEvent_t begin_, end_;
  unsigned long long* sum_;
};

sinpe_add_arguments add_arguments(const void* x, void* out, sinpe_dtype dtype, int64_t batch, int64_t length,
                                  int64_t dim) {
  sinpe_add_arguments a{};
  a.rank = 3;
  const int64_t sizes[] = {batch, length, dim}, strides[] = {length * dim, dim, 1};
  for (int d = 0; d < 3; ++d) a.sizes[d] = sizes[d], a.x_strides[d] = a.out_strides[d] = strides[d];
  a.x = x;
  a.out = out;
  a.dtype = dtype;
  a.alpha = a.scale = 1.0;
  return a;
}

}  // namespace

int main(int argc, char** argv) {
  Timer timer;
  cudaStream_t stream = timer.stream;
  void *x = allocate<float>(kElements), *out = allocate<float>(kElements),
       *weight = allocate<float>(kVocabulary * kDim);
  double* dots = allocate<double>(kBatch * kLength);
  int64_t *ids = allocate<int64_t>(kBatch * kLength), *at = allocate<int64_t>(kElements / 2), *seed = ids;
  fill_below<<<1024, 256>>>(ids, kBatch * kLength, kVocabulary);
  fill_below<<<1024, 256>>>(at, kElements / 2, uint64_t{1} << 20);
  const DeviceScalars none{nullptr, SINPE_FLOAT32, nullptr}, seeded{nullptr, SINPE_FLOAT32, seed};
  const DevicePlan plan = on_device(make_plan(kDim, 0, false)), narrow = on_device(make_plan(128, 0, false));
  const DevicePlan eight = on_device(make_plan(8, 0, false)), steps = on_device(make_plan(320, 0, false));

  struct Type {
    const char* name;
    sinpe_dtype dtype;
    int64_t size;
  };
  for (const Type& type :
       {Type{"float32", SINPE_FLOAT32, 4}, {"bfloat16", SINPE_BFLOAT16, 2}, {"float16", SINPE_FLOAT16, 2}}) {
    const sinpe_dtype dtype = type.dtype;
    const int64_t bytes = kElements * type.size;
    fill_random<<<2048, 256>>>(x, kElements, dtype, 1.0f);
    fill_random<<<2048, 256>>>(weight, kVocabulary * kDim, dtype, 1.0f / 32);
    std::vector<Call> calls;
    const auto row = [&](const char* name, int64_t moved, std::function<sinpe_status()> run, int64_t written = -1) {
      calls.push_back(
          {name + ("_" + std::string(type.name)), std::move(run), out, written < 0 ? bytes : written, moved});
    };
    const unsigned blocks = static_cast<unsigned>(bytes / 16 / 1024);
    row("copy", 2 * bytes, [=] {
      copy<<<blocks, 512, 0, stream>>>(static_cast<const uint4*>(x), static_cast<uint4*>(out));
      return cudaGetLastError() == cudaSuccess ? SINPE_OK : SINPE_LAUNCH_FAILED;
    });
    for (const int slices : {4, 16}) {
      row(slices == 4 ? "copy_4_slices" : "copy_16_slices", 2 * bytes, [=] {
        const int64_t size = bytes / kBatch / 16;
        copy_slices<<<static_cast<unsigned>(size / 256 * kBatch / slices), 256, 0, stream>>>(
            static_cast<const uint4*>(x), static_cast<uint4*>(out), size, slices);
        return cudaGetLastError() == cudaSuccess ? SINPE_OK : SINPE_LAUNCH_FAILED;
      });
    }
    row("fill", bytes, [=] {
      fill<<<blocks, 512, 0, stream>>>(static_cast<uint4*>(out));
      return cudaGetLastError() == cudaSuccess ? SINPE_OK : SINPE_LAUNCH_FAILED;
    });
    const sinpe_add_arguments a = add_arguments(x, out, dtype, kBatch, kLength, kDim);
    sinpe_add_arguments dropped = a, placed = a;
    dropped.dropout.drop_threshold = 6554;
    placed.positions = at;
    placed.position_dtype = SINPE_INT64;
    placed.position_strides[0] = kLength;
    placed.position_strides[1] = 1;
    row("add", 2 * bytes, [=] { return add(plan, a, none, stream); });
    row("add_positions", 2 * bytes, [=] { return add(plan, placed, none, stream); });
    row("add_dropout", 2 * bytes, [=] { return add(plan, dropped, seeded, stream); });
    row("dropout", 2 * bytes, [=] { return dropout(dropped, seeded, stream); });
    row("add_backward", 2 * bytes, [=] { return add_backward(plan, dropped, dots, nullptr, seeded, stream); });
    sinpe_add_arguments to_dots = a;
    to_dots.out = dots;
    calls.push_back({"row_dots_" + std::string(type.name),
                     [=] { return row_dots(plan, to_dots, nullptr, nullptr, none, stream); }, dots,
                     kBatch * kLength * 8, bytes});
    sinpe_embed_arguments e{};
    e.add = a;
    e.add.x = weight;
    e.add.scale = 32.0;
    e.ids = ids;
    e.id_strides[0] = kLength;
    e.id_strides[1] = 1;
    e.num_embeddings = kVocabulary;
    e.weight_stride = kDim;
    sinpe_embed_arguments f = e;
    f.add.dropout = dropped.dropout;
    row("embed", 2 * bytes, [=] { return embed(plan, e, none, stream); });
    row("embed_dropout", 2 * bytes, [=] { return embed(plan, f, seeded, stream); });
    row("table", bytes, [=] { return table(plan, 0, kBatch * kLength, dtype, out, kDim, stream); });
    for (const auto& [name, given, dim] : {std::tuple{"encode_128", narrow, 128}, {"encode_8", eight, 8}}) {
      const int64_t count = kPositions * 128 / dim, written = count * dim * type.size;
      row(
          name, written + 8 * count,
          [=, given = given, dim = dim] { return encode(given, at, SINPE_INT64, count, dtype, out, dim, stream); },
          written);
    }
    row(
        "few_timesteps", 0, [=] { return encode(steps, at, SINPE_INT64, 8, dtype, out, 320, stream); },
        8 * 320 * type.size);
    const sinpe_add_arguments step = add_arguments(x, out, dtype, 8, 1, kDim);
    sinpe_add_arguments dropped_step = step;
    dropped_step.dropout = dropped.dropout;
    row("few_decode", 0, [=] { return add(plan, step, none, stream); }, 8 * kDim * type.size);
    row("few_decode_dropout", 0, [=] { return add(plan, dropped_step, seeded, stream); }, 8 * kDim * type.size);
    check(cudaGetLastError());
    check(cudaDeviceSynchronize());
    for (const Call& call : calls) {
      const bool chosen = argc < 2 || std::any_of(
                                          argv + 1, argv + argc,
                                          [&](const char* part) { return call.name.find(part) != std::string::npos; });
      if (chosen) timer.report(call);
    }
  }
  return 0;
}
