// Random calls of all functions but add_grid against plain loops, on the CPU; and the CUDA kernel bodies, run here as
// loops (cuda/launch.h), against the CPU. ctest repeats this with SINPE_EXT_CUDA_ARITHMETIC=single, the CUDA part only,
// and with other numbers of threads.
#include <functional>
#include <numeric>

#include "cases.h"
#include "cuda/on_host.h"

namespace {

using namespace cases;

constexpr int kCases = 100 / kFewer;
bool only_cuda = false;

// Half of the calls are on a device so small that more than 1024 elements are not few (cuda/few_rows.h).
void vary_device(int number) {
  if constexpr (kHasCuda) sinpe::cuda::on_host::settings().multiprocessors = number % 2;
}

// Shapes for several threads per call, a batch of single rows, several anchors, rows in several pieces, and, in random
// layouts, more positions than a tile by channels has and more slices than a block.
const std::vector<int64_t> kShapes[] = {{2000, 1, 64}, {3000, 64},     {5, 70, 512}, {1, 9, 2101},
                                        {300, 150},    {1, 4, 41, 32}, {2, 2600, 6}, {2, 2600, 6},
                                        {2, 2600, 6},  {300, 3, 10},   {300, 3, 10}};

template <class T>
void test_add_dropout_embed() {
  check::Random random;
  const int shapes = static_cast<int>(std::size(kShapes));
  for (int number = 0; number < 2 * kCases + 2 * shapes; ++number) {
    vary_device(number / 2);
    AddCase<T> c(random, number < 2 * shapes ? kShapes[number / 2] : std::vector<int64_t>{});
    const int kind = number < 2 * shapes ? number % 2 : number % 5;
    const int rank = c.a.rank;
    sinpe_embed_arguments e{};
    Buffer<T> weight;
    std::vector<int64_t> ids;
    if (kind == 1) std::memcpy(c.a.x_strides, c.a.out_strides, sizeof c.a.x_strides);  // in place
    if (kind == 3) {
      const int64_t dim = c.a.sizes[rank - 1], vocabulary = 1 + below(random, 40), stride = dim + below(random, 3);
      int64_t span;
      layout(random, c.a.sizes, rank, false, true, c.a.out_strides, &span);
      c.out = numbers<T>(random, span);
      layout(random, c.a.sizes, rank - 1, false, false, e.id_strides, &span);
      for (int64_t i = 0; i < span; ++i) ids.push_back(below(random, vocabulary));
      weight = numbers<T>(random, (vocabulary - 1) * stride + dim);
      e.ids = ids.data();
      e.num_embeddings = vocabulary;
      e.weight_stride = stride;
    }
    const char* const names[] = {"add", "add_", "dropout", "embed", "add"};
    // A call with its result in `into`, which begins as c.out.
    const auto run = [&](bool on_cuda, Buffer<T>* into) {
      *into = c.out;
      e.add = on_cuda ? c.for_device(into) : c.a;
      e.add.x = kind == 1 ? into->data() : kind == 3 ? weight.data() : c.x.data();
      e.add.out = into->data();
      if (!on_cuda) {
        if (kind == 2) return sinpe_dropout(&e.add);
        return kind == 3 ? sinpe_embed(c.words(), c.n_words(), &e) : sinpe_add(c.words(), c.n_words(), &e.add);
      }
      if constexpr (kHasCuda) {
        if (kind == 2) return sinpe::cuda::dropout(e.add, c.scalars, nullptr);
        return kind == 3 ? sinpe::cuda::embed(on_device(c.plan), e, c.scalars, nullptr)
                         : sinpe::cuda::add(on_device(c.plan), e.add, c.scalars, nullptr);
      }
      return SINPE_OK;
    };
    Buffer<T> want, got;
    CHECK(run(false, &want) == SINPE_OK);
    if (!only_cuda) {
      const auto x_at = [&](const int64_t* at) {
        if (kind == 1) return c.out.data()[offset_of(at, c.a.out_strides, rank)];
        if (kind != 3) return c.x.data()[offset_of(at, c.a.x_strides, rank)];
        const int64_t id = ids[static_cast<size_t>(offset_of(at, e.id_strides, rank - 1))];
        return weight.data()[id * e.weight_stride + at[rank - 1]];
      };
      compare(names[kind], number, want.storage, c.expected(kind != 2, x_at).storage);
    }
    if (!uses_cuda) continue;
    CHECK(run(true, &got) == SINPE_OK);
    compare("on CUDA", number, got.storage, want.storage, kind == 2 ? 0.0 : c.slack());
  }
}

template <class T>
void test_rows() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    vary_device(number);
    AddCase<T> c(random);
    const int64_t dim = c.plan.plan.dim, count = c.a.sizes[c.a.rank - 2],
                  stride = dim + (below(random, 2) == 0 ? below(random, 5) : 0);
    Buffer<T> got = numbers<T>(random, (count - 1) * stride + dim), want = got;
    const sinpe_dtype type = c.a.position_dtype;
    const bool is_table = c.a.positions == nullptr || c.a.positions_are_starts != 0;
    CHECK((is_table ? sinpe_table(c.words(), c.n_words(), c.a.start, count, dtype_of<T>(), want.data(), stride)
                    : sinpe_encode(c.words(), c.n_words(), c.a.positions, type, count, dtype_of<T>(), want.data(),
                                   stride)) == SINPE_OK);
    if (!only_cuda) {
      Buffer<T> alone = got;
      if (is_table) c.a.positions = nullptr, c.a.positions_are_starts = 0;
      for (int64_t r = 0; r < count; ++r) {
        const auto row = c.row(0, r);
        for (int64_t i = 0; i < dim; ++i) alone.data()[r * stride + i] = rounded<T>(row[static_cast<size_t>(i)]);
      }
      compare("rows", number, want.storage, alone.storage);
    }
    if (!uses_cuda) continue;
    if constexpr (kHasCuda) {
      CHECK((is_table
                 ? sinpe::cuda::table(on_device(c.plan), c.a.start, count, dtype_of<T>(), got.data(), stride, nullptr)
                 : sinpe::cuda::encode(on_device(c.plan), c.a.positions, type, count, dtype_of<T>(), got.data(), stride,
                                       nullptr)) == SINPE_OK);
      compare("rows on CUDA", number, got.storage, want.storage, 2.0 * std::fabs(c.plan.plan.amplitude));
    }
  }
}

// row_dots, and add_backward, which has its results and those of dropout.
template <class T>
void test_gradients() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    vary_device(number);
    AddCase<T> c(random);
    std::vector<double> weights;
    for (int64_t i = 0; i < c.plan.plan.dim; ++i) weights.push_back(random.uniform() * 2 - 1);
    const double* factors = number % 2 == 0 ? weights.data() : nullptr;
    const int64_t dim = c.a.sizes[c.a.rank - 1];
    int64_t rows = 1;
    for (int d = 0; d + 1 < c.a.rank; ++d) rows *= c.a.sizes[d];
    std::vector<double> want(static_cast<size_t>(rows), 77.0), got = want, dots = want;
    sinpe_add_arguments a = c.a;
    a.x = c.x.data();
    a.out = want.data();
    CHECK(sinpe_row_dots(c.words(), c.n_words(), &a, factors) == SINPE_OK);
    if (!only_cuda) compare("row_dots", number, want, c.expected_dots(factors));
    if (!uses_cuda) continue;
    if constexpr (kHasCuda) {
      const DevicePlan plan = on_device(c.plan);
      std::vector<double> scratch(static_cast<size_t>(sinpe::cuda::row_dots_scratch(a)) / sizeof(double), NAN);
      if (c.scalars.seed != nullptr) a.dropout.seed = 99;
      a.out = got.data();
      if (!scratch.empty())
        CHECK(sinpe::cuda::row_dots(plan, a, factors, nullptr, c.scalars, nullptr) == SINPE_BAD_ARGUMENT);
      CHECK(sinpe::cuda::row_dots(plan, a, factors, scratch.data(), c.scalars, nullptr) == SINPE_OK);
      const double slack = 4.0 * static_cast<double>(dim) * c.slack() / std::fabs(c.a.alpha) * 0x1p-24;
      for (size_t i = 0; i < want.size(); ++i) {
        CHECK(agrees(got[i], want[i], 0.0) ||
              (!is_exact() && sizeof(T) != 8 && (c.a.alpha == 0.0 || std::fabs(got[i] - want[i]) <= slack)));
      }
      Buffer<T> whole = c.out, alone = c.out;
      a = c.for_device(&alone);
      CHECK(sinpe::cuda::dropout(a, c.scalars, nullptr) == SINPE_OK);
      a.out = got.data();
      CHECK(sinpe::cuda::row_dots(plan, a, nullptr, scratch.data(), c.scalars, nullptr) == SINPE_OK);
      a = c.for_device(&whole);
      CHECK(sinpe::cuda::add_backward(plan, a, nullptr, scratch.data(), c.scalars, nullptr) == SINPE_BAD_ARGUMENT);
      CHECK(sinpe::cuda::add_backward(plan, a, dots.data(), scratch.data(), c.scalars, nullptr) == SINPE_OK);
      compare("add_backward", number, dots, got);
      compare("add_backward", number, whole.storage, alone.storage);
    }
  }
}

// Compares the CPU with the loops, and the CUDA kernels with the CPU. b has all fields but `out`.
template <class T>
void compare_embed_backward(sinpe_embed_backward_arguments b, int64_t number, const int64_t* seed) {
  std::vector<T> want(static_cast<size_t>(b.num_embeddings * b.sizes[b.rank - 1]), rounded<T>(std::nanf(""))),
      got = want;
  b.out = want.data();
  CHECK(sinpe_embed_backward(&b) == SINPE_OK);
  if (!only_cuda) compare("embed_backward", number, want, expected_sums<T>(b));
  int64_t largest = 0;
  for_each_index(b.sizes, b.rank - 1, [&](const int64_t* at, int64_t) {
    largest = std::max(largest, b.ids[offset_of(at, b.id_strides, b.rank - 1)]);
  });
  sinpe_embed_backward_arguments short_by_one = b;
  short_by_one.num_embeddings = largest;
  short_by_one.padding_idx = -1;
  CHECK(sinpe_embed_backward(&short_by_one) == SINPE_BAD_ID && short_by_one.bad_id == largest);
  if constexpr (kHasCuda) {
    if (!uses_cuda) return;
    b.out = got.data();
    if (seed != nullptr) b.dropout.seed = 99;
    // Exactly the stated length, to detect writes beyond, and NaN.
    std::vector<char> scratch(static_cast<size_t>(sinpe::cuda::embed_backward_scratch(b)), char(-1));
    CHECK(sinpe::cuda::embed_backward(b, scratch.data(), {nullptr, SINPE_FLOAT32, seed}, nullptr) == SINPE_OK);
    compare("embed_backward on CUDA", number, got, want);
  }
}

template <class T>
void test_embed_backward() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    AddCase<T> c(random);
    const int64_t vocabulary = 1 + below(random, 60);
    sinpe_embed_backward_arguments b{};
    b.rank = c.a.rank;
    std::memcpy(b.sizes, c.a.sizes, sizeof b.sizes);
    std::memcpy(b.grad_strides, c.a.x_strides, sizeof b.grad_strides);
    int64_t span;
    layout(random, b.sizes, b.rank - 1, false, false, b.id_strides, &span);
    // Few different ids, so that some rows have many tokens and others none.
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < span; ++i) ids.push_back(below(random, 1 + below(random, vocabulary)));
    b.grad = c.x.data();
    b.ids = ids.data();
    b.dtype = dtype_of<T>();
    b.num_embeddings = vocabulary;
    b.padding_idx = below(random, 3) == 0 ? below(random, vocabulary) : -1;
    b.scale = c.a.scale;
    b.dropout = c.a.dropout;
    compare_embed_backward<T>(b, number, c.scalars.seed);
  }
  // Runs of one id that start and end at the edges of the tree's nodes, and inside them; tokens for several threads.
  for (const int64_t longest : {63, 64, 65, 4095, 4096, 4161, 262145}) {
    const int64_t lengths[] = {below(random, 100), longest, 64, 1, 128 + below(random, 64), longest / 3};
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < 6; ++id) ids.insert(ids.end(), static_cast<size_t>(lengths[id]), id);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.next() % i]);  // shuffled
    const int64_t dim = longest > 10000 ? 3 : 17;
    Buffer<T> grad = numbers<T>(random, static_cast<int64_t>(ids.size()) * dim);
    sinpe_embed_backward_arguments b{};
    b.rank = 2;
    b.sizes[0] = static_cast<int64_t>(ids.size());
    b.sizes[1] = b.grad_strides[0] = dim;
    b.grad_strides[1] = b.id_strides[0] = 1;
    b.grad = grad.data();
    b.ids = ids.data();
    b.dtype = dtype_of<T>();
    b.num_embeddings = 7;
    b.padding_idx = below(random, 3) == 0 ? 4 : -1;
    b.scale = 0.3;
    b.dropout.drop_threshold = below(random, 2) == 0 ? 6554 : 0;
    compare_embed_backward<T>(b, longest, nullptr);
  }
}

// Positions of each token, and an x that cancels most of the encoding, so that many roundings of the sums are
// undecided: the bits of the sum of the float32 row. And narrow rows, whose runs alternate in encode, near and far; and
// x with one row for each sample.
template <class T, class Position>
void test_cancellation() {
  check::Random random;
  constexpr int64_t kRows = 400;
  constexpr bool kWhole = std::is_same<Position, int64_t>::value;
  const sinpe_dtype type = kWhole ? SINPE_INT64 : (sizeof(Position) == 4 ? SINPE_FLOAT32 : SINPE_FLOAT64);
  for (int number = 0; number < 12; ++number) {
    const int64_t dim = number < 6 ? 64 : int64_t{1} << (number - 5);
    const TestPlan plan = make_plan(dim, number % 3, false, number % 2 == 0 ? 0.7 : 1.0);
    const float alpha = number % 4 < 2 ? 1.0f : -0.3f, scale = number % 4 < 2 ? 1.0f : 22.6f;
    std::vector<Position> positions;
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t reach = int64_t{1} << (kWhole && i % 9 == 0 ? 60 : number % 4 < 2 ? 20 : 40);
      positions.push_back(static_cast<Position>(below(random, reach)) / (kWhole ? 1 : 8));
    }
    std::vector<float> rows(static_cast<size_t>(kRows * dim)), on_cpu = rows;
    CHECK(sinpe::cuda::encode(on_device(plan), positions.data(), type, kRows, SINPE_FLOAT32, rows.data(), dim,
                              nullptr) == SINPE_OK);
    CHECK(sinpe_encode(plan.words.data(), static_cast<int64_t>(plan.words.size()), positions.data(), type, kRows,
                       SINPE_FLOAT32, on_cpu.data(), dim) == SINPE_OK);
    compare("encode", number, rows, on_cpu, 2.0);
    std::vector<T> x, want;
    for (const float pe : rows) {
      x.push_back(rounded<T>(alpha * pe / scale * (below(random, 2) == 0 ? -1.0f : 0.5f)));
      want.push_back(rounded<T>(scale * sinpe::to_float(x.back()) + alpha * pe));
    }
    sinpe_add_arguments a{};
    a.rank = 3;
    a.sizes[0] = number % 2 == 0 ? 1 : kRows;  // one row for each sample
    a.sizes[1] = kRows / a.sizes[0];
    a.sizes[2] = a.x_strides[1] = a.out_strides[1] = dim;
    a.x_strides[0] = a.out_strides[0] = a.sizes[1] * dim;
    a.x_strides[2] = a.out_strides[2] = a.position_strides[1] = 1;
    a.position_strides[0] = a.sizes[1];
    a.positions = positions.data();
    a.position_dtype = type;
    a.dtype = dtype_of<T>();
    a.scale = scale;
    a.alpha = alpha;
    a.x = a.out = x.data();  // in place
    CHECK(sinpe::cuda::add(on_device(plan), a, {}, nullptr) == SINPE_OK);
    compare("sums", number, x, want);
  }
}

// The error of float32 rows of each kernel that computes them, in ULP. What is added to them is 0, and gradients are 1
// in one channel. Rows are few on a device with 100 multiprocessors; an odd width is computed channel by channel.
void test_error() {
  check::Random random;
  constexpr int64_t kRows = 60;
  double largest = 0;
  for (int number = 0; number < 36; ++number) {
    sinpe::cuda::on_host::settings().multiprocessors = number % 2 == 0 ? 1 : 100;
    const int64_t dim = number % 4 < 2 ? 64 : 63;
    const TestPlan plan = make_plan(dim, number / 3 % 3, number % 5 == 4, number % 5 == 3 ? 0.7 : 1.0);
    const DevicePlan words = on_device(plan);
    const int kind = number / 12;  // positions: consecutive, integers, fractions
    std::vector<int64_t> integers{below(random, int64_t{1} << 40)};
    std::vector<double> fractions;
    for (int64_t r = 1; r < kRows; ++r)
      integers.push_back(kind == 0 ? integers[0] + r : below(random, int64_t{1} << random.next() % 62));
    for (int64_t r = 0; r < kRows; ++r) fractions.push_back(random.uniform() * 0x1p20);
    const void* at = kind == 2 ? static_cast<const void*>(fractions.data()) : integers.data();
    const sinpe_dtype type = kind == 2 ? SINPE_FLOAT64 : SINPE_INT64;
    std::vector<double> exact(static_cast<size_t>(kRows * dim)), dots(static_cast<size_t>(kRows));
    CHECK(sinpe_encode(words.packed, words.n_words, at, type, kRows, SINPE_FLOAT64, exact.data(), dim) == SINPE_OK);
    const auto see = [&](double got, int64_t i) {
      const double want = exact[static_cast<size_t>(i)];
      if (got != want) largest = std::fmax(largest, std::fabs(got - want) / std::ldexp(1.0, std::ilogb(want) - 23));
      CHECK(!std::isnan(got));
    };
    for (const int64_t batch : {1, 2}) {  // with one sequence, rows are not shared
      std::vector<float> x(static_cast<size_t>(batch * kRows * dim)), out = x;
      const auto see_all = [&](sinpe_status status) {
        CHECK(status == SINPE_OK);
        for (int64_t i = 0; i < batch * kRows * dim; ++i) see(out[static_cast<size_t>(i)], i % (kRows * dim));
        std::fill(out.begin(), out.end(), NAN);
      };
      sinpe_embed_arguments e{};
      sinpe_add_arguments& a = e.add;
      a.rank = 3;
      a.sizes[0] = batch, a.sizes[1] = kRows, a.sizes[2] = a.x_strides[1] = a.out_strides[1] = dim;
      a.x_strides[0] = a.out_strides[0] = kRows * dim;
      a.x_strides[2] = a.out_strides[2] = a.position_strides[1] = 1;
      a.scale = a.alpha = 1.0;
      a.x = x.data(), a.out = out.data();
      a.start = integers[0];
      a.positions = kind == 0 ? nullptr : at;
      a.position_dtype = type;
      see_all(sinpe::cuda::add(words, a, {}, nullptr));
      const std::vector<int64_t> ids(static_cast<size_t>(batch * kRows));
      e.ids = ids.data(), e.id_strides[0] = kRows, e.id_strides[1] = e.num_embeddings = 1;
      see_all(sinpe::cuda::embed(words, e, {}, nullptr));
      if (batch == 2) continue;
      see_all(kind == 0 ? sinpe::cuda::table(words, a.start, kRows, SINPE_FLOAT32, out.data(), dim, nullptr)
                        : sinpe::cuda::encode(words, at, type, kRows, SINPE_FLOAT32, out.data(), dim, nullptr));
      const auto channel = [&](int64_t r) { return (r * 7 + number) % dim; };
      for (int64_t r = 0; r < kRows; ++r) x[static_cast<size_t>(r * dim + channel(r))] = 1.0f;
      a.out = dots.data();
      CHECK(sinpe::cuda::row_dots(words, a, nullptr, nullptr, {}, nullptr) == SINPE_OK);
      for (int64_t r = 0; r < kRows; ++r) see(dots[static_cast<size_t>(r)], r * dim + channel(r));
    }
  }
  std::printf("largest error of float32 rows: %.3f ULP\n", largest);
  CHECK(largest <= (is_exact() ? 0.5001 : 0.85) && largest > (is_exact() ? 0.49 : 0.7));
}

// The order of sums for numbers of terms at the edges of levels, on both; and the number of levels.
void test_tree_sum() {
  check::Random random;
  for (const int64_t n :
       {0, 1, 2, 63, 64, 65, 128, 4095, 4096, 4097, 262143, 64 * 4096, 64 * 4096 + 1, 4096 * 4096 + 1}) {
    std::vector<double> terms;
    for (int64_t k = 0; k < n; ++k) terms.push_back(random.uniform() - 0.5);
    const double want = summed_in_tree(terms);
    CHECK(same(sinpe::tree_sum(terms.data(), n), want));
    const int levels = sinpe::tree_levels(n);
    CHECK(n <= sinpe::terms_under(levels) && (levels == 1 || n > sinpe::terms_under(levels - 1)));
    if constexpr (kHasCuda) {
      std::vector<double> scratch(static_cast<size_t>(sinpe::cuda::tree_sum_scratch(n)) / sizeof(double), NAN);
      double got = NAN;
      if (!scratch.empty()) CHECK(sinpe::cuda::tree_sum(terms.data(), n, &got, nullptr, nullptr) == SINPE_BAD_ARGUMENT);
      CHECK(sinpe::cuda::tree_sum(terms.data(), n, &got, scratch.data(), nullptr) == SINPE_OK);
      CHECK(same(got, want));
    }
  }
  CHECK(sinpe::tree_levels(INT64_MAX) == 11);
}

void test_invalid_arguments() {
  const TestPlan made = make_plan(4, 0, false);
  const int64_t words = static_cast<int64_t>(made.words.size());
  float x[12] = {};
  sinpe_add_arguments a{};
  a.rank = 2;
  a.sizes[0] = 1;
  a.sizes[1] = a.x_strides[0] = a.out_strides[0] = 4;
  a.x_strides[1] = a.out_strides[1] = 1;
  a.x = a.out = x;
  a.scale = a.alpha = 1.0;
  CHECK(sinpe_add(made.words.data(), words, &a) == SINPE_OK);
  const auto is_refused = [&](auto change) {
    sinpe_add_arguments wrong = a;
    change(wrong);
    CHECK(sinpe_add(made.words.data(), words, &wrong) == SINPE_BAD_ARGUMENT);
    CHECK(wrong.rank == 1 || sinpe_dropout(&wrong) == SINPE_BAD_ARGUMENT);
  };
  for (int32_t drop : {-1, 65537}) is_refused([&](auto& wrong) { wrong.dropout.drop_threshold = drop; });
  for (const int64_t step : {int64_t{-1}, int64_t{1} << 61, INT64_MAX}) {  // RNG offsets beyond int64
    const int64_t elements[] = {INT64_MAX, 4, step};
    is_refused([&](auto& wrong) { wrong.dropout = {9000, 0, elements}; });
  }
  for (const int32_t rank : {0, 1, SINPE_MAX_RANK + 1}) is_refused([&](auto& wrong) { wrong.rank = rank; });
  CHECK(sinpe_dropout(nullptr) == SINPE_BAD_ARGUMENT);
  // All dimensions that there may be, one of them empty or not.
  float out = std::nanf("");
  sinpe_add_arguments many{};
  many.rank = SINPE_MAX_RANK;
  std::fill(many.sizes, many.sizes + SINPE_MAX_RANK, 1);
  x[0] = 2.0f;
  many.x = x;
  many.out = &out;
  many.scale = 1.5;
  CHECK(sinpe_dropout(&many) == SINPE_OK && out == 3.0f);
  many.sizes[3] = 0;
  many.x = nullptr;
  CHECK(sinpe_dropout(&many) == SINPE_OK);
  // No tokens: rows of +0.
  std::fill(x, x + 12, std::nanf(""));
  sinpe_embed_backward_arguments b{};
  b.rank = 2;
  b.sizes[1] = 4;
  b.out = x;
  b.num_embeddings = 3;
  b.scale = -1.0;
  b.padding_idx = -1;
  CHECK(sinpe_embed_backward(&b) == SINPE_OK);
  for (float v : x) CHECK(same(v, 0.0f));
  b.sizes[0] = -1;
  CHECK(sinpe_embed_backward(&b) == SINPE_BAD_ARGUMENT && sinpe_embed_backward(nullptr) == SINPE_BAD_ARGUMENT);
}

void test_bad_ids() {
  const TestPlan made = make_plan(8, 1, false);
  const int64_t words = static_cast<int64_t>(made.words.size());
  for (const int64_t bad : {int64_t{-1}, int64_t{37}, INT64_MIN, INT64_MAX}) {
    std::vector<int64_t> ids(100, 3);
    ids[60] = bad;
    ids[99] = 1000;
    std::vector<float> weight(37 * 8, 1.0f), out(800, -5.0f);
    sinpe_embed_arguments e{};
    e.add.rank = 2;
    e.add.sizes[0] = 100;
    e.add.sizes[1] = e.add.out_strides[0] = e.weight_stride = 8;
    e.add.out_strides[1] = e.id_strides[0] = 1;
    e.add.x = weight.data();
    e.add.out = out.data();
    e.ids = ids.data();
    e.num_embeddings = 37;
    CHECK(sinpe_embed(made.words.data(), words, &e) == SINPE_BAD_ID && e.bad_id == bad);
    for (float v : out) CHECK(v == -5.0f);
    if constexpr (kHasCuda) {  // NaN
      CHECK(sinpe::cuda::embed(on_device(made), e, {}, nullptr) == SINPE_OK);
      for (size_t i = 0; i < 800; ++i) CHECK(std::isnan(out[i]) == (i / 8 == 60 || i / 8 == 99));
    }
    e.num_embeddings = 0;  // valid only if there are no ids
    CHECK(sinpe_embed(made.words.data(), words, &e) == SINPE_BAD_ID);
    e.add.sizes[0] = 0;
    CHECK(sinpe_embed(made.words.data(), words, &e) == SINPE_OK);
    e.add.sizes[1] = 9;
    CHECK(sinpe_embed(made.words.data(), words, &e) == SINPE_BAD_ARGUMENT);
  }
  CHECK(sinpe_embed(made.words.data(), words, nullptr) == SINPE_BAD_ARGUMENT);
}

// What the host of a CUDA device can check, and what only its kernels see: rows of NaN. No other memory is written.
void test_invalid_on_cuda() {
  const TestPlan plan = make_plan(6, 0, false), other = make_plan(8, 0, false);
  const int64_t starts[] = {INT64_MAX - 2}, words = static_cast<int64_t>(other.words.size());
  std::vector<float> out(5 * 6), many(300 * 6), x(5 * 6, 0.5f);
  const auto rows = [&](const DevicePlan& of, int64_t start, int64_t count, float* to) {
    return sinpe::cuda::table(of, start, count, SINPE_FLOAT32, to, 6, nullptr);
  };
  sinpe_add_arguments a{};
  a.rank = 2;
  a.sizes[0] = 5;
  a.sizes[1] = a.x_strides[0] = a.out_strides[0] = 6;
  a.x_strides[1] = a.out_strides[1] = 1;
  a.x = x.data();
  a.out = out.data();
  a.scale = a.alpha = 1.0;
  a.positions = starts;
  a.positions_are_starts = 1;
  a.position_dtype = SINPE_INT64;
  CHECK(sinpe::cuda::add(on_device(plan), a, {}, nullptr) == SINPE_OK);
  for (size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (i / 6 >= 3));  // beyond int64
  const std::vector<int64_t> nothing(30, 7);
  for (std::vector<float>* to : {&out, &many}) {
    const int64_t count = static_cast<int64_t>(to->size()) / 6;
    CHECK(rows(on_device(plan), INT64_MAX - 2, count, to->data()) == SINPE_OK);
    for (size_t i = 0; i < to->size(); ++i) CHECK(std::isnan((*to)[i]) == (i / 6 >= 3));
    for (const DevicePlan& bad :
         {DevicePlan{nothing.data(), 30, 6}, DevicePlan{nothing.data(), 3, 6}, DevicePlan{other.words.data(), words, 6},
          DevicePlan{other.words.data(), words - 1, 6}}) {
      to->assign(to->size(), 1.0f);
      CHECK(rows(bad, 0, count, to->data()) == SINPE_OK);
      for (const float v : *to) CHECK(std::isnan(v));
    }
  }
  CHECK(sinpe::cuda::use_device(0) == SINPE_OK);
  CHECK(sinpe::cuda::use_device(-1) == SINPE_LAUNCH_FAILED && std::strlen(sinpe::cuda::launch_error()) > 8);
  a.positions = nullptr;
  CHECK(sinpe::cuda::add(on_device(plan), a, {}, nullptr) == SINPE_BAD_ARGUMENT);
  a.positions_are_starts = 0;
  a.rank = 1;
  CHECK(sinpe::cuda::add(on_device(plan), a, {}, nullptr) == SINPE_BAD_ARGUMENT);
  CHECK(rows(on_device(plan), 0, -1, out.data()) == SINPE_BAD_ARGUMENT);
  CHECK(rows(on_device(plan), 0, 5, nullptr) == SINPE_BAD_ARGUMENT);
  CHECK(rows(on_device(plan), 0, 0, nullptr) == SINPE_OK);
  // More elements than int64 holds, and more blocks than a grid can have: rejected before any memory is accessed.
  float* const beyond = reinterpret_cast<float*>(uintptr_t{1} << 60);  // so that it does not overlap the plan
  CHECK(rows(on_device(plan), 0, int64_t{1} << 62, beyond) == SINPE_BAD_ARGUMENT);
  CHECK(rows(on_device(plan), 0, int64_t{1} << 40, beyond) == SINPE_LAUNCH_FAILED);
  CHECK(std::strstr(sinpe::cuda::launch_error(), "more elements") != nullptr);
  // Ids out of range are ignored by embed_backward.
  const int64_t ids[] = {2, -1, 0, INT64_MAX, 2, 3, INT64_MIN};
  std::vector<float> grad(7, 1.0f), sums(3, NAN);
  sinpe_embed_backward_arguments b{};
  b.rank = 2;
  b.sizes[0] = 7;
  b.sizes[1] = b.grad_strides[0] = b.grad_strides[1] = b.id_strides[0] = 1;
  b.grad = grad.data();
  b.ids = ids;
  b.out = sums.data();
  b.num_embeddings = 3;
  b.padding_idx = -1;
  b.scale = 2.0;
  std::vector<int64_t> scratch(static_cast<size_t>(sinpe::cuda::embed_backward_scratch(b)) / 8);
  CHECK(sinpe::cuda::embed_backward(b, scratch.data(), {}, nullptr) == SINPE_OK);
  CHECK(sums == std::vector<float>({2.0f, 0.0f, 4.0f}));
  CHECK(sinpe::cuda::embed_backward(b, nullptr, {}, nullptr) == SINPE_BAD_ARGUMENT);
  // A call of the binding starts with use_device, and queries the device once; others do so each time.
  for (const bool is_told : {false, true, true}) {
    const sinpe::cuda::on_host::Counters before = sinpe::cuda::on_host::counters();
    if (is_told) CHECK(sinpe::cuda::use_device(0) == SINPE_OK);
    CHECK(rows(on_device(plan), 0, 5, out.data()) == SINPE_OK);
    const sinpe::cuda::on_host::Counters after = sinpe::cuda::on_host::counters();
    CHECK(after.launches - before.launches == 1 && after.device_queries - before.device_queries == (is_told ? 1 : 2));
  }
}

template <class T>
void test_type() {
  test_add_dropout_embed<T>();
  test_rows<T>();
  test_gradients<T>();
  test_embed_backward<T>();
}

}  // namespace

int main(int argc, char**) {
  uses_cuda = kHasCuda && argc == 1;  // `test_calls cpu`
  only_cuda = !is_exact();
  test_type<float>();
  test_type<double>();
  test_type<sinpe::bfloat16>();
  test_type<sinpe::float16>();
  test_tree_sum();
  test_invalid_arguments();
  test_bad_ids();
  if constexpr (kHasCuda) {
    if (!uses_cuda) return check::finish("test_calls");
    vary_device(1);
    test_cancellation<sinpe::bfloat16, int64_t>();
    test_cancellation<sinpe::bfloat16, float>();
    test_cancellation<sinpe::float16, double>();
    test_error();
    vary_device(0);
    test_invalid_on_cuda();
  }
  return check::finish("test_calls");
}
