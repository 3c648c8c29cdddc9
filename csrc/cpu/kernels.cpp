// The CPU's table of functions (core/kernels.h): those of the C interface, which populate the pages of new results.
#include "core/kernels.h"

#include <memory>
#include <new>

#include "core/layout.h"
#include "core/tree_sum.h"
#include "cpu/populate.h"

namespace sinpe {
namespace {

int64_t bytes_of(const sinpe_add_arguments& a) { return product(a.sizes, a.rank) * size_of(a.dtype); }

bool is_ready(int32_t) { return true; }

sinpe_status table(int32_t, const DevicePlan& plan, int64_t start, int64_t length, sinpe_dtype dtype, void* out,
                   int64_t row_stride) {
  return sinpe_table(plan.packed, plan.n_words, start, length, dtype, out, row_stride);
}

sinpe_status encode(int32_t, const DevicePlan& plan, const void* positions, sinpe_dtype position_dtype, int64_t count,
                    sinpe_dtype dtype, void* out, int64_t row_stride) {
  return sinpe_encode(plan.packed, plan.n_words, positions, position_dtype, count, dtype, out, row_stride);
}

sinpe_status add(int32_t, const DevicePlan& plan, const sinpe_add_arguments& a, const DeviceScalars&, bool is_new) {
  const NewOutput output(a.out, is_new ? bytes_of(a) : 0);
  return sinpe_add(plan.packed, plan.n_words, &a);
}

sinpe_status add_grid(int32_t, const DevicePlan& grid, const void* values, int64_t n_values,
                      const sinpe_add_arguments& a, bool is_new) {
  const NewOutput output(a.out, is_new ? bytes_of(a) : 0);
  return sinpe_add_grid(grid.packed, grid.n_words, values, n_values, &a);
}

sinpe_status dropout(int32_t, const sinpe_add_arguments& a, bool is_new) {
  const NewOutput output(a.out, is_new ? bytes_of(a) : 0);
  return sinpe_dropout(&a);
}

sinpe_status alpha_gradient(int32_t, const DevicePlan& plan, const sinpe_add_arguments& a, double* sum) {
  const int64_t rows = product(a.sizes, a.rank - 1);
  std::unique_ptr<double[]> dots(new (std::nothrow) double[static_cast<size_t>(rows)]);
  if (dots == nullptr) return SINPE_NO_MEMORY;
  sinpe_add_arguments into = a;
  into.out = dots.get();
  const sinpe_status status = sinpe_row_dots(plan.packed, plan.n_words, &into, nullptr);
  *sum = tree_sum(dots.get(), rows);
  return status;
}

sinpe_status embed(int32_t, const DevicePlan& plan, sinpe_embed_arguments* e, const DeviceScalars&) {
  const NewOutput output(e->add.out, bytes_of(e->add));
  return sinpe_embed(plan.packed, plan.n_words, e);
}

constexpr int64_t kMaxElements = int64_t{1} << 31;
constexpr Kernels kKernels{
    sizeof(Kernels), /*in_host_memory=*/true, kMaxElements, is_ready, table, encode, add, add_grid,
    dropout,         alpha_gradient,          embed};

}  // namespace

const Kernels& cpu_kernels() { return kKernels; }

}  // namespace sinpe
