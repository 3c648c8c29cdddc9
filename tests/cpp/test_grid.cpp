// add_grid, by places and by channels, against plain loops: axes, groups, steps, strides, masks, dtypes, in place,
// dropout; the CUDA body, for several numbers of multiprocessors, against the CPU; and invalid packed grids.
#include "cuda/launch.h"
#include "grid_cases.h"

namespace {

using namespace cases;

constexpr int kCases = 120 / kFewer;

sinpe_status on_cpu(const std::vector<int64_t>& words, const void* values, int64_t n_values,
                    const sinpe_add_arguments& a) {
  return sinpe_add_grid(words.data(), static_cast<int64_t>(words.size()), values, n_values, &a);
}
sinpe_status on_cuda(const std::vector<int64_t>& words, const void* values, int64_t n_values,
                     const sinpe_add_arguments& a, const DeviceScalars& scalars = {}) {
  if constexpr (kHasCuda) {
    if (!uses_cuda) return SINPE_OK;
    const bool has_channels = a.rank > 0 && a.rank <= SINPE_MAX_RANK;
    const DevicePlan grid{words.data(), static_cast<int64_t>(words.size()), has_channels ? a.sizes[a.rank - 1] : 1};
    return sinpe::cuda::add_grid(grid, values, n_values, a, scalars, nullptr);
  }
  return SINPE_OK;
}

template <class T>
void test_random() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    const GridCase<T> c(random, number % 4 == 0 ? random_volume(random) : random_grid(random));
    Buffer<T> want, got;
    CHECK(on_cpu(c.grid.words, c.values.data(), c.grid.n_values, c.call(&want)) == SINPE_OK);
    compare("add_grid", number, want.storage, c.expected());
    for (int cut = 0; uses_cuda && cut < 2; ++cut) {  // multiprocessors vary
      sinpe_add_arguments b = c.call(&got);
      const float alpha = 1e9f;  // already part of the values
      DeviceScalars scalars{};
      if (cut == 1) {
        scalars = {&alpha, SINPE_FLOAT32, c.seed.data()};
        b.dropout.seed = 99;
      }
      CHECK(on_cuda(c.grid.words, c.values.data(), c.grid.n_values, b, scalars) == SINPE_OK);
      compare("add_grid on CUDA", number, got.storage, want.storage);
    }
  }
}

// An explicit example: 2 x 3 places, channels [row 0] [column 0] [row 1] [0] [column 1].
void test_explicit_example() {
  const std::vector<TestGroup> groups = {{0, 0, 2, 2}, {1, 1, 3, 2}};
  const float rows[2][2] = {{1, 2}, {3, 4}}, columns[3][2] = {{10, 20}, {30, 40}, {50, 60}};
  for (const bool by_channels : {false, true}) {
    const TestGrid g = make_grid(by_channels, {2, 3}, 5, groups);
    const std::vector<float> by_place = {1, 2, 3, 4, 10, 20, 30, 40, 50, 60},
                             by_channel = {1, 3, 2, 4, 10, 30, 50, 20, 40, 60};
    std::vector<float> out(30, std::nanf("")), x(30, 100);
    sinpe_add_arguments a{};
    a.rank = 2;
    a.sizes[0] = by_channels ? 5 : 6;
    a.sizes[1] = a.x_strides[0] = a.out_strides[0] = by_channels ? 6 : 5;
    a.x_strides[1] = a.out_strides[1] = 1;
    a.x = x.data();
    a.out = out.data();
    a.scale = 2;
    CHECK(on_cpu(g.words, by_channels ? by_channel.data() : by_place.data(), 10, a) == SINPE_OK);
    for (size_t i = 0; i < 2; ++i) {
      for (size_t j = 0; j < 3; ++j) {
        const float want[] = {rows[i][0], columns[j][0], rows[i][1], 0, columns[j][1]};
        const size_t place = i * 3 + j;
        for (size_t c = 0; c < 5; ++c) CHECK(out[by_channels ? c * 6 + place : place * 5 + c] == 200 + want[c]);
      }
    }
  }
}

// One word changed. decode_grid accepts exactly the valid grids, and none leads to an index beyond the values. A call
// gives an error with nothing written, on CUDA NaN, or the result of another grid if the words are valid.
template <class T>
void test_changed_words() {
  check::Random random;
  int64_t taken = 0, refused = 0;
  for (int number = 0; number < 40 / kFewer; ++number) {
    GridCase<T> c(
        random, number == 0 ? make_grid(false, std::vector<int64_t>(8, 2), 64, std::vector<TestGroup>(64, {7, 0, 1, 1}))
                            : random_grid(random));
    const TestGrid right = c.grid;
    c.a.dropout.drop_threshold = 0;
    const bool calls = number % 3 == 0 && c.grid.dim * c.grid.places < 700;
    with_lies(right, [&](const std::vector<int64_t>& words) {
      sinpe::Grid grid{};
      const bool fine = is_grid(words, c.grid.n_values);
      CHECK(sinpe::decode_grid(words.data(), static_cast<int64_t>(words.size()), c.grid.n_values, &grid) == fine);
      fine ? ++taken : ++refused;
      for (int k = 0; fine && k < grid.n_groups; ++k) {
        const sinpe::ChannelGroup p = grid.groups[k];
        const int64_t first = grid.at(p, 0, 0), last = grid.at(p, grid.length[p.axis] - 1, p.width - 1);
        CHECK(first >= 0 && last >= first && last < c.grid.n_values && p.first + (p.width - 1) * p.step < grid.dim);
      }
      if (!calls) return;
      Buffer<T> got, cuda;
      const sinpe_status status = on_cpu(words, c.values.data(), c.grid.n_values, c.call(&got));
      if (!words.empty()) CHECK(on_cuda(words, c.values.data(), c.grid.n_values, c.call(&cuda)) == SINPE_OK);
      if (status == SINPE_OK) {
        c.grid.words = words;
        c.grid.by_channels = words[2] != 0;
        compare("another grid", number, got.storage, c.expected());
        if (uses_cuda) compare("another grid on CUDA", number, cuda.storage, got.storage);
        c.grid = right;
        return;
      }
      CHECK(status == (fine ? SINPE_BAD_ARGUMENT : SINPE_BAD_PLAN));
      compare("invalid grid", number, got.storage, c.out.storage);
      if (!uses_cuda || words.empty() || !c.mask.empty()) return;
      int64_t numbers = 0;
      for_each_index(c.a.sizes, c.a.rank, [&](const int64_t* at, int64_t) {
        numbers += !std::isnan(sinpe::to_float(cuda.data()[offset_of(at, c.a.out_strides, c.a.rank)]));
      });
      CHECK(numbers == 0);
    });
    sinpe::Grid grid{};
    for (const int64_t other : {right.n_values - 1, right.n_values + 1, int64_t{-1}, INT64_MAX})
      CHECK(!sinpe::decode_grid(right.words.data(), right.n_words(), other, &grid));
    CHECK(!sinpe::decode_grid(nullptr, right.n_words(), right.n_values, &grid));
  }
  CHECK(taken > 100 / kFewer && refused > 1000 / kFewer);
}

void test_invalid_arguments() {
  for (const bool by_channels : {false, true}) {
    const TestGrid g = make_grid(by_channels, {2, 3}, 4, {{0, 0, 1, 2}, {1, 2, 1, 2}});
    std::vector<double> values(static_cast<size_t>(g.n_values), 0.5), x(48, 1.0), out(48, 7.0);
    std::vector<uint8_t> mask = {0, 0, 1, 0, 0, 0};
    sinpe_add_arguments good{};
    good.rank = 3;
    good.sizes[0] = 2;
    good.sizes[1] = by_channels ? 4 : 6;
    good.sizes[2] = by_channels ? 6 : 4;
    for (int64_t* strides : {good.x_strides, good.out_strides}) {
      strides[0] = 24;
      strides[1] = good.sizes[2];
      strides[2] = 1;
    }
    good.x = x.data();
    good.out = out.data();
    good.dtype = SINPE_FLOAT64;
    good.scale = 1.0;
    // What both refuse; on CUDA, what only the kernel sees gives NaN in `nans` elements.
    const auto all_nan = [&](int64_t nans) {
      int64_t wrong = 0;
      for (int64_t i = 0; i < nans; ++i) wrong += !std::isnan(out[static_cast<size_t>(i)]);
      out.assign(out.size(), 7.0);
      return wrong == 0;
    };
    const auto refused = [&](const auto& change, int64_t nans = 0) {
      sinpe_add_arguments a = good;
      change(a);
      CHECK(on_cpu(g.words, values.data(), g.n_values, a) == SINPE_BAD_ARGUMENT);
      const sinpe_status status = on_cuda(g.words, values.data(), g.n_values, a);
      CHECK(!uses_cuda || (nans == 0 ? status == SINPE_BAD_ARGUMENT : status == SINPE_OK && all_nan(nans)));
    };
    for (const int32_t rank : {0, 1, 17}) refused([&](auto& a) { a.rank = rank; });
    for (const int32_t drop : {-1, 65537}) refused([&](auto& a) { a.dropout.drop_threshold = drop; });
    for (const int d : {0, 1, 2}) refused([&](auto& a) { a.sizes[d] = -1; });
    refused([](auto& a) { a.sizes[0] = INT64_MAX; });
    refused([](auto& a) { a.x = nullptr; });
    refused([](auto& a) { a.out = nullptr; });
    refused([](auto& a) { a.dtype = SINPE_INT64; });
    refused([](auto& a) { --a.sizes[1], a.sizes[0] = 1; }, 4);
    refused([](auto& a) { --a.sizes[2], a.sizes[0] = a.sizes[1] = 1; }, 3);
    for (const bool is_cuda : {false, true}) {
      const auto call = [&](const void* of, int64_t n_values, const sinpe_add_arguments& a) {
        return is_cuda && uses_cuda ? on_cuda(g.words, of, n_values, a) : on_cpu(g.words, of, n_values, a);
      };
      CHECK(call(nullptr, g.n_values, good) == SINPE_BAD_ARGUMENT &&
            call(values.data(), -1, good) == SINPE_BAD_ARGUMENT);
      for (const int d : {0, 1, 2}) {  // pointers may be null if there are no elements
        sinpe_add_arguments a = good;
        a.sizes[d] = 0, a.x = a.out = nullptr;
        CHECK(call(values.data(), g.n_values, a) == SINPE_OK);
      }
    }
    for (const double v : out) CHECK(v == 7.0);
    CHECK(on_cpu({}, values.data(), g.n_values, good) == SINPE_BAD_PLAN);
    CHECK(sinpe_add_grid(g.words.data(), g.n_words(), values.data(), g.n_values, nullptr) == SINPE_BAD_ARGUMENT);
    if (uses_cuda) {
      CHECK(on_cuda(g.words, values.data(), g.n_values - 1, good) == SINPE_OK && all_nan(48));
      CHECK(on_cuda(g.words, nullptr, 0, good) == SINPE_OK && all_nan(48));
    }
    // A mask, which a grid by channels does not support.
    sinpe_add_arguments masked = good;
    masked.padding_mask = mask.data(), masked.mask_strides[1] = 1;
    CHECK(on_cpu(g.words, values.data(), g.n_values, masked) == (by_channels ? SINPE_BAD_ARGUMENT : SINPE_OK));
    CHECK(on_cuda(g.words, values.data(), g.n_values, masked) == SINPE_OK);
    for (size_t i = 0; uses_cuda && i < out.size(); ++i) {
      const size_t row = i / static_cast<size_t>(good.sizes[2]) % static_cast<size_t>(good.sizes[1]);
      CHECK(mask[row] != 0 ? out[i] == 1.0 : (by_channels ? std::isnan(out[i]) : out[i] == 1.5));
    }
    // No groups, no values: zeros are added.
    const TestGrid none = make_grid(by_channels, {2, 3}, 4, {});
    x.assign(x.size(), -0.0);
    CHECK(on_cpu(none.words, nullptr, 0, good) == SINPE_OK);
    for (const double v : out) CHECK(same(v, 0.0));
  }
}

}  // namespace

int main(int argc, char**) {
  uses_cuda = kHasCuda && argc == 1;  // `test_grid cpu`
  test_explicit_example();
  test_random<float>();
  test_random<double>();
  test_random<sinpe::bfloat16>();
  test_random<sinpe::float16>();
  test_changed_words<float>();
  test_invalid_arguments();
  return check::finish("test_grid");
}
