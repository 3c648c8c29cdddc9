"""`python -m sinpe_ext identify`: file formats, output, and errors for bad files."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from children import SANITIZED, execute

import sinpe_ext as sinpe
from sinpe_ext import __main__ as cli

PAPER = sinpe.table(100, 64)[None]
MAE = sinpe.table((14, 14), sinpe.convention("mae2d", 64), extra_tokens=1)[None]
SHORT = 0.1  # seconds of CPU time; copying a table of 50000 * 4096 values takes as long


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02


CHECKPOINT = {
    "model": {
        "embed.weight": noise(1000, 64),
        "pe": PAPER,
        "vit": [{"w": noise(64, 64)}, {"pos_embed": MAE}],
        "bias": torch.zeros(64),
        "ids": torch.arange(100)[None],
    },
    "epoch": 3,
    "tuned": sinpe.table(100, sinpe.convention("t2t", 64)) + noise(100, 64),
}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = cli.main(["identify", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out if code != 2 else captured.err


def torch_file(path: Path) -> Path:
    torch.save(CHECKPOINT, path)
    return path


def test_every_tensor_of_a_checkpoint_is_examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, torch_file(tmp_path / "model.pt"))
    assert code == 0
    assert "model.pe (1, 100, 64) float32\n    paper (also multidim1d), 100 rows, start 0, max error 3e-08\n" in out
    assert '        sinpe.convention("paper", 64)\n' in out
    assert "model.vit.1.pos_embed (1, 197, 64) float32\n    mae2d (also monai2d), grid 14 x 14, start 0" in out
    assert (
        'tuned (100, 64) float32\n    no convention: the nearest encoding, sinpe.convention("t2t", 64), differs' in out
    )
    assert out.splitlines()[-1].startswith("4 other tensors are no table (2 of them: ")
    assert "embed.weight (" not in out


def write(path: Path) -> None:
    if path.suffix == ".npy":
        numpy.save(path, PAPER.numpy())
    elif path.suffix == ".npz":
        numpy.savez(path, model=PAPER.numpy(), w=noise(9, 9).numpy())
    elif path.suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_file({"model": PAPER.contiguous(), "w": noise(9, 9)}, path)
    else:
        torch.save({"model": torch.nn.Parameter(PAPER)}, path, _use_new_zipfile_serialization=path.suffix != ".old")


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.bin", "a.old", "a.npy", "a.npz", "a.safetensors", "wrong.npy.pt"])
def test_every_file_format(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    if name == "wrong.npy.pt":  # detected by content
        write(tmp_path / "a.npy")
        (tmp_path / "a.npy").rename(path)
    else:
        write(path)
    code, out = run(capsys, path)
    assert code == 0 and 'sinpe.convention("paper", 64)' in out
    key = path.name if name.endswith(("npy", "npy.pt")) else "model"
    assert out.startswith(f"{key} (1, 100, 64) float32\n")


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, torch_file(tmp_path / "model.pt"), "--json")
    facts: dict[str, Any] = json.loads(out)
    assert code == 0 and facts["file"].endswith("model.pt")
    by_key = {tensor["key"]: tensor for tensor in facts["tensors"]}
    assert set(by_key) == {"model.pe", "model.vit.1.pos_embed", "tuned"}
    assert by_key["model.pe"]["matches"][0]["code"] == 'sinpe.convention("paper", 64)'
    assert by_key["model.vit.1.pos_embed"]["matches"][0]["extra_tokens"] == 1
    assert by_key["tuned"]["matches"] == [] and by_key["tuned"]["closest"]["name"] == "t2t"
    assert sum(facts["others"].values()) == 4


def test_key_and_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = torch_file(tmp_path / "model.pt")
    code, out = run(capsys, path, "--key", "pos_embed", "--shape", 14, 14)
    assert code == 0 and out.count("float32") == 1 and "mae2d" in out
    code, out = run(capsys, path, "--key", "embed.weight")
    assert code == 1 and "no convention" in out
    code, err = run(capsys, path, "--key", "pos_embed", "--shape", 15, 14)
    assert code == 2 and "shape: expected one of at most 197 grid points" in err
    code, err = run(capsys, path, "--key", "model.pos")
    assert code == 2 and "--key" in err and "model.pe" in err
    video = sinpe.table((3, 4, 5), sinpe.convention("cogvideo3d", 64), flatten=True)
    numpy.save(tmp_path / "video.npy", video.numpy())
    code, out = run(capsys, tmp_path / "video.npy", "--shape", 3, 4, 5)
    assert code == 0 and "cogvideo3d, grid 3 x 4 x 5" in out


def test_nothing_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"w": noise(64, 64)}, tmp_path / "none.pt")
    code, out = run(capsys, tmp_path / "none.pt")
    assert code == 1 and out.startswith("1 tensor is no table (not sinusoidal (learned") and "--key" not in out
    torch.save({}, tmp_path / "empty.pt")
    assert run(capsys, tmp_path / "empty.pt") == (1, "empty.pt: no tensors\n")


@pytest.mark.parametrize(
    ("tables", "others", "last"),
    [
        (0, 0, "a.pt: no tensors"),
        (0, 1, "1 tensor is no table ("),
        (0, 2, "2 tensors are no table ("),
        (0, 5, "5 tensors are no table ("),
        (1, 0, '        sinpe.convention("paper", 64)'),
        (1, 1, "1 other tensor is no table ("),
        (1, 2, "2 other tensors are no table ("),
        (2, 0, '        sinpe.convention("paper", 64)'),
        (2, 1, "1 other tensor is no table ("),
    ],
)
def test_tensors_are_counted(
    tables: int, others: int, last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {f"pe{k}": PAPER for k in range(tables)} | {f"w{k}": noise(9, 9) for k in range(others)}
    torch.save(content, tmp_path / "a.pt")
    code, out = run(capsys, tmp_path / "a.pt")
    assert code == (0 if tables else 1)
    assert out.splitlines()[-1].startswith(last)
    assert out.count("paper (also") == tables and out.count("other") == (1 if tables and others else 0)


def test_channels_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"pe": PAPER.transpose(1, 2)}, tmp_path / "a.pt")
    code, out = run(capsys, tmp_path / "a.pt")
    assert code == 0 and out.startswith("pe (1, 64, 100) float32\n    paper")
    assert "given with the channels first, (64, 100)" in out
    facts = json.loads(run(capsys, tmp_path / "a.pt", "--json")[1])
    assert facts["tensors"][0]["matches"][0]["transposed"] is True


def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(name: str, content: bytes | None = None) -> str:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        code, err = run(capsys, path)
        assert code == 2 and len(err.splitlines()) == 1 and "expected" in err
        return err

    assert "No such file" in answer("missing.pt")
    assert "got none of them" in answer("junk.pt", b"no checkpoint at all")
    assert "got an empty file" in answer("empty.pt", b"")
    assert "run git lfs pull" in answer(
        "pointer.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0"
    )
    assert "got one that was cut short" in answer("cut.pt", torch_file(tmp_path / "whole.pt").read_bytes()[:3000])
    numpy.save(tmp_path / "objects.npy", numpy.array([{}, 1], dtype=object), allow_pickle=True)
    assert "got one that cannot be read (" in answer("objects.npy")
    torch.save({"arguments": argparse.Namespace(lr=0.1)}, tmp_path / "objects.pt")
    assert run(capsys, tmp_path / "objects.pt") == (1, "objects.pt: no tensors\n")


def test_safetensors_missing_or_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes((64).to_bytes(8, "little") + b'{"broken' + bytes(64))
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "safetensors", None)
        code, err = run(capsys, path)
        assert code == 2 and "pip install safetensors" in err
    pytest.importorskip("safetensors")
    for content in (
        path.read_bytes(),
        (2**60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (64).to_bytes(8, "little") + b"{",
    ):
        path.write_bytes(content)
        code, err = run(capsys, path)
        assert code == 2 and "got one that cannot be read" in err and len(err.splitlines()) == 1
        (tmp_path / "a.bin").write_bytes(content)
        code, err = run(capsys, tmp_path / "a.bin")
        assert code == 2 and "expected a" in err and len(err.splitlines()) == 1


def test_table_like_tensors_without_match_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walk = noise(64, 64).cumsum(0)
    torch.save({**{f"w{k}": noise(9, 9) for k in range(6)}, "walk": walk, "bias": noise(9)}, tmp_path / "a.pt")
    code, out = run(capsys, tmp_path / "a.pt")
    assert code == 1 and "8 tensors are no table" in out
    assert "walk, w0, w1, w2, w3 and 2 more (--key NAME says why each is none)" in out
    facts = json.loads(run(capsys, tmp_path / "a.pt", "--json")[1])
    assert facts["others_shaped_like_tables"] == ["walk", "w0", "w1", "w2", "w3", "w4", "w5"]


def test_bad_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = run(capsys, torch_file(tmp_path / "model.pt"), "--shape", 0, 14)
    assert code == 2 and "--shape: expected an int in 1..2147483648, got 0" in err


@pytest.mark.skipif(SANITIZED, reason="a limit of CPU time")
def test_large_weights_are_skipped_quickly() -> None:
    weight = noise(20000, 4096)
    sinpe.identify(weight[:64])  # caches are filled here
    began = time.thread_time()
    assert not sinpe.identify(weight)
    assert time.thread_time() - began < SHORT


def test_in_a_subprocess(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write(path)
    done = execute([sys.executable, "-m", "sinpe_ext", "identify", path])
    assert 'sinpe.convention("paper", 64)' in done.stdout
    assert "--shape" in execute([sys.executable, "-m", "sinpe_ext", "identify", "-h"]).stdout
