// The CUDA runtime for a device whose memory is that of the host: allocations, copies, streams and events. Launched kernels
// do nothing; operators.py computes PyTorch's operators, and ours are compiled as C++ (csrc/cuda/on_host.h).
//
// __main__.py adds the functions that are missing here: they return 0, which is cudaSuccess.
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SUCCESS return cudaSuccess
#define MULTIPROCESSORS 132

static __thread int current_device = 0;
static __thread cudaError_t last_error = cudaSuccess;

static double milliseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

static cudaError_t failed(cudaError_t error) { return last_error = error; }

// Memory is filled with 0xff, which is NaN as a floating-point number.
static cudaError_t allocate(void** memory, size_t bytes) {
  if (posix_memalign(memory, 512, bytes > 0 ? bytes : 1) != 0) return failed(cudaErrorMemoryAllocation);
  memset(*memory, 0xff, bytes);
  SUCCESS;
}

static cudaError_t new_handle(void** handle) {
  *handle = calloc(1, 64);
  SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------- devices

cudaError_t cudaGetDeviceCount(int* count) {
  const char* wanted = getenv("CUDA_ON_HOST_DEVICES");
  *count = wanted == NULL ? 2 : atoi(wanted);
  SUCCESS;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  SUCCESS;
}
cudaError_t cudaSetDevice(int device) {
  int count;
  cudaGetDeviceCount(&count);
  if (device < 0 || device >= count) return failed(cudaErrorInvalidDevice);
  current_device = device;
  SUCCESS;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* p, int device) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "Host memory");
  p->pciBusID = device;
  p->major = 9;
  p->totalGlobalMem = (size_t)16 << 30;
  p->multiProcessorCount = MULTIPROCESSORS;
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  SUCCESS;
}
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) {
  (void)device;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = MULTIPROCESSORS; break;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio: *value = 2; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    default: *value = 0;
  }
  SUCCESS;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  SUCCESS;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  SUCCESS;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != NULL) *least = 0;
  if (greatest != NULL) *greatest = -5;
  SUCCESS;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  (void)device, (void)peer;
  *can = 1;
  SUCCESS;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  snprintf(text, (size_t)size, "0000:%02x:00.0", device);
  SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------- errors

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : error == cudaErrorMemoryAllocation ? "out of memory" : "invalid device";
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

// ---------------------------------------------------------------------------------------------------------- memory

cudaError_t cudaMalloc(void** memory, size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags) {
  (void)flags;
  return allocate(memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  free(memory);
  SUCCESS;
}
cudaError_t cudaFreeHost(void* memory) {
  free(memory);
  SUCCESS;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = (size_t)12 << 30;
  *total = (size_t)16 << 30;
  SUCCESS;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind) {
  (void)kind;
  memmove(to, from, bytes);
  SUCCESS;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  (void)stream;
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  (void)to_device, (void)from_device;
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  (void)stream;
  memset(memory, value, bytes);
  SUCCESS;
}
cudaError_t cudaGetSymbolAddress(void** memory, const void* symbol) {
  (void)symbol;
  return allocate(memory, 65536);
}

// ------------------------------------------------------------------------------------------------ streams, events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  (void)flags, (void)priority;
  return new_handle((void**)stream);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  (void)stream;
  *priority = 0;
  SUCCESS;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  (void)stream;
  *status = cudaStreamCaptureStatusNone;
  SUCCESS;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  (void)flags;
  return new_handle((void**)event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  SUCCESS;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  (void)stream;
  *(double*)event = milliseconds();
  SUCCESS;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  (void)flags;
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventElapsedTime(float* elapsed, cudaEvent_t begin, cudaEvent_t end) {
  *elapsed = (float)(*(double*)end - *(double*)begin);
  SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------- kernels

void** __cudaRegisterFatBinary(void* binary) {
  (void)binary;
  return calloc(1, sizeof(void*));
}
char __cudaInitModule(void** binary) {
  (void)binary;
  return 1;
}
static __thread struct {
  dim3 grid, block;
  size_t shared;
  void* stream;
} configuration;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configuration.grid = grid;
  configuration.block = block;
  configuration.shared = shared;
  configuration.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *(void**)stream = configuration.stream;
  SUCCESS;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  SUCCESS;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attributes, const void* function) {
  (void)function;
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  SUCCESS;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   size_t shared, unsigned flags) {
  (void)function, (void)threads, (void)shared, (void)flags;
  *blocks = 2;
  SUCCESS;
}

// ------------------------------------------------------------------------------------------------- driver (libcuda)

static int succeeds(void) { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult* result) {
  (void)name, (void)version, (void)flags;
  *function = (void*)succeeds;
  if (result != NULL) *result = cudaDriverEntryPointSuccess;
  SUCCESS;
}
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = &current_device;
  return 0;
}
