// table: consecutive rows of an encoding.
#include "core/status.h"
#include "cpu/kept_rows.h"
#include "cpu/positions.h"

namespace sinpe {
namespace {

// Rows that are kept, too few for an output whose pages could be populated.
template <class T>
sinpe_status copy_rows(const KeptRows& kept, const Plan& plan, int64_t first, int64_t length, T* out, int64_t stride) {
  return parallel_status(length, std::max<int64_t>(1, kGrain / plan.dim), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin, n; r < end; r += n) {
      const float* rows = kept.at(first + r, &n);
      n = stride == plan.dim ? std::min(n, end - r) : 1;
      row_kernels().of<T>().round(rows, 1.0f, out + r * stride, n * plan.dim);
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
  // The start and end of a run cost as much as 1.5 of its rows. But more rows are repeated if a rounding is undecided, and
  // rows that lie a power of two apart compete for one set of the first-level cache. Measured: with vectors of eight
  // lanes, 16 rows of 4 KiB take 5 % longer than 8, with four lanes a sixteenth less.
  const int64_t run = row_kernels().lanes == 8 ? 8 : 16, bytes = length * plan.dim * int64_t{sizeof(T)};
  const Stores stores = NewPages().is_empty() ? stores_for(bytes, 0) : Stores::kCached;
  const sinpe_add_arguments no_positions{};
  return write_rows(plan, Positions(no_positions, first), length, run, stores, out, stride);
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
  return catch_out_of_memory([&] {
    return with_type(
        dtype, [&](auto type) { return table(plan, first, length, static_cast<decltype(type)*>(out), row_stride); });
  });
}

extern "C" int64_t sinpe_plan_dim(const int64_t* packed_plan, int64_t n_words) {
  sinpe::Plan plan;
  return sinpe::decode_plan(packed_plan, n_words, &plan) ? plan.dim : -1;
}

extern "C" const char* sinpe_isa(void) { return sinpe::row_kernels().name; }

extern "C" const char* sinpe_status_text(sinpe_status status) { return sinpe::status_text(status); }
