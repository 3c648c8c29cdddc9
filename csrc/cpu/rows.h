// Row kernels: one set per instruction set (each cpu/rows_*.cpp compiles cpu/rows.inc), selected once at run time. All
// sets give the same float32, bfloat16 and float16 bits: core/exact.h decides every rounding that the arithmetic leaves
// undecided.
#pragma once

#include <memory>
#include <type_traits>

#include "core/exact.h"
#include "core/sample.h"
#include "cpu/elementwise.h"

namespace sinpe {

constexpr int kPanel = 16;  // oscillators that a kernel keeps in registers while it iterates over rows

constexpr int64_t kBlockRows = 64;  // positions that a kernel for few channels takes at a time

// Whether no stream fills a panel, most of whose lanes would compute nothing.
inline bool fills_no_panel(const Plan& plan) { return plan.n0 < kPanel && plan.n1 < kPanel; }
// The same of a second panel: a block of positions is then faster than one row after another, though not than the rotation
// of consecutive rows.
inline bool has_few_channels(const Plan& plan) {
  return fills_no_panel(plan) || (plan.n0 < 2 * kPanel && plan.n1 < 2 * kPanel && plan.n0 != kPanel);
}

constexpr int64_t padded(int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }

// Assignment of a plan's channels to lanes of oscillators. Pairs: lane i provides the sine of one stream and the cosine
// of the other. Streams: each channel has its own lane (also for shared frequencies with the cosine interleaved first).
struct Lanes {
  bool pairs;
  int64_t count[2];     // channels of each stream
  int64_t begin[2];     // first lane of each stream
  int64_t total;        // lanes, a multiple of kPanel for each stream
  int64_t osc_base[2];  // oscillator of each stream's channel 0
  int64_t osc_count[2];
};

Lanes lanes_of(const Plan& plan);

// The state of a run of consecutive rows: per lane the value, the value a quarter turn ahead, and its step.
class RowState {
 public:
  explicit RowState(const Plan& plan);
  const Plan* plan;
  Lanes lanes;
  double *value, *ahead;        // [lanes.total]
  double *step_cos, *step_sin;  // [lanes.total], cos and sin of one position's phase
  double* bound;                // [lanes.total], error bound of `value`; that of `ahead` is ahead_bound
  double ahead_bound;
  bool is_normal;  // whether every value is 0, at least kMinNormalValue (core/round.h), or smaller than its bound
  void share_steps(const RowState& from);  // refers to another state's steps, which must outlive this one
  void compute_steps();

 private:
  std::unique_ptr<double[]> storage_;
};

// At most kStreamedRows rows of data, to each of which one row of the encoding is added: the addresses that are read
// and written, and the RNG offset of each row's first element.
constexpr int kStreamedRows = 8;
template <class T>
struct StreamedRows {
  const T* x[kStreamedRows];
  T* out[kStreamedRows];
  uint64_t rng_offset[kStreamedRows];
};
struct StreamOptions {
  float scale, alpha;
  Dropout dropout;
  Stores stores;
};

struct RowKernels {
  const char* name;
  int lanes;  // doubles per vector
  // One row, reduced directly, at a position for which fast_position() is true.
  void (*direct_float)(const Plan& plan, double position, float* row);
  void (*direct_double)(const Plan& plan, double position, double* row);
  // Rows at n <= kBlockRows such positions, of a plan for which has_few_channels() is true; returns false, with none
  // written, for amplitudes and positions so small that the bounds are not valid. *near_zeros: 0 at first, and the same
  // variable for every block of a call.
  bool (*block_float)(const Plan& plan, const double* positions, int64_t n, float* out, int64_t stride,
                      int* near_zeros);
  bool (*block_double)(const Plan& plan, const double* positions, int64_t n, double* out, int64_t stride,
                       int* near_zeros);
  bool (*block_bfloat16)(const Plan& plan, const double* positions, int64_t n, bfloat16* out, int64_t stride,
                         int* near_zeros);
  bool (*block_float16)(const Plan& plan, const double* positions, int64_t n, float16* out, int64_t stride,
                        int* near_zeros);
  // Computes the state's steps; fast_position() must be true for position 1.
  void (*steps)(RowState& state);
  // Sets the state, bounds included, to the row at a position for which fast_position() is true (`fast`); otherwise
  // sets the bounds only.
  void (*anchor)(RowState& state, double position, bool fast);
  // Writes n rows, starting with the state's row, and advances the state. `position` is that of the first row.
  void (*rotate_float)(RowState& state, int64_t position, int64_t n, float* out, int64_t stride, Stores stores);
  void (*rotate_bfloat16)(RowState& state, int64_t position, int64_t n, bfloat16* out, int64_t stride, Stores stores);
  void (*rotate_float16)(RowState& state, int64_t position, int64_t n, float16* out, int64_t stride, Stores stores);
  // out = dropout(scale * x + alpha * PE) for the next n rows; x may be out.
  void (*stream_float)(RowState& state, int64_t position, int64_t n, const StreamedRows<float>& rows,
                       const StreamOptions& options);
  void (*stream_bfloat16)(RowState& state, int64_t position, int64_t n, const StreamedRows<bfloat16>& rows,
                          const StreamOptions& options);
  void (*stream_float16)(RowState& state, int64_t position, int64_t n, const StreamedRows<float16>& rows,
                         const StreamOptions& options);
  Elementwise<float> of_float;
  Elementwise<double> of_double;
  Elementwise<bfloat16> of_bfloat16;
  Elementwise<float16> of_float16;
};

// The kernels for this CPU, or those selected by SINPE_EXT_CPU_ISA=default|v3|v4 (ignored if the CPU lacks the
// instruction set).
const RowKernels& row_kernels();

inline const Elementwise<float>& elementwise(const RowKernels& kernels, float) { return kernels.of_float; }
inline const Elementwise<double>& elementwise(const RowKernels& kernels, double) { return kernels.of_double; }
inline const Elementwise<bfloat16>& elementwise(const RowKernels& kernels, bfloat16) { return kernels.of_bfloat16; }
inline const Elementwise<float16>& elementwise(const RowKernels& kernels, float16) { return kernels.of_float16; }

// The elementwise kernels in use for T.
template <class T>
const Elementwise<T>& elementwise() {
  return elementwise(row_kernels(), T{});
}

extern const RowKernels kRowKernelsDefault;
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define SINPE_X86_LEVELS 1
extern const RowKernels kRowKernelsV3;
extern const RowKernels kRowKernelsV4;
#endif

// One entry in exact arithmetic (core/exact.h): long and rare, so not inlined.
float exact_entry(const Plan& plan, Position position, int64_t osc, int q);
double exact_double_entry(const Plan& plan, Position position, int64_t osc, int q);

// One row, entry by entry, at any finite position.
void exact_row(const Plan& plan, Position position, float* row);
void exact_row(const Plan& plan, Position position, double* row);

// Whether every value in [v - e, v + e] is rounded to the same float. Compared as bits, because -0 and +0 are different
// results.
SINPE_HD bool is_decided(double v, double e) {
  return bit_cast<uint32_t>(static_cast<float>(v - e)) == bit_cast<uint32_t>(static_cast<float>(v + e));
}

// Recomputes the entries of one panel whose rounding is not decided by [v - e, v + e].
void resolve_panel(const Plan& plan, Position position, int64_t osc, int q, const double* v, const double* e, int n,
                   float* out);

// Sets channels [n0 + n1, dim) to zero.
template <class T>
SINPE_HD void zero_tail(const Plan& plan, T* row) {
  for (int64_t j = plan.n0 + plan.n1; j < plan.dim; ++j) row[j] = T{};
}

}  // namespace sinpe
