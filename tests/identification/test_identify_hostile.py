"""`identify` on unusual input: names with control characters, tensors without rows, failures of single tensors."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy  # noqa: F401, for the names below
import pytest
import torch
from children import execute

import sinpe_ext as sinpe
from sinpe_ext import __main__ as cli

PAPER = sinpe.table(100, 64)
NAMED = 'sinpe.convention("paper", 64)'
TITLE = "\x1b]0;title\x07pe"
NAMES = ("a\x1b[31mb", "c\nd", "e\u202ef", "g\ud800h", "\u00fc", "i\x00j", TITLE)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = cli.main(["identify", *map(str, arguments)])
    captured = capsys.readouterr()
    assert all(line.isprintable() for line in (captured.out + captured.err).split("\n"))
    return code, captured.out + captured.err


def test_names_are_printed_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(dict.fromkeys(NAMES, PAPER), tmp_path / "a.pt")
    code, out = run(capsys, tmp_path / "a.pt")
    assert code == 0 and "\\x1b]0;title\\x07pe (100, 64) float32\n    paper" in out
    code, out = run(capsys, tmp_path / "a.pt", "--key", "?")
    assert code == 2 and "pass one of a\\x1b[31mb, c\\nd, e\\u202ef, g\\ud800h, " in out
    junk = tmp_path / "a\x1b[2Jb\n.pt"
    junk.write_bytes(b"junk")
    code, out = run(capsys, junk)
    assert code == 2 and "a\\x1b[2Jb\\n.pt: expected a file of" in out


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.eye(9).to_sparse(), "1 tensor was skipped: not a dense tensor with values (1): x"),
        (lambda: PAPER.to(torch.float8_e5m2), "1 tensor was skipped: of type float8_e5m2 (1): x"),
        (lambda: torch.zeros(1, 64).expand(2**40, 64), "1 tensor was skipped: larger than 67108864 elements"),
        (lambda: torch.ones(()).expand(16, 2**20), "1 other tensor is no table"),
        (lambda: torch.zeros(0, 512), "1 other tensor is no table (of another shape or type)"),
    ],
)
def test_other_tensors_of_the_file_are_identified(
    make: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"x": make(), "pe": PAPER}, tmp_path / "a.pt")
    code, out = run(capsys, tmp_path / "a.pt")
    assert code == 0 and NAMED in out and said in out


def test_expanded_tensor_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"x": torch.zeros(1, 64).expand(2**40, 64)}, tmp_path / "a.pt")
    code, out = run(capsys, tmp_path / "a.pt", "--key", "x")
    assert code == 2 and "x: expected a tensor to look at, got one that is larger than 1073741824 elements" in out


def test_closed_stdout(tmp_path: Path) -> None:
    torch.save({"pe": PAPER}, tmp_path / "a.pt")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sinpe_ext", "identify", str(tmp_path / "a.pt")]
    done = execute(command, stdout=writing, status=1)
    os.close(writing)
    assert done.stderr == ""


def test_time_per_file_is_limited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinpe_ext.cli import identify as identify_command

    torch.save({"a": PAPER, "b": PAPER + 1, "c": torch.zeros(3)}, tmp_path / "a.pt")
    monkeypatch.setattr(identify_command, "SECONDS", -1.0)
    assert cli.main(["identify", str(tmp_path / "a.pt")]) == 1
    assert "2 tensors were skipped: not reached in -1 s (--key NAME looks at one) (2): a, b" in capsys.readouterr().out
    assert cli.main(["identify", str(tmp_path / "a.pt"), "--key", "a"]) == 0


def test_exception_for_one_tensor_does_not_affect_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinpe_ext import identification

    identify = identification.identify

    def raising(table: torch.Tensor, **settings: Any) -> Any:
        if len(table) == 9:
            raise RuntimeError("first\x1b line\nsecond line")
        return identify(table, **settings)

    torch.save({"x": torch.zeros(9, 9), "pe": PAPER}, tmp_path / "a.pt")
    monkeypatch.setattr(identification, "identify", raising)
    assert cli.main(["identify", str(tmp_path / "a.pt")]) == 0
    out = capsys.readouterr().out
    assert NAMED in out and "1 tensor was skipped: RuntimeError: first\\x1b line (1): x" in out


# sinpe_ext.identify returns no match for these, with this reason.
FUNCTION = {
    "torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(2, 4)])": "a nested tensor has no rows of one length",
    "torch.zeros(1, 64).expand(2**40, 64)": "repeats what it holds",
    "torch.zeros(64, 1).expand(64, 2**40)": "repeats what it holds",
    "sinpe.table(100, 64).expand(2**40, 100, 64)": "repeats what it holds",
    "torch.arange(2.0**10).as_strided((2**30, 2**9), (0, 1))": "repeats what it holds",
    "numpy.broadcast_to(numpy.float32(1), (2**20, 2**20))": "repeats what it holds",
    "torch.ones(()).expand(16, 2**20)": "more than the 65536",
    "torch.eye(9).to_sparse()": "no rows to look at",
    "torch.zeros(9, 9, device='meta')": "no rows to look at",
    "torch.zeros(9, 9).to(torch.float8_e5m2)": "float8_e5m2 values cannot be sines",
    "torch.zeros(0, 512)": "is not that of rows of channels",
}


@pytest.mark.parametrize("made", FUNCTION)
def test_function_rejects_with_a_reason(made: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about prototypes
        assert FUNCTION[made] in sinpe.identify(eval(made)).reason


def test_function_accepts_views_and_lazy_negatives() -> None:
    with torch.inference_mode():
        inference = PAPER.clone()
    imaginary = torch.complex(torch.zeros(100, 64), -PAPER).conj().imag  # a lazy negative
    for table in (inference, torch.nn.Parameter(PAPER.clone()), imaginary, PAPER.expand(8, 100, 64)):
        assert sinpe.identify(table)[0].name == "paper"


def test_function_rejects_fake_tensors() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.randn(64, 64)
    with pytest.raises(TypeError, match="table: expected a tensor or a NumPy array, got FakeTensor; pass the values"):
        sinpe.identify(fake)
