#!/usr/bin/env bash
# Everything that needs a CUDA device: the build, the benchmark, the tests, compute-sanitizer, profiles. A failed step
# does not stop later ones. The logs and results are packed into OUT/gpu_check.tar.gz whenever a step ends.
#
#   benchmarks/gpu_check.sh                   # the steps of FIRST below
#   benchmarks/gpu_check.sh more              # the steps of MORE
#   benchmarks/gpu_check.sh build benchmark   # only these steps
#
#   PYTHON=python3   with torch, numpy, pytest, pytest-xdist and pygments
#   OUT=build        the folder of the archive, relative to the repository; steps of an earlier call are kept
#   PROFILED="..."   the rows to profile
#
# A step has no time limit: put `timeout 580` in front if a call may not take longer. Nothing is downloaded, and only
# the visible devices are compiled for.
# Exit status: 0 all passed or could not be checked, 1 one failed, 2 nothing was run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

PYTHON=${PYTHON:-python3}
LOGS=${OUT:-build}/gpu_check
unset TORCH_CUDA_ARCH_LIST # an image's: only the visible devices are compiled for
FIRST=(build smoke benchmark tests memcheck profile)
MORE=(single racecheck synccheck initcheck benchmark_single suite)
# The rows furthest from their targets on an H100 (docs/cuda.md).
PROFILED=${PROFILED:-cuda_table_bf16 cuda_encode_bf16 cuda_positions_bf16 cuda_add_bf16 cuda_dropout_train_bf16
  cuda_alpha_train_bf16 cuda_embed_train_text_bf16 cuda_grid_bf16 cuda_grid_first_bf16}
SECTIONS="SpeedOfLight Occupancy LaunchStats SchedulerStats WarpStateStats InstructionStats MemoryWorkloadAnalysis"
NOT_CHECKED=77

# Installs in place, or, where pip refuses (PEP 668), compiles on first use.
build() {
  SINPE_EXT_BUILD=cuda "$PYTHON" -m pip install --no-build-isolation --no-deps --no-index -e . ||
    echo "installing in place failed (above); compiling on first use instead"
  "$PYTHON" -m sinpe_ext info && nvidia-smi
  "$PYTHON" -m sinpe_ext build --device cuda # fails if there are no kernels
}

# Each kernel a few times without a sanitizer, and how many of them are ours: a sanitizer that saw none would pass, too.
smoke() {
  CUDA_LAUNCH_BLOCKING=1 "$PYTHON" benchmarks/sanitizer_subset.py && "$PYTHON" benchmarks/sanitizer_subset.py --count
}
memcheck() { sanitizer memcheck --kernel-regex kns=sinpe; }
racecheck() { sanitizer racecheck --kernel-regex kns=sinpe; }
synccheck() { sanitizer synccheck --kernel-regex kns=sinpe; }
# Of every kernel, because those of torch write what ours read; fewer calls for that reason.
initcheck() { FEW=--few sanitizer initcheck; }
sanitizer() {
  command -v compute-sanitizer || return $NOT_CHECKED
  # Without torch's caching allocator, an access beyond a tensor is an access beyond an allocation.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$@" --error-exitcode 9 \
    "$PYTHON" benchmarks/sanitizer_subset.py ${FEW:-}
}

benchmark() { "$PYTHON" -m benchmarks --device cuda -o "$LOGS/cuda.json"; }
benchmark_single() {
  SINPE_EXT_CUDA_ARITHMETIC=single "$PYTHON" -m benchmarks --device cuda -o "$LOGS/cuda_single.json"
}

# The profiler's sections on this library's first kernels in a row. All kernels are called "kernel": what they compute is
# in the template's argument.
profile() {
  command -v ncu || return $NOT_CHECKED
  local row status=0
  for row in $PROFILED; do
    # shellcheck disable=SC2046
    ncu --clock-control none --profile-from-start off --kernel-name-base demangled -k regex:sinpe -c 3 \
      $(printf -- '--section %s ' $SECTIONS) "$PYTHON" -m benchmarks.one_row "$row" || status=1
  done
  if grep -q "No kernels were profiled" "$LOGS/profile.log"; then status=1; fi
  if grep -q ERR_NVGPUCTRPERM "$LOGS/profile.log"; then return $NOT_CHECKED; fi # ncu may not read the counters
  return $status
}

# Files by name: `-k cuda` would also select tests on the CPU.
tests() { run_tests tests/cuda/test_cuda_{parity,grid,runtime,bad_input,binding,dispatch,bench}.py; }
single() { SINPE_EXT_CUDA_ARITHMETIC=single run_tests tests/cuda/test_cuda_{parity,grid}.py; }
suite() { run_tests tests; }
# All files at once. An illegal access makes the device unusable for the rest of its process, so a file with a failed
# test runs again alone, and that result counts.
run_tests() {
  local file files status=0 log=$LOGS/pytest.out
  pytest -n 8 "$@" 2>&1 | tee "$log"
  case ${PIPESTATUS[0]} in
    0) return 0 ;;
    1) ;;
    *) return 1 ;; # not a failed test: wrong usage, an error of pytest, no test selected
  esac
  files=$(sed -n 's/^\(FAILED\|ERROR\) \([^: ]*\.py\).*/\2/p' "$log" | sort -u)
  [ -n "$files" ] || return 1
  for file in $files; do
    echo "== again, alone: $file"
    pytest "$file" || status=1
  done
  echo "failed beside other tests:" $files
  return $status
}
pytest() { "$PYTHON" -m pytest -q -p no:cacheprovider --require-backend=cuda -rsfE -k "not cpu" "$@"; }

[ $# -eq 0 ] && set -- "${FIRST[@]}"
[ "$*" = more ] && set -- "${MORE[@]}"
for name in "$@"; do
  case " ${FIRST[*]} ${MORE[*]} " in *" $name "*) ;; *)
    echo "gpu_check: expected more, or steps out of ${FIRST[*]} ${MORE[*]}; got $name" >&2
    exit 2
    ;;
  esac
done
if ! device=$("$PYTHON" -c 'import torch; print(torch.cuda.get_device_properties(0))' 2>&1); then
  echo "gpu_check: no CUDA device that torch can use: ${device##*$'\n'}" >&2
  exit 2
fi
mkdir -p "$LOGS" || exit 2
echo "$(date -u '+%Y-%m-%d %H:%M'), commit $(git describe --always --exclude='*' --dirty 2>/dev/null), $device" | tee -a "$LOGS/summary.txt"
failed=0
for name in "$@"; do
  begin=$SECONDS
  "$name" >"$LOGS/$name.log" 2>&1
  case $? in 0) result=passed ;; "$NOT_CHECKED") result="not checked" ;; *) result=FAILED failed=1 ;; esac
  echo "$name: $result, $((SECONDS - begin)) s; $(grep -v '^[[:space:]]*$' "$LOGS/$name.log" | tail -n 1 | cut -c1-100)" |
    tee -a "$LOGS/summary.txt"
  tar -czf "$LOGS.tar.gz.part" -C "${LOGS%/*}" gpu_check && mv "$LOGS.tar.gz.part" "$LOGS.tar.gz"
done
exit $failed
