// Compares every float32 entry of a range of positions with double-doubles (truth.h), using only the C interface.
//
//   exhaustive check FILE FIRST:COUNT[:STEP] ...    compares; exit status 1 if an entry is more than 0.5001 ULP off
//   exhaustive digest FILE FIRST:COUNT[:STEP] ...   only prints a digest, equal on all instruction sets
//
// FILE is written by tests/support/truth_file.py. Runs of neighbours are computed by sinpe_table and, in reverse order
// and so without rotation, by sinpe_encode; the bits must be equal. `tools/exhaustive.py` runs this for all guarantees.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <thread>

#include "sinpe/sinpe.h"
#include "truth.h"

namespace {

constexpr double kLimit = 0.5001;       // ULP
constexpr double kTie = 0x1p-20;        // ULP: a value this close to the midpoint of two floats is a near tie
constexpr double kUndecided = 0x1p-48;  // ULP: this close, more digits are needed (the reference has 2^-70)
constexpr int64_t kBlock = 1024;        // rows per block; several anchors of the library's rotation
constexpr size_t kKept = 8;             // entries of a kind that are printed
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Run {
  int64_t first, count, step;
  int64_t position(int64_t row) const { return first + row * step; }
};

struct Entry {
  double key;
  int64_t position, channel;
  float got;
};

// The entries with the smallest keys.
struct Kept {
  std::vector<Entry> entries;
  double largest = kInfinity;  // an entry needs a smaller key

  void add(const Entry& e) {
    if (!(e.key < largest)) return;
    entries.insert(std::lower_bound(entries.begin(), entries.end(), e,
                                    [](const Entry& a, const Entry& b) { return a.key < b.key; }),
                   e);
    if (entries.size() > kKept) entries.pop_back();
    if (entries.size() == kKept) largest = entries.back().key;
  }
};

struct Tally {
  int64_t entries = 0, rows = 0, above_half = 0, above_one = 0, ties = 0, undecided = 0, rows_differ = 0;
  double absolute = 0.0;
  uint64_t digest = 0;
  Kept worst, nearest_tie, smallest;  // keys: minus the error in ULP, distance to the midpoint in ULP, the value

  void add(const Tally& t) {
    entries += t.entries;
    rows += t.rows;
    above_half += t.above_half;
    above_one += t.above_one;
    ties += t.ties;
    undecided += t.undecided;
    rows_differ += t.rows_differ;
    absolute = std::max(absolute, t.absolute);
    digest += t.digest;
    for (const Entry& e : t.worst.entries) worst.add(e);
    for (const Entry& e : t.nearest_tie.entries) nearest_tie.add(e);
    for (const Entry& e : t.smallest.entries) smallest.add(e);
  }

  void judge(truth::Sum value, float got, int64_t position, int64_t channel) {
    ++entries;
    if (value.hi == 0.0) {  // only +0 is accepted
      uint32_t bits;
      std::memcpy(&bits, &got, sizeof bits);
      if (bits != 0) worst.add({-kInfinity, position, channel, got}), ++above_half, ++above_one;
      return;
    }
    uint64_t bits;
    std::memcpy(&bits, &value.hi, sizeof bits);
    int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
    const bool below = (value.lo < 0) != (value.hi < 0) && value.lo != 0;
    if ((bits & 0xfffffffffffff) == 0 && below) --exponent;  // just below a power of two
    const double unit = truth::power_of_two(std::max(exponent - 23, -149));
    // Near the true value, both differences are exact except for the last rounding.
    const double step = static_cast<double>(got) - value.hi, error = std::fabs(step - value.lo);
    const double beyond = (std::fabs(step) - 0.5 * unit) + (step < 0 ? value.lo : -value.lo);
    const double ulp = error / unit, to_middle = std::fabs(beyond) / unit;
    absolute = std::max(absolute, error);
    if (!(beyond <= 0)) ++above_half;
    if (!(ulp <= 1)) ++above_one;
    if (to_middle < kTie) ++ties;
    if (to_middle < kUndecided) ++undecided;
    worst.add({ulp == ulp ? -ulp : -kInfinity, position, channel, got});
    nearest_tie.add({to_middle, position, channel, got});
    smallest.add({std::fabs(value.hi), position, channel, got});
  }
};

uint64_t hash_of(const float* row, int64_t dim, int64_t position) {
  uint64_t h = static_cast<uint64_t>(position) * 0x9E3779B97F4A7C15u;
  for (int64_t c = 0; c < dim; ++c) {
    uint32_t bits;
    std::memcpy(&bits, row + c, sizeof bits);
    h = (h ^ bits) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
  }
  return h;
}

void need(sinpe_status status) {
  if (status == SINPE_OK) return;
  std::fprintf(stderr, "exhaustive: %s\n", sinpe_status_text(status));
  std::exit(2);
}

// Rows [begin, end) of a run: computed, hashed and, if `compare`, compared.
void do_block(const truth::Truth& truth, const Run& run, int64_t begin, int64_t end, bool compare, Tally* tally) {
  const int64_t dim = truth.dim, n = end - begin, words = static_cast<int64_t>(truth.plan.size());
  std::vector<int64_t> backwards;
  for (int64_t r = end; r-- > begin;) backwards.push_back(run.position(r));
  std::vector<float> rows(static_cast<size_t>(n * dim), std::nanf("")), encoded = rows;
  need(sinpe_encode(truth.plan.data(), words, backwards.data(), SINPE_INT64, n, SINPE_FLOAT32, encoded.data(), dim));
  for (int64_t r = 0; r < n / 2; ++r) {
    std::swap_ranges(&encoded[static_cast<size_t>(r * dim)], &encoded[static_cast<size_t>(r * dim)] + dim,
                     &encoded[static_cast<size_t>((n - 1 - r) * dim)]);
  }
  if (run.step == 1) {
    need(sinpe_table(truth.plan.data(), words, run.position(begin), n, SINPE_FLOAT32, rows.data(), dim));
  } else {
    rows = encoded;
  }
  tally->rows += n;
  for (int64_t r = 0; r < n; ++r) {
    const float *row = &rows[static_cast<size_t>(r * dim)], *other = &encoded[static_cast<size_t>(r * dim)];
    const int64_t position = run.position(begin + r);
    if (std::memcmp(row, other, static_cast<size_t>(dim) * sizeof(float)) != 0) ++tally->rows_differ;
    tally->digest += hash_of(row, dim, position);
    for (const truth::Truth::Pair& pair : truth.pairs) {
      if (!compare) break;
      const truth::SinCos v = truth.at(position, truth.frequencies[pair.frequency]);
      if (pair.sine >= 0) tally->judge(v.sine, row[pair.sine], position, pair.sine);
      if (pair.cosine >= 0) tally->judge(v.cosine, row[pair.cosine], position, pair.cosine);
    }
  }
}

Tally scan(const truth::Truth& truth, const std::vector<Run>& runs, bool compare) {
  struct Block {
    const Run* run;
    int64_t begin, end;
  };
  std::vector<Block> blocks;
  for (const Run& run : runs) {
    for (int64_t b = 0; b < run.count; b += kBlock) blocks.push_back({&run, b, std::min(b + kBlock, run.count)});
  }
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Tally all;
  const auto work = [&] {
    Tally own;
    for (size_t k; (k = next++) < blocks.size();) {
      do_block(truth, *blocks[k].run, blocks[k].begin, blocks[k].end, compare, &own);
      const size_t tenths = 10 * (k + 1) / blocks.size();
      if (compare && blocks.size() >= 100 && tenths != 10 * k / blocks.size()) {
        std::fprintf(stderr, "  %zu0 %%\n", tenths);
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    all.add(own);
  };
  std::vector<std::thread> threads;
  for (unsigned k = 1; k < std::thread::hardware_concurrency(); ++k) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return all;
}

void tell(const char* name, const Kept& kept) {
  std::printf(", \"%s\": [", name);
  const char* comma = "";
  for (const Entry& e : kept.entries) {
    const double key = std::isinf(e.key) ? -1e300 : e.key;  // JSON has no infinity
    std::printf("%s[%.17g, %" PRId64 ", %" PRId64 ", \"%a\"]", comma, key, e.position, e.channel,
                static_cast<double>(e.got));
    comma = ", ";
  }
  std::printf("]");
}

bool parse(const std::string& text, Run* run) {
  char* end = nullptr;
  run->first = std::strtoll(text.c_str(), &end, 10);
  if (*end != ':') return false;
  run->count = std::strtoll(end + 1, &end, 10);
  run->step = *end == ':' ? std::strtoll(end + 1, &end, 10) : 1;
  return *end == '\0' && run->count > 0 && run->step > 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  std::vector<Run> runs;
  bool good = argc > 3 && (mode == "check" || mode == "digest");
  for (int k = 3; k < argc; ++k) {
    Run run{};
    good = parse(argv[k], &run) && good;
    runs.push_back(run);
  }
  if (!good) {
    std::fprintf(stderr, "usage: exhaustive check|digest FILE FIRST:COUNT[:STEP] ...\n");
    return 2;
  }
  try {
    const truth::Truth truth(argv[2]);
    if (truth.dim != sinpe_plan_dim(truth.plan.data(), static_cast<int64_t>(truth.plan.size()))) {
      throw std::runtime_error(std::string(argv[2]) + ": the plan is of another version");
    }
    const auto begun = std::chrono::steady_clock::now();
    const Tally found = scan(truth, runs, mode == "check");
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
    std::printf("{\"isa\": \"%s\", \"seconds\": %.1f, \"rows\": %" PRId64 ", \"entries\": %" PRId64
                ", \"above_half\": %" PRId64 ", \"above_one\": %" PRId64 ", \"ties\": %" PRId64
                ", \"undecided\": %" PRId64 ", \"rows_differ\": %" PRId64
                ", \"absolute\": %.17g, \"digest\": \"%016" PRIx64 "\"",
                sinpe_isa(), seconds.count(), found.rows, found.entries, found.above_half, found.above_one, found.ties,
                found.undecided, found.rows_differ, found.absolute, found.digest);
    tell("worst", found.worst);
    tell("nearest_tie", found.nearest_tie);
    tell("smallest", found.smallest);
    std::printf("}\n");
    const bool right = found.worst.entries.empty() || -found.worst.entries[0].key <= kLimit;
    return right && found.rows_differ == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exhaustive: %s\n", error.what());
    return 2;
  }
}
