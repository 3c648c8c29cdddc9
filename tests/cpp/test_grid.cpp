// sinpe_add_grid against plain loops, by places and by channels: axes, groups, steps, strides, masks, dtypes, in place,
// dropout; and invalid packed grids.
#include "grid_cases.h"

namespace {

using namespace cases;

constexpr int kCases = 200 / kFewer;

template <class T>
void test_random() {
  check::Random random;
  for (int number = 0; number < kCases; ++number) {
    const GridCase<T> c(random, number % 4 == 0 ? random_volume(random) : random_grid(random));
    Buffer<T> got;
    const sinpe_add_arguments a = c.call(&got);
    CHECK(sinpe_add_grid(c.grid.words.data(), c.grid.n_words(), c.values.data(), c.grid.n_values, &a) == SINPE_OK);
    check_same("add_grid", number, got, c.expected());
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
    a.sizes[1] = by_channels ? 6 : 5;
    a.x_strides[0] = a.out_strides[0] = a.sizes[1];
    a.x_strides[1] = a.out_strides[1] = 1;
    a.x = x.data();
    a.out = out.data();
    a.scale = 2;
    const float* values = by_channels ? by_channel.data() : by_place.data();
    CHECK(sinpe_add_grid(g.words.data(), g.n_words(), values, 10, &a) == SINPE_OK);
    for (size_t i = 0; i < 2; ++i) {
      for (size_t j = 0; j < 3; ++j) {
        const float want[] = {rows[i][0], columns[j][0], rows[i][1], 0, columns[j][1]};
        for (size_t c = 0; c < 5; ++c) {
          const size_t place = i * 3 + j;
          CHECK(out[by_channels ? c * 6 + place : place * 5 + c] == 200 + want[c]);
        }
      }
    }
  }
}

// decode_grid accepts exactly the valid grids, and none leads to an index beyond the values.
void test_changed_words() {
  check::Random random;
  int64_t taken = 0, refused = 0;
  for (int number = 0; number < 60 / kFewer; ++number) {
    const TestGrid g = number == 0
                           ? make_grid(false, std::vector<int64_t>(8, 2), 64, std::vector<TestGroup>(64, {7, 0, 1, 1}))
                           : random_grid(random);
    CHECK(is_grid(g.words, g.n_values));
    with_lies(g, [&](const std::vector<int64_t>& words) {
      sinpe::Grid grid{};
      const bool fine = sinpe::decode_grid(words.data(), static_cast<int64_t>(words.size()), g.n_values, &grid);
      CHECK(fine == is_grid(words, g.n_values));
      fine ? ++taken : ++refused;
      if (!fine) return;
      int64_t places = 1;
      for (int64_t a = 0; a < words[3]; ++a) places *= words[static_cast<size_t>(kGridHeader + a)];
      CHECK(grid.points == places && grid.dim == words[5] && grid.by_channels == (words[2] != 0));
      for (int k = 0; k < grid.n_groups; ++k) {
        const sinpe::ChannelGroup p = grid.groups[k];
        const int64_t first = grid.at(p, 0, 0), last = grid.at(p, grid.length[p.axis] - 1, p.width - 1);
        CHECK(first >= 0 && last >= first && last < g.n_values);
        CHECK(p.first + (p.width - 1) * p.step < grid.dim);
      }
    });
    sinpe::Grid grid{};
    for (const int64_t other : {g.n_values - 1, g.n_values + 1, int64_t{-1}, INT64_MAX}) {
      CHECK(!sinpe::decode_grid(g.words.data(), g.n_words(), other, &grid));
    }
    CHECK(!sinpe::decode_grid(nullptr, g.n_words(), g.n_values, &grid));
  }
  CHECK(taken > 100 && refused > 1000);
}

// One word changed: an error and nothing written, or the result of another grid if the words are valid.
void test_calls_with_changed_words() {
  check::Random random;
  int64_t taken = 0;
  for (int number = 0; number < 40 / kFewer; ++number) {
    GridCase<float> c(random);
    if (c.grid.dim * c.grid.places > 2000) continue;
    const TestGrid right = c.grid;
    with_lies(right, [&](const std::vector<int64_t>& words) {
      Buffer<float> got;
      const sinpe_add_arguments a = c.call(&got);
      const int64_t size = static_cast<int64_t>(words.size());
      const sinpe_status status = sinpe_add_grid(words.data(), size, c.values.data(), c.grid.n_values, &a);
      if (status == SINPE_OK) {
        c.grid.words = words;
        c.grid.by_channels = words[2] != 0;
        CHECK(is_grid(words, c.grid.n_values));
        ++taken;
        check_same("another grid", number, got, c.expected());
        c.grid = right;
      } else {
        CHECK(status == (is_grid(words, c.grid.n_values) ? SINPE_BAD_ARGUMENT : SINPE_BAD_PLAN));
        check_same("invalid grid", number, got, c.out);
      }
    });
  }
  CHECK(taken > 100);
}

void test_invalid_arguments() {
  for (const bool by_channels : {false, true}) {
    const TestGrid g = make_grid(by_channels, {2, 3}, 4, {{0, 0, 1, 2}, {1, 2, 1, 2}});
    std::vector<float> values(static_cast<size_t>(g.n_values), 0.5f), x(48, 1.0f);
    std::vector<uint8_t> mask(6, 1);
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
    good.x = good.out = x.data();
    good.scale = 1.0;
    const auto status = [&](const auto& change) {
      sinpe_add_arguments a = good;
      change(a);
      return sinpe_add_grid(g.words.data(), g.n_words(), values.data(), g.n_values, &a);
    };
    CHECK(status([](auto&) {}) == SINPE_OK);
    for (const int32_t rank : {0, 1, 17}) CHECK(status([&](auto& a) { a.rank = rank; }) == SINPE_BAD_ARGUMENT);
    for (const int32_t drop : {-1, 65537})
      CHECK(status([&](auto& a) { a.dropout.drop_threshold = drop; }) == SINPE_BAD_ARGUMENT);
    for (const int d : {0, 1, 2}) CHECK(status([&](auto& a) { a.sizes[d] = -1; }) == SINPE_BAD_ARGUMENT);
    CHECK(status([](auto& a) { a.sizes[0] = INT64_MAX; }) == SINPE_BAD_ARGUMENT);
    CHECK(status([](auto& a) { ++a.sizes[1]; }) == SINPE_BAD_ARGUMENT);
    CHECK(status([](auto& a) { ++a.sizes[2]; }) == SINPE_BAD_ARGUMENT);
    CHECK(status([](auto& a) { std::swap(a.sizes[1], a.sizes[2]); }) == SINPE_BAD_ARGUMENT);
    CHECK(status([](auto& a) { a.x = nullptr; }) == SINPE_BAD_ARGUMENT);
    CHECK(status([](auto& a) { a.out = nullptr; }) == SINPE_BAD_ARGUMENT);
    CHECK(status([](auto& a) { a.dtype = SINPE_INT64; }) == SINPE_BAD_ARGUMENT);
    CHECK(status([&](auto& a) { a.padding_mask = mask.data(); }) == (by_channels ? SINPE_BAD_ARGUMENT : SINPE_OK));
    // Pointers may be null if there are no elements.
    for (const int d : {0, 1, 2}) CHECK(status([&](auto& a) { a.sizes[d] = 0, a.x = a.out = nullptr; }) == SINPE_OK);
    CHECK(sinpe_add_grid(g.words.data(), g.n_words(), values.data(), g.n_values, nullptr) == SINPE_BAD_ARGUMENT);
    CHECK(sinpe_add_grid(g.words.data(), g.n_words(), nullptr, g.n_values, &good) == SINPE_BAD_ARGUMENT);
    CHECK(sinpe_add_grid(g.words.data(), g.n_words(), values.data(), -1, &good) == SINPE_BAD_ARGUMENT);
    CHECK(sinpe_add_grid(nullptr, g.n_words(), values.data(), g.n_values, &good) == SINPE_BAD_PLAN);
    // No groups, no values: zeros are added.
    const TestGrid none = make_grid(by_channels, {2, 3}, 4, {});
    x.assign(x.size(), -0.0f);
    CHECK(sinpe_add_grid(none.words.data(), none.n_words(), nullptr, 0, &good) == SINPE_OK);
    for (const float v : x) CHECK(same(v, 0.0f));
  }
}

}  // namespace

int main() {
  test_explicit_example();
  test_random<float>();
  test_random<double>();
  test_random<sinpe::bfloat16>();
  test_random<sinpe::float16>();
  test_changed_words();
  test_calls_with_changed_words();
  test_invalid_arguments();
  return check::finish("test_grid");
}
