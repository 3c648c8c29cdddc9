// Each barrier of the CUDA kernels is necessary: a kernel without it gives another result or crashes. So the other
// tests, which run the phases between barriers as loops on the host, would fail without it.
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <numeric>

#include "cuda/on_host.h"
#include "grid_cases.h"

namespace {

using namespace cases;
namespace on_host = sinpe::cuda::on_host;

constexpr int64_t kBatch = 3, kRows = 9, kDim = 64, kVocabulary = 7;
constexpr int64_t kFar = int64_t{1} << 60;  // a position beyond the fast range: its values are computed after a barrier
std::map<std::string, int32_t> phases_of;   // of each kernel that was launched

void see(const char* body, int32_t phases) { phases_of[body] = phases; }

constexpr on_host::Order kOrders[] = {on_host::Order::kAscending, on_host::Order::kDescending,
                                      on_host::Order::kShuffled};

// A call with new outputs; returns the bytes of its result.
using Call = std::function<std::vector<char>()>;

template <class T>
std::vector<char> bytes_of(const std::vector<T>& v) {
  const char* from = reinterpret_cast<const char*>(v.data());
  return std::vector<char>(from, from + v.size() * sizeof(T));
}

// Whether the call differs without the barrier, in a child process, which may crash or never end.
bool matters(const Call& call, const std::vector<char>& want, int32_t barrier, on_host::Order order) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(2);
    // CPU time: a call takes a hundredth of it, and an uninitialized value may be the bound of a loop.
    const itimerval tenth_of_a_second{{0, 0}, {0, 100000}};
    if (setitimer(ITIMER_PROF, &tenth_of_a_second, nullptr) != 0) _exit(2);
    on_host::settings().dropped_barrier = barrier;
    on_host::settings().order = order;
    _exit(call() == want ? 0 : 1);
  }
  int status = 0;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Whether some call of a kernel differs without each of its barriers.
void check_barriers(const char* name, const std::vector<Call>& calls) {
  std::vector<bool> seen;
  for (const Call& call : calls) {
    phases_of.clear();
    const std::vector<char> want = call();
    CHECK(phases_of.size() == 1);
    seen.resize(static_cast<size_t>(phases_of.begin()->second - 1));
    for (const auto order : kOrders) {  // the orders in which the other tests run
      on_host::settings().order = order;
      CHECK(call() == want);
      for (size_t barrier = 0; barrier < seen.size(); ++barrier)
        seen[barrier] = seen[barrier] || matters(call, want, static_cast<int32_t>(barrier), order);
    }
    on_host::settings().order = on_host::Order::kVarying;
  }
  CHECK(!seen.empty());
  for (size_t barrier = 0; barrier < seen.size(); ++barrier) {
    if (!seen[barrier]) std::printf("%s: nothing is seen without barrier %zu\n", name, barrier);
    CHECK(seen[barrier]);
  }
}

template <class T>
void test_type(const TestPlan& plan) {
  const DevicePlan words = on_device(plan);
  const size_t n = kBatch * kRows * kDim;
  std::vector<T> x;
  for (size_t i = 0; i < n; ++i) x.push_back(rounded<T>(static_cast<sinpe::accumulate_t<T>>(i % 61) - 30));
  const auto arguments = [&](std::vector<T>* out, int32_t drop) {
    out->assign(n, T{});
    sinpe_add_arguments a{};
    const int64_t sizes[] = {kBatch, kRows, kDim}, strides[] = {kRows * kDim, kDim, 1};
    a.rank = 3;
    for (int d = 0; d < a.rank; ++d) {
      a.sizes[d] = sizes[d];
      a.x_strides[d] = a.out_strides[d] = strides[d];
    }
    a.scale = a.alpha = 1.0;
    a.x = x.data();
    a.out = out->data();
    a.dtype = dtype_of<T>();
    a.dropout.drop_threshold = drop;
    a.dropout.seed = 7;
    return a;
  };
  for (const int32_t drop : {0, 20000}) {
    check_barriers("add", {[&] {
                     std::vector<T> out;
                     CHECK(sinpe::cuda::add(words, arguments(&out, drop), {}, nullptr) == SINPE_OK);
                     return bytes_of(out);
                   }});
    check_barriers("add at positions", {[&] {
                     std::vector<T> out;
                     std::vector<int64_t> positions(kBatch * kRows);
                     std::iota(positions.begin(), positions.end(), kFar);
                     sinpe_add_arguments a = arguments(&out, drop);
                     a.positions = positions.data();
                     a.position_strides[0] = kRows;
                     a.position_strides[1] = 1;
                     CHECK(sinpe::cuda::add(words, a, {}, nullptr) == SINPE_OK);
                     return bytes_of(out);
                   }});
    check_barriers("row_dots", {[&] {
                     std::vector<T> unused;
                     std::vector<double> out(kBatch * kRows);
                     sinpe_add_arguments a = arguments(&unused, drop);
                     a.out = out.data();
                     CHECK(sinpe::cuda::row_dots(words, a, nullptr, nullptr, {}, nullptr) == SINPE_OK);
                     return bytes_of(out);
                   }});
    check_barriers("add_backward", {[&] {
                     std::vector<T> out;
                     std::vector<double> dots(kBatch * kRows);
                     const sinpe_add_arguments a = arguments(&out, drop);
                     CHECK(sinpe::cuda::add_backward(words, a, dots.data(), nullptr, {}, nullptr) == SINPE_OK);
                     std::vector<char> all = bytes_of(out), more = bytes_of(dots);
                     all.insert(all.end(), more.begin(), more.end());
                     return all;
                   }});
    check_barriers("tree_sum", {[&] {
                     std::vector<double> terms, out(1);
                     for (int k = 0; k < 5000; ++k) terms.push_back(k * 0.3);
                     double scratch[2];
                     CHECK(sinpe::cuda::tree_sum(terms.data(), 5000, out.data(), scratch, nullptr) == SINPE_OK);
                     return bytes_of(out);
                   }});
    check_barriers("embed", {[&] {
                     std::vector<T> out;
                     std::vector<int64_t> ids;
                     for (int64_t i = 0; i < kBatch * kRows; ++i) ids.push_back(i * 5 % kVocabulary);
                     sinpe_embed_arguments e{};
                     e.add = arguments(&out, drop);
                     e.ids = ids.data();
                     e.id_strides[0] = kRows;
                     e.id_strides[1] = 1;
                     e.num_embeddings = kVocabulary;
                     e.weight_stride = kDim;
                     CHECK(sinpe::cuda::embed(words, e, {}, nullptr) == SINPE_OK);
                     return bytes_of(out);
                   }});
  }
  check_barriers("dropout", {[&] {
                   std::vector<T> out;
                   CHECK(sinpe::cuda::dropout(arguments(&out, 20000), {}, nullptr) == SINPE_OK);
                   return bytes_of(out);
                 }});
  check_barriers(
      "table", {[&] {
        std::vector<T> out(n);
        CHECK(sinpe::cuda::table(words, kFar, kBatch * kRows, dtype_of<T>(), out.data(), kDim, nullptr) == SINPE_OK);
        return bytes_of(out);
      }});
  check_barriers("encode", {[&] {
                   std::vector<T> out(n);
                   std::vector<int64_t> positions(kBatch * kRows);
                   std::iota(positions.begin(), positions.end(), kFar);
                   CHECK(sinpe::cuda::encode(words, positions.data(), SINPE_INT64, kBatch * kRows, dtype_of<T>(),
                                             out.data(), kDim, nullptr) == SINPE_OK);
                   return bytes_of(out);
                 }});
}

template <class T>
void test_grid() {
  check::Random random;
  std::vector<Call> calls;
  for (int number = 0; number < 4; ++number) {
    auto c = std::make_shared<GridCase<T>>(random);
    c->a.dropout.drop_threshold = 0;  // if all is dropped, nothing of the encoding is visible
    calls.push_back([c] {
      Buffer<T> out;
      const sinpe_add_arguments a = c->call(&out);
      const DevicePlan words{c->grid.words.data(), c->grid.n_words(), a.sizes[a.rank - 1]};
      CHECK(sinpe::cuda::add_grid(words, c->values.data(), c->grid.n_values, a, {}, nullptr) == SINPE_OK);
      return bytes_of(out.storage);
    });
  }
  check_barriers("add_grid", calls);
}

}  // namespace

int main() {
  on_host::settings().multiprocessors = 1;  // so that the elements are not few: that kernel has no barrier
  on_host::settings().launch_hook = see;
  // Sines and cosines in halves: neighbours in a row come from two threads.
  const TestPlan plan = make_plan(kDim, 1, false);
  test_type<float>(plan);
  test_type<sinpe::bfloat16>(plan);
  test_type<double>(plan);
  test_grid<float>();
  test_grid<double>();
  return check::finish("test_cuda_barriers");
}
