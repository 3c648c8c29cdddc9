#!/usr/bin/env bash
# Everything that needs a CUDA device, in one command: build, tests, compute-sanitizer, benchmark. Writes a log for each
# step into $OUT, adds each result to $OUT/summary.txt at once, and goes on after a failure.
#
#   benchmarks/gpu_check.sh                       # all of it, less than LIMIT seconds
#   DRY_RUN=1 benchmarks/gpu_check.sh             # print the commands
#
# Where a call may take ten minutes only, on one machine so that later calls find the build of the first:
#
#   LIMIT=570 STEPS=build,info,tests benchmarks/gpu_check.sh
#   LIMIT=570 STEPS=single,bench_double benchmarks/gpu_check.sh
#   LIMIT=570 STEPS=memcheck,racecheck,initcheck benchmarks/gpu_check.sh
#   LIMIT=570 STEPS=bench_single benchmarks/gpu_check.sh
#   LIMIT=1000 STEPS=suite benchmarks/gpu_check.sh                    # the whole suite takes longer than that
#
#   OUT=benchmarks/results   where results go         PYTHON=python3        with torch, numpy, pytest; see docs/cuda.md
#   LIMIT=1440               seconds for everything   BUILD=pip | jit       install in place, or compile on first use
#   STEPS=...                of the names below       WHEELS=DIR            wheels to put on the path first; nothing is
#                                                                           ever fetched from an index
#
# Exit code: 0 every step passed or could not be checked (NOT CHECKED), 1 one failed, 2 nothing was run, 3 no failure but
# steps left out for lack of time (INCOMPLETE).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

ALL=build,info,tests,single,memcheck,racecheck,initcheck,bench_double,bench_single,suite
PYTHON=${PYTHON:-python3}
OUT=${OUT:-benchmarks/results}
LIMIT=${LIMIT:-1440}
BUILD=${BUILD:-pip}
STEPS=${STEPS:-$ALL}
STEPS=${STEPS// /}
DRY_RUN=${DRY_RUN:-0}
WHEELS=${WHEELS:-}
CHECK=benchmarks/sanitizer_subset.py

for name in ${STEPS//,/ }; do
  case ",$ALL," in *",$name,"*) ;; *)
    echo "gpu_check: STEPS: expected some of $ALL, got $name" >&2
    exit 2
    ;;
  esac
done
case $LIMIT in '' | *[!0-9]*)
  echo "gpu_check: LIMIT: expected seconds, got $LIMIT" >&2
  exit 2
  ;;
esac

mkdir -p "$OUT" || exit 2
OUT=$(cd "$OUT" && pwd)
START=$SECONDS
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
table='' failed=0 incomplete=0

wants() { case ",$STEPS," in *",$1,"*) return 0 ;; *) return 1 ;; esac; }

record() { # name result note
  local line
  case $2 in FAIL) failed=1 ;; INCOMPLETE) incomplete=1 ;; esac
  line=$(printf '%-14s %-11s %s' "$1" "$2" "$3")
  table+=$line$'\n'
  printf '== %s\n' "$line"
  printf '%s\n' "$line" >>"$OUT/summary.txt"
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
    record "$name" INCOMPLETE "no time left of LIMIT=$LIMIT"
    return 0
  fi
  printf '== %s: %s\n' "$name" "$*"
  timeout --kill-after=15 "$limit" "$@" >"$OUT/$name.log" 2>&1
  code=$?
  note="$((SECONDS - begin)) s; $(grep -v '^[[:space:]]*$' "$OUT/$name.log" | tail -n 1 | cut -c1-100)"
  case $code in
    0) record "$name" PASS "$note" ;;
    77) record "$name" "NOT CHECKED" "$note" ;;
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
from sinpe_ext.backend import loader
for device in ("cpu", "cuda"):
    found = loader.resolve(device)
    print(f"{device}: {found.backend} ({found.reason})")
    assert found.backend == "compiled", device'
}

tests() { "$PYTHON" -m pytest -q -p no:cacheprovider --require-backend=cuda --tb=short -rs "$@"; }

sanitizer() { # tool
  local tool code help only=()
  tool=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null) || {
    echo "compute-sanitizer was not found"
    return 77
  }
  help=$("$tool" --help 2>&1)
  case $help in # other people's kernels cost time and are not what is checked
    *--kernel-regex*) only=(--kernel-regex kns=sinpe) ;;
    *--filter*) only=(--filter kns=sinpe) ;;
    *) echo "this compute-sanitizer cannot be told which kernels to watch; it watches all" ;;
  esac
  # Without torch's caching allocator an access beyond a tensor is one beyond an allocation.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$tool" --tool "$1" "${only[@]}" --error-exitcode 9 "$PYTHON" $CHECK \
    >"$OUT/$1.raw" 2>&1
  code=$?
  tail -n 200 "$OUT/$1.raw"
  if [ $code -ne 0 ] && grep -q "Device not supported" "$OUT/$1.raw"; then
    echo "compute-sanitizer does not support this device or its driver"
    return 77
  fi
  if [ $code -eq 0 ]; then "$PYTHON" $CHECK --count || return; fi # a filter that matches nothing would pass, too
  return $code
}

bench() { # arithmetic
  SINPE_EXT_CUDA_ARITHMETIC=$1 "$PYTHON" -m benchmarks --device cuda -o "$OUT/cuda-$1.json"
}

# What a step runs, by the name that `timeout` can call.
export PYTHON OUT BUILD CHECK
export -f build check_build tests sanitizer bench
run() { local name=$1 limit=$2; shift 2; step "$name" "$limit" bash -c "$*"; }

if [ -n "$WHEELS" ] && [ "$DRY_RUN" != 1 ]; then
  target=$(mktemp -d)
  trap 'rm -rf "$target"' EXIT
  for wheel in "$WHEELS"/*.whl; do # one by one: a wheel of another Python costs no other one
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --target "$target" "$wheel" ||
      echo "gpu_check: WHEELS: left out ${wheel##*/}, which this Python does not take"
  done
  export PYTHONPATH="$target:$PYTHONPATH"
fi
if [ "$DRY_RUN" != 1 ]; then
  if ! capability=$("$PYTHON" -c 'import torch; print("%d.%d" % torch.cuda.get_device_capability())' 2>&1); then
    echo "gpu_check: no CUDA device that torch can use: $(printf '%s' "$capability" | tail -n 1)"
    exit 2
  fi
  export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-$capability}
  missing=$("$PYTHON" -c '
import importlib
for name in "numpy pytest pluggy iniconfig packaging hypothesis sortedcontainers mpmath".split():
    try:
        importlib.import_module(name)
    except Exception:
        print(name)')
  missing=" ${missing//$'\n'/ } "
  case $missing in *[![:space:]]*) echo "gpu_check: missing Python modules:${missing}(pass WHEELS=DIR)" ;; esac
  case $missing in *" pytest "* | *" pluggy "* | *" iniconfig "* | *" packaging "* | *" numpy "*)
    if wants tests || wants single || wants suite; then
      echo "gpu_check: the steps tests, single and suite need pytest and numpy; pass WHEELS=DIR or choose other STEPS"
      exit 2
    fi
    ;;
  *[![:space:]]*) if wants suite; then echo "gpu_check: the step suite needs all of them and will fail"; fi ;;
  esac
  {
    printf '\ngpu_check, %s, LIMIT=%s STEPS=%s\n' "$(date -u '+%Y-%m-%d %H:%M')" "$LIMIT" "$STEPS"
    "$PYTHON" -c '
import torch
p = torch.cuda.get_device_properties(0)
print(f"{p.name}, capability {p.major}.{p.minor}, torch {torch.__version__}, CUDA {torch.version.cuda}")'
    printf '%-14s %-11s %s\n' step result note
  } >>"$OUT/summary.txt"
fi

export SINPE_EXT_BUILD=cuda
run build 420 build
export SINPE_EXT_BUILD=
run info 60 '"$PYTHON" -m sinpe_ext info && { nvidia-smi || true; }'
run tests 420 tests tests/cuda/test_cuda_{parity,grid,runtime,bad_input,binding,dispatch,bench}.py
export SINPE_EXT_CUDA_ARITHMETIC=single
# By name: "-k cuda" takes the CPU's half as well, for the file's name matches.
run single 240 tests tests/cuda/test_cuda_parity.py tests/cuda/test_cuda_grid.py -k '"not cpu"'
unset SINPE_EXT_CUDA_ARITHMETIC
for tool in memcheck racecheck initcheck; do run $tool 180 sanitizer $tool; done
run bench_double 420 bench double
run bench_single 420 bench single
run suite 900 tests tests

if [ "$DRY_RUN" = 1 ]; then exit 0; fi
end="$((SECONDS - START)) s"
if [ $incomplete = 1 ]; then end+=", INCOMPLETE: steps left out for lack of time"; fi
printf '%s\n' "$end" >>"$OUT/summary.txt"
printf '\n%s%s\n' "$table" "$end"
if [ $failed = 1 ]; then exit 1; fi
exit $((incomplete * 3))
