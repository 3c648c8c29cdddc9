// encode: rows at arbitrary positions.
#include "cpu/exceptions.h"
#include "cpu/populate.h"
#include "cpu/row_maker.h"

namespace sinpe {
namespace {

// Length of the run of consecutive integers that starts at positions[i], at most kAnchorRows.
int64_t run_length(const int64_t* positions, int64_t i, int64_t end) {
  int64_t n = 1;
  while (i + n < end && n < kAnchorRows && positions[i + n - 1] != INT64_MAX &&
         positions[i + n] == positions[i + n - 1] + 1) {
    ++n;
  }
  return n;
}

// Whether the positions contain a run that is worth an anchor. Tests only every kShortestRun-th position: a run of
// twice that length is always found, and computing a shorter one separately costs little.
bool has_run(const int64_t* positions, int64_t count) {
  for (int64_t i = 0; i + kShortestRun <= count; i += kShortestRun) {
    if (run_length(positions, i, i + kShortestRun) == kShortestRun) return true;
  }
  return false;
}

Position position_of(int64_t p) { return integer_position(p); }
Position position_of(double p) { return float_position(p); }

// Of few channels: a block of positions at a time.
template <class T, class P>
sinpe_status encode_blocks(const Plan& plan, const P* positions, int64_t count, T* out, int64_t stride) {
  const NewPages pages;
  return parallel_status(count, std::max<int64_t>(kBlockRows, kGrain / plan.dim), [&](int64_t begin, int64_t end) {
    RowMaker rows(plan, nullptr);
    PagesAhead ahead(pages, out + begin * stride, out + end * stride);
    for (int64_t i = begin; i < end; i += kBlockRows) {
      const int64_t n = std::min(kBlockRows, end - i);
      ahead.until(out + (i + n) * stride);
      rows.block(n, [&](int64_t r) { return position_of(positions[i + r]); }, out + i * stride, stride);
    }
  });
}

template <class T>
sinpe_status encode(const Plan& plan, const int64_t* positions, int64_t count, T* out, int64_t stride) {
  const bool runs = !fills_no_panel(plan) && has_run(positions, count);
  if (has_few_channels(plan) && !runs) return encode_blocks(plan, positions, count, out, stride);
  const std::unique_ptr<RowState> steps = shared_steps(plan, runs ? count : 0);
  const NewPages pages;
  return parallel_status(count, std::max<int64_t>(1, kGrain / plan.dim), [&](int64_t begin, int64_t end) {
    RowMaker rows(plan, steps.get());
    PagesAhead ahead(pages, out + begin * stride, out + end * stride);
    for (int64_t i = begin; i < end;) {
      const int64_t n = run_length(positions, i, end);
      ahead.until(out + (i + n) * stride);
      rows.consecutive(positions[i], n, out + i * stride, stride);
      i += n;
    }
  });
}

template <class T, class Real>
sinpe_status encode_real(const Plan& plan, const Real* positions, int64_t count, T* out, int64_t stride) {
  if (has_few_channels(plan)) return encode_blocks(plan, positions, count, out, stride);
  return parallel_status(count, std::max<int64_t>(1, kGrain / plan.dim), [&](int64_t begin, int64_t end) {
    RowMaker rows(plan, nullptr);
    for (int64_t i = begin; i < end; ++i) rows.one(float_position(positions[i]), out + i * stride);
  });
}

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_encode(const int64_t* packed_plan, int64_t n_words, const void* positions,
                                     sinpe_dtype position_dtype, int64_t count, sinpe_dtype dtype, void* out,
                                     int64_t row_stride) {
  using namespace sinpe;
  Plan plan;
  if (!decode_plan(packed_plan, n_words, &plan)) return SINPE_BAD_PLAN;
  if (count < 0 || row_stride < plan.dim || (count > 0 && (positions == nullptr || out == nullptr))) {
    return SINPE_BAD_ARGUMENT;
  }
  const int64_t sizes[] = {count, plan.dim}, strides[] = {row_stride, 1};
  const Span written(out, sizes, strides, 2, size_of(dtype));
  if (written.overlaps(Span(packed_plan, n_words, 8)) ||
      written.overlaps(Span(positions, count, size_of(position_dtype)))) {
    return SINPE_BAD_ARGUMENT;
  }
  try {
    return with_type(dtype, [&](auto type) {
      auto* rows = static_cast<decltype(type)*>(out);
      switch (position_dtype) {
        case SINPE_INT64: return encode(plan, static_cast<const int64_t*>(positions), count, rows, row_stride);
        case SINPE_FLOAT32: return encode_real(plan, static_cast<const float*>(positions), count, rows, row_stride);
        case SINPE_FLOAT64: return encode_real(plan, static_cast<const double*>(positions), count, rows, row_stride);
        default: return SINPE_BAD_ARGUMENT;
      }
    });
  } catch (const std::bad_alloc&) {
    return SINPE_NO_MEMORY;
  }
}
