// Gradients against plain loops: dropout, row_dots, embed_backward, with outputs initialized to NaN; and the order of
// sums.
#include <cmath>
#include <vector>

#include "check.h"
#include "core/tree_sum.h"
#include "kernels.h"
#include "plans.h"
#include "tree.h"

namespace {

template <class T>
std::vector<T> numbers(check::Random& random, int64_t n) {
  std::vector<T> x(static_cast<size_t>(n));
  for (T& value : x) value = rounded<T>(static_cast<float>(random.uniform() * 8 - 4));
  return x;
}

// Memory layouts of a (5, 7, 130) tensor: dense, channels outermost, expanded, a slice of a wider tensor.
struct Layout {
  int64_t strides[3], storage;
};
const int64_t kSizes[] = {5, 7, 130};
const Layout kLayouts[] = {{{910, 130, 1}, 4550}, {{910, 1, 7}, 4550}, {{0, 0, 0}, 1}, {{2800, 400, 3}, 14000}};

template <class T>
void test_dropout(int32_t drop) {
  check::Random random;
  for (const Layout& from : kLayouts) {
    for (bool numbered : {false, true}) {
      for (int to = 0; to < 2; ++to) {
        const std::vector<T> x = numbers<T>(random, from.storage);
        std::vector<T> out(4550, rounded<T>(std::nanf("")));
        const int64_t elements[] = {(int64_t{1} << 35) - 50, 910, 1, 7};
        sinpe_add_arguments a{};
        a.rank = 3;
        for (int d = 0; d < 3; ++d) {
          a.sizes[d] = kSizes[d];
          a.x_strides[d] = from.strides[d];
          a.out_strides[d] = kLayouts[to].strides[d];
        }
        a.x = x.data();
        a.out = out.data();
        a.dtype = dtype_of<T>();
        a.scale = -0.7;
        a.dropout = {drop, 4711, numbered ? elements : nullptr};
        CHECK(sinpe_dropout(&a) == SINPE_OK);
        for (int64_t i = 0; i < 5; ++i) {
          for (int64_t j = 0; j < 7; ++j) {
            for (int64_t k = 0; k < 130; ++k) {
              const int64_t at = i * from.strides[0] + j * from.strides[1] + k * from.strides[2];
              const int64_t number = numbered ? elements[0] + 910 * i + j + 7 * k : 910 * i + 130 * j + k;
              const auto v = sinpe::to_float(x[static_cast<size_t>(at)]) * static_cast<sinpe::accumulate_t<T>>(-0.7);
              const T want = dropped<T>(v, a.dropout, static_cast<uint64_t>(number));
              const int64_t place = i * a.out_strides[0] + j * a.out_strides[1] + k * a.out_strides[2];
              CHECK(same(out[static_cast<size_t>(place)], want));
            }
          }
        }
      }
    }
  }
}

void test_dropout_ranks() {
  float x = 2.0f, out = std::nanf("");
  sinpe_add_arguments a{};
  a.rank = SINPE_MAX_RANK;
  for (int d = 0; d < SINPE_MAX_RANK; ++d) a.sizes[d] = 1;
  a.x = &x;
  a.out = &out;
  a.scale = 1.5;
  CHECK(sinpe_dropout(&a) == SINPE_OK);
  CHECK(out == 3.0f);
  a.sizes[3] = 0;
  a.x = nullptr;
  CHECK(sinpe_dropout(&a) == SINPE_OK);
  std::vector<float> many(100000, 1.0f);  // several pieces of one run, for threads
  a = sinpe_add_arguments{};
  a.rank = 1;
  a.sizes[0] = 100000;
  a.x_strides[0] = a.out_strides[0] = 1;
  a.x = a.out = many.data();
  a.scale = 1.0;
  a.dropout.drop_threshold = 32768;
  CHECK(sinpe_dropout(&a) == SINPE_OK);
  for (size_t i = 0; i < many.size(); ++i) CHECK(many[i] == dropped<float>(1.0f, a.dropout, i));
}

template <class T>
void test_row_dots(int32_t drop) {
  const TestPlan made = make_plan(130, 0, false);
  check::Random random;
  for (const Layout& from : kLayouts) {
    for (int mode = 0; mode < 4; ++mode) {
      const std::vector<T> x = numbers<T>(random, from.storage);
      const std::vector<double> slopes = numbers<double>(random, 130);
      std::vector<double> out(35, std::nan(""));
      std::vector<uint8_t> mask(35);
      for (uint8_t& m : mask) m = random.next() % 3 == 0;
      sinpe_add_arguments a{};
      a.rank = 3;
      for (int d = 0; d < 3; ++d) {
        a.sizes[d] = kSizes[d];
        a.x_strides[d] = from.strides[d];
      }
      a.x = x.data();
      a.out = out.data();
      a.dtype = dtype_of<T>();
      a.scale = a.alpha = 123.0;  // not read
      a.start = 1000;
      a.padding_mask = (mode & 1) != 0 ? mask.data() : nullptr;
      a.mask_strides[0] = 7;
      a.mask_strides[1] = 1;
      a.dropout = {drop, 31, nullptr};
      const double* factors = (mode & 2) != 0 ? slopes.data() : nullptr;
      const int64_t words = static_cast<int64_t>(made.words.size());
      CHECK(sinpe_row_dots(made.words.data(), words, &a, factors) == SINPE_OK);
      std::vector<sinpe::accumulate_t<T>> row(130);
      const double dropout_scale = drop == 65536 ? 0.0 : 65536.0 / (65536 - drop);
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t j = 0; j < 7; ++j) {
          sinpe::exact_row(made.plan, sinpe::integer_position(1000 + j), row.data());
          double sum = 0.0, size = 0.0;
          for (int64_t k = 0; k < 130; ++k) {
            const size_t c = static_cast<size_t>(k),
                         at = static_cast<size_t>(i * from.strides[0] + j * from.strides[1] + k * from.strides[2]);
            if (drop != 0 &&
                !sinpe::is_kept(static_cast<uint64_t>(910 * i + 130 * j + k), 31, static_cast<uint32_t>(drop)))
              continue;
            const double product = static_cast<double>(sinpe::to_float(x[at])) * static_cast<double>(row[c]) *
                                   (factors != nullptr ? factors[c] : 1.0);
            sum += dropout_scale * product;
            size += std::fabs(dropout_scale * product);
          }
          const size_t place = static_cast<size_t>(7 * i + j);
          if (a.padding_mask != nullptr && mask[place] != 0) sum = size = 0.0;
          // 130 roundings of either sum, and the float64 row's last bit.
          CHECK(std::fabs(out[place] - sum) <= 300 * 0x1p-53 * size);
        }
      }
    }
  }
}

struct Ids {
  int64_t rows, dim, padding_idx;
  int hot;  // percent of the tokens that have the same id
};

template <class T>
void test_embed_backward(const Ids& c, int32_t drop, int64_t sequence, bool odd_strides) {
  using Real = sinpe::accumulate_t<T>;
  check::Random random;
  const int64_t batch = 3, tokens = batch * sequence, channel = odd_strides ? tokens : 1;
  std::vector<int64_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    const bool hot = static_cast<int>(random.next() % 100) < c.hot;
    ids.push_back(hot ? c.rows / 2 : static_cast<int64_t>(random.next() % static_cast<uint64_t>(c.rows)));
  }
  const std::vector<T> grad = numbers<T>(random, tokens * c.dim);
  std::vector<T> out(static_cast<size_t>(c.rows * c.dim), rounded<T>(std::nanf("")));
  sinpe_embed_backward_arguments b{};
  b.rank = 3;
  b.sizes[0] = batch;
  b.sizes[1] = sequence;
  b.sizes[2] = c.dim;
  b.grad_strides[0] = odd_strides ? 1 : sequence * c.dim;
  b.grad_strides[1] = odd_strides ? batch : c.dim;
  b.grad_strides[2] = channel;
  b.id_strides[0] = odd_strides ? 1 : sequence;
  b.id_strides[1] = odd_strides ? batch : 1;
  b.grad = grad.data();
  b.ids = ids.data();
  b.out = out.data();
  b.dtype = dtype_of<T>();
  b.num_embeddings = c.rows;
  b.padding_idx = c.padding_idx;
  b.scale = c.padding_idx == 3 ? -1.7 : 1.7;  // +0 stays +0 if there is nothing to sum
  b.dropout = {drop, 8, nullptr};
  CHECK(sinpe_embed_backward(&b) == SINPE_OK);
  std::vector<std::vector<Real>> terms(out.size());
  std::vector<bool> summed(static_cast<size_t>(c.rows));
  for (int64_t i = 0; i < batch; ++i) {
    for (int64_t s = 0; s < sequence; ++s) {
      const int64_t id = ids[static_cast<size_t>(i * b.id_strides[0] + s * b.id_strides[1])];
      summed[static_cast<size_t>(id)] = id != c.padding_idx && drop != 65536;
      for (int64_t d = 0; d < c.dim && id != c.padding_idx; ++d) {
        const uint64_t number = static_cast<uint64_t>((i * sequence + s) * c.dim + d);
        const bool kept = drop == 0 || sinpe::is_kept(number, 8, static_cast<uint32_t>(drop));
        const int64_t at = i * b.grad_strides[0] + s * b.grad_strides[1] + d * channel;
        terms[static_cast<size_t>(id * c.dim + d)].push_back(kept ? sinpe::to_float(grad[static_cast<size_t>(at)])
                                                                  : Real{0});
      }
    }
  }
  const Real factor = static_cast<Real>(drop == 65536 ? 0.0 : b.scale * (65536.0 / (65536 - drop)));
  for (size_t k = 0; k < out.size(); ++k) {
    const bool any = summed[k / static_cast<size_t>(c.dim)];
    CHECK(same(out[k], any ? rounded<T>(summed_in_tree(terms[k]) * factor) : T{}));
  }
  b.num_embeddings = c.rows / 2;  // half of the ids are now out of range
  if (c.hot > 0) {
    CHECK(sinpe_embed_backward(&b) == SINPE_BAD_ID);
    CHECK(b.bad_id >= c.rows / 2);
  }
}

// For numbers of terms around the edges of levels, and others: the order, the number of levels, and the error bound.
void test_tree_sum() {
  check::Random random;
  std::vector<int64_t> counts{0, 1, 2, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 8192, 262143, 262144, 262145};
  for (int i = 0; i < 20; ++i) counts.push_back(static_cast<int64_t>(random.next() % 300000));
  for (const int64_t n : counts) {
    std::vector<float> terms;
    for (int64_t i = 0; i < n; ++i) terms.push_back(static_cast<float>(random.uniform() * 8 - 4));
    std::vector<float> sums(12);  // one per level; more than there are
    int64_t next = 0;
    sinpe::tree_sum(
        n,
        [&](int64_t k) {
          CHECK(k == next++);
          sums[1] += terms[static_cast<size_t>(k)];
        },
        [&](int level) {
          sums[static_cast<size_t>(level) + 1] += sums[static_cast<size_t>(level)];
          sums[static_cast<size_t>(level)] = 0.0f;
        });
    const int levels = sinpe::tree_levels(n);
    CHECK(next == n && n <= sinpe::terms_under(levels) && (levels == 1 || n > sinpe::terms_under(levels - 1)));
    const float got = sums[static_cast<size_t>(levels)];
    CHECK(same(got, summed_in_tree(terms)));
    double exact = 0.0, size = 0.0;
    for (const float term : terms) {
      exact += static_cast<double>(term);
      size += std::fabs(static_cast<double>(term));
    }
    CHECK(std::fabs(static_cast<double>(got) - exact) <= 64.0 * levels * 0x1p-24 * size);
  }
  for (int level = 1; level <= 10; ++level) {
    CHECK(sinpe::tree_levels(sinpe::terms_under(level)) == level);
    CHECK(sinpe::tree_levels(sinpe::terms_under(level) + 1) == level + 1);
  }
  CHECK(sinpe::tree_levels(INT64_MAX) == 11);
}

void test_empty() {
  std::vector<float> out(12, std::nanf(""));
  sinpe_embed_backward_arguments b{};
  b.rank = 2;
  b.sizes[1] = 4;
  b.out = out.data();
  b.num_embeddings = 3;
  b.scale = -1.0;
  b.padding_idx = -1;
  CHECK(sinpe_embed_backward(&b) == SINPE_OK);  // no tokens: rows of +0
  for (float x : out) CHECK(same(x, 0.0f));
  b.num_embeddings = 0;
  b.out = nullptr;
  CHECK(sinpe_embed_backward(&b) == SINPE_OK);
  b.sizes[0] = -1;
  CHECK(sinpe_embed_backward(&b) == SINPE_BAD_ARGUMENT);
  CHECK(sinpe_embed_backward(nullptr) == SINPE_BAD_ARGUMENT);
}

template <class T>
void all(int32_t drop) {
  test_dropout<T>(drop);
  test_row_dots<T>(drop);
  for (const Ids& c : {Ids{50, 33, 3, 0}, Ids{50, 256, -1, 90}, Ids{20000, 16, 9999, 5}, Ids{1, 200, -1, 100}}) {
    test_embed_backward<T>(c, drop, 100, false);
    test_embed_backward<T>(c, drop, 41, true);
  }
}

}  // namespace

int main() {
  for (int32_t drop : {0, 6554, 65536}) {
    all<float>(drop);
    all<double>(drop);
    all<sinpe::bfloat16>(drop);
    all<sinpe::float16>(drop);
  }
  test_embed_backward<float>({2000, 128, -1, 60}, 6554, 3000, false);        // large enough for threads
  test_embed_backward<sinpe::float16>({3, 2, -1, 90}, 6554, 100000, false);  // and for three levels of sums
  test_tree_sum();
  test_dropout_ranks();
  test_empty();
  return check::finish("test_backward");
}
