/* sinpe: sinusoidal positional encoding, the C interface.
 *
 * A plan is an array of 64-bit words that `python -m sinpe_ext export CONVENTION DIM -o plan.h` writes; it holds the exact
 * frequencies of one encoding. No function keeps a pointer, needs a table or allocates an output. float32 results are
 * correctly rounded; float64 results are within 1 ULP; 16-bit results are the float32 result rounded once more.
 *
 *   #include <sinpe/sinpe.h>
 *   #include "paper6.h"                        // static const int64_t paper6[], paper6_words
 *   float out[10 * 6];
 *   sinpe_table(paper6, paper6_words, 0, 10, SINPE_FLOAT32, out, 6);
 */
#ifndef SINPE_SINPE_H
#define SINPE_SINPE_H

#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define SINPE_API __attribute__((visibility("default")))
#else
#define SINPE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  SINPE_FLOAT32 = 0,
  SINPE_FLOAT64 = 1,
  SINPE_BFLOAT16 = 2,
  SINPE_FLOAT16 = 3,
  SINPE_INT64 = 4
} sinpe_dtype;

typedef enum {
  SINPE_OK = 0,
  SINPE_BAD_PLAN = 1,     /* the words are not a plan of this version */
  SINPE_BAD_ARGUMENT = 2, /* a null pointer, a negative size, an unknown type, a size that does not fit the plan */
  SINPE_OUT_OF_RANGE = 3, /* a position beyond int64 */
  SINPE_NO_MEMORY = 4
} sinpe_status;

/* One English sentence for a status. Never null. */
SINPE_API const char* sinpe_status_text(sinpe_status status);

/* Channels of a plan's rows, or -1 when the words are no plan. */
SINPE_API int64_t sinpe_plan_dim(const int64_t* plan, int64_t plan_words);

/* Instruction set of the kernels in use: "default", "v3" (AVX2) or "v4" (AVX-512). */
SINPE_API const char* sinpe_isa(void);

/* Rows at positions plan.start + start + 0 .. length-1.
 *   out: length rows of `dim` elements of type `dtype`, `row_stride` elements apart (row_stride >= dim) */
SINPE_API sinpe_status sinpe_table(const int64_t* plan, int64_t plan_words, int64_t start, int64_t length,
                                   sinpe_dtype dtype, void* out, int64_t row_stride);

/* Rows at `count` given positions (final: plan.start is not added), int64, float32 or float64; a float position is taken at
 * its exact value, and NaN or infinity gives a row of NaN. */
SINPE_API sinpe_status sinpe_encode(const int64_t* plan, int64_t plan_words, const void* positions,
                                    sinpe_dtype position_dtype, int64_t count, sinpe_dtype dtype, void* out,
                                    int64_t row_stride);

#define SINPE_MAX_RANK 16

/* out = scale * x + alpha * PE, in float32 (float64 for float64), each product rounded, then the sum, then once to x's type.
 * x and out have `rank` dimensions: batch, any others, sequence, channels; rank 2 has no batch. out may be x. */
typedef struct {
  int32_t rank;                        /* 2 .. SINPE_MAX_RANK */
  int64_t sizes[SINPE_MAX_RANK];       /* the last must be the plan's dim */
  int64_t x_strides[SINPE_MAX_RANK];   /* in elements */
  int64_t out_strides[SINPE_MAX_RANK]; /* in elements */
  const void* x;
  void* out;
  sinpe_dtype dtype;
  double scale, alpha;
  int64_t start;         /* with no positions: row s is at plan.start + start + s */
  const void* positions; /* null, or one position for each (batch, sequence) element; final */
  sinpe_dtype position_dtype;
  int64_t position_strides[2];  /* batch, sequence; 0 broadcasts */
  int32_t positions_are_starts; /* nonzero: int64, one per batch element, row s is at positions[b] + s */
  const uint8_t* padding_mask;  /* null, or nonzero where a row gets no encoding */
  int64_t mask_strides[2];      /* batch, sequence */
} sinpe_add_arguments;

SINPE_API sinpe_status sinpe_add(const int64_t* plan, int64_t plan_words, const sinpe_add_arguments* arguments);

#ifdef __cplusplus
}
#endif

#endif /* SINPE_SINPE_H */
