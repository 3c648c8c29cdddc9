// The operators on the CPU, implemented by the C interface, sinpe.h.
#include "core/dtype.h"
#include "core/kernels.h"
#include "core/tree_sum.h"
#include "cpu/populate.h"
#include "torch/operators.h"

namespace {

using namespace sinpe_torch;

struct Call {
  Device device = Device::cpu();

  Call(const char*, const Tensor&) {}  // each operand is checked as it is used

  // A new result, which has never been written: the kernel populates its pages until this call ends.
  Tensor register_output(Tensor out) {
    new_output_.emplace(out.mutable_data_ptr(), out.numel() * static_cast<int64_t>(out.element_size()));
    return out;
  }

  PackedArray plan(const Tensor& packed_plan, int64_t, const char* name = "plan") const {
    return PackedArray(device, packed_plan, name);
  }

  void expect_dim(const PackedArray& plan, int64_t dim) const {
    const int64_t wanted = sinpe_plan_dim(plan.data, plan.size);
    if (wanted < 0) check_status(SINPE_BAD_PLAN);
    expect(dim == wanted, "dim: expected the plan's ", wanted, ", got ", dim);
  }

  void set_alpha(const Optional& alpha, sinpe_add_arguments* a) const {
    sinpe_dtype dtype;
    const void* number = alpha_of(device, alpha, &dtype);
    a->alpha = number == nullptr ? 1.0 : sinpe::value_of(number, dtype);
  }
  void set_seed(const Optional& seed, int64_t drop_threshold, sinpe_dropout_arguments* d) const {
    if (const int64_t* number = seed_of(device, seed, drop_threshold)) d->seed = *number;
  }

  void table(const PackedArray& plan, int64_t start, int64_t length, sinpe_dtype dtype, void* out,
             int64_t stride) const {
    check_status(sinpe_table(plan.data, plan.size, start, length, dtype, out, stride));
  }
  void encode(const PackedArray& plan, const void* positions, sinpe_dtype position_dtype, int64_t count,
              sinpe_dtype dtype, void* out, int64_t stride) const {
    check_status(sinpe_encode(plan.data, plan.size, positions, position_dtype, count, dtype, out, stride));
  }
  void add(const PackedArray& plan, const sinpe_add_arguments& a) const {
    check_status(sinpe_add(plan.data, plan.size, &a));
  }
  void add_grid(const PackedArray& grid, const void* values, int64_t n_values, const sinpe_add_arguments& a) const {
    const sinpe_status status = sinpe_add_grid(grid.data, grid.size, values, n_values, &a);
    expect(status != SINPE_BAD_PLAN, "grid: expected a packed grid tensor for ", n_values,
           " values, got another; pass sinpe_ext.operations.grid_rows.pack_grid(...)");
    expect(status != SINPE_BAD_ARGUMENT, "x: expected the points and channels of the grid, without a padding_mask ",
           "where it is one by channels, got other sizes, or an out that overlaps an operand");
    check_status(status);
  }
  void dropout(const sinpe_add_arguments& a) const { check_status(sinpe_dropout(&a)); }
  void row_dots(const PackedArray& plan, const sinpe_add_arguments& a, const double* angular_frequencies) const {
    check_status(sinpe_row_dots(plan.data, plan.size, &a, angular_frequencies));
  }
  void add_backward(const PackedArray& plan, sinpe_add_arguments a, double* dots) const {
    dropout(a);
    a.out = dots;
    row_dots(plan, a, nullptr);
  }
  void tree_sum(const double* terms, int64_t n, double* out) const { *out = sinpe::tree_sum(terms, n); }
  void embed(const PackedArray& plan, sinpe_embed_arguments& e) const {
    const sinpe_status status = sinpe_embed(plan.data, plan.size, &e);
    check_ids_status(status, e.bad_id, e.num_embeddings);
  }
  void embed_backward(sinpe_embed_backward_arguments& b) const {
    const sinpe_status status = sinpe_embed_backward(&b);
    check_ids_status(status, b.bad_id, b.num_embeddings);
  }

 private:
  std::optional<sinpe::NewOutput> new_output_;

  static void check_ids_status(sinpe_status status, int64_t bad_id, int64_t rows) {
    expect(status != SINPE_BAD_ID, "ids: expected 0 to ", rows - 1, ", rows of weight, got ", bad_id, " (weight has ",
           rows, " rows); check the tokenizer's vocabulary, or enlarge the embedding");
    check_status(status);
  }
};

std::string cpu_isa() { return sinpe_isa(); }

}  // namespace

extern "C" SINPE_API const sinpe::Kernels* sinpe_kernels() { return &sinpe::cpu_kernels(); }

STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CPU, m) { Operators<Call>::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CompositeExplicitAutograd, m) { m.impl("cpu_isa", TORCH_BOX(&cpu_isa)); }
