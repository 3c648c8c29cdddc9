#!/usr/bin/env bash
# ruff and clang-format over the repository, mypy over the package, import-linter over its rooms, and whether docs/reliability.md has the runs that README names;
# --fix applies what the first two would change.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t cpp < <(find csrc tests/cpp examples/cpp -name 'paper6.h' -prune -o \
  \( -name '*.h' -o -name '*.inc' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print | sort)

if [ "${1:-}" = --fix ]; then
  clang-format -i "${cpp[@]}"
  ruff check --fix .
  ruff format .
else
  failed=0
  ruff check . || failed=1
  ruff format --check . || failed=1
  clang-format --dry-run -Werror "${cpp[@]}" || failed=1
  mypy || failed=1
  lint-imports --no-cache --no-logo || failed=1
  python tools/records.py --check || failed=1
  [ "$failed" = 0 ] || { echo "lint: see above; make format applies what can be applied" >&2; exit 1; }
fi
echo "lint: nothing to say (${#cpp[@]} C++ files)"
