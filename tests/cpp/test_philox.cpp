// Philox: Random123's known answers; each instruction set, alignment and step gives the mask of the one-element
// function.
#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "tree.h"

namespace {

struct Answer {
  uint32_t counter[4], key[2], words[4];
};

// kat_vectors of Random123, philox4x32 with 10 rounds.
const Answer kAnswers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

void test_known_answers() {
  for (const Answer& a : kAnswers) {
    const uint64_t seed = static_cast<uint64_t>(a.key[1]) << 32 | a.key[0];
    const auto x = sinpe::philox<uint64_t>({a.counter[0], a.counter[1], a.counter[2], a.counter[3]}, seed);
    const uint64_t words[] = {x.x0, x.x1, x.x2, x.x3};
    for (int k = 0; k < 4; ++k) CHECK(static_cast<uint32_t>(words[k]) == a.words[k]);
  }
}

// Lanes are in memory order, and the upper half of the counter is used.
void test_lanes() {
  for (uint64_t block :
       {uint64_t{0}, uint64_t{77}, (uint64_t{1} << 32) - 1, (uint64_t{1} << 32) + 5, ~uint64_t{0} >> 3}) {
    const uint64_t seed = 0x0123456789abcdefu;
    const auto x = sinpe::philox<uint64_t>({block & 0xffffffff, block >> 32, 0, 0}, seed);
    const uint64_t words[] = {x.x0, x.x1, x.x2, x.x3};
    for (uint64_t lane = 0; lane < 8; ++lane) {
      CHECK(sinpe::philox_lane(8 * block + lane, seed) == (words[lane / 2] >> 16 * (lane % 2) & 0xffff));
    }
  }
}

void test_scale() {
  CHECK(sinpe::dropout_scale(0) == 1.0);
  CHECK(sinpe::dropout_scale(32768) == 2.0);
  CHECK(sinpe::dropout_scale(6554) == 65536.0 / 58982);
  CHECK(sinpe::dropout_scale(65536) == 0.0);
}

// Values that a multiplication by zero would turn into NaN.
template <class T>
T value(check::Random& random) {
  const uint64_t kind = random.next() % 16;
  if (kind == 0) return rounded<T>(std::numeric_limits<float>::infinity());
  if (kind == 1) return rounded<T>(std::numeric_limits<float>::quiet_NaN());
  if (kind == 2) return rounded<T>(-0.0f);
  return rounded<T>(static_cast<float>(random.uniform() * 8 - 4));
}

template <class T>
void test_kernels(const sinpe::RowKernels& set) {
  using Real = sinpe::accumulate_t<T>;
  const auto& kernels = set.of<T>();
  check::Random random;
  for (int64_t n : {1, 3, 8, 16, 31, 64, 100, 256, 263, 700}) {
    for (uint64_t first : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 35) - 9, (uint64_t{1} << 62) + 3}) {
      for (uint64_t step : {uint64_t{1}, uint64_t{0}, uint64_t{3}, uint64_t{1} << 33}) {
        for (int32_t drop : {1, 6554, 32768, 65535, 65536}) {
          sinpe_dropout_arguments d{};
          d.drop_threshold = drop;
          d.seed = static_cast<int64_t>(random.next());
          const size_t count = static_cast<size_t>(n);
          std::vector<T> x(count), out(count, rounded<T>(std::nanf("")));
          std::vector<Real> row(count), sum(count);
          for (size_t i = 0; i < count; ++i) {
            x[i] = value<T>(random);
            row[i] = static_cast<Real>(random.uniform() - 0.5);
            sum[i] = static_cast<Real>(random.uniform() - 0.5);
          }
          const std::vector<Real> before = sum;
          const sinpe::Dropout dropout{static_cast<uint64_t>(d.seed), step, static_cast<uint32_t>(drop),
                                       sinpe::dropout_scale(static_cast<uint32_t>(drop))};
          const Real scale = static_cast<Real>(1.7);
          for (const Real* pe : {static_cast<const Real*>(row.data()), static_cast<const Real*>(nullptr)}) {
            const T* from = x.data();
            T* to = out.data();
            kernels.add(&from, pe, &to, 1, n, scale, dropout, &first, sinpe::Stores::kCached);
            for (size_t i = 0; i < count; ++i) {
              Real v = sinpe::to_float(x[i]) * scale;
              if (pe != nullptr) v = v + row[i];
              const T want = dropped<T>(v, d, first + i * step);
              CHECK(v != v ? same(want, T{}) == same(out[i], T{}) : same(out[i], want));
            }
          }
          kernels.accumulate(x.data(), sum.data(), n, dropout, first);
          double dots[sinpe::kDotSums] = {};
          for (size_t i = 0; i < count; ++i) {
            const bool keep = sinpe::is_kept(first + i * step, dropout.seed, dropout.drop_threshold);
            const Real want = before[i] + (keep ? Real{sinpe::to_float(x[i])} : Real{0});
            CHECK(want != want ? sum[i] != sum[i] : sum[i] == want);
            dots[i % sinpe::kDotSums] +=
                keep ? static_cast<double>(sinpe::to_float(x[i])) * static_cast<double>(row[i]) : 0.0;
          }
          const double want = even_sums(dots) + even_sums(dots + 1);
          double dot;
          const sinpe::DotOptions options{n, n, 0, nullptr, 1.0, dropout};
          kernels.dots(x.data(), row.data(), &dot, 1, first, options);
          CHECK(want != want ? dot != dot : dot == want);
        }
      }
    }
  }
}

}  // namespace

int main() {
  test_known_answers();
  test_lanes();
  test_scale();
  for (const sinpe::RowKernels* set : kernel_sets()) {
    test_kernels<float>(*set);
    test_kernels<double>(*set);
    test_kernels<sinpe::bfloat16>(*set);
    test_kernels<sinpe::float16>(*set);
  }
  return check::finish("test_philox");
}
