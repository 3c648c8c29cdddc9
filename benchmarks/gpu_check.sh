#!/usr/bin/env bash
# Everything that needs a CUDA device: the build, compute-sanitizer, the benchmark, profiles, the tests. A failed step
# does not stop later ones. The logs and results are packed into OUT/gpu_check.tar.gz whenever a step ends.
#
#   benchmarks/gpu_check.sh                   # every step, in the order of STEPS below
#   benchmarks/gpu_check.sh build benchmark   # only these steps
#
#   PYTHON=python3   with torch, numpy, pytest and pygments
#   OUT=build        the folder of the archive, relative to the repository; steps of an earlier call are kept
#
# A step has no time limit: put `timeout 580` in front if a call may not take longer. Nothing is downloaded.
# Exit status: 0 all passed or could not be checked, 1 one failed, 2 nothing was run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

PYTHON=${PYTHON:-python3}
LOGS=${OUT:-build}/gpu_check
STEPS=(build smoke memcheck benchmark profile tests single benchmark_single racecheck initcheck synccheck suite)
PROFILED="cuda_table_f32 cuda_add_f32 cuda_positions_f32 cuda_dropout_bf16 cuda_embed_f32 cuda_embed_train_text_bf16"
NOT_CHECKED=77

# Installs in place, or, where pip refuses (PEP 668), compiles on first use.
build() {
  SINPE_EXT_BUILD=cuda "$PYTHON" -m pip install --no-build-isolation --no-deps --no-index -e . ||
    echo "installing in place failed (above); compiling on first use instead"
  "$PYTHON" -m sinpe_ext info && nvidia-smi
  "$PYTHON" -c 'from sinpe_ext.backend import loader; loader.compiled("cuda")'
}

# Each kernel a few times, without a sanitizer and under one.
smoke() { CUDA_LAUNCH_BLOCKING=1 "$PYTHON" benchmarks/sanitizer_subset.py; }
memcheck() { sanitizer memcheck; }
racecheck() { sanitizer racecheck; }
initcheck() { sanitizer initcheck; }
synccheck() { sanitizer synccheck; }
sanitizer() {
  command -v compute-sanitizer || return $NOT_CHECKED
  # Without torch's caching allocator, an access beyond a tensor is an access beyond an allocation.
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$1" --kernel-regex kns=sinpe --error-exitcode 9 \
    "$PYTHON" benchmarks/sanitizer_subset.py &&
    "$PYTHON" benchmarks/sanitizer_subset.py --count # a regex that matches no kernel would pass, too
}

benchmark() { "$PYTHON" -m benchmarks --device cuda -o "$LOGS/cuda.json"; }
benchmark_single() {
  SINPE_EXT_CUDA_ARITHMETIC=single "$PYTHON" -m benchmarks --device cuda -o "$LOGS/cuda_single.json"
}

# The profiler's full report on this library's first kernel in a row.
profile() {
  command -v ncu || return $NOT_CHECKED
  local row status=0
  for row in $PROFILED; do
    ncu --clock-control none --profile-from-start off -k regex:sinpe -c 1 --set full \
      "$PYTHON" -m benchmarks.one_row "$row" || status=1
  done
  if grep -q ERR_NVGPUCTRPERM "$LOGS/profile.log"; then return $NOT_CHECKED; fi # ncu may not read the counters
  return $status
}

# A process for each file, because an illegal access makes the device unusable for the rest of a process. Files by name:
# `-k cuda` would also select tests on the CPU. pytest's status 5 is "no test selected".
tests() { each tests/cuda/test_cuda_{parity,grid,runtime,bad_input,binding,dispatch,bench}.py; }
single() { SINPE_EXT_CUDA_ARITHMETIC=single each tests/cuda/test_cuda_{parity,grid}.py; }
each() {
  local file status=0
  for file in "$@"; do
    "$PYTHON" -m pytest -q -p no:cacheprovider --require-backend=cuda -rs --maxfail=20 -k "not cpu" "$file"
    case $? in 0 | 5) ;; *) status=1 ;; esac
  done
  return $status
}
suite() { "$PYTHON" -m pytest -q -p no:cacheprovider --require-backend=cuda -rs tests; }

[ $# -eq 0 ] && set -- "${STEPS[@]}"
for name in "$@"; do
  case " ${STEPS[*]} " in *" $name "*) ;; *)
    echo "gpu_check: expected steps out of ${STEPS[*]}; got $name" >&2
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
