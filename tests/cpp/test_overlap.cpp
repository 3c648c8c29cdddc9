// An out that overlaps an operand other than x is rejected and nothing is written: kernels read the packed plan or
// grid, positions, ids, padding and element numbers again after the checks, and while they write.
#include <functional>

#include "check.h"
#include "core/grid.h"
#include "plans.h"
#include "sinpe/sinpe.h"

namespace {

constexpr int64_t kBatch = 2, kRows = 3, kDim = 4, kWords = 512;  // in units of 8 bytes

// Memory with an operand in the middle, and out next to it, or overlapping its first or last byte.
struct Arena {
  std::vector<int64_t> memory = std::vector<int64_t>(kWords, 0), before;
  char* middle() { return reinterpret_cast<char*>(memory.data() + kWords / 2); }

  template <class T>
  T* put(const std::vector<T>& values) {
    std::memcpy(middle(), values.data(), values.size() * sizeof(T));
    return reinterpret_cast<T*>(middle());
  }
};

// Calls with out before the operand, over its first byte, over its last byte, and after it. `begin` and `end` are the
// range of the call's out, in bytes from its pointer; `bytes` is the operand's size.
void over(Arena& arena, int64_t bytes, int64_t begin, int64_t end, int64_t item,
          const std::function<sinpe_status(void*)>& call) {
  char* const first = arena.middle();
  char* const last = first + bytes;
  char* const places[] = {first - end, first - end + item, first - begin, last - begin - item, last - begin};
  const std::vector<int64_t> before = arena.memory;
  for (int k = 1; k < 4; ++k) {
    CHECK(call(places[k]) == SINPE_BAD_ARGUMENT);
    CHECK(arena.memory == before);
  }
  for (const int k : {0, 4}) {
    CHECK(call(places[k]) == SINPE_OK);
    CHECK(std::memcmp(first, before.data() + kWords / 2, static_cast<size_t>(bytes)) == 0);
    CHECK(arena.memory != before);
    arena.memory = before;
  }
}

template <class T>
int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T));
}

const std::vector<float> x(kBatch* kRows* kDim, 1.0f);
constexpr int64_t kOut = kBatch * kRows * kDim * 4;

sinpe_add_arguments arguments() {
  sinpe_add_arguments a{};
  a.rank = 3;
  const int64_t sizes[] = {kBatch, kRows, kDim}, strides[] = {kRows * kDim, kDim, 1};
  std::memcpy(a.sizes, sizes, sizeof sizes);
  std::memcpy(a.x_strides, strides, sizeof strides);
  std::memcpy(a.out_strides, strides, sizeof strides);
  a.x = x.data();
  a.dtype = SINPE_FLOAT32;
  a.scale = a.alpha = 1.0;
  return a;
}

// Each operand that determines an element's value: `call(a)` with it in the arena.
void steering(int64_t begin, int64_t end, int64_t item, bool positions_too,
              const std::function<void(sinpe_add_arguments*, void*)>& set_out,
              const std::function<sinpe_status(const sinpe_add_arguments&)>& call) {
  const auto with = [&](Arena& arena, int64_t bytes, const std::function<void(sinpe_add_arguments*)>& set) {
    over(arena, bytes, begin, end, item, [&](void* out) {
      sinpe_add_arguments a = arguments();
      set(&a);
      set_out(&a, out);
      return call(a);
    });
  };
  const std::vector<int64_t> positions = {5, 6, 7, 1, 2, 3};
  if (positions_too) {
    Arena arena;
    const int64_t* p = arena.put(positions);
    with(arena, bytes_of(positions), [&](auto* a) {
      a->positions = p;
      a->position_dtype = SINPE_INT64;
      a->position_strides[0] = 3;
      a->position_strides[1] = 1;
    });
    // In reverse order, and of floats.
    const std::vector<float> floats = {1, 2, 3, 4, 5, 6};
    const float* f = arena.put(floats);
    with(arena, bytes_of(floats), [&](auto* a) {
      a->positions = f + 5;
      a->position_dtype = SINPE_FLOAT32;
      a->position_strides[0] = -3;
      a->position_strides[1] = -1;
    });
    const std::vector<int64_t> starts = {3, 9};
    const int64_t* s = arena.put(starts);
    with(arena, bytes_of(starts), [&](auto* a) {
      a->positions = s;
      a->position_dtype = SINPE_INT64;
      a->positions_are_starts = 1;
      a->position_strides[0] = 1;
      a->position_strides[1] = 1000;  // a stride that is never used
    });
  }
  {
    Arena arena;
    const std::vector<uint8_t> mask = {0, 1, 0, 0, 0, 0, 1, 0};
    const uint8_t* m = arena.put(mask);
    with(arena, bytes_of(mask), [&](auto* a) {
      a->padding_mask = m;
      a->mask_strides[0] = 5;
      a->mask_strides[1] = 1;
    });
  }
  {
    Arena arena;
    const std::vector<int64_t> elements = {0, 12, 4, 1};
    const int64_t* e = arena.put(elements);
    with(arena, bytes_of(elements), [&](auto* a) {
      a->dropout.drop_threshold = 9000;
      a->dropout.rng_offsets = e;
    });
  }
}

void set_out(sinpe_add_arguments* a, void* out) { a->out = out; }

void set_backward_out(sinpe_add_arguments* a, void* out) {
  for (int d = 0; d < a->rank; ++d) a->out_strides[d] *= -1;
  a->out = out;
}

void test_rows() {
  const TestPlan made = make_plan(kDim, 0, false);
  const int64_t words = static_cast<int64_t>(made.words.size()), table = kRows * kDim * 4;
  Arena arena;
  const int64_t* plan = arena.put(made.words);
  over(arena, 8 * words, 0, table, 4,
       [&](void* out) { return sinpe_table(plan, words, 0, kRows, SINPE_FLOAT32, out, kDim); });
  // Gaps between the rows count.
  over(arena, 8 * words, 0, table + 2 * 4 * 10, 4,
       [&](void* out) { return sinpe_table(plan, words, 0, kRows, SINPE_FLOAT32, out, kDim + 10); });
  const std::vector<double> positions = {1.0, 2.5, 3.0};
  over(arena, 8 * words, 0, table, 4, [&](void* out) {
    return sinpe_encode(plan, words, positions.data(), SINPE_FLOAT64, kRows, SINPE_FLOAT32, out, kDim);
  });
  const double* p = arena.put(positions);
  over(arena, bytes_of(positions), 0, table, 4, [&](void* out) {
    return sinpe_encode(made.words.data(), words, p, SINPE_FLOAT64, kRows, SINPE_FLOAT32, out, kDim);
  });
}

void test_add() {
  const TestPlan made = make_plan(kDim, 0, false);
  const int64_t words = static_cast<int64_t>(made.words.size());
  const auto add = [&](const sinpe_add_arguments& a) { return sinpe_add(made.words.data(), words, &a); };
  steering(0, kOut, 4, true, set_out, add);
  steering(4 - kOut, 4, 4, true, set_backward_out, add);
  Arena arena;
  const int64_t* plan = arena.put(made.words);
  over(arena, 8 * words, 0, kOut, 4, [&](void* out) {
    sinpe_add_arguments a = arguments();
    a.out = out;
    return sinpe_add(plan, words, &a);
  });
  // out may be x.
  std::vector<float> both = x;
  sinpe_add_arguments a = arguments();
  a.x = a.out = both.data();
  CHECK(sinpe_add(made.words.data(), words, &a) == SINPE_OK);
}

void test_dropout() {
  Arena arena;
  const std::vector<int64_t> elements = {0, 12, 4, 1};
  const int64_t* e = arena.put(elements);
  over(arena, bytes_of(elements), 0, kOut, 4, [&](void* out) {
    sinpe_add_arguments a = arguments();
    a.out = out;
    a.dropout.drop_threshold = 9000;
    a.dropout.rng_offsets = e;
    return sinpe_dropout(&a);
  });
}

void test_row_dots() {
  const TestPlan made = make_plan(kDim, 0, false);
  const int64_t words = static_cast<int64_t>(made.words.size()), sums = kBatch * kRows * 8;
  steering(0, sums, 8, true, set_out,
           [&](const sinpe_add_arguments& a) { return sinpe_row_dots(made.words.data(), words, &a, nullptr); });
  const auto with = [&](Arena& arena, int64_t bytes, const int64_t* plan, const float* from, const double* slopes) {
    over(arena, bytes, 0, sums, 8, [&](void* out) {
      sinpe_add_arguments a = arguments();
      a.x = from;
      a.out = out;
      return sinpe_row_dots(plan, words, &a, slopes);
    });
  };
  Arena of_plan, of_x, of_slopes;
  with(of_plan, 8 * words, of_plan.put(made.words), x.data(), nullptr);
  with(of_x, bytes_of(x), made.words.data(), of_x.put(x), nullptr);
  const std::vector<double> slopes(kDim, 2.0);
  with(of_slopes, bytes_of(slopes), made.words.data(), x.data(), of_slopes.put(slopes));
}

void test_embed() {
  const TestPlan made = make_plan(kDim, 0, false);
  const int64_t words = static_cast<int64_t>(made.words.size());
  const std::vector<int64_t> ids = {0, 1, 4, 3, 2, 1};
  const std::vector<float> weight(5 * kDim, 0.5f);
  const auto embed = [&](const sinpe_add_arguments& a, const int64_t* plan, const int64_t* id, const float* of) {
    sinpe_embed_arguments e{};
    e.add = a;
    e.add.x = of;
    e.ids = id;
    e.id_strides[0] = kRows;
    e.id_strides[1] = 1;
    e.num_embeddings = 5;
    e.weight_stride = kDim;
    return sinpe_embed(plan, words, &e);
  };
  steering(0, kOut, 4, true, set_out,
           [&](const sinpe_add_arguments& a) { return embed(a, made.words.data(), ids.data(), weight.data()); });
  const auto with = [&](Arena& arena, int64_t bytes, const int64_t* plan, const int64_t* id, const float* of) {
    over(arena, bytes, 0, kOut, 4, [&](void* out) {
      sinpe_add_arguments a = arguments();
      a.out = out;
      return embed(a, plan, id, of);
    });
  };
  Arena of_plan, of_ids, of_weight;
  with(of_plan, 8 * words, of_plan.put(made.words), ids.data(), weight.data());
  with(of_ids, bytes_of(ids), made.words.data(), of_ids.put(ids), weight.data());
  with(of_weight, bytes_of(weight), made.words.data(), ids.data(), of_weight.put(weight));
}

void test_embed_backward() {
  const std::vector<int64_t> ids = {0, 1, 4, 3, 2, 1}, elements = {0, 12, 4, 1};
  const auto with = [&](Arena& arena, int64_t bytes, const float* grad, const int64_t* id, const int64_t* numbers) {
    over(arena, bytes, 0, 5 * kDim * 4, 4, [&](void* out) {
      sinpe_embed_backward_arguments b{};
      const sinpe_add_arguments a = arguments();
      b.rank = a.rank;
      std::memcpy(b.sizes, a.sizes, sizeof b.sizes);
      std::memcpy(b.grad_strides, a.x_strides, sizeof b.grad_strides);
      b.id_strides[0] = kRows;
      b.id_strides[1] = 1;
      b.grad = grad;
      b.ids = id;
      b.out = out;
      b.dtype = SINPE_FLOAT32;
      b.num_embeddings = 5;
      b.padding_idx = -1;
      b.scale = 1.0;
      b.dropout.drop_threshold = 100;
      b.dropout.rng_offsets = numbers;
      return sinpe_embed_backward(&b);
    });
  };
  Arena of_grad, of_ids, of_elements;
  with(of_grad, bytes_of(x), of_grad.put(x), ids.data(), nullptr);
  with(of_ids, bytes_of(ids), x.data(), of_ids.put(ids), nullptr);
  with(of_elements, bytes_of(elements), x.data(), ids.data(), of_elements.put(elements));
}

void test_grid() {
  // One axis of kRows places provides all channels.
  const std::vector<int64_t> words = {sinpe::kGridMagic, 14, 0, 1, 1, kDim, kRows * kDim, 0, kRows, 0, 0, 1, kDim, 0};
  const std::vector<float> values(kRows * kDim, 0.25f);
  const int64_t n_words = static_cast<int64_t>(words.size());
  const auto call = [&](const int64_t* grid, const float* of, const sinpe_add_arguments& a) {
    return sinpe_add_grid(grid, n_words, of, kRows * kDim, &a);
  };
  steering(0, kOut, 4, false, set_out,
           [&](const sinpe_add_arguments& a) { return call(words.data(), values.data(), a); });
  const auto with = [&](Arena& arena, int64_t bytes, const int64_t* grid, const float* of) {
    over(arena, bytes, 0, kOut, 4, [&](void* out) {
      sinpe_add_arguments a = arguments();
      a.out = out;
      return call(grid, of, a);
    });
  };
  Arena of_words, of_values;
  with(of_words, bytes_of(words), of_words.put(words), values.data());
  with(of_values, bytes_of(values), words.data(), of_values.put(values));
  // The decoded grid is a copy.
  std::vector<int64_t> changing = words;
  sinpe::Grid grid{};
  CHECK(sinpe::decode_grid(changing.data(), n_words, kRows * kDim, &grid));
  changing.assign(changing.size(), INT64_MAX);
  int64_t channel = -1;
  CHECK(grid.channel_group(2, &channel) == 0 && channel == 2);
  CHECK(grid.at(grid.groups[0], 1, 2) == kDim + 2);
}

}  // namespace

int main() {
  test_rows();
  test_add();
  test_dropout();
  test_row_dots();
  test_embed();
  test_embed_backward();
  test_grid();
  return check::finish("test_overlap");
}
