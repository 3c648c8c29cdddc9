/* sinpe: sinusoidal positional encoding, the C interface.
 *
 * A plan is an array of 64-bit words with the exact frequencies of one encoding, as written by
 * `python -m sinpe_ext export CONVENTION DIM -o plan.h`. Functions do not keep pointers, store tables or allocate
 * outputs. float32 results are correctly rounded; float64 results are within 1 ULP (1.05 if the amplitude is not a power
 * of two); 16-bit results are the float32 result rounded once more.
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
  SINPE_BAD_PLAN = 1,     /* not a plan, or not a grid, of this version */
  SINPE_BAD_ARGUMENT = 2, /* a null pointer, a negative size, an unknown type, a size that does not fit the plan, or an
                             out whose memory, gaps included, overlaps an operand (x of sinpe_add, sinpe_add_grid and
                             sinpe_dropout may be out) */
  SINPE_OUT_OF_RANGE = 3, /* a position beyond int64 */
  SINPE_NO_MEMORY = 4,
  SINPE_BAD_ID = 5,       /* an id that is not a row of the weight; it is stored in the arguments' bad_id */
  SINPE_LAUNCH_FAILED = 6 /* CUDA library only: a kernel could not be launched */
} sinpe_status;

/* A message for a status, in English. Never null. */
SINPE_API const char* sinpe_status_text(sinpe_status status);

/* Number of channels of a plan's rows, or -1 if the array is not a plan. */
SINPE_API int64_t sinpe_plan_dim(const int64_t* plan, int64_t plan_words);

/* Instruction set of the kernels in use: "default", "v3" (AVX2) or "v4" (AVX-512). */
SINPE_API const char* sinpe_isa(void);

/* Rows at positions plan.start + start + 0 .. length-1.
 *   out: length rows of `dim` elements of type `dtype`, `row_stride` elements apart (row_stride >= dim) */
SINPE_API sinpe_status sinpe_table(const int64_t* plan, int64_t plan_words, int64_t start, int64_t length,
                                   sinpe_dtype dtype, void* out, int64_t row_stride);

/* Rows at `count` given positions (plan.start is not added), int64, float32 or float64. The value of a float position
 * is taken as exact; NaN or infinity gives a row of NaN. */
SINPE_API sinpe_status sinpe_encode(const int64_t* plan, int64_t plan_words, const void* positions,
                                    sinpe_dtype position_dtype, int64_t count, sinpe_dtype dtype, void* out,
                                    int64_t row_stride);

#define SINPE_MAX_RANK 16

/* Dropout without a stored mask. Each element has an RNG offset e; if its 16 random bits (Philox 4x32-10 with the
 * seed as key, counter e / 8, lane e % 8) are below `drop_threshold`, the result is +0, otherwise it is
 * multiplied by 65536 / (65536 - drop_threshold). The same seed and RNG offsets give the same mask in all functions. */
typedef struct {
  int32_t drop_threshold; /* the dropout probability in units of 1/65536, 0 (none) .. 65536 (all) */
  int64_t seed;
  const int64_t* rng_offsets; /* Null: the row-major index. Otherwise 1 + rank integers, a base and a stride for each
                                 dimension: element [i, j, ...] has the offset base + i * stride_0 + j * stride_1 + ...;
                                 strides of 0 or more, with the sum of size * stride within int64 */
} sinpe_dropout_arguments;

/* out = dropout(scale * x + alpha * PE), in float32 (float64 for float64): each product is rounded, then the sum,
 * then the product with the dropout factor 65536 / (65536 - drop_threshold), then the conversion to x's type. x and
 * out have `rank` dimensions: batch, any others, sequence, channels; rank 2 has no batch. out may be x. */
typedef struct {
  int32_t rank;                        /* 2 .. SINPE_MAX_RANK */
  int64_t sizes[SINPE_MAX_RANK];       /* the last must be the plan's dim */
  int64_t x_strides[SINPE_MAX_RANK];   /* in elements */
  int64_t out_strides[SINPE_MAX_RANK]; /* in elements */
  const void* x;
  void* out;
  sinpe_dtype dtype;
  const void* positions; /* null, or one position per (batch, sequence) element, to which nothing is added */
  sinpe_dtype position_dtype;
  int64_t position_strides[2]; /* batch, sequence; 0 broadcasts */
  const uint8_t* padding_mask; /* null, or nonzero for rows to which no encoding is added */
  int64_t mask_strides[2];     /* batch, sequence */
  double alpha;
  int64_t start;                /* without positions: row s is at plan.start + start + s */
  int32_t positions_are_starts; /* nonzero: int64, one per batch element; row s is at positions[b] + s */
  double scale;
  sinpe_dropout_arguments dropout; /* all zero: no dropout */
} sinpe_add_arguments;

SINPE_API sinpe_status sinpe_add(const int64_t* plan, int64_t plan_words, const sinpe_add_arguments* arguments);

/* out = dropout(scale * x + PE) for the points of a grid, whose PE is combined from rows of its axes.
 *   values: the rows of the axes, times alpha: float32, float64 for float64
 *   grid: int64 words that define which of them provide which channels of which grid point (csrc/core/grid.h)
 *   arguments: as for sinpe_add; the grid points, row-major, are the sequence. For a grid by channels, the sequence
 *     dimension is the channels and the channel dimension is the grid points, and there is no padding mask. alpha,
 *     start and positions are not read */
SINPE_API sinpe_status sinpe_add_grid(const int64_t* grid, int64_t grid_words, const void* values, int64_t n_values,
                                      const sinpe_add_arguments* arguments);

/* out = dropout(scale * x), rounded as in sinpe_add, for any rank of 1 or more. Reads only rank, sizes, strides, x,
 * out, dtype, scale and dropout. The operation is its own adjoint: applied to the gradient of sinpe_add's result, it
 * gives the gradient with respect to x. */
SINPE_API sinpe_status sinpe_dropout(const sinpe_add_arguments* arguments);

/* For each row of x, the sum over its channels of mask * x * angular_frequencies * PE, where mask is 0 or the dropout
 * factor. Products and sums are in double, in an order that depends only on dim. Padded rows give 0. If x is the
 * gradient of sinpe_add's result, the total of the sums is the gradient of alpha; with the plan of the derivative and
 * its angular_frequencies, each sum is the gradient of a position.
 *   arguments: as for sinpe_add; scale, alpha and out_strides are not read; out: double, one per row of x, row-major
 *   angular_frequencies: null (ones), or dim factors */
SINPE_API sinpe_status sinpe_row_dots(const int64_t* plan, int64_t plan_words, const sinpe_add_arguments* arguments,
                                      const double* angular_frequencies);

/* out = dropout(scale * weight[id] + alpha * PE) for each id. */
typedef struct {
  sinpe_add_arguments add; /* rank, sizes and strides of out: those of ids (batch, any others, sequence; rank 1 has no
                              batch), then dim, which must be contiguous. x: the weight; x_strides are not read */
  const int64_t* ids;
  int64_t id_strides[SINPE_MAX_RANK]; /* rank - 1 of them, in elements */
  int64_t num_embeddings;
  int64_t weight_stride; /* from row to row of the weight, in elements */
  int64_t bad_id;        /* set with SINPE_BAD_ID: the first id that is not a row; then nothing has been written */
} sinpe_embed_arguments;

SINPE_API sinpe_status sinpe_embed(const int64_t* plan, int64_t plan_words, sinpe_embed_arguments* arguments);

/* The gradient of sinpe_embed with respect to the weight: row v is factor * (the sum, in float32 or float64, of the
 * elements of grad that are not dropped and whose id is v), rounded once more to grad's type. Up to 64 tokens are
 * added in their order; for more, a tree sums each 64 consecutive tokens, then their sums, and so on
 * (csrc/core/tree_sum.h). factor is scale times the dropout factor. Rows without a token and row padding_idx are +0,
 * and so are all rows if all elements are dropped. Every row is written once, with any number of threads. */
typedef struct {
  int32_t rank;                         /* of grad: 2 .. SINPE_MAX_RANK */
  int64_t sizes[SINPE_MAX_RANK];        /* those of ids, then dim */
  int64_t grad_strides[SINPE_MAX_RANK]; /* in elements */
  int64_t id_strides[SINPE_MAX_RANK];   /* rank - 1 of them */
  const void* grad;
  const int64_t* ids;
  void* out; /* (num_embeddings, dim), contiguous */
  sinpe_dtype dtype;
  int64_t num_embeddings, padding_idx; /* padding_idx -1: none */
  double scale;
  sinpe_dropout_arguments dropout;
  int64_t bad_id; /* as in sinpe_embed_arguments */
} sinpe_embed_backward_arguments;

SINPE_API sinpe_status sinpe_embed_backward(sinpe_embed_backward_arguments* arguments);

#ifdef __cplusplus
}
#endif

#endif /* SINPE_SINPE_H */
