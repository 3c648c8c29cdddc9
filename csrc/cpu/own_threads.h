// Threads started and joined within one call: for builds without a pool, and for a child of fork, whose pool stayed with
// its parent.
#pragma once

#include "core/parallel.h"

namespace sinpe {

// Whether fork made this thread. GNU's OpenMP would wait in it, for ever, for the threads that its parent had. Threads
// that a child starts itself are like any others.
bool came_through_fork();

// [0, n) in `parts` ranges, each on a thread of its own, the first on the caller's.
void own_thread_ranges(int64_t n, int64_t parts, RangeFunction fn, void* context);

}  // namespace sinpe
