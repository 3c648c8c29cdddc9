// The CUDA kernel bodies against the CPU, on random calls: table, encode, add, dropout, embed. ctest also runs this
// with SINPE_EXT_CUDA_ARITHMETIC=single.
#include "cuda/on_host.h"
#include "cuda_cases.h"

namespace {

using namespace cases;

constexpr int kCases = 400 / kFewer;

// Half of the calls are on a device so small that more than 1024 elements are not few (cuda/few_rows.h).
void vary_device(int number) { sinpe::cuda::on_host::settings().multiprocessors = number % 2; }

template <class T>
void test_add() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    vary_device(number);
    AddCase<T> c(random);
    Buffer<T> got = c.out;
    const sinpe_add_arguments b = c.for_device(&got);
    CHECK(sinpe_add(c.plan.words.data(), static_cast<int64_t>(c.plan.words.size()), &c.a) == SINPE_OK);
    CHECK(sinpe::cuda::add(on_device(c.plan), b, c.scalars, nullptr) == SINPE_OK);
    compare("add", number, c.a.sizes, c.a.out_strides, c.a.rank, got, c.out, c.slack());
    // Memory between the elements must be unchanged.
    int64_t touched = 0;
    for (size_t i = 0; i < got.storage.size(); ++i) touched += !agrees(got.storage[i], c.out.storage[i], c.slack());
    CHECK(touched == 0);
  }
}

// out is x.
template <class T>
void test_in_place() {
  check::Random random;
  for (int number = 0; number < kCases / 4; ++number) {
    vary_device(number);
    AddCase<T> c(random);
    Buffer<T> got = c.out;
    std::memcpy(c.a.x_strides, c.a.out_strides, sizeof c.a.x_strides);
    c.a.x = c.a.out;
    sinpe_add_arguments b = c.for_device(&got);
    b.x = b.out;
    CHECK(sinpe_add(c.plan.words.data(), static_cast<int64_t>(c.plan.words.size()), &c.a) == SINPE_OK);
    CHECK(sinpe::cuda::add(on_device(c.plan), b, c.scalars, nullptr) == SINPE_OK);
    compare("add_", number, c.a.sizes, c.a.out_strides, c.a.rank, got, c.out, c.slack());
  }
}

template <class T>
void test_dropout() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    vary_device(number);
    AddCase<T> c(random);
    Buffer<T> got = c.out;
    const sinpe_add_arguments b = c.for_device(&got);
    CHECK(sinpe_dropout(&c.a) == SINPE_OK);
    CHECK(sinpe::cuda::dropout(b, c.scalars, nullptr) == SINPE_OK);
    compare("dropout", number, c.a.sizes, c.a.out_strides, c.a.rank, got, c.out, 0.0);
  }
}

template <class T>
void test_embed() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    vary_device(number);
    AddCase<T> c(random);
    const int rank = c.a.rank;
    const int64_t dim = c.a.sizes[rank - 1], vocabulary = 1 + below(random, 40), stride = dim + below(random, 3);
    int64_t span, id_strides[SINPE_MAX_RANK];
    layout(random, c.a.sizes, rank, false, true, c.a.out_strides, &span);
    c.out = numbers<T>(random, span);
    c.a.out = c.out.data();
    layout(random, c.a.sizes, rank - 1, false, false, id_strides, &span);
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < span; ++i) ids.push_back(below(random, vocabulary));
    Buffer<T> weight = numbers<T>(random, (vocabulary - 1) * stride + dim), got = c.out;
    sinpe_embed_arguments e{};
    e.add = c.a;
    e.add.x = weight.data();
    e.ids = ids.data();
    std::memcpy(e.id_strides, id_strides, sizeof id_strides);
    e.num_embeddings = vocabulary;
    e.weight_stride = stride;
    sinpe_embed_arguments f = e;
    f.add = c.for_device(&got);
    f.add.x = weight.data();
    CHECK(sinpe_embed(c.plan.words.data(), static_cast<int64_t>(c.plan.words.size()), &e) == SINPE_OK);
    CHECK(sinpe::cuda::embed(on_device(c.plan), f, c.scalars, nullptr) == SINPE_OK);
    compare("embed", number, c.a.sizes, c.a.out_strides, rank, got, c.out, c.slack());
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
    const int64_t span = (count - 1) * stride + dim, sizes[] = {count, dim}, strides[] = {stride, 1};
    Buffer<T> got = numbers<T>(random, span), want = got;
    const int64_t words = static_cast<int64_t>(c.plan.words.size());
    if (c.a.positions == nullptr || c.a.positions_are_starts != 0) {
      CHECK(sinpe_table(c.plan.words.data(), words, c.a.start, count, dtype_of<T>(), want.data(), stride) == SINPE_OK);
      CHECK(sinpe::cuda::table(on_device(c.plan), c.a.start, count, dtype_of<T>(), got.data(), stride, nullptr) ==
            SINPE_OK);
    } else {
      const auto type = c.a.position_dtype;
      CHECK(sinpe_encode(c.plan.words.data(), words, c.a.positions, type, count, dtype_of<T>(), want.data(), stride) ==
            SINPE_OK);
      CHECK(sinpe::cuda::encode(on_device(c.plan), c.a.positions, type, count, dtype_of<T>(), got.data(), stride,
                                nullptr) == SINPE_OK);
    }
    compare("rows", number, sizes, strides, 2, got, want, 2.0 * std::fabs(c.plan.plan.amplitude));
  }
}

// Positions of each token, and an x that cancels most of the encoding, so that many roundings of the sums are undecided:
// the bits of the sum of the float32 row.
template <class T, class Position>
void test_cancellation() {
  check::Random random;
  constexpr int64_t kRows = 400, kDim = 64;
  constexpr bool kWhole = std::is_same<Position, int64_t>::value;
  const sinpe_dtype type = kWhole ? SINPE_INT64 : (sizeof(Position) == 4 ? SINPE_FLOAT32 : SINPE_FLOAT64);
  for (int number = 0; number < 12; ++number) {
    const TestPlan plan = make_plan(kDim, number % 3, false, number % 2 == 0 ? 0.7 : 1.0);
    const float alpha = number % 4 < 2 ? 1.0f : -0.3f, scale = number % 4 < 2 ? 1.0f : 22.6f;
    std::vector<Position> positions;
    for (int64_t i = 0; i < kRows; ++i)
      positions.push_back(static_cast<Position>(below(random, int64_t{1} << (number < 6 ? 20 : 40))) /
                          (kWhole ? 1 : 8));
    std::vector<float> rows(kRows * kDim);
    CHECK(sinpe::cuda::encode(on_device(plan), positions.data(), type, kRows, SINPE_FLOAT32, rows.data(), kDim,
                              nullptr) == SINPE_OK);
    std::vector<T> x, want;
    for (const float pe : rows) {
      x.push_back(rounded<T>(alpha * pe / scale * (below(random, 2) == 0 ? -1.0f : 0.5f)));
      want.push_back(rounded<T>(scale * sinpe::to_float(x.back()) + alpha * pe));
    }
    sinpe_add_arguments a{};
    a.rank = 2;
    a.sizes[0] = kRows;
    a.sizes[1] = a.x_strides[0] = a.out_strides[0] = kDim;
    a.x_strides[1] = a.out_strides[1] = a.position_strides[1] = 1;
    a.positions = positions.data();
    a.position_dtype = type;
    a.dtype = dtype_of<T>();
    a.scale = scale;
    a.alpha = alpha;
    a.x = a.out = x.data();  // in place
    CHECK(sinpe::cuda::add(on_device(plan), a, {}, nullptr) == SINPE_OK);
    int64_t wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) wrong += !same(x[i], want[i]);
    CHECK(wrong == 0);
  }
}

// Many narrow rows, whose runs alternate in encode, at near and far positions; and x with one row for each sample.
template <class T>
void test_many_rows() {
  check::Random random;
  constexpr int64_t kRows = 12000;
  for (const int64_t dim : {2, 4, 8, 16, 32, 66}) {
    const TestPlan plan = make_plan(dim, static_cast<int>(dim / 2 % 3), false);
    const int64_t words = static_cast<int64_t>(plan.words.size());
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < 3 * kRows; ++i)
      positions.push_back(below(random, int64_t{1} << (below(random, 9) == 0 ? 60 : 20)));
    std::vector<T> got(static_cast<size_t>(kRows * dim)), want = got;
    int64_t wrong = 0;
    const auto compare_all = [&](double slack) {
      for (size_t i = 0; i < got.size(); ++i) wrong += !agrees(got[i], want[i], slack);
    };
    CHECK(sinpe_encode(plan.words.data(), words, positions.data(), SINPE_INT64, kRows, dtype_of<T>(), want.data(),
                       dim) == SINPE_OK);
    CHECK(sinpe::cuda::encode(on_device(plan), positions.data(), SINPE_INT64, kRows, dtype_of<T>(), got.data(), dim,
                              nullptr) == SINPE_OK);
    compare_all(2.0);
    Buffer<T> x = numbers<T>(random, 2 * kRows * dim);
    sinpe_add_arguments a{};
    a.rank = 3;
    a.sizes[0] = kRows;
    a.sizes[1] = 1;
    a.sizes[2] = a.out_strides[0] = a.out_strides[1] = dim;
    a.x_strides[0] = 2 * dim;
    a.x_strides[1] = dim;
    a.x_strides[2] = a.out_strides[2] = 1;
    a.positions = positions.data();
    a.position_strides[0] = 3;
    a.position_dtype = SINPE_INT64;
    a.dtype = dtype_of<T>();
    a.scale = a.alpha = 1.0;
    a.x = x.data();
    for (const int32_t are_starts : {0, 1}) {
      a.positions_are_starts = are_starts;
      a.out = want.data();
      CHECK(sinpe_add(plan.words.data(), words, &a) == SINPE_OK);
      a.out = got.data();
      CHECK(sinpe::cuda::add(on_device(plan), a, {}, nullptr) == SINPE_OK);
      compare_all(2.0);
    }
    CHECK(wrong == 0);
  }
}

// Invalid values give NaN, and no other memory is written.
void test_invalid_arguments() {
  const TestPlan plan = make_plan(6, 0, false);
  std::vector<float> weight(4 * 6, 2.0f), out(5 * 6, 1.0f);
  const int64_t ids[] = {3, -1, 4, INT64_MAX, 0};
  sinpe_embed_arguments e{};
  e.add.rank = 2;
  e.add.sizes[0] = 5;
  e.add.sizes[1] = 6;
  e.add.out_strides[0] = 6;
  e.add.out_strides[1] = 1;
  e.add.x = weight.data();
  e.add.out = out.data();
  e.add.scale = e.add.alpha = 1.0;
  e.ids = ids;
  e.id_strides[0] = 1;
  e.num_embeddings = 4;
  e.weight_stride = 6;
  for (const int32_t drop : {0, 65535}) {
    e.add.dropout.drop_threshold = drop;
    CHECK(sinpe::cuda::embed(on_device(plan), e, {}, nullptr) == SINPE_OK);
    for (size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (i / 6 >= 1 && i / 6 <= 3));
  }
  // Rows beyond int64, an invalid plan, a plan of other channels.
  const int64_t starts[] = {INT64_MAX - 2};
  sinpe_add_arguments a = e.add;
  a.dropout.drop_threshold = 0;
  a.x_strides[1] = 1;
  a.x_strides[0] = 6;
  std::vector<float> x(5 * 6, 0.5f);
  a.x = x.data();
  a.positions = starts;
  a.positions_are_starts = 1;
  a.position_dtype = SINPE_INT64;
  CHECK(sinpe::cuda::add(on_device(plan), a, {}, nullptr) == SINPE_OK);
  for (size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (i / 6 >= 3));
  std::vector<float> many(6 * 300);
  for (std::vector<float>* to : {&out, &many}) {
    const int64_t count = static_cast<int64_t>(to->size()) / 6;
    CHECK(sinpe::cuda::table(on_device(plan), INT64_MAX - 2, count, SINPE_FLOAT32, to->data(), 6, nullptr) == SINPE_OK);
    for (size_t i = 0; i < to->size(); ++i) CHECK(std::isnan((*to)[i]) == (i / 6 >= 3));
  }
  const std::vector<int64_t> nothing(30, 7);
  const TestPlan other = make_plan(8, 0, false);
  const int64_t words = static_cast<int64_t>(other.words.size());
  for (const DevicePlan& bad :
       {DevicePlan{nothing.data(), 30, 6}, DevicePlan{nothing.data(), 3, 6}, DevicePlan{other.words.data(), words, 6},
        DevicePlan{other.words.data(), words - 1, 6}}) {
    for (std::vector<float>* to : {&out, &many}) {
      const int64_t count = static_cast<int64_t>(to->size()) / 6;
      to->assign(to->size(), 1.0f);
      CHECK(sinpe::cuda::table(bad, 0, count, SINPE_FLOAT32, to->data(), 6, nullptr) == SINPE_OK);
      for (const float v : *to) CHECK(std::isnan(v));
    }
  }
  CHECK(sinpe::cuda::use_device(0) == SINPE_OK);
  CHECK(sinpe::cuda::use_device(-1) == SINPE_LAUNCH_FAILED && std::strlen(sinpe::cuda::launch_error()) > 8);
  // Arguments that the host can check.
  a.positions = nullptr;
  CHECK(sinpe::cuda::add(on_device(plan), a, {}, nullptr) == SINPE_BAD_ARGUMENT);
  a.positions_are_starts = 0;
  a.rank = 1;
  CHECK(sinpe::cuda::add(on_device(plan), a, {}, nullptr) == SINPE_BAD_ARGUMENT);
  CHECK(sinpe::cuda::table(on_device(plan), 0, -1, SINPE_FLOAT32, out.data(), 6, nullptr) == SINPE_BAD_ARGUMENT);
  CHECK(sinpe::cuda::table(on_device(plan), 0, 5, SINPE_FLOAT32, nullptr, 6, nullptr) == SINPE_BAD_ARGUMENT);
  CHECK(sinpe::cuda::table(on_device(plan), 0, 0, SINPE_FLOAT32, nullptr, 6, nullptr) == SINPE_OK);
}

// 100,000 rows, and sizes beyond the grid's limits.
void test_sizes() {
  const TestPlan plan = make_plan(2, 0, false);
  std::vector<float> got(200000), want(200000);
  CHECK(sinpe::cuda::table(on_device(plan), 5, 100000, SINPE_FLOAT32, got.data(), 2, nullptr) == SINPE_OK);
  CHECK(sinpe_table(plan.words.data(), static_cast<int64_t>(plan.words.size()), 5, 100000, SINPE_FLOAT32, want.data(),
                    2) == SINPE_OK);
  int64_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) wrong += !agrees(got[i], want[i], 2.0);
  CHECK(wrong == 0);
  // More elements than int64 holds, and more blocks than a grid can have: rejected before any memory is accessed.
  const auto rows = [&](int64_t length) {
    return sinpe::cuda::table(on_device(plan), 0, length, SINPE_FLOAT32, got.data(), 2, nullptr);
  };
  CHECK(rows(int64_t{1} << 62) == SINPE_BAD_ARGUMENT);
  CHECK(rows(int64_t{1} << 40) == SINPE_LAUNCH_FAILED);
  CHECK(std::string(sinpe::cuda::launch_error()) == "more elements than one launch can have");
  for (size_t i = 0; i < got.size(); ++i) wrong += !agrees(got[i], want[i], 2.0);
  CHECK(wrong == 0);
}

template <class T>
void test_type() {
  test_add<T>();
  test_in_place<T>();
  test_dropout<T>();
  test_embed<T>();
  test_rows<T>();
}

// Queries to the CUDA runtime besides the launch. Calls of the binding start with
// use_device; others query the device each time.
void test_runtime_queries() {
  const TestPlan plan = make_plan(64, 0, false);
  std::vector<float> out(64 * 8);
  for (const bool is_told : {false, true, true}) {
    const sinpe::cuda::on_host::Counters before = sinpe::cuda::on_host::counters();
    if (is_told) CHECK(sinpe::cuda::use_device(0) == SINPE_OK);
    CHECK(sinpe::cuda::table(on_device(plan), 0, 8, SINPE_FLOAT32, out.data(), 64, nullptr) == SINPE_OK);
    const sinpe::cuda::on_host::Counters after = sinpe::cuda::on_host::counters();
    CHECK(after.launches - before.launches == 1 && after.device_queries - before.device_queries == (is_told ? 1 : 2));
    CHECK(std::strlen(sinpe::cuda::arithmetic()) == 6);  // may be queried for another device
  }
}

}  // namespace

int main() {
  test_type<float>();
  test_type<double>();
  test_type<sinpe::bfloat16>();
  test_type<sinpe::float16>();
  vary_device(1);
  test_many_rows<float>();
  test_many_rows<double>();
  test_many_rows<sinpe::bfloat16>();
  test_cancellation<sinpe::bfloat16, int64_t>();
  test_cancellation<sinpe::bfloat16, float>();
  test_cancellation<sinpe::bfloat16, double>();
  test_cancellation<sinpe::float16, double>();
  test_invalid_arguments();
  test_sizes();
  vary_device(0);
  test_runtime_queries();
  return check::finish((std::string("test_cuda, arithmetic ") + sinpe::cuda::arithmetic()).c_str());
}
