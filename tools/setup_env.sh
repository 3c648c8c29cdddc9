#!/usr/bin/env bash
# Finds or creates the Python environment that the Makefile uses, installs the project there (editable), and prints the
# path of its Python. All other output goes to standard error.
#
#   tools/setup_env.sh [EXTRA...]      extras of pyproject.toml whose packages are needed, such as test or lint
#
# PYTHON, VENV, TORCH, TORCH_INDEX_URL: see `make help`. VENV takes precedence over an active environment.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-$(sed -n 's/^requires = .*"torch==\([^"]*\)".*/\1/p' pyproject.toml)} # as in an isolated build
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
log=build/setup.log
mkdir -p build

say() { echo "setup: $*" >&2; }
die() { echo "setup: $*" >&2; exit 1; }

for extra in "$@"; do
  grep -q "^$extra = \[" pyproject.toml || die "expected extras of pyproject.toml, got $extra"
done

# torch_is EXPRESSION: evaluates EXPRESSION with v = (major, minor) of the installed torch, without importing it, which
# takes seconds; the exit status is 0 if it is true.
torch_is() {
  "$py" - "$1" "$TORCH" 2>/dev/null <<'EOF'
import re, sys
from importlib.metadata import version
full = version("torch")
v = tuple(map(int, re.match(r"(\d+)\.(\d+)", full).groups()))
sys.exit(not eval(sys.argv[1], {"v": v, "base": full.split("+")[0], "wanted": sys.argv[2]}))
EOF
}

# pip_install WHAT ARGUMENT...: runs pip quietly; on failure prints one line with the reason and the path of the log.
pip_install() {
  local what=$1
  shift
  if ! "$py" -m pip install -q "$@" >"$log" 2>&1; then
    die "cannot install $what: $(grep -m1 -E '^ *(ERROR|error):' "$log" || tail -n 1 "$log") (network? all of it: $log)"
  fi
}

active=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}
py=
if [ -z "${VENV:-}" ] && [ -n "$active" ] && [ -x "$active/bin/python" ]; then
  py=$active/bin/python
  if torch_is 'v >= (2, 11)'; then
    prefix=$active
  else
    say "the active environment $active has no torch >= 2.11; using .venv"
    py=
  fi
fi

if [ -z "$py" ]; then
  prefix=${VENV:-.venv}
  command -v "$PYTHON" >/dev/null || die "$PYTHON was not found: install Python 3.10 or newer, or say make PYTHON=..."
  if [ ! -x "$prefix/bin/python" ]; then
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
      die "$PYTHON is $("$PYTHON" -V 2>&1): install Python 3.10 or newer, or say make PYTHON=..."
    say "making the environment $prefix"
    if ! "$PYTHON" -m venv "$prefix" >"$log" 2>&1; then
      rm -rf "$prefix"
      die "$PYTHON -m venv does not work: install the venv module (Debian, Ubuntu: apt install python3-venv), see $log"
    fi
  fi
  py=$(cd "$prefix/bin" && pwd)/python
  if ! torch_is 'base == wanted'; then
    say "installing torch $TORCH"
    pip_install "torch $TORCH" "torch==$TORCH" ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"}
  fi
fi
prefix=$(cd "$prefix" && pwd)

# The library is built anew only when what it is made of has changed.
stamp=$prefix/.sinpe_ext.built
if [ ! -f "$stamp" ] || [ ! -f sinpe_ext/_build.json ] || [ "$(cat "$stamp")" != "$PWD $TORCH ${SINPE_EXT_BUILD:-}" ] ||
  [ -n "$(find csrc pyproject.toml setup.py sinpe_ext/_version.py sinpe_ext/backend/{compilation,cuda_compiler}.py \
    -newer "$stamp" -print -quit)" ]; then
  rm -f "$prefix"/.sinpe_ext.*
  pip_install "the build tools" "setuptools>=77" "pybind11>=2.13" ninja numpy
  say "building and installing sinpe_ext (editable)"
  pip_install sinpe_ext --no-build-isolation --no-deps -e .
  "$py" - >&2 <<'EOF'
import json
reason = json.load(open("sinpe_ext/_build.json")).get("reason")
if reason:
    print("setup: no compiled library,", reason)
EOF
  echo "$PWD $TORCH ${SINPE_EXT_BUILD:-}" >"$stamp"
fi

for extra in "$@"; do
  if [ ! -f "$prefix/.sinpe_ext.$extra" ]; then
    say "installing what [$extra] needs and this environment lacks"
    pip_install "the packages of [$extra]" "sinpe-ext[$extra]"
    touch "$prefix/.sinpe_ext.$extra"
  fi
done
echo "$py"
