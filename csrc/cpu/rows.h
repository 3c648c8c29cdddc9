// Row kernels: what makes rows of the encoding and applies them to data, one set per instruction set (each cpu/rows_*.cpp
// compiles cpu/rows.inc), selected once at run time. All sets give the same float32, bfloat16 and float16 bits:
// core/exact.h decides every rounding that the arithmetic leaves undecided.
#pragma once

#include <memory>
#include <type_traits>

#include "core/exact.h"
#include "core/philox.h"
#include "core/round.h"
#include "core/sample.h"
#include "core/tree_sum.h"
#include "cpu/stores.h"

namespace sinpe {

constexpr int kPanel = 16;  // oscillators that a kernel keeps in registers while it iterates over rows

constexpr int64_t kBlockRows = 64;  // positions that a kernel for few channels takes at a time

// Whether neither stream (core/plan.h: the sines, or the cosines) fills a panel, most of whose lanes would compute
// nothing.
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

// Streaming: rows of the encoding are added to data while they are computed, without a tile (rows_stream.inc). (The
// streams of a plan, core/plan.h, are something else.) At most kStreamedRows rows of data, to each of which one row of
// the encoding is added: the addresses that are read and written, and the RNG offset of each row's first element.
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

// Slices of x per load of the encoding: those of four streams of memory, which lie a power of two apart as a rule. Eight
// streams take 7 % longer (Xeon). In place, two take a fifth longer than four, on one thread (Zen 4).
constexpr int kAddSlices = 2, kAddSlicesInPlace = 4;

// What the dot products of rows have in common. Rows of x are row_stride elements apart, RNG offsets rng_step; weights may
// be null: ones.
struct DotOptions {
  int64_t dim, row_stride, rng_step;
  const double* weights;
  double factor;
  Dropout dropout;
};

// The kernels for elements of type T, in rows_direct.inc, rows_rotate.inc, rows_stream.inc and, from `add` on,
// rows_apply.inc. float64 has no `rotate` and `stream`, 16-bit types no `direct`.
template <class T>
struct KernelsOf {
  using Real = accumulate_t<T>;
  // One row, computed directly from a position for which fast_position() is true.
  void (*direct)(const Plan& plan, double position, T* row);
  // Rows at n <= kBlockRows such positions, of a plan for which has_few_channels() is true; returns false, with none
  // written, for amplitudes and positions so small that the bounds are not valid. *near_zeros: 0 at first, and the same
  // variable for every block of a call.
  bool (*block)(const Plan& plan, const double* positions, int64_t n, T* out, int64_t stride, int* near_zeros);
  // Writes n rows, starting with the state's row, and advances the state. `position` is that of the first row.
  void (*rotate)(RowState& state, int64_t position, int64_t n, T* out, int64_t stride, Stores stores);
  // out = dropout(scale * x + alpha * PE) for the next n rows; x may be out.
  void (*stream)(RowState& state, int64_t position, int64_t n, const StreamedRows<T>& rows,
                 const StreamOptions& options);
  // out[k][i] = scale * x[k][i] + row[i] for `count` slices of x, with dropout at most kAddSlicesInPlace, rounded to Real
  // after each step, then dropout, then rounded to T. `row` already contains round(alpha*PE); if it is null, scale * x alone.
  // rng_offset[k] is the RNG offset of x[k][0], not read without dropout. x[k] and out[k] may be the same memory. `stores` is
  // ignored with dropout, and without a row.
  void (*add)(const T* const* x, const Real* row, T* const* out, int count, int64_t n, Real scale,
              const Dropout& dropout, const uint64_t* rng_offset, Stores stores);
  // The same, with dropout, for kLanesPerCounter lines of n elements, each with its own row (null: none). Their
  // RNG offsets are consecutive at each element, from a multiple of kLanesPerCounter; rng_offset is that of x[0][0].
  void (*drop_eight)(const T* const* x, const Real* const* rows, T* const* out, int64_t n, Real scale,
                     const Dropout& dropout, uint64_t rng_offset);
  // For each of n rows: out[r] = factor * the sum of x[r][i] * rows[r][i] * weights[i] over the elements that are not
  // dropped, in double. rng_offset is the RNG offset of the first element, not read without dropout.
  void (*dots)(const T* x, const Real* rows, double* out, int64_t n, uint64_t rng_offset, const DotOptions& options);
  // sum[i] += x[i] for the elements that are not dropped.
  void (*accumulate)(const T* x, Real* sum, int64_t n, const Dropout& dropout, uint64_t rng_offset);
  // out[i] = factor * row[i], rounded to Real, then to T.
  void (*round)(const Real* row, Real factor, T* out, int64_t n);
};

struct RowKernels {
  const char* name;
  int lanes;  // doubles per vector
  // Computes the state's steps; fast_position() must be true for position 1.
  void (*steps)(RowState& state);
  // Sets the state, bounds included, to the row at a position for which fast_position() is true (`fast`); otherwise
  // sets the bounds only.
  void (*anchor)(RowState& state, double position, bool fast);
  KernelsOf<float> of_float;
  KernelsOf<double> of_double;
  KernelsOf<bfloat16> of_bfloat16;
  KernelsOf<float16> of_float16;

  template <class T>
  const KernelsOf<T>& of() const {
    if constexpr (std::is_same<T, float>::value) {
      return of_float;
    } else if constexpr (std::is_same<T, double>::value) {
      return of_double;
    } else if constexpr (std::is_same<T, bfloat16>::value) {
      return of_bfloat16;
    } else {
      return of_float16;
    }
  }
};

// The kernels for this CPU, or those selected by SINPE_EXT_CPU_ISA=default|v3|v4 (ignored if the CPU lacks the
// instruction set).
const RowKernels& row_kernels();

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
