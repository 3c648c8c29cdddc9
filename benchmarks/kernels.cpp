// The kernels without torch, on one thread, in memory of 512 KiB (float64: 1 MiB): time for 16 values and per call.
//
//   cmake --preset default && cmake --build --preset default --target time_kernels
//   OMP_NUM_THREADS=1 build/cpp/default/tests/cpp/time_kernels    # SINPE_EXT_CPU_ISA=default|v3|v4: another set
//
// The fastest of many rounds. Cycles follow from the clock rate, which is measured too.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "plans.h"
#include "sinpe/sinpe.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kRows = 256, kDim = 512;

// Nanoseconds of one call.
template <class F>
double fastest(int rounds, const F& call) {
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    for (int k = 0; k < 8; ++k) call();
    best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / 8);
  }
  return best;
}

// The clock rate, by multiplications of which each waits for the one before: three cycles on x86-64. 0 on others.
double clock_ghz(int rounds) {
#if defined(__x86_64__)
  constexpr int kMultiplications = 100000;
  return 3.0 * kMultiplications / fastest(rounds, [] {
           uint64_t x = 1;
           for (int k = 0; k < kMultiplications; ++k) __asm__ volatile("imul %0, %0" : "+r"(x));
         });
#else
  return 0.0 * rounds;
#endif
}

void check(sinpe_status status) {
  if (status == SINPE_OK) return;
  std::fprintf(stderr, "time_kernels: %s\n", sinpe_status_text(status));
  std::exit(1);
}

}  // namespace

int main(int argc, char**) {
  const int rounds = argc > 1 ? 1 : 200;  // an argument: only whether everything runs
  const double ghz = clock_ghz(rounds);
  std::printf("instruction set %s, clock %.2f GHz\n", sinpe_isa(), ghz);
  const auto print = [&](const char* name, double nanoseconds, const char* unit) {
    std::printf("%-52s %8.2f ns  %7.1f cycles %s\n", name, nanoseconds, nanoseconds * ghz, unit);
  };
  const TestPlan interleaved = make_plan(kDim, 0, false), halves = make_plan(kDim, 1, false);
  const TestPlan own = make_plan(kDim, 0, true), odd = make_plan(kDim - 1, 0, false);
  alignas(64) static double memory[kRows * kDim];
  float* floats = reinterpret_cast<float*>(memory);
  std::vector<int64_t> positions(kRows);
  uint64_t state = 1;
  for (int64_t& p : positions)
    p = static_cast<int64_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 33);

  const auto fill = [&] {
    std::fill_n(floats, kRows * kDim, 1.0f);
    __asm__ volatile("" : : "r"(floats) : "memory");
  };
  print("fill, float32, baseline instructions", fastest(rounds, fill) / (kRows * kDim / 16), "for 16 values");
  struct Case {
    const char* name;
    const TestPlan* plan;
    sinpe_dtype dtype;
  };
  for (const Case& c : {Case{"float32", &interleaved, SINPE_FLOAT32}, Case{"float32, halves", &halves, SINPE_FLOAT32},
                        Case{"float32, a frequency per channel", &own, SINPE_FLOAT32},
                        Case{"float32, odd width", &odd, SINPE_FLOAT32}, Case{"bfloat16", &interleaved, SINPE_BFLOAT16},
                        Case{"float16", &interleaved, SINPE_FLOAT16}, Case{"float64", &interleaved, SINPE_FLOAT64}}) {
    const int64_t* words = c.plan->words.data();
    const int64_t count = static_cast<int64_t>(c.plan->words.size()), dim = c.plan->plan.dim;
    const double sixteens = static_cast<double>(kRows * dim) / 16;
    char name[64];
    std::snprintf(name, sizeof name, "table, %s", c.name);
    print(name, fastest(rounds, [&] { check(sinpe_table(words, count, 5, kRows, c.dtype, floats, dim)); }) / sixteens,
          "for 16 values");
    std::snprintf(name, sizeof name, "encode, random positions, %s", c.name);
    print(name,
          fastest(
              rounds,
              [&] { check(sinpe_encode(words, count, positions.data(), SINPE_INT64, kRows, c.dtype, floats, dim)); }) /
              sixteens,
          "for 16 values");
  }

  const int64_t* words = interleaved.words.data();
  const int64_t count = static_cast<int64_t>(interleaved.words.size());
  const int many = 100 * rounds;
  print("encode, one row of 512 channels",
        fastest(
            many,
            [&] { check(sinpe_encode(words, count, positions.data(), SINPE_INT64, 1, SINPE_FLOAT32, floats, kDim)); }),
        "a call");
  std::vector<float> x(kDim, 1.0f);
  sinpe_add_arguments a{};
  a.rank = 3;
  a.sizes[0] = a.sizes[1] = 1;
  a.sizes[2] = kDim;
  for (int64_t* strides : {a.x_strides, a.out_strides}) {
    strides[0] = strides[1] = kDim;
    strides[2] = 1;
  }
  a.x = x.data();
  a.out = floats;
  a.dtype = SINPE_FLOAT32;
  a.scale = a.alpha = 1.0;
  a.start = 1234;
  print("add, one row of 512 channels", fastest(many, [&] { check(sinpe_add(words, count, &a)); }), "a call");
  return 0;
}
