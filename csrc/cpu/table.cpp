// table: consecutive rows of an encoding.
#include "core/layout.h"
#include "core/status.h"
#include "cpu/exceptions.h"
#include "cpu/kept_rows.h"
#include "cpu/populate.h"
#include "cpu/row_maker.h"

namespace sinpe {
namespace {

// Rows per run. The start and end of a run cost as much as 1.5 of its rows. But more rows are repeated if a rounding is
// undecided, and rows that lie a power of two apart compete for one set of the first-level cache. Measured: with vectors
// of eight lanes, 16 rows of 4 KiB take 5 % longer than 8, with four lanes a sixteenth less.
int64_t rows_per_run() { return row_kernels().lanes == 8 ? 8 : 16; }

// Rows that are kept.
template <class T>
sinpe_status copy_rows(const KeptRows& kept, const Plan& plan, int64_t first, int64_t length, T* out, int64_t stride) {
  const NewPages pages;
  return parallel_status(length, std::max<int64_t>(1, kGrain / plan.dim), [&](int64_t begin, int64_t end) {
    PagesAhead ahead(pages, out + begin * stride, out + end * stride);
    ahead.until(out + end * stride);
    for (int64_t r = begin, n; r < end; r += n) {
      const float* rows = kept.at(first + r, &n);
      n = std::min(n, end - r);
      const bool dense = stride == plan.dim;
      for (int64_t k = 0; k < (dense ? 1 : n); ++k)
        row_kernels().of<T>().round(rows + k * plan.dim, 1.0f, out + (r + k) * stride, (dense ? n : 1) * plan.dim);
    }
  });
}

template <class T>
sinpe_status table(const Plan& plan, int64_t first, int64_t length, T* out, int64_t stride) {
  if constexpr (!std::is_same<T, double>::value) {
    KeptRows kept;
    if (length > 0 && kept.find(plan, first, first + (length - 1), length))
      return copy_rows(kept, plan, first, length, out, stride);
  }
  const std::unique_ptr<RowState> steps = shared_steps(plan, std::is_same<T, double>::value ? 0 : length);
  const NewPages pages;
  const Stores stores = pages.is_empty() ? stores_for(length * plan.dim * int64_t{sizeof(T)}, 0) : Stores::kCached;
  const int64_t tile = rows_per_run();
  return parallel_status(length, std::max<int64_t>(1, kGrain / plan.dim), [&](int64_t begin, int64_t end) {
    const StoreFence fence(stores);
    RowMaker rows(plan, steps.get(), stores);
    PagesAhead ahead(pages, out + begin * stride, out + end * stride);
    for (int64_t r = begin; r < end; r += tile) {
      ahead.until(out + std::min(r + tile, end) * stride);
      rows.consecutive(first + r, std::min(tile, end - r), out + r * stride, stride);
    }
  });
}

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_table(const int64_t* packed_plan, int64_t n_words, int64_t start, int64_t length,
                                    sinpe_dtype dtype, void* out, int64_t row_stride) {
  using namespace sinpe;
  Plan plan;
  if (!decode_plan(packed_plan, n_words, &plan)) return SINPE_BAD_PLAN;
  if (length < 0 || (length > 0 && out == nullptr) || row_stride < plan.dim) return SINPE_BAD_ARGUMENT;
  const int64_t sizes[] = {length, plan.dim}, strides[] = {row_stride, 1};
  if (Span(out, sizes, strides, 2, size_of(dtype)).overlaps(Span(packed_plan, n_words, 8))) return SINPE_BAD_ARGUMENT;
  int64_t first;
  if (!first_position(plan.start, start, length, &first)) return SINPE_OUT_OF_RANGE;
  try {
    return with_type(
        dtype, [&](auto type) { return table(plan, first, length, static_cast<decltype(type)*>(out), row_stride); });
  } catch (const std::bad_alloc&) {
    return SINPE_NO_MEMORY;
  }
}

extern "C" int64_t sinpe_plan_dim(const int64_t* packed_plan, int64_t n_words) {
  sinpe::Plan plan;
  return sinpe::decode_plan(packed_plan, n_words, &plan) ? plan.dim : -1;
}

extern "C" const char* sinpe_isa(void) { return sinpe::row_kernels().name; }

extern "C" const char* sinpe_status_text(sinpe_status status) { return sinpe::status_text(status); }
