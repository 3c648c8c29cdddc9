// Threads that are started and joined within one call: for builds without a thread pool, and for a forked child
// process, because the threads of the pool exist only in its parent.
#pragma once

#include "core/parallel.h"

namespace sinpe {

// Whether this thread was created by fork. In such a thread GNU OpenMP would wait forever for the threads of the parent
// process. Threads that the child process starts itself are not affected.
bool created_by_fork();

// Runs fn on [0, n) in `parts` ranges, each on its own thread, the first on the caller's.
void own_thread_ranges(int64_t n, int64_t parts, RangeFunction fn, void* context);

}  // namespace sinpe
