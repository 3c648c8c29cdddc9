// The CUDA kernel bodies of gradients against the CPU, on random calls: row_dots, tree_sum and embed_backward.
#include <algorithm>
#include <numeric>

#include "cuda_cases.h"

namespace {

using namespace cases;

constexpr int kCases = 300 / kFewer;

template <class T>
void test_row_dots() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    AddCase<T> c(random);
    const int rank = c.a.rank;
    int64_t rows = 1;
    for (int d = 0; d + 1 < rank; ++d) rows *= c.a.sizes[d];
    std::vector<double> want(static_cast<size_t>(rows), 77.0), got = want, slopes;
    const bool weighted = below(random, 2) == 0;
    for (int64_t i = 0; i < c.plan.plan.dim; ++i) slopes.push_back(random.uniform() * 2 - 1);
    const double* factors = weighted ? slopes.data() : nullptr;
    c.a.out = want.data();
    CHECK(sinpe_row_dots(c.plan.words.data(), static_cast<int64_t>(c.plan.words.size()), &c.a, factors) == SINPE_OK);
    sinpe_add_arguments b = c.a;
    b.out = got.data();
    if (c.scalars.seed != nullptr) b.dropout.seed = 99;
    std::vector<double> scratch(static_cast<size_t>(sinpe::cuda::row_dots_scratch(b)) / sizeof(double), NAN);
    if (!scratch.empty())
      CHECK(sinpe::cuda::row_dots(on_device(c.plan), b, factors, nullptr, c.scalars, nullptr) == SINPE_BAD_ARGUMENT);
    CHECK(sinpe::cuda::row_dots(on_device(c.plan), b, factors, scratch.data(), c.scalars, nullptr) == SINPE_OK);
    const bool exact = std::is_same<T, double>::value || std::string(sinpe::cuda::arithmetic()) == "double";
    const double slack =
        4.0 * static_cast<double>(c.plan.plan.dim) * c.slack() / std::max(1e-300, std::fabs(c.a.alpha)) * 0x1p-24;
    for (size_t i = 0; i < want.size(); ++i) {
      const bool nan = std::isnan(want[i]) && std::isnan(got[i]);
      CHECK(nan || (exact ? same(got[i], want[i]) : std::fabs(got[i] - want[i]) <= slack || c.a.alpha == 0.0));
    }
  }
}

// add_backward: the results of dropout and of row_dots.
template <class T>
void test_add_backward() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    AddCase<T> c(random);
    int64_t rows = 1;
    for (int d = 0; d + 1 < c.a.rank; ++d) rows *= c.a.sizes[d];
    std::vector<double> want_dots(static_cast<size_t>(rows), 77.0), dots = want_dots;
    std::vector<double> scratch(static_cast<size_t>(sinpe::cuda::row_dots_scratch(c.a)) / sizeof(double), NAN);
    Buffer<T> want = c.out, got = c.out;
    sinpe_add_arguments a = c.for_device(&want);
    CHECK(sinpe::cuda::dropout(a, c.scalars, nullptr) == SINPE_OK);
    a.out = want_dots.data();
    CHECK(sinpe::cuda::row_dots(on_device(c.plan), a, nullptr, scratch.data(), c.scalars, nullptr) == SINPE_OK);
    a = c.for_device(&got);
    CHECK(sinpe::cuda::add_backward(on_device(c.plan), a, nullptr, scratch.data(), c.scalars, nullptr) ==
          SINPE_BAD_ARGUMENT);
    CHECK(sinpe::cuda::add_backward(on_device(c.plan), a, dots.data(), scratch.data(), c.scalars, nullptr) == SINPE_OK);
    int64_t wrong = 0;
    for (size_t i = 0; i < dots.size(); ++i) wrong += !same(dots[i], want_dots[i]);
    for (size_t i = 0; i < want.storage.size(); ++i) wrong += !same(got.storage[i], want.storage[i]);
    CHECK(wrong == 0);
  }
}

// tree_sum: up to three launches.
void test_tree_sum() {
  check::Random random;
  for (const int64_t n : {0, 1, 63, 64, 65, 4095, 4096, 4097, 64 * 4096 + 1, 4096 * 4096 + 1}) {
    std::vector<double> terms;
    for (int64_t k = 0; k < n; ++k) terms.push_back(random.uniform() - 0.5);
    std::vector<double> scratch(static_cast<size_t>(sinpe::cuda::tree_sum_scratch(n)) / sizeof(double), NAN);
    double got = NAN;
    if (!scratch.empty()) CHECK(sinpe::cuda::tree_sum(terms.data(), n, &got, nullptr, nullptr) == SINPE_BAD_ARGUMENT);
    CHECK(sinpe::cuda::tree_sum(terms.data(), n, &got, scratch.data(), nullptr) == SINPE_OK);
    CHECK(same(got, sinpe::tree_sum(terms.data(), n)));
    const long double want = std::accumulate(terms.begin(), terms.end(), 0.0L);
    CHECK(std::fabs(static_cast<double>(want) - got) <= 1e-14 * static_cast<double>(n));
  }
}

// Compares a CUDA kernel body with the CPU. b has all fields but `out`.
template <class T>
void compare_embed_backward(sinpe_embed_backward_arguments b, const DeviceScalars& scalars, Buffer<T>* want,
                            Buffer<T>* got) {
  b.out = want->data();
  CHECK(sinpe_embed_backward(&b) == SINPE_OK);
  b.out = got->data();
  if (scalars.seed != nullptr) b.dropout.seed = 99;
  // Exactly the stated length, to detect writes beyond, and NaN.
  std::vector<char> scratch(static_cast<size_t>(sinpe::cuda::embed_backward_scratch(b)), char(-1));
  CHECK(sinpe::cuda::embed_backward(b, scratch.data(), scalars, nullptr) == SINPE_OK);
  int64_t wrong = 0;
  for (size_t i = 0; i < want->storage.size(); ++i) wrong += !same(got->storage[i], want->storage[i]);
  CHECK(wrong == 0);
}

template <class T>
void test_embed_backward() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    AddCase<T> c(random);
    const int rank = c.a.rank;
    const int64_t dim = c.a.sizes[rank - 1], vocabulary = 1 + below(random, 60);
    int64_t tokens = 1;
    for (int d = 0; d + 1 < rank; ++d) tokens *= c.a.sizes[d];
    // Row-major ids; few different ones, so that some rows have many tokens and others none.
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < tokens; ++i) ids.push_back(below(random, 1 + below(random, vocabulary)));
    sinpe_embed_backward_arguments b{};
    b.rank = rank;
    int64_t step = 1;
    for (int d = rank - 1; d >= 0; --d) {
      b.sizes[d] = c.a.sizes[d];
      b.grad_strides[d] = c.a.x_strides[d];
      if (d < rank - 1) {
        b.id_strides[d] = step;
        step *= c.a.sizes[d];
      }
    }
    b.grad = c.a.x;
    b.ids = ids.data();
    b.dtype = dtype_of<T>();
    b.num_embeddings = vocabulary;
    b.padding_idx = below(random, 3) == 0 ? below(random, vocabulary) : -1;
    b.scale = c.a.scale;
    b.dropout = c.a.dropout;
    Buffer<T> want = numbers<T>(random, vocabulary * dim), got = want;
    compare_embed_backward(b, c.scalars, &want, &got);
  }
}

// Runs of one id that start and end at the edges of the tree's nodes, and inside them.
template <class T>
void test_long_runs() {
  check::Random random;
  for (const int64_t longest : {63, 64, 65, 4095, 4096, 4161, 262145}) {
    const int64_t lengths[] = {below(random, 100), longest, 64, 1, 128 + below(random, 64), longest / 3};
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < 6; ++id) ids.insert(ids.end(), static_cast<size_t>(lengths[id]), id);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.next() % i]);  // shuffled
    const int64_t dim = longest > 10000 ? 3 : 17;
    Buffer<T> grad = numbers<T>(random, static_cast<int64_t>(ids.size()) * dim), want = numbers<T>(random, 7 * dim);
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
    Buffer<T> got = want;
    compare_embed_backward(b, {}, &want, &got);
  }
}

// Ids out of range are ignored.
void test_bad_ids() {
  const int64_t ids[] = {2, -1, 0, INT64_MAX, 2, 3, INT64_MIN};
  std::vector<float> grad(7, 1.0f), out(3, NAN);
  sinpe_embed_backward_arguments b{};
  b.rank = 2;
  b.sizes[0] = 7;
  b.sizes[1] = 1;
  b.grad_strides[0] = b.grad_strides[1] = 1;
  b.grad = grad.data();
  b.ids = ids;
  b.id_strides[0] = 1;
  b.out = out.data();
  b.num_embeddings = 3;
  b.padding_idx = -1;
  b.scale = 2.0;
  std::vector<int64_t> memory(static_cast<size_t>(sinpe::cuda::embed_backward_scratch(b)) / 8);
  int64_t* scratch = memory.data();
  CHECK(sinpe::cuda::embed_backward(b, scratch, {}, nullptr) == SINPE_OK);
  CHECK(out[0] == 2.0f && out[1] == 0.0f && out[2] == 4.0f);
  CHECK(sinpe::cuda::embed_backward(b, nullptr, {}, nullptr) == SINPE_BAD_ARGUMENT);
  b.ids = nullptr;
  CHECK(sinpe::cuda::embed_backward(b, scratch, {}, nullptr) == SINPE_BAD_ARGUMENT);
  b.sizes[0] = 0;
  b.grad = nullptr;
  CHECK(sinpe::cuda::embed_backward(b, scratch, {}, nullptr) == SINPE_OK);
  CHECK(out[0] == 0.0f && out[1] == 0.0f && out[2] == 0.0f);
}

}  // namespace

int main() {
  test_tree_sum();
  test_row_dots<float>();
  test_add_backward<float>();
  test_row_dots<double>();
  test_add_backward<double>();
  test_row_dots<sinpe::bfloat16>();
  test_add_backward<sinpe::bfloat16>();
  test_row_dots<sinpe::float16>();
  test_add_backward<sinpe::float16>();
  test_embed_backward<float>();
  test_long_runs<float>();
  test_embed_backward<double>();
  test_long_runs<double>();
  test_embed_backward<sinpe::bfloat16>();
  test_long_runs<sinpe::bfloat16>();
  test_embed_backward<sinpe::float16>();
  test_long_runs<sinpe::float16>();
  test_bad_ids();
  return check::finish((std::string("test_cuda_backward, arithmetic ") + sinpe::cuda::arithmetic()).c_str());
}
