// The kernel of table and encode, and of add if no two rows of x share a row of the encoding, for more elements than
// those of cuda/few_rows.h: a thread computes 16 bytes of each row of a run, with the state of its oscillators in
// registers. If a rounding is undecided, these bytes are not written (so x and the result may be the same memory), but
// added to the block's list, and all threads of the block compute the pairs of the list after a barrier. Invalid plans,
// and positions that are not finite, give NaN.
#pragma once

#include "core/run.h"
#include "cuda/access.h"
#include "cuda/rows.h"

namespace sinpe {
namespace cuda {

constexpr int kRunRowBits = 5,
              kMaxRunRows = 1 << kRunRowBits;  // per run: a bit for each row with an undecided rounding

// Kind of the positions of a call.
enum class PositionKind { kConsecutive, kInteger, kFloat };

template <class T, class Arithmetic, PositionKind kKind, bool kAdds>
struct Runs {
  static constexpr bool kConsecutive = kKind == PositionKind::kConsecutive;
  using Real = typename Arithmetic::Real;
  static_assert(std::is_same<Real, accumulate_t<T>>::value, "an arithmetic of T's accumulation type");
  static constexpr int kPhases = 3, kThreads = cuda::kThreads;
  // Whether samples are ranges (core/run.h). Of sums, only those in bfloat16 at given positions: elsewhere, to resolve the
  // roundings that ranges leave undecided takes as many instructions as they save.
  static constexpr bool kDouble = std::is_same<Arithmetic, InDouble>::value;
  static constexpr bool kRange = sizeof(T) == 2 && (kAdds ? kDouble && !kConsecutive && std::is_same<T, bfloat16>::value
                                                          : kDouble || kKind != PositionKind::kFloat);
  using AnyRange = typename std::conditional<kAdds, SumRangeRun, RangeRun<Arithmetic, kConsecutive>>::type;
  using OscillatorRun = typename std::conditional<kRange, AnyRange, Run<Arithmetic, kConsecutive>>::type;
  // Limited by the registers of kOsc oscillators.
  static constexpr int kBlocks = !kAdds && (std::is_same<T, float>::value || (kRange && kDouble)) ? 3 : 2;
  static constexpr int kEach = 16 / static_cast<int>(sizeof(T));  // values of a row per thread
  static constexpr int kOsc = kEach / 2;                          // oscillators per thread
  // Rows that a thread computes at once, while as many more are loaded: in sums, as many as there are registers for. The
  // compiler uses more registers for newer architectures.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  static constexpr int kMost = kOsc == 4 && kConsecutive ? 1 : 2;
#else
  static constexpr int kMost = kOsc == 1 ? 2 : (kOsc == 4 && kConsecutive ? 3 : 4);
#endif
  static constexpr int kSingle = kOsc == 4 && kKind == PositionKind::kFloat ? 1 : 2;
  static constexpr int kAdded = std::is_same<Arithmetic, InSingle>::value ? kSingle : (kRange ? 3 : kMost);
  static constexpr int kInFlight = kAdds ? kAdded : (kOsc == 4 && kConsecutive ? 1 : 2);
  // Positions of a block's rows that are loaded into shared memory, if there are not more. With x in flight, a prefetch
  // into L2 is enough, and the registers for it are not free.
  static constexpr bool kSeparate = !kConsecutive && !kAdds;
  static constexpr int kStaged = kSeparate ? 1024 : 0;
  struct Shared {
    uint32_t n;                                  // number of pieces with an undecided rounding
    uint16_t undecided[kThreads * kMaxRunRows];  // these pieces: the thread and the row of its run
    uint64_t position_bits[kStaged + 1];
  };

  DevicePlan packed_plan;
  RowPositions positions;
  int64_t rows;
  int32_t height;   // rows per run
  Divisor threads;  // threads per row
  int32_t shift;    // logarithm of row_step()
  bool even;        // rows begin at multiples of 16 bytes
  const T* x;
  T* out;
  int64_t x_step, out_step, position_step;  // strides of rows, in bytes
  double scale, alpha;
  DeviceScalars scalars;

  template <int kPhase>
  SINPE_HD void phase(uint32_t block, int thread, Shared& shared) const {
    if constexpr (kPhase == 0) {
      if (thread == 0) shared.n = 0;
      if constexpr (kStaged != 0) {
        const int64_t first = first_row(block), left = rows - first;
        SINPE_ROLLED
        for (int64_t i = thread; is_staged() && i < block_rows() && i < left; i += kThreads)
          shared.position_bits[i] = read(position_address(first + i));
      }
    } else if constexpr (kPhase == 1) {
      const ThreadRows at = rows_of(block, static_cast<uint32_t>(thread));
      if (at.height > 0) compute(at, block, static_cast<uint32_t>(thread), shared);
    } else {
      SINPE_ROLLED
      for (uint32_t i = static_cast<uint32_t>(thread); i < shared.n * kOsc; i += kThreads) {
        const uint32_t piece = shared.undecided[i / kOsc];
        const ThreadRows at = rows_of(block, piece >> kRunRowBits);
        const int64_t row = at.row + static_cast<int64_t>(piece & (kMaxRunRows - 1)) * row_step(),
                      osc = static_cast<int64_t>(at.across) * kOsc + i % kOsc;
        Position p;
        const bool exists = find_position(row, block, shared, &p);
        resolve_pair(read_plan(packed_plan.packed), row, osc, exists, p);
      }
    }
  }

 private:
  // The part of a call that a thread computes.
  struct ThreadRows {
    int64_t row;      // first
    int32_t height;   // existing rows
    uint32_t across;  // index of the thread within a row
  };

  // What a thread loads for the rows that it computes at once.
  template <class Piece, int kPieces>
  struct Loaded {
    uint64_t position_bits[kInFlight];
    Piece data[kInFlight][kPieces];
  };

  // From row to row of a run. In encode, rows of 16, 32 or 64 bytes alternate between the runs of a block, so that
  // neighbouring threads write neighbouring rows of a cache line.
  SINPE_HD int32_t row_step() const { return kSeparate ? 1 << shift : 1; }

  SINPE_HD ThreadRows rows_of(uint32_t block, uint32_t thread) const {
    const uint32_t item = block * static_cast<uint32_t>(kThreads) + thread;
    const uint32_t down = threads.quotient(item), across = item - down * threads.d;
    const uint32_t lead = kSeparate ? down >> shift << shift : down;
    const int64_t first = static_cast<int64_t>(lead) * height + (down - lead);
    const int64_t left = (rows - first + row_step() - 1) >> (kSeparate ? shift : 0);
    return {first, left < height ? static_cast<int32_t>(left < 0 ? 0 : left) : height, across};
  }

  SINPE_HD void compute(const ThreadRows& at, uint32_t block, uint32_t thread, Shared& shared) const {
    Plan plan;
    if (!decode_plan(packed_plan.packed, packed_plan.n_words, &plan) || plan.dim != packed_plan.dim) {
      for (int64_t c = at.across; c < packed_plan.dim; c += threads.d) fill(at, c, static_cast<Real>(quiet_nan()));
    } else if (!even || !are_pairs(plan)) {
      by_channel(at);
    } else {
      const Real by = kAdds ? factor() : Real{1};
      const bool unit = !OscillatorRun::kScales || plan.amplitude == 1.0;
      uint32_t undecided;
      const Places from = places(at, block, shared);
      if (unit && (!kAdds || (by == Real{1} && scale == 1.0))) {
        undecided =
            plan.interleaved ? in_pairs<true, true>(plan, at, from, by) : in_pairs<true, false>(plan, at, from, by);
      } else {
        undecided =
            plan.interleaved ? in_pairs<false, true>(plan, at, from, by) : in_pairs<false, false>(plan, at, from, by);
      }
      SINPE_ROLLED
      for (; undecided != 0; undecided &= undecided - 1) {
        const uint32_t row = static_cast<uint32_t>(lowest_bit(undecided));
        shared.undecided[take_one(&shared.n)] = static_cast<uint16_t>(thread << kRunRowBits | row);
      }
    }
  }

  // The first row of a block, the largest number of its rows, and whether their positions are in shared memory.
  SINPE_HD int64_t first_row(uint32_t block) const {
    const uint32_t down = threads.quotient(block * static_cast<uint32_t>(kThreads));
    return static_cast<int64_t>(down) * height;
  }
  SINPE_HD int32_t block_rows() const {
    return (static_cast<int32_t>(static_cast<uint32_t>(kThreads) / threads.d) + (shift == 0 ? 2 : 0)) * height;
  }
  SINPE_HD bool is_staged() const { return block_rows() <= kStaged; }

  // Where a thread reads the positions of its rows.
  struct Places {
    const char* first;
    int64_t step;  // in bytes
  };
  SINPE_HD Places places(const ThreadRows& at, uint32_t block, const Shared& shared) const {
    if constexpr (kConsecutive) return {};
    if (kStaged != 0 && is_staged())
      return {reinterpret_cast<const char*>(shared.position_bits + (at.row - first_row(block))), 8 * row_step()};
    const char* const first = position_address(at.row);
    SINPE_UNROLLED
    for (int k = 1; k <= kMaxRunRows / 16; ++k) {
      if (row_step() == 1 && position_step <= 8 && 128 * k < at.height * position_step) prefetch(first + 128 * k);
    }
    return {first, position_step * row_step()};
  }

  // Whether there are pairs, in the order of memory, and each thread has kOsc of them.
  SINPE_HD bool are_pairs(const Plan& plan) const {
    return plan.are_pairs() && !(plan.interleaved && plan.q0 != 0) &&
           plan.n_osc == static_cast<int64_t>(threads.d) * kOsc;
  }

  SINPE_HD Real factor() const {
    return static_cast<Real>(scalars.alpha == nullptr ? alpha : value_of(scalars.alpha, scalars.alpha_dtype));
  }
  SINPE_HD Real sum(Real value, Real pe) const { return static_cast<Real>(scale) * value + pe; }

  // Address of a row's values, address of its position, the position's bits, and the position.
  SINPE_HD const char* x_row(int64_t row) const { return reinterpret_cast<const char*>(x) + row * x_step; }
  SINPE_HD char* out_row(int64_t row) const { return reinterpret_cast<char*>(out) + row * out_step; }
  SINPE_HD const char* position_address(int64_t row) const {
    return static_cast<const char*>(positions.positions) + row * position_step;
  }
  SINPE_HD uint64_t read(const char* at) const {
    const bool is_short = kKind == PositionKind::kFloat && positions.dtype == SINPE_FLOAT32;
    return is_short ? *reinterpret_cast<const uint32_t*>(at) : *reinterpret_cast<const uint64_t*>(at);
  }
  SINPE_HD Position position(uint64_t bits) const {
    if (kKind == PositionKind::kInteger) return integer_position(static_cast<int64_t>(bits));
    return float_position(positions.dtype == SINPE_FLOAT32 ? static_cast<double>(bit_cast<float>(low_half(bits)))
                                                           : bit_cast<double>(bits));
  }
  // Sets *p to the position of a row, from shared memory if it is there; returns false if it is not finite or beyond
  // int64.
  SINPE_HD bool find_position(int64_t row, uint32_t block, const Shared& shared, Position* p) const {
    if (kStaged == 0 || !is_staged()) return positions.at(packed_plan, 0, row, p);
    *p = position(shared.position_bits[row - first_row(block)]);
    return p->d - p->d == 0.0;
  }
  SINPE_HD bool is_in_fast_range(const FastRange& fast_range, Position p) const {
    return kKind == PositionKind::kFloat ? fast_range.contains(p.d) : fast_range.contains_integer(p.d);
  }
  // Sets *first to the first of consecutive positions; returns false if one of them is beyond int64.
  SINPE_HD bool find_first(const ThreadRows& at, Position* first) const {
    Position last;
    return positions.at(packed_plan, 0, at.row + at.height - 1, &last) && positions.at(packed_plan, 0, at.row, first);
  }

  // 16 bytes of each row, or twice 8. Returns a bit for each row with an undecided rounding, which is not written.
  // kUnit: the amplitude is 1 (or contained in the run's values), and so are the scale and `by`.
  template <bool kUnit, bool kInterleaved>
  SINPE_HD uint32_t in_pairs(const Plan& plan, const ThreadRows& at, Places where, Real by) const {
    const int64_t osc = static_cast<int64_t>(at.across) * kOsc;
    const FastRange fast_range(plan);
    Position first{};
    bool good = !kConsecutive || find_first(at, &first);
    OscillatorRun run[kOsc];
    SINPE_UNROLLED
    for (int k = 0; k < kOsc; ++k) good = run[k].begin(plan, osc + k, first, at.height, fast_range) && good;
    if (!good) return ~uint32_t{0} >> (kMaxRunRows - at.height);
    constexpr int kWide = kInterleaved ? kEach : kOsc, kPieces = kEach / kWide;  // contiguous values
    using Piece = Bytes<kWide* static_cast<int>(sizeof(T))>;
    const int64_t channel = kInterleaved ? 2 * osc : osc + (plan.q0 == 0 ? 0 : plan.n0);  // first sine channel
    // Distance from the sines to the cosines, in bytes.
    const int64_t distance = (plan.q0 == 0 ? plan.n0 : -plan.n0) * static_cast<int64_t>(sizeof(T));
    const Amplitude amplitude = amplitude_of(kUnit ? 1.0 : plan.amplitude);
    // Where an oscillator's values are among those of a row.
    const auto sine = [](int k) { return kInterleaved ? 2 * k : k; };
    const auto cosine = [](int k) { return kInterleaved ? 2 * k + 1 : kOsc + k; };
    // Writes a row, or returns true without writing if a rounding is undecided.
    const auto make = [&](int32_t r, uint64_t position_bits, const Piece* data, char* to) {
      Undecided row;
      Position p{};
      if (!kConsecutive || OscillatorRun::kCallerChecksRange) {
        p = kConsecutive ? integer_position(first.i + r) : position(position_bits);
        if (OscillatorRun::kCallerChecksRange) row.add(!is_in_fast_range(fast_range, p));
      }
      Piece pieces[kPieces];
      // Packs samples, given in the order of memory, or adds them to x first.
      const auto finish = [&](const Real* samples, Piece* packed) {
        SINPE_UNROLLED
        for (int h = 0; h < kPieces; ++h) {
          Real u[kWide];
          if constexpr (kAdds) unpack<T>(data[h], u);
          SINPE_UNROLLED
          for (int k = 0; k < kWide; ++k) {
            const Real pe = samples[h * kWide + k];
            u[k] = !kAdds ? pe : (kUnit ? u[k] + pe : sum(u[k], by * pe));
          }
          packed[h] = pack<T, sizeof(Piece)>(u);
        }
      };
      if constexpr (kRange && kAdds) {
        // Sums are monotone in the sample, too.
        const float error = OscillatorRun::row_error(fast_range, p);
        Real low[kEach], high[kEach];
        SINPE_UNROLLED
        for (int k = 0; k < kOsc; ++k) {
          const SampleRange range = run[k].at(p, amplitude, error, kUnit);
          low[sine(k)] = range.low.s;
          low[cosine(k)] = range.low.c;
          high[sine(k)] = range.high.s;
          high[cosine(k)] = range.high.c;
        }
        Piece others[kPieces];
        finish(low, pieces);
        finish(high, others);
        uint32_t differ = 0;
        SINPE_UNROLLED
        for (int w = 0; w < 4; ++w) differ |= pieces[w % kPieces].w[w / kPieces] ^ others[w % kPieces].w[w / kPieces];
        row.add(differ != 0);
      } else if constexpr (kRange) {
        const float error = OscillatorRun::row_error(fast_range, p);
        uint32_t words[kOsc], differ = 0;  // a sine and a cosine
        SINPE_UNROLLED
        for (int k = 0; k < kOsc; ++k) {
          const SampleRange range = run[k].at(p, amplitude, error, kUnit);
          const float low[] = {range.low.s, range.low.c}, high[] = {range.high.s, range.high.c};
          const uint32_t word = pack_word<T>(low);
          differ |= word ^ pack_word<T>(high);
          words[k] = OscillatorRun::kTurns ? turn_word(word, range.quarter) : word;
        }
        row.add(differ != 0);
        SINPE_UNROLLED
        for (int k = 0; k < kOsc; ++k) {
          const uint32_t first_word = words[k & ~1], second = words[k | 1];
          if constexpr (kInterleaved) {
            pieces[0].w[k] = words[k];
          } else {
            pieces[k & 1].w[k >> 1] =
                (k & 1) == 0 ? (first_word & 0xffff) | second << 16 : first_word >> 16 | (second & 0xffff0000u);
          }
        }
      } else {
        Real v[kEach];
        SINPE_UNROLLED
        for (int k = 0; k < kOsc; ++k) {
          const Sample<Real> s = run[k].at(fast_range, p, amplitude, &row);
          v[sine(k)] = s.s;
          v[cosine(k)] = s.c;
        }
        finish(v, pieces);
      }
      const bool is_undecided = row.any();
      SINPE_UNROLLED
      for (int h = 0; h < kPieces; ++h) {
        if (!is_undecided) *reinterpret_cast<Piece*>(to + h * distance) = pieces[h];
      }
      return is_undecided;
    };
    const int64_t begin = channel * static_cast<int64_t>(sizeof(T));
    const char* from = kAdds ? x_row(at.row) + begin : nullptr;
    char* to = out_row(at.row) + begin;
    uint32_t undecided = 0;
    // fetch() loads what `count` rows need, and make_some() computes these rows.
    const auto fetch = [&](auto count, Loaded<Piece, kPieces>* rows) {
      SINPE_UNROLLED
      for (int i = 0; i < decltype(count)::value; ++i) {
        if constexpr (!kConsecutive) {
          rows->position_bits[i] = read(where.first);
          where.first += kStaged != 0 ? where.step : position_step;  // the latter occupies no register
        }
        if constexpr (kAdds) {
          SINPE_UNROLLED
          for (int h = 0; h < kPieces; ++h) rows->data[i][h] = *reinterpret_cast<const Piece*>(from + h * distance);
          from += x_step;
        }
      }
    };
    const int64_t out_by = kSeparate ? out_step * row_step() : 0;  // without a step, no register
    const auto make_some = [&](auto count, int32_t r, const Loaded<Piece, kPieces>& rows) {
      uint32_t some = 0;
      SINPE_UNROLLED
      for (int i = 0; i < decltype(count)::value; ++i, to += kSeparate ? out_by : out_step) {
        if (make(r + i, rows.position_bits[i], rows.data[i], to)) some |= 1u << i;
      }
      undecided |= some << r;
    };
    // The loads for the next rows are in flight while rows are computed.
    constexpr std::integral_constant<int, kInFlight> kGroup{};
    constexpr std::integral_constant<int, 1> kOne{};
    Loaded<Piece, kPieces> next{};
    int32_t r = 0;
    if (at.height >= kInFlight) fetch(kGroup, &next);
    SINPE_ROLLED
    for (; r + kInFlight <= at.height; r += kInFlight) {
      const auto current = next;
      if (r + 2 * kInFlight <= at.height) fetch(kGroup, &next);
      make_some(kGroup, r, current);
    }
    if constexpr (kInFlight > 1) {
      SINPE_ROLLED
      for (; r < at.height; ++r) {
        fetch(kOne, &next);
        make_some(kOne, r, next);
      }
    }
    return undecided;
  }

  SINPE_HD void put(int64_t row, int64_t c, Real pe) const {
    T* to = reinterpret_cast<T*>(out_row(row)) + c;
    if constexpr (kAdds) {
      round_store(to, sum(to_float(reinterpret_cast<const T*>(x_row(row))[c]), pe));
    } else {
      round_store(to, pe);
    }
  }

  // For any plan and memory layout: channel by channel; neighbouring threads take neighbouring channels. The plan is
  // read again for each channel, so that it does not occupy registers.
  SINPE_HD void by_channel(const ThreadRows& at) const {
    SINPE_ROLLED
    for (int64_t c = at.across; c < packed_plan.dim; c += threads.d) {
      uint32_t undecided = channel(read_plan(packed_plan.packed), at, c);
      SINPE_ROLLED
      for (; undecided != 0; undecided &= undecided - 1)
        resolve_channel(read_plan(packed_plan.packed),
                        at.row + static_cast<int64_t>(lowest_bit(undecided)) * row_step(), c);
    }
  }

  // Computes the rows of a channel; returns a bit for each row with an undecided rounding, which is not written.
  SINPE_HD uint32_t channel(const Plan& plan, const ThreadRows& at, int64_t c) const {
    bool cosine;
    const int64_t osc = plan.channel_oscillator(c, &cosine);
    const Real by = kAdds ? factor() : Real{1};
    if (osc < 0) {
      fill(at, c, Real{0} * by);
      return 0;
    }
    const FastRange fast_range(plan);
    Position first{};
    Run<Arithmetic, kConsecutive> run;
    if ((kConsecutive && !find_first(at, &first)) || !run.begin(plan, osc, first, at.height, fast_range))
      return ~uint32_t{0} >> (kMaxRunRows - at.height);
    const Amplitude amplitude = amplitude_of(plan.amplitude);
    uint32_t undecided = 0;
    SINPE_ROLLED
    for (int32_t r = 0; r < at.height; ++r) {
      Undecided row;
      const int64_t at_row = at.row + static_cast<int64_t>(r) * row_step();
      const Position p = kConsecutive ? integer_position(first.i + r) : position(read(position_address(at_row)));
      if (Run<Arithmetic, kConsecutive>::kCallerChecksRange) row.add(!is_in_fast_range(fast_range, p));
      const Sample<Real> v = run.at(fast_range, p, amplitude, &row);
      if (row.any()) {
        undecided |= 1u << r;
      } else {
        put(at_row, c, by * (cosine ? v.c : v.s));
      }
    }
    return undecided;
  }

  // The sample of an oscillator in a row, with its rounding decided, times alpha.
  SINPE_HD Sample<Real> resolve(const Plan& plan, int64_t osc, bool exists, Position p) const {
    Sample<Real> v{static_cast<Real>(quiet_nan()), static_cast<Real>(quiet_nan())};
    if (exists) v = decided_sample<Arithmetic>(plan, packed_plan.packed, osc, p);
    const Real by = kAdds ? factor() : Real{1};
    return {by * v.s, by * v.c};
  }

  // Computes the two channels of an oscillator if are_pairs(), or one channel.
  SINPE_HD void resolve_pair(const Plan& plan, int64_t row, int64_t osc, bool exists, Position p) const {
    const Sample<Real> v = resolve(plan, osc, exists, p);
    const int64_t first = plan.interleaved ? 2 * osc : osc, second = plan.interleaved ? first + 1 : osc + plan.n0;
    put(row, plan.q0 == 0 ? first : second, v.s);
    put(row, plan.q0 == 0 ? second : first, v.c);
  }
  SINPE_HD void resolve_channel(const Plan& plan, int64_t row, int64_t c) const {
    bool cosine;
    const int64_t osc = plan.channel_oscillator(c, &cosine);
    Position p;
    const bool exists = positions.at(packed_plan, 0, row, &p);
    const Sample<Real> v = resolve(plan, osc, exists, p);
    put(row, c, cosine ? v.c : v.s);
  }

  SINPE_HD void fill(const ThreadRows& at, int64_t c, Real v) const {
    SINPE_ROLLED
    for (int32_t r = 0; r < at.height; ++r) put(at.row + static_cast<int64_t>(r) * row_step(), c, v);
  }
};

template <class T, class Arithmetic, PositionKind kKind, bool kAdds>
sinpe_status launch_runs(const DevicePlan& plan, const sinpe_add_arguments& a, const DeviceScalars& scalars,
                         Stream stream) {
  using Body = Runs<T, Arithmetic, kKind, kAdds>;
  constexpr int64_t kSize = sizeof(T);
  const int64_t x_step = a.x_strides[a.rank - 2] * kSize, out_step = a.out_strides[a.rank - 2] * kSize;
  const RowPositions positions = positions_of(a);
  const int64_t position_step =
      positions.strides[1] * (kKind == PositionKind::kFloat ? size_of(a.position_dtype) : int64_t{8});
  Body body{plan,
            positions,
            product(a.sizes, a.rank - 1),
            kMaxRunRows,
            Divisor(),
            0,
            false,
            static_cast<const T*>(a.x),
            static_cast<T*>(a.out),
            x_step,
            out_step,
            position_step,
            a.scale,
            a.alpha,
            scalars};
  const auto is_even = [](const void* p, int64_t step) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && step % 16 == 0;
  };
  body.even = is_even(a.out, out_step) && (!kAdds || is_even(a.x, x_step));
  const int64_t threads = (plan.dim + Body::kEach - 1) / Body::kEach;
  if (threads > kMaxBlocks) return launch_failed("more channels than a grid can have");
  body.threads = Divisor(static_cast<uint32_t>(threads));
  if (Body::kSeparate && kThreads % threads == 0 && threads < 8) {  // of 16 bytes: less than a cache line
    while (threads << (body.shift + 1) <= kThreads) ++body.shift;
  }
  // Runs are as long as possible, but of such a height that the last wave of blocks is full, and shorter with few rows,
  // so that there are blocks for all multiprocessors. Short runs keep the memory that is written at any time small, long
  // ones have more rows for each first one. The fastest on an H100 (benchmarks/README.md).
  constexpr int kLongest = sizeof(T) == 4 ? 16 : (sizeof(T) == 2 && !kAdds ? 24 : kMaxRunRows);
  constexpr int kMaxHeight = kLongest - kLongest % Body::kInFlight;
  const int64_t wave = int64_t{Body::kBlocks} * multiprocessors() * kThreads, all = body.rows * threads;
  const int64_t needed = all / (wave * kMaxHeight) + 1, waves = needed < 4 ? 4 : needed;
  const int64_t height = (all + wave * waves - 1) / (wave * waves);
  body.height = static_cast<int32_t>(
      height < Body::kInFlight ? height : (height + Body::kInFlight - 1) / Body::kInFlight * Body::kInFlight);
  const int64_t items = (body.rows + body.height - 1) / body.height * threads;
  if (items > kMaxBlocks - kThreads) return launch_failed("more elements than one launch can have");
  return launch(body, (items + kThreads - 1) / kThreads, stream);
}

// Computes the rows of the encoding, added to x if kAdds. The arguments must be checked, not empty, two-dimensional, and
// have contiguous channels.
template <PositionKind kKind, bool kAdds>
sinpe_status run_rows(const DevicePlan& plan, const sinpe_add_arguments& a, const DeviceScalars& scalars,
                      Stream stream) {
  return with_arithmetic(a.dtype, [&](auto type, auto arithmetic) {
    return launch_runs<decltype(type), decltype(arithmetic), kKind, kAdds>(plan, a, scalars, stream);
  });
}

// run_rows<..., true>, whatever the positions.
sinpe_status add_rows(const DevicePlan& plan, const sinpe_add_arguments& a, const DeviceScalars& scalars,
                      Stream stream);

}  // namespace cuda
}  // namespace sinpe
