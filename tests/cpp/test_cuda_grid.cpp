// The CUDA body of add_grid against the CPU bit by bit, on random calls partitioned for several numbers of
// multiprocessors; invalid packed grids give NaN and no access outside the values.
#include "cuda/launch.h"
#include "grid_cases.h"

namespace {

using namespace cases;

constexpr int kCases = 300 / kFewer;

DevicePlan on_device(const std::vector<int64_t>& words, const sinpe_add_arguments& a) {
  const bool has_channels = a.rank > 0 && a.rank <= SINPE_MAX_RANK;
  return {words.data(), static_cast<int64_t>(words.size()), has_channels ? a.sizes[a.rank - 1] : 1};
}

template <class T>
void test_random() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    const GridCase<T> c(random);
    Buffer<T> want, got;
    const sinpe_add_arguments a = c.call(&want);
    CHECK(sinpe_add_grid(c.grid.words.data(), c.grid.n_words(), c.values.data(), c.grid.n_values, &a) == SINPE_OK);
    for (int cut = 0; cut < 3; ++cut) {
      sinpe_add_arguments b = c.call(&got);
      const float alpha = 1e9f;
      DeviceScalars scalars{};
      if (cut == 1) {
        scalars = {&alpha, SINPE_FLOAT32, c.seed.data()};  // alpha is already part of the values
        b.dropout.seed = 99;
      }
      CHECK(sinpe::cuda::add_grid(on_device(c.grid.words, b), c.values.data(), c.grid.n_values, b, scalars, nullptr) ==
            SINPE_OK);
      check_same("add_grid", number, got, want);
    }
  }
}

template <class T>
bool is_nan(T v) {
  return std::isnan(sinpe::to_float(v));
}

// One word changed: NaN in all elements that are not padded or dropped, or the result of another grid if it is a valid
// one.
template <class T>
void test_changed_words() {
  check::Random random;
  int64_t launch_hook = 0, refused = 0;
  for (int number = 0; number < 40 / kFewer; ++number) {
    GridCase<T> c(random);
    if (c.grid.dim * c.grid.places > 3000) continue;
    c.a.dropout.drop_threshold = 0;
    c.a.padding_mask = nullptr;
    c.a.rank = 2;
    const int64_t rows = c.a.sizes[0] = c.grid.by_channels ? c.grid.dim : c.grid.places;
    const int64_t width = c.a.sizes[1] = c.grid.by_channels ? c.grid.places : c.grid.dim;
    c.in_place = false;
    c.a.x_strides[0] = c.a.out_strides[0] = width;
    c.a.x_strides[1] = c.a.out_strides[1] = 1;
    c.x = numbers<T>(random, rows * width);
    c.out = numbers<T>(random, rows * width);
    with_lies(c.grid, [&](const std::vector<int64_t>& words) {
      Buffer<T> got, want;
      const sinpe_add_arguments b = c.call(&got), a = c.call(&want);
      CHECK(sinpe::cuda::add_grid(on_device(words, b), c.values.data(), c.grid.n_values, b, {}, nullptr) ==
            (words.empty() ? SINPE_BAD_ARGUMENT : SINPE_OK));
      if (words.empty()) return;
      const sinpe_status status =
          sinpe_add_grid(words.data(), static_cast<int64_t>(words.size()), c.values.data(), c.grid.n_values, &a);
      if (status == SINPE_OK) {
        ++launch_hook;
        check_same("another grid", number, got, want);
        return;
      }
      ++refused;
      int64_t numbers = 0;
      for (int64_t i = 0; i < rows * width; ++i) numbers += !is_nan(got.data()[i]);
      CHECK(numbers == 0);
    });
  }
  CHECK(launch_hook > 100 / kFewer && refused > 1000 / kFewer);
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
    const auto run = [&](const sinpe_add_arguments& a, const double* from, int64_t n_values) {
      return sinpe::cuda::add_grid(on_device(g.words, a), from, n_values, a, {}, nullptr);
    };
    const auto status = [&](const auto& change) {
      sinpe_add_arguments a = good;
      change(a);
      return run(a, values.data(), g.n_values);
    };
    for (const int32_t rank : {0, 1, 17}) CHECK(status([&](auto& a) { a.rank = rank; }) == SINPE_BAD_ARGUMENT);
    for (const int32_t drop : {-1, 65537})
      CHECK(status([&](auto& a) { a.dropout.drop_threshold = drop; }) == SINPE_BAD_ARGUMENT);
    for (const int d : {0, 1, 2}) CHECK(status([&](auto& a) { a.sizes[d] = -1; }) == SINPE_BAD_ARGUMENT);
    CHECK(status([](auto& a) { a.x = nullptr; }) == SINPE_BAD_ARGUMENT);
    CHECK(status([](auto& a) { a.out = nullptr; }) == SINPE_BAD_ARGUMENT);
    CHECK(status([](auto& a) { a.dtype = SINPE_INT64; }) == SINPE_BAD_ARGUMENT);
    CHECK(run(good, nullptr, g.n_values) == SINPE_BAD_ARGUMENT);
    CHECK(run(good, values.data(), -1) == SINPE_BAD_ARGUMENT);
    for (const double v : out) CHECK(v == 7.0);
    for (const int d : {0, 1, 2}) CHECK(status([&](auto& a) { a.sizes[d] = 0, a.x = a.out = nullptr; }) == SINPE_OK);
    // Errors that the host cannot see: rows that do not fit the grid, values that do not match the packed grid.
    const auto all_nan = [&](int64_t count) {
      int64_t wrong = 0;
      for (int64_t i = 0; i < count; ++i) wrong += !std::isnan(out[static_cast<size_t>(i)]);
      out.assign(out.size(), 7.0);
      return wrong == 0;
    };
    CHECK(run(good, values.data(), g.n_values - 1) == SINPE_OK && all_nan(48));
    CHECK(run(good, nullptr, 0) == SINPE_OK && all_nan(48));
    CHECK(status([](auto& a) { --a.sizes[1], a.sizes[0] = 1; }) == SINPE_OK && all_nan(4));
    CHECK(status([](auto& a) { --a.sizes[2], a.sizes[0] = a.sizes[1] = 1; }) == SINPE_OK && all_nan(3));
    // A mask, which a grid by channels does not support.
    CHECK(status([&](auto& a) { a.padding_mask = mask.data(), a.mask_strides[1] = 1; }) == SINPE_OK);
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t row = i / static_cast<size_t>(good.sizes[2]) % static_cast<size_t>(good.sizes[1]);
      CHECK(mask[row] != 0 ? out[i] == 1.0 : (by_channels ? std::isnan(out[i]) : out[i] == 1.5));
    }
  }
}

}  // namespace

int main() {
  test_random<float>();
  test_random<double>();
  test_random<sinpe::bfloat16>();
  test_random<sinpe::float16>();
  test_changed_words<float>();
  test_changed_words<sinpe::bfloat16>();
  test_invalid_arguments();
  return check::finish("test_cuda_grid");
}
