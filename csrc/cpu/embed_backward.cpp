// embed_backward: the gradient of the weight. Tokens are sorted by id (a stable counting sort); then each row of the
// result is the tree sum of its tokens in their order (core/tree_sum.h) and is written once: the same bits for any
// number of threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/tree_sum.h"
#include "cpu/exceptions.h"
#include "cpu/ids.h"
#include "cpu/populate.h"
#include "cpu/row_maker.h"

namespace sinpe {
namespace {

using Arguments = sinpe_embed_backward_arguments;

// Token indices sorted by id, in ascending order for equal ids.
class TokensById {
 public:
  explicit TokensById(const Arguments& a) : rows_(a.num_embeddings), end_(static_cast<size_t>(a.num_embeddings) + 1) {
    const int n = a.rank - 1;
    each_id(a.ids, a.sizes, a.id_strides, n, [&](int64_t, int64_t id) {
      if (id != a.padding_idx) ++end_[static_cast<size_t>(id) + 1];
      return true;
    });
    for (size_t v = 0; v + 1 < end_.size(); ++v) {
      largest_ = std::max(largest_, end_[v + 1]);
      end_[v + 1] += end_[v];
    }
    tokens_.resize(static_cast<size_t>(end_.back()));
    // end_[v] is the start of row v; incrementing it for each token makes it the end.
    each_id(a.ids, a.sizes, a.id_strides, n, [&](int64_t token, int64_t id) {
      if (id != a.padding_idx) tokens_[static_cast<size_t>(end_[static_cast<size_t>(id)]++)] = token;
      return true;
    });
  }
  const int64_t* begin(int64_t row) const { return tokens_.data() + first(row); }
  int64_t count(int64_t row) const { return end_[static_cast<size_t>(row)] - first(row); }
  const int64_t* end() const { return tokens_.data() + tokens_.size(); }
  int64_t largest() const { return largest_; }                  // tokens of the row that has most
  int64_t cost(int64_t row) const { return first(row) + row; }  // of the rows before this one
  int64_t cost() const { return cost(rows_); }
  // The first row such that the rows before it have at least `part` of `parts` of the total cost.
  int64_t cut(int64_t part, int64_t parts) const {
    const int64_t wanted = static_cast<int64_t>(static_cast<double>(cost()) * static_cast<double>(part) / parts);
    int64_t low = 0, high = rows_;
    while (low < high && part < parts) {
      const int64_t middle = low + (high - low) / 2;
      if (cost(middle) < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return high;
  }

 private:
  int64_t first(int64_t row) const { return row == 0 ? 0 : end_[static_cast<size_t>(row) - 1]; }

  int64_t rows_, largest_ = 0;
  std::vector<int64_t> end_, tokens_;
};

// Offset of a token's row in grad, or RNG offset of its first element. Usually the tokens are evenly spaced, which
// saves a division per token.
class TokenOffsets {
 public:
  TokenOffsets(const Arguments& a, const int64_t* strides) : a_(a), strides_(strides), even_(true) {
    for (int d = 0; d + 2 < a.rank; ++d) even_ = even_ && strides[d] == strides[d + 1] * a.sizes[d + 1];
  }
  int64_t operator()(int64_t token) const {
    return even_ ? token * strides_[a_.rank - 2] : offset_at(a_.sizes, strides_, a_.rank - 1, token);
  }

 private:
  const Arguments& a_;
  const int64_t* strides_;
  bool even_;
};

// One thread's work: blocks of channels for ranges of rows.
template <class T>
class RowSums {
 public:
  using Real = accumulate_t<T>;
  RowSums(const Arguments& a, const RngOffsets& rng_offsets, const TokensById& tokens, int64_t width,
          const NewPages& pages)
      : a_(a),
        pages_(pages),
        rng_offsets_(rng_offsets),
        tokens_(tokens),
        dropout_(dropout_of(a.dropout, rng_offsets.strides[a.rank - 1])),
        grad_at_(a, a.grad_strides),
        rng_offset_at_(a, rng_offsets.strides),
        dim_(a.sizes[a.rank - 1]),
        channel_(a.grad_strides[a.rank - 1]),
        factor_(static_cast<Real>(a.dropout.drop_threshold != 0 ? a.scale * dropout_.scale : a.scale)),
        width_(width),
        zeros_(static_cast<size_t>(width)),
        sums_(static_cast<size_t>(width * tree_levels(tokens.largest()))),
        gathered_(channel_ == 1 ? 0 : static_cast<size_t>(width)) {}

  void operator()(int64_t row, int64_t last, int64_t c, int64_t n) {
    T* const rows = static_cast<T*>(a_.out);
    PagesAhead ahead(pages_, rows + row * dim_, rows + (n == dim_ ? last : row) * dim_);
    for (; row < last; ++row) {
      T* out = rows + row * dim_ + c;
      ahead.until(out + n);
      if (tokens_.count(row) == 0 || a_.dropout.drop_threshold == kDropAll) {
        // Not memset, whose string instruction restarts at each page fault of new memory.
        row_kernels().of<T>().round(zeros_.data(), Real{1}, out, n);
        continue;
      }
      sum(row, c, n);
      row_kernels().of<T>().round(sum_of(tree_levels(tokens_.count(row))), factor_, out, n);
    }
  }

 private:
  const T* grad_of(int64_t token, int64_t c) const {
    return static_cast<const T*>(a_.grad) + grad_at_(token) + c * channel_;
  }

  Real* sum_of(int level) { return sums_.data() + width_ * (level - 1); }

  void sum(int64_t row, int64_t c, int64_t n) {
    const int64_t *tokens = tokens_.begin(row), count = tokens_.count(row);
    for (int level = 1; level <= tree_levels(count); ++level) clear(level, n);
    tree_sum(
        count,
        [&](int64_t k) {
          if (channel_ == 1 && tokens + k + 1 != tokens_.end()) prefetch_row(grad_of(tokens[k + 1], c), n);
          add_token(tokens[k], c, n);
        },
        [&](int level) {
          row_kernels().of<Real>().accumulate(sum_of(level), sum_of(level + 1), n, Dropout{}, 0);
          clear(level, n);
        });
  }

  void clear(int level, int64_t n) { std::memset(sum_of(level), 0, static_cast<size_t>(n) * sizeof(Real)); }

  void add_token(int64_t token, int64_t c, int64_t n) {
    const T* grad = grad_of(token, c);
    const int64_t offset = rng_offset_at_(token) + c * rng_offsets_.strides[a_.rank - 1];
    if (channel_ != 1) {
      for (int64_t i = 0; i < n; ++i) gathered_[static_cast<size_t>(i)] = grad[i * channel_];
      grad = gathered_.data();
    }
    row_kernels().of<T>().accumulate(grad, sum_of(1), n, dropout_, rng_offsets_.base + static_cast<uint64_t>(offset));
  }

  const Arguments& a_;
  const NewPages& pages_;
  const RngOffsets& rng_offsets_;
  const TokensById& tokens_;
  Dropout dropout_;
  TokenOffsets grad_at_, rng_offset_at_;
  int64_t dim_, channel_;
  Real factor_;
  int64_t width_;
  std::vector<Real> zeros_, sums_;  // sums_: a running sum per level of the tree
  std::vector<T> gathered_;
};

template <class T>
sinpe_status embed_backward(const Arguments& a) {
  const RngOffsets rng_offsets(a.dropout, a.sizes, a.rank);
  const TokensById tokens(a);
  // Ranges of rows of equal cost for each thread. If one row has more than a thread's share, the channels are split
  // into blocks as well, at least as wide as one vector of random words serves.
  constexpr int64_t kNarrowest = 64;
  const int64_t dim = a.sizes[a.rank - 1], threads = parallel_threads(), total = tokens.cost();
  const int64_t wanted = tokens.largest() > total / threads ? (tokens.largest() * threads + total - 1) / total : 1;
  const int64_t most = std::max<int64_t>(1, std::min(wanted, dim / kNarrowest));
  const int64_t width = (dim + most * kNarrowest - 1) / (most * kNarrowest) * kNarrowest;
  const int64_t blocks = (dim + width - 1) / width, parts = std::max<int64_t>(1, 4 * threads / blocks);
  const int64_t work = std::max<int64_t>(1, total * dim / (blocks * parts));
  const NewPages pages;
  return parallel_status(blocks * parts, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) {
    RowSums<T> sums(a, rng_offsets, tokens, width, pages);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t part = item % parts, c = item / parts * width;
      sums(tokens.cut(part, parts), tokens.cut(part + 1, parts), c, std::min(width, dim - c));
    }
  });
}

}  // namespace
}  // namespace sinpe

extern "C" sinpe_status sinpe_embed_backward(sinpe_embed_backward_arguments* a) {
  using namespace sinpe;
  if (a == nullptr || a->rank < 2 || a->rank > SINPE_MAX_RANK || !valid_sizes(a->sizes, a->rank) ||
      a->num_embeddings < 0 || !valid_dropout(a->dropout, a->sizes, a->rank)) {
    return SINPE_BAD_ARGUMENT;
  }
  const int64_t count = product(a->sizes, a->rank - 1), dim = a->sizes[a->rank - 1];
  if (dim == 0) return SINPE_OK;  // before the ids are read: an expanded tensor may have any number of them
  if (count > 0 && a->ids == nullptr) return SINPE_BAD_ARGUMENT;
  if (count > 0 && !check_ids(a->ids, a->sizes, a->id_strides, a->rank - 1, a->num_embeddings, &a->bad_id)) {
    return SINPE_BAD_ID;
  }
  if (a->num_embeddings == 0) return SINPE_OK;
  const int64_t rows[] = {a->num_embeddings, dim}, item = size_of(a->dtype);
  const Span written(a->out, rows, nullptr, 2, item);
  if (a->out == nullptr || (count > 0 && a->grad == nullptr) ||
      written.overlaps(Span(a->ids, a->sizes, a->id_strides, a->rank - 1, 8)) ||
      written.overlaps(Span(a->grad, a->sizes, a->grad_strides, a->rank, item)) ||
      written.overlaps(Span(a->dropout.rng_offsets, 1 + a->rank, 8))) {
    return SINPE_BAD_ARGUMENT;
  }
  return catch_out_of_memory(
      [&] { return with_type(a->dtype, [&](auto type) { return embed_backward<decltype(type)>(*a); }); });
}
