#!/usr/bin/env bash
# Finds or makes the Python environment that tests/peers needs: the libraries it compares with and runs examples in, on top of the environment
# of `make test`, which stays as it is. Prints the path of its Python; everything else goes to standard error.
#
# PEERS_VENV: where it is made, .venv-peers by default. PYTHON, VENV, TORCH, TORCH_INDEX_URL: see `make help`.
set -euo pipefail
cd "$(dirname "$0")/.."

LIBRARIES="diffusers==0.42.1 transformers==5.23.0 positional-encodings==6.0.3 x-transformers==2.31.10 monai==1.6.1"
LIBRARIES+=" accelerate==1.15.0 lightning==2.6.6"  # of examples/
# Without what they ask for: a file or two of each is compared, and a torchvision would have to match this torch.
FILES="timm==1.0.31 denoising-diffusion-pytorch==2.2.5 espnet==202511 OpenNMT-py==3.5.1 allennlp==2.10.1 mmdet==3.3.0 \
texar-pytorch==0.1.4 sockeye==3.1.34 fairseq2==0.8.1 speechbrain==1.1.2 nemo-toolkit==3.0.0 nerfstudio==1.1.5 \
torch-geometric==2.8.1"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
log=build/setup-peers.log

base=$(tools/setup_env.sh test)
prefix=${PEERS_VENV:-.venv-peers}
py=$prefix/bin/python
wanted="$base $LIBRARIES $FILES"
if [ ! -f "$prefix/.sinpe_ext.peers" ] || [ "$(cat "$prefix/.sinpe_ext.peers")" != "$wanted" ]; then
  echo "setup: installing $LIBRARIES $FILES into $prefix" >&2
  rm -rf "$prefix"
  # addsitedir, not a path alone: sinpe_ext itself stands there as an editable install.
  if ! {
    "$base" -m venv "$prefix" &&
      "$base" - "$("$py" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" <<'EOF' &&
import pathlib, sys, sysconfig
folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
line = "import site; " + "; ".join(f"site.addsitedir({folder!r})" for folder in folders)
pathlib.Path(sys.argv[1], "below_the_peers.pth").write_text(line + "\n")
EOF
      torch=$("$py" -c 'from importlib.metadata import version; print(version("torch"))') &&
      # shellcheck disable=SC2086
      "$py" -m pip install -q "torch==$torch" $LIBRARIES &&
      # shellcheck disable=SC2086
      "$py" -m pip install -q --no-deps $FILES
  } >"$log" 2>&1; then
    echo "setup: cannot install them: $(grep -m1 -E '^ *(ERROR|error):' "$log" || tail -n 1 "$log") (all of it: $log)" >&2
    exit 1
  fi
  echo "$wanted" >"$prefix/.sinpe_ext.peers"
fi
echo "$(cd "$prefix/bin" && pwd)/python"
