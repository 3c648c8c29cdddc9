// embed_backward: the gradient of the weight, from tokens that are sorted by their ids. A thread sums eight channels of one
// row of the weight over its tokens, in their order, and writes them once: no atomics, the same bits every time, and those
// of the CPU. A row that most tokens share is one thread's work for each octet of its channels.
#include "cuda/apply_launch.h"

namespace sinpe {
namespace cuda {
namespace {

constexpr int kOctet = 8;

template <class T, bool kDrop>
struct EmbedBackward {
  using Real = accumulate_t<T>;
  static constexpr int kPhases = 1, kThreads = cuda::kThreads;
  static constexpr int kBlocks = std::is_same<Real, double>::value ? 2 : 3;
  struct Shared {};
  // Tokens whose loads are on the way together: 64 bytes of them, one token with dropout, whose draw needs the registers.
  static constexpr int kTokensAhead = kDrop || sizeof(T) == 8 ? 1 : 8 / static_cast<int>(sizeof(T));

  const T* grad;
  const int64_t *ids, *tokens, *device_seed;
  T* out;
  int64_t count, rows, dim, padding_idx;  // count: of tokens
  int32_t dims;                           // of the tokens
  bool even;                              // all tokens lie one stride apart
  int64_t sizes[SINPE_MAX_RANK], strides[SINPE_MAX_RANK],
      steps[SINPE_MAX_RANK];  // of grad and of the elements' numbers
  uint64_t first_element, seed;
  uint32_t limit;
  bool askew;
  uint32_t octets, lanes, columns;  // of a row; rows of a block; blocks of a row
  Real factor;

  template <int kPhase>
  SINPE_HD void phase(uint32_t block, int thread, Shared&) const {
    const uint32_t across = columns == 1 ? 0 : block % columns, down = columns == 1 ? block : block / columns;
    const uint32_t lane = octets < kThreads ? static_cast<uint32_t>(thread) / octets : 0;
    const uint32_t octet = static_cast<uint32_t>(thread) - lane * octets + across * kThreads;
    const int64_t row = static_cast<int64_t>(down) * lanes + lane;
    if (lane >= lanes || octet >= octets || row >= rows) return;
    int64_t c = static_cast<int64_t>(octet) * kOctet;
    if (askew) c -= static_cast<int64_t>(reinterpret_cast<uintptr_t>(out + row * dim) / sizeof(T) & (kOctet - 1));
    const Range range{c < 0 ? static_cast<int>(-c) : 0, dim - c < kOctet ? static_cast<int>(dim - c) : kOctet};
    if (range.from < range.to) sum(row, c, range);
  }

 private:
  // The first of the sorted ids that is not below `row`.
  SINPE_HD int64_t first_token(int64_t row) const {
    int64_t low = 0, high = count;
    SINPE_ROLLED
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (ids[middle] < row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  SINPE_HD int64_t place(const int64_t* of, int64_t token) const {
    return even ? token * of[dims - 1] : offset_at(sizes, of, dims, token);
  }

  SINPE_HD void sum(int64_t row, int64_t c, Range range) const {
    Real total[kOctet] = {};
    bool any = false;
    int64_t k = row == padding_idx || (kDrop && limit == drop_limit(kDropAll)) ? count : first_token(row);
    const uint64_t key = device_seed == nullptr ? seed : static_cast<uint64_t>(*device_seed);
    SINPE_ROLLED
    while (k < count && ids[k] == row) {
      any = true;
      int n = 1;
      SINPE_UNROLLED
      for (int i = 1; i < kTokensAhead; ++i) n += n == i && k + i < count && ids[k + i] == row;
      Raw<T, kOctet> raw[kTokensAhead];
      SINPE_UNROLLED
      for (int i = 0; i < kTokensAhead; ++i) {
        if (i < n) load<T, kOctet>(grad + place(strides, tokens[k + i]), c, strides[dims], range, &raw[i]);
      }
      SINPE_UNROLLED
      for (int i = 0; i < kTokensAhead; ++i) {
        if (i < n) add(tokens[k + i], c, key, raw[i], total);
      }
      k += n;
    }
    SINPE_UNROLLED
    for (int i = 0; i < kOctet; ++i) total[i] = any ? total[i] * factor : Real{0};
    store<T, kOctet>(out + row * dim, c, 1, range, total);
  }

  SINPE_HD void add(int64_t token, int64_t c, uint64_t key, const Raw<T, kOctet>& raw, Real* total) const {
    Real v[kOctet];
    raw.values(v);
    Draw drawn{};
    if constexpr (kDrop) {
      const int64_t number = place(steps, token) + c * steps[dims];
      drawn = draw(first_element + static_cast<uint64_t>(number), static_cast<uint64_t>(steps[dims]), key);
    }
    SINPE_UNROLLED
    for (int i = 0; i < kOctet; ++i) total[i] += !kDrop || drawn.keeps(i, limit) ? v[i] : Real{0};
  }
};

bool tokens_are_even(const int64_t* sizes, const int64_t* strides, int dims) {
  for (int d = 0; d + 1 < dims; ++d) {
    if (strides[d] != strides[d + 1] * sizes[d + 1]) return false;
  }
  return true;
}

template <class T, bool kDrop>
sinpe_status launch_backward(const sinpe_embed_backward_arguments& a, const int64_t* ids, const int64_t* tokens,
                             const DeviceScalars& scalars, Stream stream) {
  EmbedBackward<T, kDrop> body{};
  using Real = accumulate_t<T>;
  const int dims = a.rank - 1;
  const Elements elements(a.dropout, a.sizes, a.rank);
  body.grad = static_cast<const T*>(a.grad);
  body.ids = ids;
  body.tokens = tokens;
  body.device_seed = scalars.seed;
  body.out = static_cast<T*>(a.out);
  body.count = product(a.sizes, dims);
  body.rows = a.num_embeddings;
  body.dim = a.sizes[dims];
  body.padding_idx = a.padding_idx;
  body.dims = dims;
  for (int d = 0; d < a.rank; ++d) {
    body.sizes[d] = a.sizes[d];
    body.strides[d] = a.grad_strides[d];
    body.steps[d] = elements.steps[d];
  }
  body.even = tokens_are_even(a.sizes, a.grad_strides, dims) && tokens_are_even(a.sizes, elements.steps, dims);
  body.first_element = elements.base;
  body.seed = static_cast<uint64_t>(a.dropout.seed);
  const uint32_t drop = static_cast<uint32_t>(a.dropout.drop);
  body.limit = drop_limit(drop);
  body.factor = static_cast<Real>(kDrop ? a.scale * kept_scale(drop) : a.scale);
  body.askew = reinterpret_cast<uintptr_t>(a.out) / sizeof(T) % kOctet != 0 || body.dim % kOctet != 0;
  const int64_t octets = (body.dim + (body.askew ? kOctet - 1 : 0) + kOctet - 1) / kOctet;
  if (octets > kMaxBlocks) return launch_failed("more channels than a grid can have");
  body.octets = static_cast<uint32_t>(octets);
  body.lanes = octets < kThreads ? static_cast<uint32_t>(kThreads / octets) : 1;
  body.columns = static_cast<uint32_t>((octets + kThreads - 1) / kThreads);
  return launch(body, (body.rows + body.lanes - 1) / body.lanes * body.columns, stream);
}

}  // namespace
}  // namespace cuda
}  // namespace sinpe

sinpe_status sinpe::cuda::embed_backward(const sinpe_embed_backward_arguments& a, const int64_t* sorted_ids,
                                         const int64_t* sorted_tokens, const DeviceScalars& scalars, Stream stream) {
  if (a.rank < 2 || a.rank > SINPE_MAX_RANK || !valid_sizes(a.sizes, a.rank) || a.num_embeddings < 0 ||
      !valid_dropout(a.dropout, a.sizes, a.rank)) {
    return SINPE_BAD_ARGUMENT;
  }
  const int64_t count = product(a.sizes, a.rank - 1);
  if (a.num_embeddings == 0 || a.sizes[a.rank - 1] == 0) return SINPE_OK;
  if (a.out == nullptr || (count > 0 && (a.grad == nullptr || sorted_ids == nullptr || sorted_tokens == nullptr))) {
    return SINPE_BAD_ARGUMENT;
  }
  return with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    if (a.dropout.drop != 0) return launch_backward<T, true>(a, sorted_ids, sorted_tokens, scalars, stream);
    return launch_backward<T, false>(a, sorted_ids, sorted_tokens, scalars, stream);
  });
}
