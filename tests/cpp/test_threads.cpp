// Many std::threads make all calls at once, with the same plans and inputs: the bits equal those of a single thread.
// Nothing is called before they start, so that the selection of the instruction set is raced as well. `make cpp
// PRESET=tsan-threads` runs this under ThreadSanitizer; each call also starts threads, and is repeated inside the
// library's parallel loop.
#include <atomic>
#include <cstdlib>
#include <thread>

#include "core/parallel.h"
#include "every_call.h"

namespace {

using namespace every_call;

constexpr int kThreads = 8;
constexpr int kRounds = 3;

// The bytes of each call's result.
using Results = std::vector<Bytes>;

// All calls, in a different order for each thread.
Results call_all(const std::vector<Call>& calls, size_t thread) {
  Results results(calls.size());
  for (size_t k = 0; k < calls.size(); ++k) {
    const size_t forwards = (k + 5 * thread) % calls.size(),
                 at = thread % 2 == 0 ? forwards : calls.size() - 1 - forwards;
    results[at].assign(static_cast<size_t>(calls[at].end - calls[at].begin), 0);
    CHECK(calls[at].run(calls[at].pointers(), results[at].data() - calls[at].begin) == SINPE_OK);
  }
  return results;
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
  const std::vector<Call> calls = every_call::every_call(4, 300, 66);  // large enough for several threads per call
  std::vector<Results> all((kRounds + 1) * kThreads);
  for (size_t round = 0; round < kRounds; ++round) {
    on_threads([&](size_t t) { all[round * kThreads + t] = call_all(calls, t); });
  }
  // Inside the library's loop, whose threads then request threads.
  on_threads([&](size_t t) {
    if (t >= 2) return;
    sinpe::parallel_for(kThreads / 2, 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const size_t place = t * (kThreads / 2) + static_cast<size_t>(k);
        all[kRounds * kThreads + place] = call_all(calls, place);
      }
    });
  });
  setenv("OMP_NUM_THREADS", "1", 1);  // read at each call if threads are std::thread
  const Results alone = call_all(calls, 0);
  for (size_t k = 0; k < calls.size(); ++k) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i][k] != alone[k]) std::printf("%s, %zu: other bits than alone\n", calls[k].name, i);
      CHECK(all[i][k] == alone[k] && alone[k] != Bytes(alone[k].size(), 0));
    }
  }
  std::printf("kernels in use: %s\n", sinpe_isa());
  return check::finish("test_threads");
}
