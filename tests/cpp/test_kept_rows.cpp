// Kept rows (cpu/kept_rows.h): any sequence of calls has the bits of calls that keep nothing, which are those with plans
// that have no digest. Also in many threads at once, and in children forked meanwhile. `make cpp PRESET=tsan-threads` runs
// this under ThreadSanitizer.
#include <atomic>
#include <thread>

#include "check.h"
#include "cpu/kept_rows.h"
#include "plans.h"
#include "sinpe/sinpe.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace {

#if defined(SINPE_SANITIZE)
constexpr int kFewer = 4;
#else
constexpr int kFewer = 1;
#endif

using sinpe::kBlockValues;
using sinpe::kKeptBlocks;

struct Plans {
  TestPlan kept, plain;  // with and without a digest
  explicit Plans(TestPlan of) : kept(of), plain(std::move(of)) { set_digest(&kept); }
};

int64_t below(check::Random& random, int64_t n) {
  return static_cast<int64_t>(random.next() % static_cast<uint64_t>(n));
}

int64_t words(const TestPlan& plan) { return static_cast<int64_t>(plan.words.size()); }

// The bytes of a table.
std::vector<float> table(const TestPlan& plan, int64_t start, int64_t length, sinpe_dtype dtype = SINPE_FLOAT32) {
  const int64_t dim = plan.words[2], stride = dim + 3;
  std::vector<float> out(static_cast<size_t>(std::max<int64_t>(1, (length - 1) * stride + dim)), -7.0f);
  CHECK(sinpe_table(plan.words.data(), words(plan), start, length, dtype, out.data(), stride) == SINPE_OK);
  return out;
}

// One random call of `add` or `table`, made by `run` with either plan.
std::vector<float> call(const TestPlan& plan, check::Random random) {
  const int64_t dim = plan.words[2], batch = 1 + below(random, 3), length = 1 + below(random, 70);
  const int64_t first = below(random, 3) == 0 ? 0 : below(random, 150) - 50;
  const auto dtype = static_cast<sinpe_dtype>(below(random, 3) == 0 ? SINPE_BFLOAT16 : SINPE_FLOAT32);
  if (below(random, 4) == 0) return table(plan, first, length, dtype);
  const int64_t elements = batch * length * dim;
  std::vector<float> x(static_cast<size_t>(elements)), out(x.size(), -7.0f);
  for (float& v : x) v = static_cast<float>(random.uniform());
  if (dtype == SINPE_BFLOAT16)
    for (float& v : x) v = 0.00390625f;  // two elements
  std::vector<int64_t> positions(static_cast<size_t>(batch * length));
  std::vector<uint8_t> mask(positions.size());
  for (uint8_t& m : mask) m = below(random, 2) != 0;
  sinpe_add_arguments a{};
  a.dtype = dtype, a.rank = 3, a.scale = 1.5, a.alpha = below(random, 2) == 0 ? 1.0 : 0.3;
  a.x = x.data(), a.out = out.data(), a.start = first;
  const int64_t sizes[] = {batch, length, dim};
  const bool by_channels = below(random, 4) == 0;
  const int64_t strides[] = {length * dim, by_channels ? 1 : dim, by_channels ? length : 1};
  for (int d = 0; d < 3; ++d) a.sizes[d] = sizes[d], a.x_strides[d] = a.out_strides[d] = strides[d];
  const int64_t kind = below(random, 5);  // of positions
  const bool are_starts = kind == 1;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t row = 0; row < length; ++row) {
      int64_t& p = positions[static_cast<size_t>(b * length + row)];
      p = are_starts  ? first + 5 * b
          : kind == 2 ? first + row
          : kind == 3 ? below(random, 90)
                      : first + row / 7 * 9 + row;
    }
  }
  if (kind != 0 && kind != 4) {
    a.positions = positions.data(), a.position_dtype = SINPE_INT64, a.positions_are_starts = are_starts ? 1 : 0,
    a.start = 0;
    a.position_strides[0] = length, a.position_strides[1] = 1;
  }
  if (below(random, 3) == 0) a.padding_mask = mask.data(), a.mask_strides[0] = length, a.mask_strides[1] = 1;
  if (below(random, 3) == 0) a.dropout.drop_threshold = 20000, a.dropout.seed = 5;
  CHECK(sinpe_add(plan.words.data(), words(plan), &a) == SINPE_OK);
  return out;
}

std::vector<Plans> some_plans() {
  std::vector<Plans> made;
  for (const int64_t dim : {1, 2, 31, 64, 200, 512, 520, 1025, 4096})
    for (const double base : {10000.0, 500.0})
      made.emplace_back(make_plan(dim, dim == 1 ? 0 : static_cast<int>(dim % 3), base == 500.0, 1.0, base));
  return made;
}

bool are_same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void test_sequences(const std::vector<Plans>& plans) {
  check::Random random;
  const int64_t before = sinpe_kept_rows_uses();
  size_t plan = 0;
  for (int k = 0; k < 6000 / kFewer; ++k) {
    if (below(random, 12) == 0) plan = static_cast<size_t>(below(random, static_cast<int64_t>(plans.size())));
    const uint64_t seed = random.next();
    const check::Random same{seed};
    CHECK(are_same(call(plans[plan].kept, same), call(plans[plan].plain, same)));
  }
  CHECK(sinpe_kept_rows_uses() - before > 600 / kFewer);
}

// How often calls of a table use kept rows.
int64_t uses_of(const TestPlan& plan, int64_t start, int64_t length, int times) {
  const int64_t before = sinpe_kept_rows_uses();
  for (int k = 0; k < times; ++k) table(plan, start, length);
  return sinpe_kept_rows_uses() - before;
}

void test_which_are_kept() {
  Plans p(make_plan(512, 0, false, 0.9));
  const int64_t rows = kBlockValues / 512;
  CHECK(uses_of(p.kept, 0, rows, 1) == 0);  // a call that is made once makes no block
  CHECK(uses_of(p.kept, 0, rows, 1) == 1);
  CHECK(uses_of(p.kept, 3, 2, 2) == 2);                                 // rows of the same block
  CHECK(uses_of(p.plain, 0, rows, 5) == 0);                             // no digest
  CHECK(uses_of(p.kept, 1000 * rows, rows * kKeptBlocks + 1, 3) == 0);  // more than fits
  for (const int64_t end : {INT64_MIN, INT64_MAX - rows + 1}) CHECK(uses_of(p.kept, end, rows, 3) == 0);
  CHECK(are_same(table(p.kept, INT64_MAX - 7, 8), table(p.plain, INT64_MAX - 7, 8)));
  for (const int64_t start : {-rows, -1 - rows, int64_t{-5}, int64_t{1} << 40, -(int64_t{1} << 40)})
    for (int k = 0; k < 4; ++k) CHECK(are_same(table(p.kept, start, rows + 1), table(p.plain, start, rows + 1)));
  // A step at a time, as decoding does: from the third step on.
  int64_t used = 0;
  for (int64_t step = 0; step < rows; ++step) used += uses_of(p.kept, 50 * rows + step, 1, 1);
  CHECK(used >= rows - 4);
}

// Positions farther apart than int64 can count, in blocks of one row.
void test_far_positions() {
  const Plans p(make_plan(kBlockValues, 1, false));
  const int64_t dim = kBlockValues, positions[] = {-(int64_t{1} << 62), int64_t{1} << 62};
  std::vector<float> x(static_cast<size_t>(2 * dim)), out[2] = {x, x};
  for (int k = 0; k < 2; ++k) {
    const TestPlan& plan = k == 0 ? p.kept : p.plain;
    sinpe_add_arguments a{};
    a.dtype = SINPE_FLOAT32, a.rank = 2, a.scale = 1.0, a.alpha = 1.0, a.x = x.data(), a.out = out[k].data();
    a.sizes[0] = 2, a.sizes[1] = a.x_strides[0] = a.out_strides[0] = dim, a.x_strides[1] = a.out_strides[1] = 1;
    a.positions = positions, a.position_dtype = SINPE_INT64, a.position_strides[1] = 1;
    for (int times = 0; times < 3; ++times) CHECK(sinpe_add(plan.words.data(), words(plan), &a) == SINPE_OK);
  }
  CHECK(are_same(out[0], out[1]));
}

// Plans that differ in one word are not taken for each other.
void test_words() {
  const Plans p(make_plan(64, 1, true));
  uses_of(p.kept, 0, 100, 70);  // by then another block has not been used for long
  CHECK(uses_of(p.kept, 0, 100, 1) == 1);
  for (size_t word = 16; word < p.kept.words.size(); ++word) {
    TestPlan other = p.plain;
    other.words[word] ^= int64_t{1} << 40;
    const std::vector<float> want = table(other, 3, 50);
    set_digest(&other);
    for (int k = 0; k < 4; ++k) CHECK(are_same(table(other, 3, 50), want));
  }
  // A digest that is not that of the words, with other words in the header: one channel fewer, another sign.
  for (const size_t word : {size_t{2}, size_t{6}}) {
    TestPlan other = p.kept;
    if (word == 2)
      other.words[2] = 63, other.words[4] -= 1, other.words[5] |= 0, other.words[7] = 63, other.words[1] -= 5,
      other.words.resize(other.words.size() - 5);
    if (word == 6) other.words[6] = bits_of(-1.0);
    const int64_t before = sinpe_kept_rows_uses();
    table(other, 3, 50);
    CHECK(sinpe_kept_rows_uses() == before);
  }
}

// Many plans, of which few fit, in many threads at once.
void test_threads() {
  constexpr int kThreads = 8, kPlans = 64;
  std::vector<Plans> plans;
  std::vector<std::vector<float>> want;
  for (int k = 0; k < kPlans; ++k) {
    plans.emplace_back(make_plan(8 << k % 7, k % 3, k % 2 != 0, 1.0 + k));
    want.push_back(table(plans.back().plain, -100, 400));
  }
  std::atomic<int> wrong{0};
  const auto run = [&](int thread, int rounds) {
    check::Random random{static_cast<uint64_t>(thread + 1) * 77};
    for (int k = 0, number = 0; k < rounds; ++k) {
      if (below(random, 6) == 0) number = static_cast<int>(below(random, kPlans));
      const int64_t start = below(random, 330), length = 1 + below(random, 60),
                    dim = plans[static_cast<size_t>(number)].kept.words[2];
      const std::vector<float> got = table(plans[static_cast<size_t>(number)].kept, start - 100, length);
      const std::vector<float>& all = want[static_cast<size_t>(number)];
      for (int64_t r = 0; r < length; ++r)
        wrong += std::memcmp(&got[static_cast<size_t>(r * (dim + 3))],
                             &all[static_cast<size_t>((start + r) * (dim + 3))], static_cast<size_t>(dim) * 4) != 0;
    }
    return wrong == 0 ? 0 : 1;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(run, t, 4000 / kFewer);
#if (defined(__unix__) || defined(__APPLE__)) && !defined(SINPE_SANITIZE)
  // Children forked while the other threads hold the lock and make rows.
  for (int k = 0; k < 60; ++k) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(run(100 + k, 50));
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
#endif
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace

int main() {
  test_which_are_kept();
  test_sequences(some_plans());
  test_far_positions();
  test_words();
  test_threads();
  return check::finish("test_kept_rows");
}
