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
  SINPE_BAD_PLAN = 1,     /* the words are not a plan, or a grid, of this version */
  SINPE_BAD_ARGUMENT = 2, /* a null pointer, a negative size, an unknown type, a size that does not fit the plan, or an
                             out whose memory, gaps included, overlaps an operand (x of sinpe_add, sinpe_add_grid and
                             sinpe_dropout may be out) */
  SINPE_OUT_OF_RANGE = 3, /* a position beyond int64 */
  SINPE_NO_MEMORY = 4,
  SINPE_BAD_ID = 5,       /* an id that is no row of the weight; the arguments' bad_id tells which */
  SINPE_LAUNCH_FAILED = 6 /* of the CUDA half alone: the device refused */
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

/* Dropout without a stored mask. An element whose 16 random bits (Philox 4x32-10 keyed by the seed, counter element / 8,
 * lane element % 8) are below `drop` is dropped: +0 instead of the value. Kept ones are multiplied by
 * 65536 / (65536 - drop). The same seed and elements give the same mask in every function here. */
typedef struct {
  int32_t drop; /* 0 (none) .. 65536 (all), in 65536ths */
  int64_t seed;
  const int64_t* elements; /* null: numbered row-major. Else 1 + rank integers, base and a step for each dimension:
                              element [i, j, ...] has number base + i * step_0 + j * step_1 + ...; steps of 0 or
                              more, whose sum over all sizes int64 holds */
} sinpe_dropout_arguments;

/* out = dropout(scale * x + alpha * PE), in float32 (float64 for float64): each product is rounded, then the sum, then the
 * product with the kept scale, then once to x's type.
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
  int64_t position_strides[2];     /* batch, sequence; 0 broadcasts */
  int32_t positions_are_starts;    /* nonzero: int64, one per batch element, row s is at positions[b] + s */
  const uint8_t* padding_mask;     /* null, or nonzero where a row gets no encoding */
  int64_t mask_strides[2];         /* batch, sequence */
  sinpe_dropout_arguments dropout; /* zeroed: none */
} sinpe_add_arguments;

SINPE_API sinpe_status sinpe_add(const int64_t* plan, int64_t plan_words, const sinpe_add_arguments* arguments);

/* out = dropout(scale * x + PE) for places of a grid, whose PE is put together from rows of its axes.
 *   values: the axes' rows, times alpha: float32, float64 for float64
 *   grid: int64 words that say which of them feed which channels of which place (csrc/core/grid.h)
 *   arguments: as sinpe_add's, with the places, row-major, as the sequence; of a grid by channels, the channels stand in
 *     place of the sequence and the places in place of the channels, and there is no padding mask. alpha, start and
 *     positions are not read */
SINPE_API sinpe_status sinpe_add_grid(const int64_t* grid, int64_t grid_words, const void* values, int64_t n_values,
                                      const sinpe_add_arguments* arguments);

/* out = dropout(scale * x), rounded as in sinpe_add, for any rank from 1 on. Of the arguments it reads rank, sizes,
 * strides, x, out, dtype, scale and dropout. It is its own adjoint: the gradient of sinpe_add with respect to x. */
SINPE_API sinpe_status sinpe_dropout(const sinpe_add_arguments* arguments);

/* For each row of x, the sum over its channels of mask * x * slopes * PE, where mask is 0 or dropout's kept scale. Products
 * and sum are in double, in an order that depends on nothing but dim. Padded rows give 0. With x the gradient of
 * sinpe_add's result their sum is the gradient of alpha, and with the derivative's plan and slopes that of a position.
 *   arguments: as sinpe_add's; scale, alpha and out_strides are not read; out: double, one for each row of x, row-major
 *   slopes: null (ones), or dim factors */
SINPE_API sinpe_status sinpe_row_dots(const int64_t* plan, int64_t plan_words, const sinpe_add_arguments* arguments,
                                      const double* slopes);

/* out = dropout(scale * weight[id] + alpha * PE) for each id. */
typedef struct {
  sinpe_add_arguments add; /* rank, sizes and strides of out: those of ids (batch, any others, sequence; rank 1 has no
                              batch), then dim, whose elements are neighbours in memory. x: the weight, whose
                              x_strides are not read */
  const int64_t* ids;
  int64_t id_strides[SINPE_MAX_RANK]; /* rank - 1 of them, in elements */
  int64_t num_embeddings;
  int64_t weight_stride; /* from row to row of the weight, in elements */
  int64_t bad_id;        /* set by SINPE_BAD_ID: the first id that is no row; nothing has been written then */
} sinpe_embed_arguments;

SINPE_API sinpe_status sinpe_embed(const int64_t* plan, int64_t plan_words, sinpe_embed_arguments* arguments);

/* The gradient of sinpe_embed with respect to the weight: row v is factor * (the sum, in float32 or float64, of the kept
 * elements of grad where the id is v), rounded once more to grad's type. Up to 64 tokens are added in their order; of more,
 * each 64 in a row, their sums likewise, and so on (csrc/core/tree_sum.h). factor is scale times dropout's kept scale. Rows without a token and row padding_idx are +0, and all rows where all is dropped. Every
 * row is written once, whatever the threads. */
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
