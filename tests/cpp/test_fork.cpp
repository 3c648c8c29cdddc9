// A child of fork makes the rows that its parent made, although its parent's threads stayed behind: GNU's OpenMP alone
// would wait for them.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "check.h"
#include "plans.h"
