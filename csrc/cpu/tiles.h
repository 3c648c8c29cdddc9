// The loop that add, add_grid, embed, dropout and row_dots share: the encoding is computed tile by tile, and each tile is applied to all
// slices of x that need its rows while it is in the cache. No table is stored. From the last function to the first:
// run_checked checks the arguments; for_each_tile chooses for_each_row_tile, or for_each_streamed_row without tiles.
//
//   slice          a matrix (rows, dim) of x, which is (batch, middle, rows, dim): Shape in core/layout.h
//   position set   the slices with the same positions: all, or those of one batch element if each has its own positions
//   tile           consecutive rows of the encoding, which one thread computes into memory of its own
//   chunk          some slices of a position set, where a tile is computed by several threads, each for its own slices
//   task           a tile and a chunk: what a thread does at a time
//   RNG offset     the index of an element in the random numbers of dropout: core/philox.h
#pragma once

#include <cstdlib>
#include <cstring>
#include <optional>

#include "core/layout.h"
#include "cpu/exceptions.h"
#include "cpu/kept_rows.h"
#include "cpu/populate.h"
#include "cpu/positions.h"

namespace sinpe {

// Memory offset of a slice.
inline int64_t slice_offset(const sinpe_add_arguments& a, const int64_t* strides, int64_t slice) {
  return offset_at(a.sizes, strides, a.rank - 2, slice);
}

// Slices whose rows lie between two rows of one slice in memory, as those of a batch do with the sequence first; 1 if
// none do. They are consecutive.
inline int64_t slices_between_rows(const sinpe_add_arguments& a, const int64_t* strides) {
  int64_t count = 1;
  const int64_t row = std::abs(strides[a.rank - 2]);
  for (int d = a.rank - 3; d >= 0 && (a.sizes[d] == 1 || std::abs(strides[d]) < row); --d) count *= a.sizes[d];
  return count;
}

constexpr int64_t kMostSlices = 256;  // slices of a block

// Calls work(slice, count) for blocks of slices whose rows are to be walked together, row by row: those that lie
// between two rows, at most kMostSlices, otherwise at most `others`.
template <class F>
void for_each_block(int64_t first, int64_t last, int64_t between_rows, int64_t others, const F& work) {
  for (int64_t slice = first; slice < last;) {
    const int64_t end = between_rows == 1 ? slice + others : (slice / between_rows + 1) * between_rows;
    const int64_t count = std::min({last, end, slice + kMostSlices}) - slice;
    work(slice, count);
    slice += count;
  }
}

// Checks all arguments except x and out. Sets *first to the first position if no positions are given.
inline sinpe_status check_arguments(const Plan& plan, const sinpe_add_arguments& a, int64_t* first) {
  if (a.rank < 2 || a.rank > SINPE_MAX_RANK || a.sizes[a.rank - 1] != plan.dim || !valid_sizes(a.sizes, a.rank) ||
      !valid_dropout(a.dropout, a.sizes, a.rank)) {
    return SINPE_BAD_ARGUMENT;
  }
  const Shape shape(a);
  *first = 0;
  if (shape.empty()) return SINPE_OK;  // an empty tensor may have a null pointer
  if (a.positions_are_starts != 0 && (a.positions == nullptr || a.position_dtype != SINPE_INT64)) {
    return SINPE_BAD_ARGUMENT;
  }
  if (a.positions == nullptr) {
    return first_position(plan.start, a.start, shape.rows, first) ? SINPE_OK : SINPE_OUT_OF_RANGE;
  }
  if (!is_position_type(a.position_dtype)) return SINPE_BAD_ARGUMENT;
  for (int64_t b = 0; b < shape.batch && a.positions_are_starts != 0; ++b) {
    const int64_t start = static_cast<const int64_t*>(a.positions)[b * a.position_strides[0]];
    int64_t unused;
    if (!first_position(0, start, shape.rows, &unused)) return SINPE_OUT_OF_RANGE;
  }
  return SINPE_OK;
}

// The padding mask: rows to which no encoding is added.
class Padding {
 public:
  Padding(const sinpe_add_arguments& a, const Shape& shape) : a_(a), middle_(shape.middle) {}
  bool at(int64_t slice, int64_t row) const { return a_.padding_mask != nullptr && of(slice)[row * step()] != 0; }
  // The mask of the rows of a slice, step() elements apart.
  const uint8_t* of(int64_t slice) const { return a_.padding_mask + slice / middle_ * a_.mask_strides[0]; }
  int64_t step() const { return a_.mask_strides[1]; }

 private:
  const sinpe_add_arguments& a_;
  int64_t middle_;
};

// Memory for a tile of n values, allocated when it is first used. Small tiles, such as those of a decoding step, are on
// the stack, because an allocation would take too long. Aligned to cache lines: a vector load across two lines takes twice
// as long.
template <class Real>
class TileMemory {
 public:
  TileMemory(int64_t n, bool zeros) : n_(n), zeros_(zeros) {}
  Real* data() {
    if (data_ == nullptr) allocate();
    return data_;
  }

 private:
  void allocate() {
    data_ = few_;
    if (n_ > kFew) {
      many_.reset(new Real[static_cast<size_t>(n_ + kLine)]);
      const uintptr_t past = reinterpret_cast<uintptr_t>(many_.get()) / sizeof(Real) % kLine;
      data_ = many_.get() + (kLine - past) % kLine;
    }
    if (zeros_) std::fill_n(data_, n_, Real{});
  }

  static constexpr int64_t kFew = 1024, kLine = 64 / sizeof(Real);
  int64_t n_;
  bool zeros_;
  Real* data_ = nullptr;
  alignas(64) Real few_[kFew];
  std::unique_ptr<Real[]> many_;
};

// Rows that follow each other in memory.
template <class Real>
struct Rows {
  const Real* pe;
  int64_t n;
};

constexpr int64_t kMinTileRows = 8, kMinChunkSlices = 8, kTaskElements = 65536;

// The rows of a tile, at most `tile`, so that there are several tiles for each thread: a multiple of kMinTileRows.
inline int64_t tile_for_threads(int64_t tile, int64_t rows, int64_t threads) {
  return threads == 1 ? tile : std::min(tile, std::max<int64_t>(1, rows / (4 * threads * kMinTileRows)) * kMinTileRows);
}

// Calls work(first slice, last slice, row, n, pe) so that every row of every slice is processed once. make_rows() creates
// one thread's generator of rows; generator(position_set, row, n, tile) returns up to n of them, which it computes in
// tile.data() or has already. make_work() creates the work function of one thread. With `zeros`, a tile holds zeros where
// the generator writes nothing. If it computes nothing (`has_rows`), chunks are small: tasks in the order of memory.
template <class Real, class MakeRows, class MakeWork>
sinpe_status for_each_row_tile(const Shape& shape, int64_t position_sets, int64_t tile, const MakeRows& make_rows,
                               const MakeWork& make_work, bool zeros = false, bool has_rows = false) {
  using Work = decltype(make_work());
  const auto apply = [](auto& maker, auto& work, TileMemory<Real>& memory, int64_t position_set, int64_t first,
                        int64_t last, int64_t row, int64_t n) {
    for (const int64_t end = row + n; row < end;) {
      const Rows<Real> rows = maker(position_set, row, end - row, memory);
      work(first, last, row, rows.n, rows.pe);
      row += rows.n;
    }
  };
  const int64_t all_slices = shape.batch * shape.middle;
  const bool is_small = all_slices * shape.rows * shape.dim <= kGrain;
  if (is_small && position_sets == 1 && shape.rows <= tile) {  // a single task, without the divisions below
    auto maker = make_rows();
    auto work = make_work();
    TileMemory<Real> memory(shape.rows * shape.dim, zeros);
    apply(maker, work, memory, 0, 0, all_slices, 0, shape.rows);
    return SINPE_OK;
  }
  // Several tasks for each thread, so that none waits long for the others: tiles of fewer rows, and if these are too
  // few, chunks. For each chunk the rows are computed again, so beyond one task for each thread a chunk has
  // kMinChunkSlices slices or more.
  const int64_t threads = is_small ? 1 : parallel_threads(), slices = all_slices / position_sets;
  tile = tile_for_threads(tile, position_sets * shape.rows, threads);
  const int64_t tiles = (shape.rows + tile - 1) / tile, all_tiles = position_sets * tiles;
  const int64_t wanted = std::min((4 * threads + all_tiles - 1) / all_tiles, slices / kMinChunkSlices);
  const int64_t for_threads = threads == 1 ? 1 : std::min(slices, std::max(wanted, threads / all_tiles));
  const int64_t most = !has_rows ? slices : tiles > 1 ? 1 : std::max<int64_t>(1, kTaskElements / (tile * shape.dim));
  const int64_t chunks = std::max({int64_t{1}, for_threads, slices / most});
  const int64_t cost = std::max<int64_t>(1, tile * shape.dim * ((slices + chunks - 1) / chunks));

  const int64_t tasks = all_tiles * chunks, grain = is_small ? tasks : std::max<int64_t>(1, kGrain / cost);
  return parallel_status(tasks, grain, [&](int64_t begin, int64_t end) {
    auto maker = make_rows();
    auto work = make_work();
    TileMemory<Real> memory(tile * shape.dim, zeros);
    const auto first_slice = [&](int64_t task) { return task / tiles * slices / chunks; };
    // Small tasks in the order of memory, for several of which pages are populated at a time.
    std::optional<PagesAhead> ahead;
    if constexpr (Work::kStreams) {
      if (chunks == slices || (has_rows && tiles == 1))
        ahead.emplace(work.pages(), work.to(first_slice(begin), begin % tiles * tile),
                      work.to(first_slice(end - 1 + tiles) - 1, std::min(((end - 1) % tiles + 1) * tile, shape.rows)));
    }
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % tiles * tile, first = first_slice(task), last = first_slice(task + tiles);
      const int64_t n = std::min(tile, shape.rows - row);
      if constexpr (Work::kStreams) {
        if (ahead) ahead->until(work.to(last - 1, row + n));
      }
      apply(maker, work, memory, task / tiles / chunks, first, last, row, n);
    }
  });
}

// For work functions that can provide StreamedRows (kStreams): rows of the encoding that are used by one slice only do
// not need a tile. Each of the `slices` is a position set.
template <class T, class MakeWork>
sinpe_status for_each_streamed_row(const Plan& plan, const RowState& steps, const Shape& shape, int64_t slices,
                                   const Positions& positions, const MakeWork& make_work) {
  const int64_t tile = tile_for_threads(std::min(shape.rows, tile_rows(shape.dim, kTileOfMany)), slices * shape.rows,
                                        parallel_threads());
  const int64_t tiles = (shape.rows + tile - 1) / tile;
  const int64_t grain = std::max<int64_t>(1, kGrain / (tile * shape.dim));
  return parallel_status(slices * tiles, grain, [&](int64_t begin, int64_t end) {
    RowMaker maker(plan, &steps);
    const auto work = make_work();
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % tiles * tile, slice = task / tiles, n = std::min(tile, shape.rows - row);
      work.populate(slice, row, n);
      const auto rows_of = [&](int64_t r, int64_t count) {
        StreamedRows<T> rows{};
        for (int64_t k = 0; k < count; ++k)
          work.find(slice, row + r + k, &rows.x[k], &rows.out[k], &rows.rng_offset[k]);
        return rows;
      };
      maker.stream<T>(positions.first(slice) + row, n, rows_of, work.stream_options());
    }
  });
}

// Looks for the rows of a call among those that are kept, which are float32.
template <class Real>
void find_kept(const Plan& plan, const Positions& positions, const Shape& shape, KeptRows* kept) {
  if (!std::is_same<Real, float>::value) return;
  int64_t lowest, highest;
  const int64_t position_sets = positions.shared_by_batch() ? 1 : shape.batch;
  if (positions.range(shape, &lowest, &highest)) kept->find(plan, lowest, highest, position_sets * shape.rows);
}

// The rows of a plan for one thread, times alpha: those that are kept, or else computed by RowMaker, one from another
// (rows_rotate.inc) where positions are consecutive, otherwise each from its position (rows_direct.inc).
template <class Real>
class PlanRows {
 public:
  PlanRows(const Plan& plan, const RowState* steps, const Positions& positions, const KeptRows& kept, Real alpha)
      : maker_(plan, steps), positions_(positions), kept_(kept), dim_(plan.dim), alpha_(alpha) {}

  Rows<Real> operator()(int64_t position_set, int64_t row, int64_t n, TileMemory<Real>& tile) {
    Rows<Real> rows{nullptr, n};
    if constexpr (std::is_same<Real, float>::value) {
      if (kept_.found()) rows = kept(position_set, row, n, tile);
    }
    if (rows.pe == nullptr) {
      positions_.rows(maker_, position_set, row, n, tile.data(), dim_);
      rows.pe = tile.data();
    }
    if (alpha_ != Real{1}) {
      row_kernels().of<Real>().round(rows.pe, alpha_, tile.data(), rows.n * dim_);
      rows.pe = tile.data();
    }
    return rows;
  }

 private:
  // Fewer values than these are copied into the tile, so that the work function is called once.
  static constexpr int64_t kFewValues = 2048;

  Rows<Real> kept(int64_t position_set, int64_t row, int64_t n, TileMemory<Real>& tile) const {
    int64_t run, unused;
    if (positions_.are_consecutive()) {
      const Real* pe = kept_.at(positions_.first(position_set) + row, &run);
      return {pe, std::min(n, run)};
    }
    const auto position = [&](int64_t r) { return positions_.integer_at(position_set, row + r); };
    const Real* pe = kept_.at(position(0), &run);
    int64_t r = 1;
    while (r < std::min(n, run) && position(r) == position(r - 1) + 1) ++r;
    if (r == n || r * dim_ >= kFewValues) return {pe, r};
    for (r = 0; r < n; ++r) {
      std::memcpy(tile.data() + r * dim_, kept_.at(position(r), &unused), static_cast<size_t>(dim_) * sizeof(Real));
    }
    return {tile.data(), n};
  }

  RowMaker maker_;
  const Positions& positions_;
  const KeptRows& kept_;
  int64_t dim_;
  Real alpha_;
};

// for_each_row_tile with the rows of a plan, times alpha.
template <class Real, class MakeWork>
sinpe_status for_each_tile(const Plan& plan, const sinpe_add_arguments& a, int64_t first, Real alpha,
                           const MakeWork& make_work) {
  using Work = decltype(make_work());
  const Shape shape(a);
  const Positions positions(a, first);
  const int64_t position_sets = positions.shared_by_batch() ? 1 : shape.batch;
  const bool alone = shape.batch * shape.middle == position_sets;
  KeptRows kept;
  find_kept<Real>(plan, positions, shape, &kept);
  const bool has_runs =
      std::is_same<Real, float>::value && !kept.found() && positions.have_runs(position_sets, shape.rows);
  const std::unique_ptr<RowState> steps = shared_steps(plan, has_runs ? shape.rows : 0);
  if constexpr (std::is_same<Real, float>::value && Work::kStreams) {
    if (steps != nullptr && alone && positions.are_consecutive() && make_work().can_stream()) {
      return for_each_streamed_row<typename Work::Element>(plan, *steps, shape, position_sets, positions, make_work);
    }
  }
  const auto make_rows = [&] { return PlanRows<Real>(plan, steps.get(), positions, kept, alpha); };
  const bool needs_tile = !kept.found() || alpha != Real{1} || !positions.are_consecutive();
  const int64_t most = needs_tile ? tile_rows(shape.dim, alone ? kTileOfOne : kTileOfMany) : shape.rows;
  return for_each_row_tile<Real>(shape, position_sets, std::min(shape.rows, most), make_rows, make_work);
}

// Checks the arguments of add or row_dots, then calls run(T{}, plan, shape, first position) with the element type.
// no_overlap() returns whether the output overlaps none of the inputs.
template <class NoOverlap, class F>
sinpe_status run_checked(const int64_t* packed_plan, int64_t n_words, const sinpe_add_arguments* a,
                         const NoOverlap& no_overlap, const F& run) {
  Plan plan;
  if (!decode_plan(packed_plan, n_words, &plan)) return SINPE_BAD_PLAN;
  if (a == nullptr) return SINPE_BAD_ARGUMENT;
  int64_t first;
  const sinpe_status checked = check_arguments(plan, *a, &first);
  if (checked != SINPE_OK) return checked;
  const Shape shape(*a);
  if (shape.empty()) return SINPE_OK;
  if (a->x == nullptr || a->out == nullptr || !no_overlap()) return SINPE_BAD_ARGUMENT;
  return catch_out_of_memory(
      [&] { return with_type(a->dtype, [&](auto type) { return run(type, plan, shape, first); }); });
}

}  // namespace sinpe
