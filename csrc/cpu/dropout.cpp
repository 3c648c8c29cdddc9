// dropout: out = round(scale*x) with dropout and no encoding; also the gradient of add with respect to x.
#include <algorithm>
#include <vector>

#include "core/layout.h"
#include "cpu/exceptions.h"
#include "cpu/populate.h"
#include "cpu/rows.h"

namespace sinpe {
namespace {

constexpr int64_t kChunk = 8192;  // elements per kernel call

// Whether `drop_eight` can take lines, the rows of the last but one dimension: those of channels first, with the RNG
// offsets of channels last.
bool drops_eight(const Merged& m, const RngOffsets& offsets) {
  const int inner = m.rank - 1;
  if (inner < 1 || m.rng_offsets[inner - 1] != 1 || m.sizes[inner - 1] % kLanesPerCounter != 0) return false;
  bool aligned = m.x[inner] == 1 && m.out[inner] == 1 && offsets.base % kLanesPerCounter == 0;
  for (int d = 0; d < m.rank; ++d) aligned = aligned && (d == inner - 1 || m.rng_offsets[d] % kLanesPerCounter == 0);
  return aligned;
}

template <class T>
sinpe_status dropout(const sinpe_add_arguments& a) {
  using Real = accumulate_t<T>;
  const RngOffsets rng_offsets(a.dropout, a.sizes, a.rank);
  const Merged m(a, rng_offsets);
  const int inner = m.rank - 1, outer = std::max(0, inner - 1);
  const bool eight = a.dropout.drop_threshold != 0 && drops_eight(m, rng_offsets);
  // A task: a chunk of each of `lines` lines, so that short lines do not cost a task each.
  const int64_t width = m.sizes[inner], x_step = m.x[inner], out_step = m.out[inner];
  const int64_t all_lines = inner > 0 ? m.sizes[outer] : 1, few = std::max<int64_t>(1, kChunk / width);
  const int64_t lines = eight ? kLanesPerCounter : std::min(all_lines, few), groups = (all_lines + lines - 1) / lines;
  const int64_t chunks = (width + kChunk - 1) / kChunk, tasks = product(m.sizes, outer) * groups * chunks;
  const int64_t x_line = inner > 0 ? m.x[outer] : 0, out_line = inner > 0 ? m.out[outer] : 0;
  const int64_t rng_line = inner > 0 ? m.rng_offsets[outer] : 0;
  const Dropout parameters = dropout_of(a.dropout, m.rng_offsets[inner]);
  const Real scale = static_cast<Real>(a.scale);
  const KernelsOf<T>& kernels = row_kernels().of<T>();
  const int64_t grain = std::max<int64_t>(1, kGrain / (lines * std::min(width, kChunk)));
  const NewPages pages;
  T* const first_out = static_cast<T*>(a.out);
  bool is_dense = !eight && out_step == 1;  // then tasks are in the order of memory
  for (int d = 0; d < inner; ++d) is_dense = is_dense && m.out[d] == m.out[d + 1] * m.sizes[d + 1];
  const auto out_at = [&](int64_t task) {
    const int64_t line = task / chunks % groups * lines, index = task / chunks / groups;
    return first_out + offset_at(m.sizes, m.out, outer, index) + line * out_line + task % chunks * kChunk * out_step;
  };
  return parallel_status(tasks, grain, [&](int64_t begin, int64_t end) {
    std::vector<T> dense_x(x_step == 1 ? 0 : static_cast<size_t>(kChunk));
    std::vector<T> dense_out(out_step == 1 ? 0 : static_cast<size_t>(kChunk));
    T* const out_end = end < tasks ? out_at(end) : first_out + product(m.sizes, m.rank);
    PagesAhead ahead(pages, out_at(begin), is_dense ? out_end : out_at(begin));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t at = task % chunks * kChunk, line = task / chunks % groups * lines, index = task / chunks / groups;
      const int64_t n = std::min(kChunk, width - at);
      const T* x = static_cast<const T*>(a.x) + offset_at(m.sizes, m.x, outer, index) + line * x_line + at * x_step;
      T* out = out_at(task);
      uint64_t rng_offset = rng_offsets.base + static_cast<uint64_t>(offset_at(m.sizes, m.rng_offsets, outer, index) +
                                                                     line * rng_line + at * m.rng_offsets[inner]);
      const int64_t last = std::min(line + lines, all_lines);
      if (is_dense) ahead.until(out + (last - line - 1) * out_line + n);
      if (eight) {
        const T* from[kLanesPerCounter];
        T* to[kLanesPerCounter];
        for (int k = 0; k < kLanesPerCounter; ++k) {
          from[k] = x + k * x_line;
          to[k] = out + k * out_line;
        }
        kernels.drop_eight(from, nullptr, to, n, scale, parameters, rng_offset);
        continue;
      }
      // Several lines for a kernel call, which costs as much as some dozens of elements.
      const int64_t at_once = x_step == 1 && out_step == 1 ? kAddSlicesInPlace : 1;
      for (int64_t k = line; k < last; k += at_once) {
        const T* from[kAddSlicesInPlace];
        T* to[kAddSlicesInPlace];
        uint64_t offsets[kAddSlicesInPlace];
        const int count = static_cast<int>(std::min(at_once, last - k));
        for (int j = 0; j < count; ++j, x += x_line, out += out_line, rng_offset += static_cast<uint64_t>(rng_line))
          from[j] = x, to[j] = out, offsets[j] = rng_offset;
        for (int64_t i = 0; i < n && x_step != 1; ++i) dense_x[static_cast<size_t>(i)] = from[0][i * x_step];
        if (x_step != 1) from[0] = dense_x.data();
        if (out_step != 1) to[0] = dense_out.data();
        kernels.add(from, nullptr, to, count, n, scale, parameters, offsets, Stores::kCached);
        for (int64_t i = 0; i < n && out_step != 1; ++i) (out - out_line)[i * out_step] = to[0][i];
      }
    }
  });
}

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_dropout(const sinpe_add_arguments* a) {
  using namespace sinpe;
  if (a == nullptr || a->rank < 1 || a->rank > SINPE_MAX_RANK || !valid_sizes(a->sizes, a->rank) ||
      !valid_dropout(a->dropout, a->sizes, a->rank)) {
    return SINPE_BAD_ARGUMENT;
  }
  if (product(a->sizes, a->rank) == 0) return SINPE_OK;
  if (a->x == nullptr || a->out == nullptr) return SINPE_BAD_ARGUMENT;
  const Span written(a->out, a->sizes, a->out_strides, a->rank, size_of(a->dtype));
  if (written.overlaps(Span(a->dropout.rng_offsets, 1 + a->rank, 8))) return SINPE_BAD_ARGUMENT;
  return catch_out_of_memory(
      [&] { return with_type(a->dtype, [&](auto type) { return dropout<decltype(type)>(*a); }); });
}
