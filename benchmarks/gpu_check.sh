#!/usr/bin/env bash
# Runs everything that needs a CUDA device, measurements first: build, a smoke test, memcheck, the main rows of the
# benchmark, profiles of rows that miss their target, then the tests and the other steps. The log and the result of each
# step are packed into one archive, OUT/gpu_check.tar.gz, as soon as it ends. A failed step does not stop later ones.
#
#   benchmarks/gpu_check.sh                       # all of it, less than LIMIT seconds
#   DRY_RUN=1 benchmarks/gpu_check.sh             # print the commands
#
# If a call may take ten minutes at most (a call that finds no library builds it first):
#
#   LIMIT=580 STEPS=first benchmarks/gpu_check.sh     # build, info, smoke, memcheck, core, profile
#   LIMIT=580 STEPS=second benchmarks/gpu_check.sh    # tests, single, bench
#   LIMIT=580 STEPS=third benchmarks/gpu_check.sh     # racecheck, initcheck, synccheck, bench_single
#   LIMIT=1000 STEPS=suite benchmarks/gpu_check.sh    # the whole suite takes longer than that
#
#   OUT=build       where results go         PYTHON=python3     with torch, numpy, pytest; see docs/cuda.md
#   LIMIT=1440      seconds for everything   BUILD=pip | jit    install in place, or compile on first use
#   STEPS=...       of the names below       WHEELS=DIR         wheels to put on the path first; nothing is ever fetched
#                                                               from an index
#   BENCH_ROWS=A,B           the rows of `core` and `variant`, instead of the usual ones
#   VARIANT="-DSINPE_CUDA_WAVES=8"   flags of nvcc for the step `variant`: the same rows from a library built with them
#
# Afterwards: python -m benchmarks.gpu_results OUT/gpu_check.tar.gz [--write]   results file, tables, comparison
#
# Exit code: 0 every step passed or could not be checked (NOT CHECKED), 1 one failed, 2 nothing was run, 3 no failure but
# steps left out for lack of time (INCOMPLETE).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

FIRST=build,info,smoke,memcheck,core,profile
SECOND=tests,single,bench
THIRD=racecheck,initcheck,synccheck,bench_single
ALL=$FIRST,$SECOND,$THIRD,suite
CORE=cuda_copy_f32,cuda_copy_bf16,cuda_fill_f32,cuda_fill_bf16,cuda_table_f32,cuda_table_bf16,cuda_encode_f32,cuda_encode_bf16
CORE+=,cuda_add_f32,cuda_add_bf16,cuda_positions_f32,cuda_positions_bf16,cuda_dropout_f32,cuda_dropout_bf16
CORE+=,cuda_embed_f32,cuda_embed_bf16,cuda_embed_train_f32,cuda_embed_train_bf16,cuda_embed_train_text_f32,cuda_embed_train_text_bf16
CORE+=,cuda_timesteps_f32,cuda_decode_f32
PROFILED=${BENCH_ROWS:+$(printf '%s' "$BENCH_ROWS" | tr -s ', ' ' ' | cut -d' ' -f1-6)}
PROFILED=${PROFILED:-"cuda_table_f32 cuda_add_f32 cuda_positions_f32 cuda_dropout_bf16 cuda_embed_f32 cuda_embed_train_text_bf16"}

PYTHON=${PYTHON:-python3}
OUT=${OUT:-build}
LIMIT=${LIMIT:-1440}
BUILD=${BUILD:-pip}
STEPS=${STEPS:-$ALL}
DRY_RUN=${DRY_RUN:-0}
WHEELS=${WHEELS:-}
VARIANT=${VARIANT:-}
CORE=${BENCH_ROWS:-$CORE}
CHECK=benchmarks/sanitizer_subset.py

STEPS=,$(printf '%s' "$STEPS" | tr -s ' ,' ','),
for part in FIRST SECOND THIRD ALL; do STEPS=${STEPS//,${part,,},/,${!part},}; done
STEPS=$(printf '%s' "$STEPS" | tr -s , ,) STEPS=${STEPS#,} STEPS=${STEPS%,}
if [ -z "$STEPS" ]; then
  echo "gpu_check: STEPS: expected some of first,second,third,$ALL,variant, got none" >&2
  exit 2
fi
for name in ${STEPS//,/ }; do
  case ",$ALL,variant," in *",$name,"*) ;; *)
    echo "gpu_check: STEPS: expected some of first,second,third,$ALL,variant, got $name" >&2
    exit 2
    ;;
  esac
done
case $LIMIT in '' | *[!0-9]*)
  echo "gpu_check: LIMIT: expected seconds, got $LIMIT" >&2
  exit 2
  ;;
esac
LIMIT=$((10#$LIMIT))
case $PYTHON in /*) ;; */*) PYTHON=$PWD/$PYTHON ;; esac # a step may run elsewhere
CORE=${CORE// /}

mkdir -p "$OUT" || exit 2
OUT=$(cd "$OUT" && pwd)
LOGS=$OUT/gpu_check
mkdir -p "$LOGS" || exit 2
START=$SECONDS
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
table='' failed=0 incomplete=0

wants() { case ",$STEPS," in *",$1,"*) return 0 ;; *) return 1 ;; esac; }

# The archive is complete at any time, so an interrupted run keeps its measurements.
pack() {
  tar -czf "$OUT/gpu_check.tar.gz.part" -C "$OUT" gpu_check && mv "$OUT/gpu_check.tar.gz.part" "$OUT/gpu_check.tar.gz"
}

record() { # name result note
  local line
  case $2 in FAIL) failed=1 ;; INCOMPLETE) incomplete=1 ;; esac
  line=$(printf '%-14s %-11s %s' "$1" "$2" "$3")
  table+=$line$'\n'
  printf '== %s\n' "$line"
  printf '%s\n' "$line" >>"$LOGS/summary.txt"
  pack
}

# step NAME SECONDS COMMAND...: run within the time that is left, output to gpu_check/NAME.log.
step() {
  local name=$1 limit=$2 left=$((LIMIT - (SECONDS - START))) begin=$SECONDS code note
  shift 2
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
  timeout --kill-after=15 "$limit" "$@" >"$LOGS/$name.log" 2>&1
  code=$?
  note="$((SECONDS - begin)) s; $(grep -v '^[[:space:]]*$' "$LOGS/$name.log" | tail -n 1 | cut -c1-100)"
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

# One process per file, because an illegal access makes the device unusable for the rest of a process. Exit code 5, no
# test selected, is not a failure.
tests() { # options and files
  local options=() code=0 file
  for file in "$@"; do
    case $file in
      *.py | tests)
        echo "== $file"
        "$PYTHON" -m pytest -q -p no:cacheprovider --require-backend=cuda --tb=short -rs --maxfail=20 "${options[@]}" "$file"
        case $? in 0 | 5) ;; *) code=1 ;; esac
        ;;
      *) options+=("$file") ;;
    esac
  done
  return $code
}

# Runs each kernel a few times under compute-sanitizer.
smoke() { CUDA_LAUNCH_BLOCKING=1 "$PYTHON" $CHECK; }

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
  # Without torch's caching allocator, an access beyond a tensor is an access beyond an allocation.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$tool" --tool "$1" "${only[@]}" --error-exitcode 9 "$PYTHON" $CHECK \
    >"$LOGS/$1.raw" 2>&1
  code=$?
  tail -n 200 "$LOGS/$1.raw" >"$LOGS/$1.tail" && mv "$LOGS/$1.tail" "$LOGS/$1.raw"
  cat "$LOGS/$1.raw"
  if [ $code -ne 0 ] && grep -q "Device not supported" "$LOGS/$1.raw"; then
    echo "compute-sanitizer does not support this device or its driver"
    return 77
  fi
  if [ $code -eq 0 ]; then "$PYTHON" $CHECK --count || return; fi # a filter that matches nothing would pass, too
  return $code
}

# bench ARITHMETIC FILE [ROWS]: runs groups of a few rows, each in its own process, so that an illegal access in one does
# not affect the others; writes FILE.1.json, FILE.2.json, ...
bench() {
  local rows=${3:-} group=0 code=0 some=()
  rm -f "$LOGS/$2".*.json # of an earlier run
  if [ -z "$rows" ]; then rows=$("$PYTHON" -c 'from benchmarks.cuda import ROWS; print(",".join(r.name for r in ROWS))') || return; fi
  IFS=, read -ra rows <<<"$rows"
  while [ ${#rows[@]} -gt 0 ]; do
    some=("${rows[@]:0:6}") rows=("${rows[@]:6}") group=$((group + 1))
    SINPE_EXT_CUDA_ARITHMETIC=$1 "$PYTHON" -m benchmarks --device cuda --rows "$(IFS=,; echo "${some[*]}")" \
      -o "$LOGS/$2.$group.json" || code=1
  done
  return $code
}

# The profiler's full report on this library's first kernel in a row, as text.
profile() {
  local tool row code=0
  rm -f "$LOGS"/profile_*.txt
  tool=$(command -v ncu || ls "${CUDA_HOME:-/usr/local/cuda}/bin/ncu" 2>/dev/null) || {
    echo "ncu was not found"
    return 77
  }
  for row in $PROFILED; do
    echo "== $row"
    "$tool" --clock-control none --profile-from-start off -k regex:sinpe -c 1 --set full \
      "$PYTHON" -m benchmarks.one_row "$row" >"$LOGS/profile_$row.txt" 2>&1 || code=1
    grep -E "Duration|Memory Throughput|Executed Ipc|Registers Per|Achieved Occ|ERR" "$LOGS/profile_$row.txt" | head -n 8
  done
  if grep -qs ERR_NVGPUCTRPERM "$LOGS"/profile_*.txt; then
    echo "ncu may not read this device's counters"
    return 77
  fi
  return $code
}

# Measures the core rows with a library that was compiled with other flags of nvcc, in a copy of the tree.
variant() {
  local copy
  if [ -z "$VARIANT" ]; then
    echo "VARIANT is not set"
    return 77
  fi
  copy=$(mktemp -d) && trap "rm -rf '$copy'" EXIT && cp -R sinpe_ext csrc benchmarks tests "$copy" && rm -f "$copy"/sinpe_ext/*.so "$copy"/sinpe_ext/_build.json || return
  echo "$VARIANT" >"$LOGS/variant.txt"
  (cd "$copy" && export PYTHONPATH="$copy${PYTHONPATH:+:$PYTHONPATH}" NVCC_APPEND_FLAGS="$VARIANT" SINPE_EXT_CACHE_DIR="$copy/cache" &&
    bench double variant "$CORE")
}

# The commands of the steps, as functions that `timeout` can call by name.
export PYTHON OUT LOGS BUILD CHECK CORE PROFILED VARIANT
export -f build check_build tests smoke sanitizer bench profile variant
run() { local name=$1 limit=$2; shift 2; wants "$name" || return 0; step "$name" "$limit" bash -c "$*"; }

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
for name in "numpy pytest pluggy iniconfig packaging pygments hypothesis sortedcontainers mpmath".split():
    try:
        importlib.import_module(name)
    except Exception:
        print(name)')
  missing=" ${missing//$'\n'/ } "
  case $missing in *[![:space:]]*) echo "gpu_check: missing Python modules:${missing}(pass WHEELS=DIR)" ;; esac
  case $missing in *" pytest "* | *" pluggy "* | *" iniconfig "* | *" packaging "* | *" pygments "* | *" numpy "*)
    if wants tests || wants single || wants suite; then
      echo "gpu_check: the steps tests, single and suite need pytest, pygments and numpy; pass WHEELS=DIR or choose other STEPS"
      exit 2
    fi
    ;;
  *[![:space:]]*) if wants suite; then echo "gpu_check: the step suite needs all of them and will fail"; fi ;;
  esac
  if [ -n "${BENCH_ROWS:-}" ] && ! "$PYTHON" -c 'import sys
from benchmarks.cuda import ROWS
unknown = set(sys.argv[1].split(",")) - {row.name for row in ROWS}
sys.exit("gpu_check: BENCH_ROWS: no row is named " + ", ".join(sorted(unknown)) if unknown else 0)' "$CORE"; then exit 2; fi
  {
    printf '\ngpu_check, %s, LIMIT=%s STEPS=%s\n' "$(date -u '+%Y-%m-%d %H:%M')" "$LIMIT" "$STEPS"
    printf 'commit %s\n' "$(git describe --always --dirty --abbrev=12 2>/dev/null || echo 'not known: no git here')"
    "$PYTHON" -c '
import torch
p = torch.cuda.get_device_properties(0)
print(f"{p.name}, capability {p.major}.{p.minor}, torch {torch.__version__}, CUDA {torch.version.cuda}")'
    printf '%-14s %-11s %s\n' step result note
  } >>"$LOGS/summary.txt"
  # Without a library every step would compile it, also under a sanitizer.
  if ! wants build && ! SINPE_EXT_JIT=0 check_build >/dev/null 2>&1; then STEPS=build,$STEPS; fi
fi

export SINPE_EXT_BUILD=cuda
run build 200 build
export SINPE_EXT_BUILD=
run info 20 '"$PYTHON" -m sinpe_ext info && { nvidia-smi || true; }'
run smoke 40 smoke
run memcheck 60 sanitizer memcheck
run core 160 'bench double core "$CORE"'
run profile 100 profile
run variant 400 variant
# Files by name: "-k cuda" would also select tests on the CPU, because it matches file names.
run tests 240 tests -k '"not cpu"' tests/cuda/test_cuda_{parity,grid,runtime,bad_input,binding,dispatch,bench}.py
export SINPE_EXT_CUDA_ARITHMETIC=single
run single 100 tests -k '"not cpu"' tests/cuda/test_cuda_{parity,grid}.py
unset SINPE_EXT_CUDA_ARITHMETIC
run bench 240 bench double double
for tool in racecheck initcheck synccheck; do run $tool 100 sanitizer $tool; done
run bench_single 280 bench single single
run suite 900 tests tests

if [ "$DRY_RUN" = 1 ]; then exit 0; fi
end="$((SECONDS - START)) s"
if [ $incomplete = 1 ]; then end+=", INCOMPLETE: steps left out for lack of time"; fi
printf '%s\n' "$end" >>"$LOGS/summary.txt"
pack
printf '\n%s%s\nall of it: %s\n' "$table" "$end" "$OUT/gpu_check.tar.gz"
if [ $failed = 1 ]; then exit 1; fi
exit $((incomplete * 3))
