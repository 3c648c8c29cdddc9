#!/usr/bin/env bash
# Runs ruff and clang-format on the repository, mypy and import-linter on the package, and clang's front end on the CPU
# kernels, which the tests compile with the system's compiler, usually g++. --fix applies the changes of the first two.
set -euo pipefail
cd "$(dirname "$0")/.."

clang_format() {
  find csrc tests/cpp examples/cpp benchmarks \( -name '*.h' -o -name '*.inc' -o -name '*.cpp' -o -name '*.cu' \) -print0 |
    xargs -0 clang-format "$@"
}

if [ "${1:-}" = --fix ]; then
  clang_format -i
  ruff check --fix .
  ruff format .
else
  failed=0
  ruff check . || failed=1
  ruff format --check . || failed=1
  clang_format --dry-run -Werror || failed=1
  if command -v c++ g++ clang++ >/dev/null; then  # clang-tidy uses their standard library
    mkdir -p build
    clang-tidy --quiet csrc/cpu/*.cpp -- >build/clang-tidy.log 2>&1 ||
      { grep -E 'error:|warning:|note:' build/clang-tidy.log || cat build/clang-tidy.log; failed=1; }
  fi
  mypy || failed=1
  lint-imports --no-cache --no-logo || failed=1
  [ "$failed" = 0 ] || { echo "lint: failed, see above; make format applies automatic fixes" >&2; exit 1; }
fi
echo "lint: no problems"
