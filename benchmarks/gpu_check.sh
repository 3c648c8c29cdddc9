#!/usr/bin/env bash
# Everything that needs a CUDA device, in one command: build, tests, compute-sanitizer, benchmark. Writes a log for each
# step and summary.txt into $OUT, goes on after a failure, and ends with a table; the exit code is 0 when no step failed.
#
#   benchmarks/gpu_check.sh                       # all of it, less than LIMIT seconds
#   STEPS=build,info,tests benchmarks/gpu_check.sh
#   DRY_RUN=1 benchmarks/gpu_check.sh             # print the commands
#
#   OUT=benchmarks/results   where results go         PYTHON=python3        with torch, pytest, hypothesis, mpmath
#   LIMIT=1440               seconds for everything   BUILD=pip | jit       install in place, or compile on first use
#   STEPS=...                of the names below       WHEELS=DIR            wheels to put on the path first; nothing is
#                                                                           ever fetched from an index
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

PYTHON=${PYTHON:-python3}
OUT=${OUT:-benchmarks/results}
LIMIT=${LIMIT:-1440}
BUILD=${BUILD:-pip}
STEPS=${STEPS:-build,info,tests,single,memcheck,racecheck,initcheck,bench_double,bench_single,suite}
DRY_RUN=${DRY_RUN:-0}
WHEELS=${WHEELS:-}
CHECK=benchmarks/sanitizer_subset.py

mkdir -p "$OUT" || exit 2
OUT=$(cd "$OUT" && pwd)
START=$SECONDS
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
names=() results=() notes=() failed=0

wants() { case ",$STEPS," in *",$1,"*) return 0 ;; *) return 1 ;; esac; }

record() { # name result note
  names+=("$1") results+=("$2") notes+=("$3")
  if [ "$2" = FAIL ]; then failed=1; fi
  printf '== %-14s %s %s\n' "$1" "$2" "$3"
}

# step NAME SECONDS COMMAND...: run within the time that is left, output to $OUT/NAME.log.
step() {
  local name=$1 limit=$2 left=$((LIMIT - (SECONDS - START))) begin=$SECONDS code note
  shift 2
  wants "$name" || return 0
  if [ "$left" -lt "$limit" ]; then limit=$left; fi
  if [ "$DRY_RUN" = 1 ]; then
    printf '[%s, %s s] %s\n' "$name" "$limit" "$*"
    return 0
  fi
  if [ "$limit" -lt 10 ]; then
    record "$name" SKIP "no time left of LIMIT=$LIMIT"
    return 0
  fi
  printf '== %s: %s\n' "$name" "$*"
  timeout --kill-after=15 "$limit" "$@" >"$OUT/$name.log" 2>&1
  code=$?
  note="$((SECONDS - begin)) s; $(grep -v '^[[:space:]]*$' "$OUT/$name.log" | tail -n 1 | cut -c1-100)"
  case $code in
    0) record "$name" PASS "$note" ;;
    77) record "$name" SKIP "$note" ;;
    124 | 137) record "$name" FAIL "stopped after $limit s; $note" ;;
    *) record "$name" FAIL "exit $code, $note" ;;
  esac
  return 0
}

build() {
  if [ "$BUILD" = pip ]; then
    "$PYTHON" -m pip install --no-build-isolation --no-deps --no-index -e . && check_build && return 0
    echo "installing in place failed (above); compiling on first use instead"
  fi
  check_build
}

check_build() {
  "$PYTHON" -c '
from sinpe_ext import _backend
for device in ("cpu", "cuda"):
    found = _backend.resolve(device)
    print(f"{device}: {found.backend} ({found.reason})")
    assert found.backend == "compiled", device'
}

tests() { "$PYTHON" -m pytest -q -p no:cacheprovider --require-backend=cuda --tb=short -rs "$@"; }

sanitizer() { # tool
  local tool code
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) || {
    echo "compute-sanitizer was not found"
    return 77
  }
  # Without torch's caching allocator an access beyond a tensor is one beyond an allocation.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$tool" --tool "$1" --error-exitcode 9 "$PYTHON" $CHECK >"$OUT/$1.raw" 2>&1
  code=$?
  tail -n 200 "$OUT/$1.raw"
  if [ $code -ne 0 ] && grep -q "Device not supported" "$OUT/$1.raw"; then
    echo "compute-sanitizer does not support this device or its driver"
    return 77
  fi
  return $code
}

bench() { # arithmetic
  SINPE_EXT_CUDA_ARITHMETIC=$1 "$PYTHON" -m sinpe_ext bench --device cuda -o "$OUT/cuda-$1.json"
}

# What a step runs, by the name that `timeout` can call.
export PYTHON OUT BUILD CHECK
export -f build check_build tests sanitizer bench
run() { local name=$1 limit=$2; shift 2; step "$name" "$limit" bash -c "$*"; }

if [ -n "$WHEELS" ] && [ "$DRY_RUN" != 1 ]; then
  target=$(mktemp -d)
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --target "$target" "$WHEELS"/*.whl || exit 2
  export PYTHONPATH="$target:$PYTHONPATH"
fi
if [ "$DRY_RUN" != 1 ]; then
  if ! capability=$("$PYTHON" -c 'import torch; print("%d.%d" % torch.cuda.get_device_capability())' 2>&1); then
    echo "gpu_check: no CUDA device that torch can use: $(printf '%s' "$capability" | tail -n 1)"
    exit 2
  fi
  export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-$capability}
  "$PYTHON" - <<'END' || echo "gpu_check: tests need the modules above; pass WHEELS=DIR"
import importlib.util as u, sys
missing = [name for name in ("pytest", "hypothesis", "mpmath", "numpy") if u.find_spec(name) is None]
print("gpu_check: missing Python modules: " + ", ".join(missing)) if missing else None
sys.exit(bool(missing))
END
fi

export SINPE_EXT_BUILD=cuda
run build 420 build
export SINPE_EXT_BUILD=
run info 60 '"$PYTHON" -m sinpe_ext info && { nvidia-smi || true; }'
run tests 420 tests tests/test_cuda_parity.py tests/test_cuda_runtime.py tests/test_cuda_bad_input.py tests/test_cuda_dispatch.py tests/test_cuda_bench.py
export SINPE_EXT_CUDA_ARITHMETIC=single
run single 240 tests tests/test_cuda_parity.py
unset SINPE_EXT_CUDA_ARITHMETIC
for tool in memcheck racecheck initcheck; do run $tool 150 sanitizer $tool; done
run bench_double 300 bench double
run bench_single 300 bench single
run suite 900 tests tests

if [ "$DRY_RUN" = 1 ]; then exit 0; fi
{
  printf 'gpu_check, %s, %d s\n' "$(date -u +%Y-%m-%d)" "$((SECONDS - START))"
  "$PYTHON" -c 'import torch; p = torch.cuda.get_device_properties(0); print(f"{p.name}, torch {torch.__version__}")'
  printf '\n%-14s %-6s %s\n' step result note
  for i in "${!names[@]}"; do printf '%-14s %-6s %s\n' "${names[$i]}" "${results[$i]}" "${notes[$i]}"; done
} | tee "$OUT/summary.txt"
exit $failed
