// embed_backward: the gradient of the weight. The tokens are sorted by id with CUB's radix sort, by as many bits as the
// number of rows has. Each row is the tree sum (core/tree_sum.h) of its tokens in their order; a thread computes eight
// channels. No atomics: the bits are always the same, and equal to the CPU's.
//
// The first launch finds where the tokens of each row begin among the sorted tokens. Then one launch per level computes
// the full nodes of that level in scratch memory, and the last launch computes the rows from the nodes and the tokens
// that belong to no node. So a row with many tokens takes about 64 steps per level, and its nodes are computed in
// parallel.
//
// A full node of a level covers 64^level sorted tokens. If the first has index p, the node is stored in slot p /
// 64^level. Slots are unique, because the first tokens of two nodes of a level are at least 64^level apart. The node of
// a slot, if it exists, covers the slot's last token, so the id of that token determines the row of the node. The child
// nodes of a node are in consecutive slots.
#include "core/tree_sum.h"
#include "cuda/apply_launch.h"
#if defined(__CUDACC__)
#include <cub/device/device_radix_sort.cuh>
#else
#include <algorithm>
#endif

namespace sinpe {
namespace cuda {
namespace {

// The ids in ascending order and, for each, the row-major index of its token; equal ids in the order of their tokens.
// Ids that are not rows of the weight are replaced by `rows`, so that they are last.
struct SortedIds {
  const int64_t *ids, *tokens;
};

// Two buffers for the ids, which become the keys, and two for the tokens.
struct Buffers {
  uint64_t* keys[2];
  int64_t* tokens[2];
  void* temporary;  // CUB's
};

int64_t buffer_words(int64_t count) { return (count + 1) / 2 * 2; }  // keeps the alignment of 16 bytes

Buffers buffers_in(void* scratch, int64_t count) {
  uint64_t* words = static_cast<uint64_t*>(scratch);
  const int64_t n = buffer_words(count);
  return {{words, words + n},
          {reinterpret_cast<int64_t*>(words + 2 * n), reinterpret_cast<int64_t*>(words + 3 * n)},
          words + 4 * n};
}

// Writes the keys and the indices of the tokens.
struct Unsorted {
  static constexpr int kPhases = 1, kThreads = cuda::kThreads, kBlocks = 4;
  struct Shared {};

  const int64_t* ids;
  uint64_t* keys;
  int64_t* tokens;
  int64_t count, rows;
  int32_t dims;
  int64_t sizes[SINPE_MAX_RANK], strides[SINPE_MAX_RANK];

  template <int kPhase>
  SINPE_HD void phase(uint32_t block, int thread, Shared&) const {
    const int64_t token = static_cast<int64_t>(block) * kThreads + thread;
    if (token >= count) return;
    const int64_t id = ids[offset_at(sizes, strides, dims, token)];
    keys[token] = static_cast<uint64_t>(id < 0 || id >= rows ? rows : id);
    tokens[token] = token;
  }
};

#if defined(__CUDACC__)
// With temporary == nullptr, only sets *bytes to the size of CUB's temporary memory.
cudaError_t radix_sort(void* temporary, size_t* bytes, cub::DoubleBuffer<uint64_t>* keys,
                       cub::DoubleBuffer<int64_t>* tokens, int64_t count, int64_t rows, Stream stream) {
  int bits = 1;  // of the largest key
  while (bits < 63 && rows >> bits != 0) ++bits;
  return cub::DeviceRadixSort::SortPairs(temporary, *bytes, *keys, *tokens, count, 0, bits,
                                         static_cast<cudaStream_t>(stream));
}
#endif

int64_t temporary_bytes(int64_t count, int64_t rows) {
#if defined(__CUDACC__)
  size_t bytes = 0;
  cub::DoubleBuffer<uint64_t> keys;
  cub::DoubleBuffer<int64_t> tokens;
  if (radix_sort(nullptr, &bytes, &keys, &tokens, count, rows, nullptr) != cudaSuccess) return 0;  // the sort will fail
  return static_cast<int64_t>((bytes + 15) / 16 * 16);
#else
  (void)count, (void)rows;
  return 0;
#endif
}

int64_t sort_scratch(int64_t count, int64_t rows) {
  return 4 * buffer_words(count) * int64_t{sizeof(uint64_t)} + temporary_bytes(count, rows);
}

// Sorts `count` ids, an array with these sizes and strides. scratch: sort_scratch(count, rows) bytes of device memory,
// 16-byte aligned, which also hold the result.
sinpe_status sort_ids(const int64_t* ids, const int64_t* sizes, const int64_t* strides, int dims, int64_t count,
                      int64_t rows, void* scratch, Stream stream, SortedIds* sorted) {
  const Buffers b = buffers_in(scratch, count);
  *sorted = {reinterpret_cast<const int64_t*>(b.keys[0]), b.tokens[0]};
  if (count == 0) return SINPE_OK;
  Unsorted unsorted{ids, b.keys[0], b.tokens[0], count, rows, dims, {}, {}};
  for (int d = 0; d < dims; ++d) {
    unsorted.sizes[d] = sizes[d];
    unsorted.strides[d] = strides[d];
  }
  const sinpe_status status = launch(unsorted, (count + kThreads - 1) / kThreads, stream);
  if (status != SINPE_OK) return status;
#if defined(__CUDACC__)
  cub::DoubleBuffer<uint64_t> keys(b.keys[0], b.keys[1]);
  cub::DoubleBuffer<int64_t> tokens(b.tokens[0], b.tokens[1]);
  size_t bytes = static_cast<size_t>(temporary_bytes(count, rows));
  const cudaError_t error = radix_sort(b.temporary, &bytes, &keys, &tokens, count, rows, stream);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // so that the next launch does not report it
    return launch_failed(cudaGetErrorString(error));
  }
  *sorted = {reinterpret_cast<const int64_t*>(keys.Current()), tokens.Current()};
#else
  std::stable_sort(b.tokens[0], b.tokens[0] + count, [&](int64_t p, int64_t q) { return b.keys[0][p] < b.keys[0][q]; });
  for (int64_t i = 0; i < count; ++i) b.keys[1][i] = b.keys[0][b.tokens[0][i]];
  *sorted = {reinterpret_cast<const int64_t*>(b.keys[1]), b.tokens[0]};
#endif
  return SINPE_OK;
}

constexpr int kOctet = 8, kTerms = static_cast<int>(terms_under(1));
constexpr int kLevels = 9;  // of full nodes: another level requires 2^60 tokens, more than fit in memory

// The number of levels that may have a full node.
int full_levels(int64_t count) {
  int level = 0;
  while (level < kLevels && count >= terms_under(level + 1)) ++level;
  return level;
}

// Bytes of scratch memory for the starts of the rows; a multiple of a node's alignment.
int64_t bytes_of_starts(const sinpe_embed_backward_arguments& a) { return (a.num_embeddings + 4) / 4 * 32; }

int64_t node_width(int64_t dim) { return (dim + kOctet - 1) / kOctet * kOctet; }

struct RowStarts {
  static constexpr int kPhases = 1, kThreads = cuda::kThreads, kBlocks = 4;
  struct Shared {};

  const int64_t* ids;  // sorted
  int64_t* starts;     // start of each row, and the end of the last
  int64_t count, rows;

  // Index of the first id that is not below the row.
  template <int kPhase>
  SINPE_HD void phase(uint32_t block, int thread, Shared&) const {
    const int64_t row = static_cast<int64_t>(block) * kThreads + thread;
    if (row > rows) return;
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
    starts[row] = low;
  }
};

// kNodes: computes the full nodes of a level; otherwise the rows. kAligned: tokens are evenly spaced, and those of grad
// and rows of the result begin and end at multiples of 16 bytes and of the eight elements of a Philox block.
template <class T, bool kDrop, bool kNodes, bool kAligned>
struct EmbedBackward {
  using Real = accumulate_t<T>;
  static constexpr int kPhases = kDrop ? 2 : 1, kThreads = cuda::kThreads;
  static constexpr int kBlocks = std::is_same<Real, double>::value ? 2
                                 : !kDrop                          ? (kNodes ? 4 : 3)
                                 : !kAligned                       ? 2
                                 : sizeof(T) == 2 && kNodes        ? 4
                                                                   : 3;
  struct Shared {
    Draws draws;
  };
  // Tokens and nodes whose loads are in flight together: 64 bytes, or 128 bytes for child nodes. (With 128 bytes for
  // the nodes of a row, and with more tokens and dropout, fewer threads would fit.)
  static constexpr int kTokensAhead = sizeof(T) == 8 ? (kDrop && !kAligned ? 2 : 1)
                                      : kDrop        ? 2
                                                     : 8 / static_cast<int>(sizeof(T));
  static constexpr int kNodesAhead = (kNodes ? 16 : 8) / static_cast<int>(sizeof(Real));

  const T* grad;
  const int64_t *ids, *tokens, *starts, *device_seed;
  T* out;
  Real* nodes[1 + kLevels];               // per level; level 0 is not used
  int64_t rows, dim, width, padding_idx;  // width: elements per node
  int64_t items;                          // of this launch: node slots, or rows
  int32_t level;                          // of the nodes of this launch
  int32_t dims;                           // number of token dimensions
  bool even;                              // tokens are evenly spaced
  int64_t sizes[SINPE_MAX_RANK], strides[SINPE_MAX_RANK],
      steps[SINPE_MAX_RANK];  // of grad; of the RNG offsets
  uint64_t first_rng_offset, seed;
  uint32_t limit;
  bool misaligned;
  uint32_t octets, lanes, columns;  // per item; items per block; blocks per item
  Real factor;

  template <int kPhase>
  SINPE_HD void phase(uint32_t block, int thread, Shared& shared) const {
    if constexpr (kPhase + 1 < kPhases) {
      shared.draws.begin(seed, device_seed, thread, kThreads);
    } else {
      const uint32_t across = columns == 1 ? 0 : block % columns, down = columns == 1 ? block : block / columns;
      const uint32_t lane = octets < kThreads ? static_cast<uint32_t>(thread) / octets : 0;
      const uint32_t octet = static_cast<uint32_t>(thread) - lane * octets + across * kThreads;
      const int64_t item = static_cast<int64_t>(down) * lanes + lane;
      if (lane >= lanes || octet >= octets || item >= items) return;
      int64_t c = static_cast<int64_t>(octet) * kOctet;
      if (!kAligned && misaligned)
        c -= static_cast<int64_t>(reinterpret_cast<uintptr_t>(out + item * dim) / sizeof(T) & (kOctet - 1));
      Range range{0, kOctet};
      if (!kAligned) range = {c < 0 ? static_cast<int>(-c) : 0, dim - c < kOctet ? static_cast<int>(dim - c) : kOctet};
      if (range.from >= range.to) return;
      if constexpr (kNodes) {
        make_node(item, c, range, shared.draws);
      } else {
        make_row(item, c, range, shared.draws);
      }
    }
  }

 private:
  SINPE_HD void make_node(int64_t slot, int64_t c, Range range, const Draws& draws) const {
    const int64_t terms = terms_under(level), begin = slot * terms, id = ids[begin + terms - 1];
    if (id < 0 || id >= rows || id == padding_idx) return;
    int64_t index = starts[id];
    if (index < begin) index += (begin - index + terms - 1) >> (kTreeBits * level) << (kTreeBits * level);
    if (index + terms > starts[id + 1]) return;
    Real total[kOctet] = {};
    if (level == 1) {
      add_tokens(index, kTerms, c, range, draws, total);
    } else {
      add_nodes(level - 1, index, kTerms, c, range, total);
    }
    store<Real, kOctet, kAligned>(nodes[level] + slot * width, c, 1, range, total);
  }

  SINPE_HD void make_row(int64_t row, int64_t c, Range range, const Draws& draws) const {
    Real total[kOctet] = {};
    const int64_t first = starts[row], n = is_summed(row) ? starts[row + 1] - first : 0;
    // The digits of n in base 64 are the number of tokens, and of full nodes of each level, that belong to no higher
    // node.
    int64_t index = first + (n >> kTreeBits << kTreeBits);
    add_tokens(index, static_cast<int>(n) & (kTerms - 1), c, range, draws, total);
    SINPE_ROLLED
    for (int l = 1; n >> (kTreeBits * l) != 0; ++l) {
      const int here = static_cast<int>(n >> (kTreeBits * l)) & (kTerms - 1);
      index -= terms_under(l) * here;
      Real after[kOctet];
      SINPE_UNROLLED
      for (int i = 0; i < kOctet; ++i) {
        after[i] = total[i];
        total[i] = Real{0};
      }
      add_nodes(l, index, here, c, range, total);
      SINPE_UNROLLED
      for (int i = 0; i < kOctet; ++i) total[i] += after[i];
    }
    SINPE_UNROLLED
    for (int i = 0; i < kOctet; ++i) total[i] = n != 0 ? total[i] * factor : Real{0};
    store<T, kOctet, kAligned>(out + row * dim, c, 1, range, total);
  }

  SINPE_HD bool is_summed(int64_t row) const { return row != padding_idx && !(kDrop && limit == drop_limit(kDropAll)); }

  // Adds n full nodes of a level; the first node's first token is at index `index`.
  SINPE_HD void add_nodes(int l, int64_t index, int n, int64_t c, Range range, Real* total) const {
    const Real* node = nodes[l] + (index >> (kTreeBits * l)) * width;
    SINPE_ROLLED
    for (int k = 0; k < n; k += kNodesAhead) {
      Raw<Real, kOctet> raw[kNodesAhead];
      SINPE_UNROLLED
      for (int i = 0; i < kNodesAhead; ++i) {
        if (k + i < n) load<Real, kOctet, kAligned>(node + static_cast<int64_t>(k + i) * width, c, 1, range, &raw[i]);
      }
      SINPE_UNROLLED
      for (int i = 0; i < kNodesAhead; ++i) {
        if (k + i < n) add(raw[i], total);
      }
    }
  }

  SINPE_HD static void add(const Raw<Real, kOctet>& raw, Real* total) {
    Real v[kOctet];
    raw.values(v);
    SINPE_UNROLLED
    for (int i = 0; i < kOctet; ++i) total[i] += v[i];
  }

  // The loads of one round are issued before any of them is used, and so are the loads of the next round's token
  // indices, unless there are too few registers.
  SINPE_HD void add_tokens(int64_t index, int n, int64_t c, Range range, const Draws& draws, Real* total) const {
    int64_t next[kTokensAhead];
    find_tokens(index, n, next);
    SINPE_ROLLED
    for (int k = 0; k < n; k += kTokensAhead) {
      int64_t token[kTokensAhead];
      Raw<T, kOctet> raw[kTokensAhead];
      SINPE_UNROLLED
      for (int i = 0; i < kTokensAhead; ++i) {
        token[i] = next[i];
        if (k + i < n) load<T, kOctet, kAligned>(grad + offset_of(strides, token[i]), c, strides[dims], range, &raw[i]);
      }
      if (kAligned || !kDrop) find_tokens(index + k + kTokensAhead, n - k - kTokensAhead, next);
      SINPE_UNROLLED
      for (int i = 0; i < kTokensAhead; ++i) {
        if (k + i < n) add_token(token[i], c, draws, raw[i], total);
      }
      if (kDrop && !kAligned) find_tokens(index + k + kTokensAhead, n - k - kTokensAhead, next);
    }
  }

  // Loads the token indices of a round; n tokens are left.
  SINPE_HD void find_tokens(int64_t index, int n, int64_t* found) const {
    SINPE_UNROLLED
    for (int i = 0; i < kTokensAhead; ++i) found[i] = i < n ? tokens[index + i] : 0;
  }

  SINPE_HD int64_t offset_of(const int64_t* of, int64_t token) const {
    return kAligned || even ? token * of[dims - 1] : offset_at(sizes, of, dims, token);
  }

  SINPE_HD void add_token(int64_t token, int64_t c, const Draws& draws, const Raw<T, kOctet>& raw, Real* total) const {
    Real v[kOctet];
    raw.values(v);
    Draw drawn{};
    if constexpr (kDrop) {
      const int64_t offset = offset_of(steps, token) + (kAligned ? c : c * steps[dims]);
      const uint64_t first = first_rng_offset + static_cast<uint64_t>(offset);
      drawn = kAligned ? draws.counter(first) : draws.of(first, static_cast<uint64_t>(steps[dims]));
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

template <class T, bool kDrop, bool kNodes, bool kAligned>
sinpe_status launch_level(const sinpe_embed_backward_arguments& a, const SortedIds& sorted, void* scratch, int level,
                          const DeviceScalars& scalars, Stream stream) {
  EmbedBackward<T, kDrop, kNodes, kAligned> body{};
  using Real = accumulate_t<T>;
  const int dims = a.rank - 1;
  const RngOffsets rng_offsets(a.dropout, a.sizes, a.rank);
  body.grad = static_cast<const T*>(a.grad);
  body.ids = sorted.ids;
  body.tokens = sorted.tokens;
  body.starts = static_cast<const int64_t*>(scratch);
  body.device_seed = scalars.seed;
  body.out = static_cast<T*>(a.out);
  body.rows = a.num_embeddings;
  body.dim = a.sizes[dims];
  body.width = node_width(body.dim);
  body.padding_idx = a.padding_idx;
  body.level = level;
  const int64_t count = product(a.sizes, dims);
  body.items = kNodes ? count / terms_under(level) : body.rows;
  Real* nodes = reinterpret_cast<Real*>(static_cast<char*>(scratch) + bytes_of_starts(a));
  for (int l = 1; l <= full_levels(count); ++l) {
    body.nodes[l] = nodes;
    nodes += count / terms_under(l) * body.width;
  }
  body.dims = dims;
  for (int d = 0; d < a.rank; ++d) {
    body.sizes[d] = a.sizes[d];
    body.strides[d] = a.grad_strides[d];
    body.steps[d] = rng_offsets.strides[d];
  }
  body.even = tokens_are_even(a.sizes, a.grad_strides, dims) && tokens_are_even(a.sizes, rng_offsets.strides, dims);
  body.first_rng_offset = rng_offsets.base;
  body.seed = static_cast<uint64_t>(a.dropout.seed);
  const uint32_t drop = static_cast<uint32_t>(a.dropout.drop_threshold);
  body.limit = drop_limit(drop);
  body.factor = static_cast<Real>(kDrop ? a.scale * dropout_scale(drop) : a.scale);
  body.misaligned =
      !kNodes && !kAligned && (reinterpret_cast<uintptr_t>(a.out) / sizeof(T) % kOctet != 0 || body.dim % kOctet != 0);
  const int64_t octets = (body.dim + (body.misaligned ? kOctet - 1 : 0) + kOctet - 1) / kOctet;
  if (octets > kMaxBlocks) return launch_failed("more channels than a grid can have");
  body.octets = static_cast<uint32_t>(octets);
  body.lanes = octets < kThreads ? static_cast<uint32_t>(kThreads / octets) : 1;
  body.columns = static_cast<uint32_t>((octets + kThreads - 1) / kThreads);
  return launch(body, (body.items + body.lanes - 1) / body.lanes * body.columns, stream);
}

// See EmbedBackward.
template <class T>
bool is_aligned_call(const sinpe_embed_backward_arguments& a) {
  const int dims = a.rank - 1;
  const RngOffsets rng_offsets(a.dropout, a.sizes, a.rank);
  const auto is_even = [&](const int64_t* strides) {
    return tokens_are_even(a.sizes, strides, dims) && strides[dims - 1] % kOctet == 0 && strides[dims] == 1;
  };
  const bool draws_evenly = rng_offsets.base % kOctet == 0 && is_even(rng_offsets.strides);
  return a.sizes[dims] % kOctet == 0 && is_even(a.grad_strides) && reinterpret_cast<uintptr_t>(a.grad) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(a.out) % 16 == 0 && (a.dropout.drop_threshold == 0 || draws_evenly);
}

template <class T, bool kDrop, bool kAligned>
sinpe_status launch_levels(const sinpe_embed_backward_arguments& a, const SortedIds& sorted, void* scratch,
                           const DeviceScalars& scalars, Stream stream) {
  const int64_t count = product(a.sizes, a.rank - 1), rows = a.num_embeddings;
  const int levels = a.dropout.drop_threshold == kDropAll ? 0 : full_levels(count);
  const RowStarts starts{sorted.ids, static_cast<int64_t*>(scratch), count, rows};
  sinpe_status status = launch(starts, rows / RowStarts::kThreads + 1, stream);
  for (int level = 1; status == SINPE_OK && level <= levels; ++level) {
    status = launch_level<T, kDrop, true, kAligned>(a, sorted, scratch, level, scalars, stream);
  }
  return status != SINPE_OK ? status : launch_level<T, kDrop, false, kAligned>(a, sorted, scratch, 0, scalars, stream);
}

// Bytes of scratch memory for the starts of the rows and the nodes.
int64_t bytes_of_nodes(const sinpe_embed_backward_arguments& a, int64_t count) {
  const int64_t item = a.dtype == SINPE_FLOAT64 ? 8 : 4;
  int64_t slots = 0;
  for (int level = 1; level <= full_levels(count); ++level) slots += count / terms_under(level);
  return bytes_of_starts(a) + slots * node_width(a.sizes[a.rank - 1]) * item;
}

}  // namespace
}  // namespace cuda
}  // namespace sinpe

int64_t sinpe::cuda::embed_backward_scratch(const sinpe_embed_backward_arguments& a) {
  const int64_t count = product(a.sizes, a.rank - 1);
  return bytes_of_nodes(a, count) + sort_scratch(count, a.num_embeddings);
}

sinpe_status sinpe::cuda::embed_backward(const sinpe_embed_backward_arguments& a, void* scratch,
                                         const DeviceScalars& scalars, Stream stream) {
  if (a.rank < 2 || a.rank > SINPE_MAX_RANK || !valid_sizes(a.sizes, a.rank) || a.num_embeddings < 0 ||
      !valid_dropout(a.dropout, a.sizes, a.rank)) {
    return SINPE_BAD_ARGUMENT;
  }
  const int64_t count = product(a.sizes, a.rank - 1);
  if (a.num_embeddings == 0 || a.sizes[a.rank - 1] == 0) return SINPE_OK;
  if (a.out == nullptr || (count > 0 && (a.grad == nullptr || a.ids == nullptr)) || scratch == nullptr)
    return SINPE_BAD_ARGUMENT;
  SortedIds sorted;
  const sinpe_status status = sort_ids(a.ids, a.sizes, a.id_strides, a.rank - 1, count, a.num_embeddings,
                                       static_cast<char*>(scratch) + bytes_of_nodes(a, count), stream, &sorted);
  if (status != SINPE_OK) return status;
  return with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    const bool drops = a.dropout.drop_threshold != 0;
    const auto run = is_aligned_call<T>(a) ? (drops ? launch_levels<T, true, true> : launch_levels<T, false, true>)
                                           : (drops ? launch_levels<T, true, false> : launch_levels<T, false, false>);
    return run(a, sorted, scratch, scalars, stream);
  });
}
