// A forked child computes the same rows as its parent, although the parent's threads do not exist in it: GNU OpenMP
// would wait for them.
#include <cstdio>

#include "check.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "core/parallel.h"
#include "cpu/own_threads.h"
#include "plans.h"
#include "sinpe/sinpe.h"

namespace {

constexpr int64_t kRows = 4096, kDim = 64;

std::vector<float> rows(const TestPlan& made) {
  std::vector<float> out(kRows * kDim);
  const auto words = static_cast<int64_t>(made.words.size());
  if (sinpe_table(made.words.data(), words, 5, kRows, SINPE_FLOAT32, out.data(), kDim) != SINPE_OK) out.clear();
  return out;
}

// The status of a child that runs fn, or -1 if it did not end within 20 seconds.
template <class F>
int in_child(const F& fn) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(fn());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace

int main() {
  const TestPlan made = make_plan(kDim, 0, false);
  const std::vector<float> want = rows(made);
  CHECK(want.size() == static_cast<size_t>(kRows * kDim));
  CHECK(!sinpe::created_by_fork());
  const auto child = [&] {
    if (!sinpe::created_by_fork() || rows(made) != want) return 1;
    bool started_here = false;
    std::vector<float> found;
    std::thread thread([&] {
      started_here = !sinpe::created_by_fork();
      found = rows(made);
    });
    thread.join();
    return started_here && found == want ? 0 : 2;
  };
  CHECK(in_child(child) == 0);
  CHECK(in_child([&] { return in_child(child); }) == 0);  // a grandchild
  CHECK(rows(made) == want && !sinpe::created_by_fork());
  return check::finish("test_fork");
}
#else
int main() { std::printf("no fork on this system\n"); }
#endif
