"""`python -m sinpe_ext identify`: which tensors of a file are examined, the output, and errors for bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext import __main__ as cli

PAPER = sinpe.table(100, 64)[None]
MAE = sinpe.table((14, 14), sinpe.convention("mae2d", 64), extra_tokens=1)[None]
Capture = pytest.CaptureFixture[str]


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02


def run(capsys: Capture, content: Any, *arguments: object, path: Path | None = None) -> tuple[int, str]:
    """Saves the content, unless it is that of an existing file, and returns the status and the output."""
    if content is not None:
        torch.save(content, path)
    code = cli.main(["identify", str(path), *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out if code != 2 else captured.err


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pt"


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


def test_every_tensor_of_a_checkpoint_is_examined(path: Path, capsys: Capture) -> None:
    code, out = run(capsys, CHECKPOINT, path=path)
    assert code == 0
    assert "model.pe (1, 100, 64) float32\n    paper (also multidim1d), 100 rows, start 0, max error 3e-08\n" in out
    assert '        sinpe.convention("paper", 64)\n' in out
    assert "model.vit.1.pos_embed (1, 197, 64) float32\n    mae2d (also monai2d), grid 14 x 14, start 0" in out
    assert 'tuned (100, 64) float32\n    no convention: the nearest encoding, sinpe.convention("t2t", 64),' in out
    assert out.splitlines()[-1].startswith("4 other tensors are no table (2 of them: ")
    assert out.endswith("; --json lists each)\n") and "embed.weight (" not in out
    code, out = run(capsys, None, "--json", path=path)
    facts = json.loads(out)
    assert code == 0 and facts["file"] == str(path)
    by_key = {tensor["key"]: tensor for tensor in facts["tensors"]}
    assert set(by_key) == {"model.pe", "model.vit.1.pos_embed", "tuned"}
    assert by_key["model.pe"]["matches"][0]["code"] == 'sinpe.convention("paper", 64)'
    assert by_key["model.vit.1.pos_embed"]["matches"][0]["extra_tokens"] == 1
    assert by_key["tuned"]["matches"] == [] and by_key["tuned"]["closest"]["name"] == "t2t"
    assert set(facts["others"]) == {"model.embed.weight", "model.vit.0.w", "model.bias", "model.ids"}
    assert facts["others"]["model.bias"] == facts["others"]["model.ids"] == "of another shape or type"


def test_key_and_shape(path: Path, tmp_path: Path, capsys: Capture) -> None:
    code, out = run(capsys, CHECKPOINT, "--key", "pos_embed", "--shape", 14, 14, path=path)
    assert code == 0 and out.count("float32") == 1 and "mae2d" in out
    code, out = run(capsys, None, "--key", "embed.weight", path=path)
    assert code == 1 and out.startswith("model.embed.weight (1000, 64) float32\n    no convention: ")
    for line, words in (
        ("--key pos_embed --shape 15 14", "shape: expected one of at most 197 grid points"),
        ("--key model.pos", "--key: expected the end of a tensor's name, got 'model.pos'; the file has model.embed"),
        ("--shape 0 14", "--shape: expected lengths of 1 or more, got 0"),
    ):
        code, err = run(capsys, None, *line.split(), path=path)
        assert code == 2 and words in err
    code, out = run(capsys, None, "--shape", 14, 14, path=path)  # left out for tensors that it does not fit
    assert code == 0 and "mae2d" in out and 'sinpe.convention("paper", 64)' in out
    numpy.save(tmp_path / "video.npy", sinpe.table((3, 4, 5), sinpe.convention("cogvideo3d", 64), flatten=True))
    code, out = run(capsys, None, "--shape", 3, 4, 5, path=tmp_path / "video.npy")
    assert code == 0 and out.startswith("video.npy (60, 64) float32\n    cogvideo3d, grid 3 x 4 x 5")


def test_no_table(path: Path, capsys: Capture) -> None:
    assert run(capsys, {}, path=path) == (1, "a.pt: no tensors\n")
    code, out = run(capsys, {"w": noise(9, 9)}, path=path)
    assert code == 1 and out.startswith("1 tensor is no table (") and "--json" not in out


def test_channels_first(path: Path, capsys: Capture) -> None:
    code, out = run(capsys, {"pe": PAPER.transpose(1, 2)}, path=path)
    assert code == 0 and out.startswith("pe (1, 64, 100) float32\n    paper")
    assert "given with the channels first, (64, 100)" in out
    facts = json.loads(run(capsys, None, "--json", path=path)[1])
    assert facts["tensors"][0]["matches"][0]["transposed"] is True


def test_fractional_positions(path: Path, capsys: Capture) -> None:
    code, out = run(capsys, {"pe": sinpe.encode(torch.arange(100) + 0.5, 64)}, path=path)
    line = 'sinpe.encode(torch.arange(100) + 0.5, sinpe.convention("paper", 64))'
    assert code == 0 and "100 rows, start 0.5, max error 3e-08" in out and out.splitlines()[-1].strip() == line
    (match,) = json.loads(run(capsys, None, "--json", path=path)[1])["tensors"][0]["matches"]
    assert (match["code"], match["start"], match["positions"]) == (line, 0.5, "torch.arange(100) + 0.5")


def test_names_are_printed_escaped(path: Path, tmp_path: Path, capsys: Capture) -> None:
    names = ("a\x1b[31mb", "c\nd", "e\u202ef", "g\ud800h", "\u00fc", "\x1b]0;title\x07pe")
    code, out = run(capsys, dict.fromkeys(names, PAPER), path=path)
    assert code == 0 and "\\x1b]0;title\\x07pe (1, 100, 64) float32\n    paper" in out
    code, out = run(capsys, None, "--key", "?", path=path)
    assert code == 2 and "the file has a\\x1b[31mb, c\\nd, e\\u202ef, g\\ud800h, \u00fc, " in out
    junk = tmp_path / "a\x1b[2Jb\n.pt"
    junk.write_bytes(b"junk")
    code, out = run(capsys, None, path=junk)
    assert code == 2 and "a\\x1b[2Jb\\n.pt: expected a file of" in out


def test_other_tensors_of_the_file_are_identified(path: Path, capsys: Capture, monkeypatch) -> None:
    """Also if one raises an error."""
    from sinpe_ext import identification

    def raising(table: torch.Tensor, **settings: Any) -> Any:
        if len(table) == 9:
            raise RuntimeError("first\x1b line\nsecond line")
        return identify(table, **settings)

    identify = identification.identify
    monkeypatch.setattr(identification, "identify", raising)
    for other, reason in (
        (torch.eye(8).to_sparse(), ")\n"),
        (PAPER.to(torch.float8_e5m2), " (of another shape or type)\n"),
        (torch.zeros(1, 64).expand(2**40, 64), ")\n"),
        (torch.zeros(0, 512), ")\n"),
        (torch.zeros(9, 9), " (first\\x1b line)\n"),
    ):
        code, out = run(capsys, {"x": other, "pe": PAPER}, path=path)
        assert code == 0 and 'sinpe.convention("paper", 64)' in out and out.endswith(reason)
        assert out.splitlines()[-1].startswith("1 other tensor is no table (")
