// The operators on the CPU (core/operators.h): the functions of the C interface, which populate the pages of new results.
#include <optional>

#include "core/operators.h"
#include "core/tree_sum.h"
#include "cpu/ids.h"
#include "cpu/populate.h"
#include "cpu/tiles.h"

namespace sinpe {
namespace {

struct Call {
  static constexpr int32_t kDeviceType = kHostMemory;
  static constexpr bool kReadsMemory = true;
  std::optional<NewOutput> new_output;

  explicit Call(int32_t) {}
  static void check(sinpe_status status) { check_status(status); }
  void register_output(const void* data, int64_t bytes) { new_output.emplace(data, bytes); }
  static int64_t dim_of(const DevicePlan& p) { return sinpe_plan_dim(p.packed, p.n_words); }

  static sinpe_status examine(Op op, Arguments* g) {
    sinpe_embed_arguments& e = g->embed;
    if ((op != Op::kAdd && op != Op::kEmbed) || g->axis_rows != nullptr) return SINPE_OK;
    Plan plan;
    int64_t first;
    if (!decode_plan(g->plan.packed, g->plan.n_words, &plan)) return SINPE_BAD_PLAN;
    const sinpe_status status = check_arguments(plan, e.add, &first);
    if (status != SINPE_OK) return status;
    if (!has_no_overlap(span_of_out(e.add), g->plan.packed, g->plan.n_words, e.add)) return SINPE_BAD_ARGUMENT;
    if (op == Op::kAdd || Shape(e.add).empty()) return SINPE_OK;
    const bool are_rows = check_ids(e.ids, e.add.sizes, e.id_strides, e.add.rank - 1, e.num_embeddings, &e.bad_id);
    return are_rows ? SINPE_OK : SINPE_BAD_ID;
  }

  static sinpe_status run(Op op, Arguments* g) {
    const int64_t *plan = g->plan.packed, words = g->plan.n_words;
    sinpe_add_arguments& a = g->embed.add;
    const View* axis_rows = g->axis_rows;
    switch (op) {
      case Op::kTable: return sinpe_table(plan, words, a.start, a.sizes[0], a.dtype, a.out, a.out_strides[0]);
      case Op::kEncode:
        return sinpe_encode(plan, words, a.positions, a.position_dtype, a.sizes[0], a.dtype, a.out, a.out_strides[0]);
      case Op::kAdd:
        if (axis_rows == nullptr) return sinpe_add(plan, words, &a);
        return sinpe_add_grid(plan, words, axis_rows->data, axis_rows->sizes[0], &a);
      case Op::kAddBackward:
        if (const sinpe_status status = sinpe_dropout(&a); status != SINPE_OK) return status;
        [[fallthrough]];
      case Op::kRowDots: a.out = g->dots; return sinpe_row_dots(plan, words, &a, g->angular_frequencies);
      case Op::kDropout: return sinpe_dropout(&a);
      case Op::kTreeSum:
        *static_cast<double*>(a.out) = tree_sum(static_cast<const double*>(a.x), a.sizes[0]);
        return SINPE_OK;
      case Op::kEmbed: return sinpe_embed(plan, words, &g->embed);
      case Op::kEmbedBackward: return sinpe_embed_backward(&g->embed_backward);
    }
    return SINPE_BAD_ARGUMENT;
  }
};

constexpr Kernels kKernels{sizeof(Kernels), /*in_host_memory=*/true, /*max_elements=*/int64_t{1} << 31,
                           /*is_ready=*/[](int32_t) { return true; }, run_operator<Call>};

}  // namespace

const Kernels& cpu_kernels() { return kKernels; }

}  // namespace sinpe
