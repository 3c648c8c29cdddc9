// One call of each kind of each function of sinpe.h, with its operands as bytes, so that a test can put any of them,
// and the result, into a memory of its own.
#pragma once

#include <functional>

#include "check.h"
#include "core/grid.h"
#include "plans.h"
#include "sinpe/sinpe.h"

namespace every_call {

using Bytes = std::vector<char>;
using Pointers = std::vector<const void*>;

struct Call {
  const char* name;
  std::vector<Bytes> operands;
  int64_t begin, end, item;  // the range of its result, in bytes from `out`, and the size of an element
  std::function<sinpe_status(const Pointers&, void* out)> run;

  Pointers pointers() const {
    Pointers all;
    for (const Bytes& operand : operands) all.push_back(operand.data());
    return all;
  }
};

template <class T>
Bytes bytes(const std::vector<T>& values) {
  const char* from = reinterpret_cast<const char*>(values.data());
  return Bytes(from, from + values.size() * sizeof(T));
}
template <class T, class Value>
Bytes made(int64_t n, const Value& value) {
  std::vector<T> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<T>(value(i)));
  return bytes(values);
}
inline const int64_t* integers(const void* p) { return static_cast<const int64_t*>(p); }

// Tensors (batch, rows, dim), or (tokens, dim); dim is even.
inline std::vector<Call> every_call(int64_t batch, int64_t rows, int64_t dim) {
  constexpr int64_t kVocabulary = 97;
  const int64_t tokens = batch * rows, n = tokens * dim, size = 4 * n;
  check::Random random;
  const auto below = [&](int64_t most) {
    return [&random, most](int64_t) { return static_cast<int64_t>(random.next() % static_cast<uint64_t>(most)); };
  };
  const auto number = [&](int64_t) { return random.uniform() * 8 - 4; };
  const TestPlan plan = make_plan(dim, 0, false), other = make_plan(dim, 2, true);
  const int64_t words = static_cast<int64_t>(plan.words.size()), other_words = static_cast<int64_t>(other.words.size());
  // Two axes; rows / 3 and 3 are their lengths.
  const std::vector<int64_t> grid = {sinpe::kGridMagic,
                                     20,
                                     0,
                                     2,
                                     2,
                                     dim,
                                     rows / 3 * (dim / 2) + 3 * (dim / 2),
                                     0,
                                     rows / 3,
                                     3,
                                     0,
                                     0,
                                     2,
                                     dim / 2,
                                     0,
                                     1,
                                     1,
                                     2,
                                     dim / 2,
                                     rows / 3 * (dim / 2)};
  const int64_t n_values = grid[6];
  const Bytes packed = bytes(plan.words), x = made<float>(n, number), weight = made<float>(kVocabulary * dim, number),
              mask = made<uint8_t>(tokens, [](int64_t i) { return i % 4 == 1; }),
              elements = bytes(std::vector<int64_t>{77, rows * dim, dim, 1}),
              ids = made<int64_t>(tokens, below(kVocabulary)),
              run = made<int64_t>(tokens, [](int64_t i) { return i - 50; }),
              scattered = made<int64_t>(
                  tokens, [&](int64_t i) { return below(1 << 30)(0) * (i % 5 == 0 ? -(int64_t{1} << 32) : 1); });
  const auto arguments = [=](void* out, const void* from, const void* padding, const void* offsets, const void* at) {
    sinpe_add_arguments a{};
    a.rank = 3;
    const int64_t sizes[] = {batch, rows, dim}, strides[] = {rows * dim, dim, 1};
    std::memcpy(a.sizes, sizes, sizeof sizes);
    std::memcpy(a.x_strides, strides, sizeof strides);
    std::memcpy(a.out_strides, strides, sizeof strides);
    a.x = from;
    a.out = out;
    a.scale = 1.7;
    a.alpha = -0.3;
    a.padding_mask = static_cast<const uint8_t*>(padding);
    a.mask_strides[0] = rows;
    a.mask_strides[1] = 1;
    a.dropout = {6554, 4711, integers(offsets)};
    if (offsets == nullptr) a.dropout.drop_threshold = 0;
    a.positions = at;
    a.position_strides[0] = rows;
    a.position_strides[1] = 1;
    a.position_dtype = SINPE_INT64;
    return a;
  };
  std::vector<Call> calls;
  const auto table = [&](const char* name, sinpe_dtype dtype, int64_t item, int64_t gap) {
    calls.push_back(
        {name, {packed}, 0, ((tokens - 1) * (dim + gap) + dim) * item, item, [=](const Pointers& p, void* out) {
           return sinpe_table(integers(p[0]), words, -60, tokens, dtype, out, dim + gap);
         }});
  };
  table("table", SINPE_FLOAT32, 4, 0);
  table("table, float64", SINPE_FLOAT64, 8, 0);
  table("table, bfloat16", SINPE_BFLOAT16, 2, 0);
  table("table, float16", SINPE_FLOAT16, 2, 0);
  table("table, gaps", SINPE_FLOAT32, 4, 10);
  const auto encode = [&](const char* name, const Bytes& positions, sinpe_dtype type, sinpe_dtype dtype, int64_t item) {
    calls.push_back({name, {bytes(other.words), positions}, 0, n * item, item, [=](const Pointers& p, void* out) {
                       return sinpe_encode(integers(p[0]), other_words, p[1], type, tokens, dtype, out, dim);
                     }});
  };
  encode("encode, a run", run, SINPE_INT64, SINPE_FLOAT32, 4);
  encode("encode", scattered, SINPE_INT64, SINPE_FLOAT32, 4);
  encode("encode, float64", scattered, SINPE_INT64, SINPE_FLOAT64, 8);
  encode("encode, fractions", made<double>(tokens, number), SINPE_FLOAT64, SINPE_FLOAT32, 4);
  calls.push_back({"add", {packed, mask, elements, scattered}, 0, size, 4, [=](const Pointers& p, void* out) {
                     const sinpe_add_arguments a = arguments(out, x.data(), p[1], p[2], p[3]);
                     return sinpe_add(integers(p[0]), words, &a);
                   }});
  calls.push_back({"add, no mask", {packed}, 0, size, 4, [=](const Pointers& p, void* out) {
                     const sinpe_add_arguments a = arguments(out, x.data(), nullptr, nullptr, nullptr);
                     return sinpe_add(integers(p[0]), words, &a);
                   }});
  calls.push_back(
      {"add, backwards", {elements, made<float>(tokens, number)}, 4 - size, 4, 4, [=](const Pointers& p, void* out) {
         const void* last = static_cast<const float*>(p[1]) + tokens - 1;
         sinpe_add_arguments a = arguments(out, x.data(), nullptr, p[0], last);
         for (int d = 0; d < 3; ++d) a.out_strides[d] *= -1;
         a.position_dtype = SINPE_FLOAT32;
         a.position_strides[0] = -rows;
         a.position_strides[1] = -1;
         return sinpe_add(plan.words.data(), words, &a);
       }});
  calls.push_back({"add, starts", {made<int64_t>(batch, below(1000))}, 0, size, 4, [=](const Pointers& p, void* out) {
                     sinpe_add_arguments a = arguments(out, x.data(), nullptr, nullptr, p[0]);
                     a.positions_are_starts = 1;
                     a.position_strides[0] = 1;
                     a.position_strides[1] = 100000;  // never used
                     return sinpe_add(plan.words.data(), words, &a);
                   }});
  calls.push_back({"dropout", {elements}, 0, size, 4, [=](const Pointers& p, void* out) {
                     const sinpe_add_arguments a = arguments(out, x.data(), nullptr, p[0], nullptr);
                     return sinpe_dropout(&a);
                   }});
  // Two heads, (batch, 2, rows, dim / 2) in the memory of (batch, rows, dim).
  const Bytes of_heads = bytes(std::vector<int64_t>{77, rows * dim, rows * (dim / 2), dim / 2, 1});
  calls.push_back({"dropout, heads", {of_heads}, 0, size, 4, [=](const Pointers& p, void* out) {
                     sinpe_add_arguments a = arguments(out, x.data(), nullptr, p[0], nullptr);
                     a.rank = 4;
                     const int64_t sizes[] = {batch, 2, rows, dim / 2}, strides[] = {rows * dim, dim / 2, dim, 1};
                     std::memcpy(a.sizes, sizes, sizeof sizes);
                     std::memcpy(a.x_strides, strides, sizeof strides);
                     std::memcpy(a.out_strides, strides, sizeof strides);
                     return sinpe_dropout(&a);
                   }});
  calls.push_back({"row_dots",
                   {packed, mask, elements, scattered, x, made<double>(dim, number)},
                   0,
                   tokens * 8,
                   8,
                   [=](const Pointers& p, void* out) {
                     const sinpe_add_arguments a = arguments(out, p[4], p[1], p[2], p[3]);
                     return sinpe_row_dots(integers(p[0]), words, &a, static_cast<const double*>(p[5]));
                   }});
  calls.push_back(
      {"embed", {packed, mask, elements, scattered, ids, weight}, 0, size, 4, [=](const Pointers& p, void* out) {
         sinpe_embed_arguments e{};
         e.add = arguments(out, p[5], p[1], p[2], p[3]);
         e.ids = integers(p[4]);
         e.id_strides[0] = rows;
         e.id_strides[1] = 1;
         e.num_embeddings = kVocabulary;
         e.weight_stride = dim;
         return sinpe_embed(integers(p[0]), words, &e);
       }});
  calls.push_back(
      {"embed_backward", {x, ids, elements}, 0, kVocabulary * dim * 4, 4, [=](const Pointers& p, void* out) {
         const sinpe_add_arguments a = arguments(out, p[0], nullptr, p[2], nullptr);
         sinpe_embed_backward_arguments b{};
         b.rank = a.rank;
         std::memcpy(b.sizes, a.sizes, sizeof b.sizes);
         std::memcpy(b.grad_strides, a.x_strides, sizeof b.grad_strides);
         b.id_strides[0] = rows;
         b.id_strides[1] = 1;
         b.grad = p[0];
         b.ids = integers(p[1]);
         b.out = out;
         b.num_embeddings = kVocabulary;
         b.padding_idx = 3;
         b.scale = 1.7;
         b.dropout = a.dropout;
         return sinpe_embed_backward(&b);
       }});
  calls.push_back({"add_grid",
                   {bytes(grid), made<float>(n_values, number), mask, elements},
                   0,
                   size,
                   4,
                   [=](const Pointers& p, void* out) {
                     const sinpe_add_arguments a = arguments(out, x.data(), p[2], p[3], nullptr);
                     return sinpe_add_grid(integers(p[0]), 20, p[1], n_values, &a);
                   }});
  return calls;
}

}  // namespace every_call
