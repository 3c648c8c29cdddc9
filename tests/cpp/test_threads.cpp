// Many std::threads make all calls at once, with the same plans and inputs: the bits equal those of a single thread.
// Nothing is called before they start, so that the selection of the instruction set is raced as well. `make cpp
// PRESET=tsan-threads` runs this under ThreadSanitizer; each call also starts threads, and is repeated inside the
// library's parallel loop.
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "core/parallel.h"
#include "grid_cases.h"

namespace {

constexpr int kThreads = 8;
constexpr int kRounds = 3;
// Large enough for several threads per call.
constexpr int64_t kBatch = 4, kLength = 300, kDim = 66, kTokens = kBatch * kLength, kElements = kTokens * kDim;
constexpr int64_t kVocabulary = 97;

using Bytes = std::vector<unsigned char>;

// Inputs read by all threads.
struct Shared {
  TestPlan plan = make_plan(kDim, 0, false), partner = make_plan(kDim, 2, true);
  std::vector<float> x, weight, values;
  std::vector<double> slopes;
  std::vector<int64_t> ids, bad_ids, run, scattered;
  std::vector<double> fractions;
  std::vector<uint8_t> mask;
  std::vector<int64_t> elements = {77, kLength* kDim, kDim, 1};
  cases::TestGrid grid = cases::make_grid(false, {kLength / 15, 15}, kDim, {{0, 0, 2, kDim / 2}, {1, 1, 2, kDim / 2}});

  Shared() {
    check::Random random;
    const auto numbers = [&](std::vector<float>* into, int64_t n) {
      for (int64_t i = 0; i < n; ++i) into->push_back(static_cast<float>(random.uniform() * 8 - 4));
    };
    numbers(&x, kElements);
    numbers(&weight, kVocabulary * kDim);
    numbers(&values, grid.n_values);
    for (int64_t c = 0; c < kDim; ++c) slopes.push_back(random.uniform());
    for (int64_t t = 0; t < kTokens; ++t) {
      ids.push_back(cases::below(random, kVocabulary));
      run.push_back(t - 50);
      scattered.push_back(cases::below(random, 1 << 30) * (t % 5 == 0 ? -(int64_t{1} << 32) : 1));
      fractions.push_back(random.uniform() * 1e6);
      mask.push_back(cases::below(random, 4) == 0);
    }
    bad_ids = ids;
    bad_ids[kTokens / 2] = kVocabulary;
    bad_ids[kTokens - 1] = -7;
  }
};

template <class T>
Bytes bytes_of(const std::vector<T>& x, sinpe_status status) {
  CHECK(status == SINPE_OK);
  const auto* first = reinterpret_cast<const unsigned char*>(x.data());
  return Bytes(first, first + x.size() * sizeof(T));
}

template <class T>
Bytes table(const Shared& s) {
  std::vector<T> out(kElements);
  const int64_t words = static_cast<int64_t>(s.plan.words.size());
  return bytes_of(out, sinpe_table(s.plan.words.data(), words, -60, kTokens, dtype_of<T>(), out.data(), kDim));
}

template <class T>
Bytes encode(const Shared& s, const std::vector<int64_t>& positions) {
  std::vector<T> out(kElements);
  return bytes_of(out, sinpe_encode(s.partner.words.data(), static_cast<int64_t>(s.partner.words.size()),
                                    positions.data(), SINPE_INT64, kTokens, dtype_of<T>(), out.data(), kDim));
}

Bytes encode_fractions(const Shared& s) {
  std::vector<float> out(kElements);
  return bytes_of(out, sinpe_encode(s.plan.words.data(), static_cast<int64_t>(s.plan.words.size()), s.fractions.data(),
                                    SINPE_FLOAT64, kTokens, SINPE_FLOAT32, out.data(), kDim));
}

// (batch, sequence, channels), dense, with dropout.
sinpe_add_arguments dense(const Shared& s, float* out) {
  sinpe_add_arguments a{};
  a.rank = 3;
  const int64_t sizes[] = {kBatch, kLength, kDim}, strides[] = {kLength * kDim, kDim, 1};
  for (int d = 0; d < 3; ++d) {
    a.sizes[d] = sizes[d];
    a.x_strides[d] = a.out_strides[d] = strides[d];
  }
  a.x = s.x.data();
  a.out = out;
  a.dtype = SINPE_FLOAT32;
  a.scale = 1.7;
  a.alpha = -0.3;
  a.dropout = {6554, 4711, s.elements.data()};
  return a;
}

Bytes add(const Shared& s) {
  std::vector<float> out(kElements);
  const sinpe_add_arguments a = dense(s, out.data());
  return bytes_of(out, sinpe_add(s.plan.words.data(), static_cast<int64_t>(s.plan.words.size()), &a));
}

Bytes add_in_place_with_positions(const Shared& s) {
  std::vector<float> out = s.x;
  sinpe_add_arguments a = dense(s, out.data());
  a.x = out.data();
  a.positions = s.scattered.data();
  a.position_dtype = SINPE_INT64;
  a.position_strides[0] = kLength;
  a.position_strides[1] = 1;
  a.padding_mask = s.mask.data();
  a.mask_strides[0] = kLength;
  a.mask_strides[1] = 1;
  return bytes_of(out, sinpe_add(s.plan.words.data(), static_cast<int64_t>(s.plan.words.size()), &a));
}

Bytes add_grid(const Shared& s) {
  std::vector<float> out(kElements);
  const sinpe_add_arguments a = dense(s, out.data());
  return bytes_of(out, sinpe_add_grid(s.grid.words.data(), s.grid.n_words(), s.values.data(), s.grid.n_values, &a));
}

Bytes dropout(const Shared& s) {
  std::vector<float> out(kElements);
  const sinpe_add_arguments a = dense(s, out.data());
  return bytes_of(out, sinpe_dropout(&a));
}

Bytes row_dots(const Shared& s) {
  std::vector<double> out(kTokens);
  sinpe_add_arguments a = dense(s, nullptr);
  a.out = out.data();
  const int64_t words = static_cast<int64_t>(s.plan.words.size());
  return bytes_of(out, sinpe_row_dots(s.plan.words.data(), words, &a, s.slopes.data()));
}

sinpe_status embed_into(const Shared& s, const std::vector<int64_t>& ids, float* out, int64_t* bad) {
  sinpe_embed_arguments e{};
  e.add = dense(s, out);
  e.add.x = s.weight.data();
  e.ids = ids.data();
  e.id_strides[0] = kLength;
  e.id_strides[1] = 1;
  e.num_embeddings = kVocabulary;
  e.weight_stride = kDim;
  const sinpe_status status = sinpe_embed(s.plan.words.data(), static_cast<int64_t>(s.plan.words.size()), &e);
  *bad = e.bad_id;
  return status;
}

Bytes embed(const Shared& s) {
  std::vector<float> out(kElements);
  int64_t bad;
  return bytes_of(out, embed_into(s, s.ids, out.data(), &bad));
}

Bytes embed_with_a_bad_id(const Shared& s) {
  std::vector<float> out(kElements, 5.0f);
  int64_t bad = 0;
  CHECK(embed_into(s, s.bad_ids, out.data(), &bad) == SINPE_BAD_ID && bad == kVocabulary);
  return bytes_of(out, SINPE_OK);
}

Bytes embed_backward(const Shared& s) {
  std::vector<float> out(kVocabulary * kDim);
  sinpe_embed_backward_arguments e{};
  e.rank = 3;
  const int64_t sizes[] = {kBatch, kLength, kDim}, strides[] = {kLength * kDim, kDim, 1};
  for (int d = 0; d < 3; ++d) {
    e.sizes[d] = sizes[d];
    e.grad_strides[d] = strides[d];
  }
  e.id_strides[0] = kLength;
  e.id_strides[1] = 1;
  e.grad = s.x.data();
  e.ids = s.ids.data();
  e.out = out.data();
  e.dtype = SINPE_FLOAT32;
  e.num_embeddings = kVocabulary;
  e.padding_idx = 3;
  e.scale = 1.7;
  e.dropout = {6554, 4711, s.elements.data()};
  return bytes_of(out, sinpe_embed_backward(&e));
}

Bytes questions(const Shared& s) {
  const int64_t words = static_cast<int64_t>(s.plan.words.size());
  float out[2];
  CHECK(sinpe_plan_dim(s.plan.words.data(), words) == kDim);
  CHECK(sinpe_table(s.plan.words.data(), words - 1, 0, 1, SINPE_FLOAT32, out, kDim) == SINPE_BAD_PLAN);
  const std::string text = std::string(sinpe_isa()) + sinpe_status_text(SINPE_BAD_ID);
  return Bytes(text.begin(), text.end());
}

struct Call {
  const char* name;
  std::function<Bytes(const Shared&)> make;
};
const Call kCalls[] = {
    {"table float32", table<float>},
    {"table float64", table<double>},
    {"table bfloat16", table<sinpe::bfloat16>},
    {"table float16", table<sinpe::float16>},
    {"encode a run", [](const Shared& s) { return encode<float>(s, s.run); }},
    {"encode anywhere", [](const Shared& s) { return encode<float>(s, s.scattered); }},
    {"encode float64", [](const Shared& s) { return encode<double>(s, s.scattered); }},
    {"encode fractions", encode_fractions},
    {"add", add},
    {"add in place", add_in_place_with_positions},
    {"add_grid", add_grid},
    {"dropout", dropout},
    {"row_dots", row_dots},
    {"embed", embed},
    {"embed, bad id", embed_with_a_bad_id},
    {"embed_backward", embed_backward},
    {"questions", questions},
};
constexpr size_t kNumber = std::size(kCalls);
using Results = std::array<Bytes, kNumber>;

// All calls, in a different order for each thread.
void call_all(const Shared& s, size_t thread, Results* into) {
  for (size_t k = 0; k < kNumber; ++k) {
    const size_t forwards = (k + 5 * thread) % kNumber;
    const size_t call = thread % 2 == 0 ? forwards : kNumber - 1 - forwards;
    (*into)[call] = kCalls[call].make(s);
  }
}

void compare(const std::vector<Results>& all, const Results& alone, const char* how) {
  for (const Results& results : all) {
    for (size_t k = 0; k < kNumber; ++k) {
      const bool same = results[k] == alone[k];
      if (!same) std::printf("%s, %s: other bits than alone\n", kCalls[k].name, how);
      CHECK(same && !alone[k].empty());
    }
  }
}

// Runs body(0), body(1), ... simultaneously.
void on_threads(const std::function<void(size_t)>& body) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      body(t);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
  const Shared shared;
  std::vector<std::vector<Results>> rounds(kRounds, std::vector<Results>(kThreads));
  for (int round = 0; round < kRounds; ++round) {
    on_threads([&](size_t t) { call_all(shared, t, &rounds[static_cast<size_t>(round)][t]); });
  }
  // Inside the library's loop, whose threads then request threads.
  std::vector<Results> nested(kThreads);
  on_threads([&](size_t t) {
    if (t >= 2) return;
    sinpe::parallel_for(kThreads / 2, 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const size_t place = t * (kThreads / 2) + static_cast<size_t>(k);
        call_all(shared, place, &nested[place]);
      }
    });
  });
  setenv("OMP_NUM_THREADS", "1", 1);  // read at each call if threads are std::thread
  Results alone;
  call_all(shared, 0, &alone);
  for (const std::vector<Results>& round : rounds) compare(round, alone, "side by side");
  compare(nested, alone, "nested");
  std::printf("kernels in use: %s\n", sinpe_isa());
  return check::finish("test_threads");
}
