"""The training examples: with these layers and with torch's."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from children import execute
from loading import module_at

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def example() -> ModuleType:
    module = module_at(ROOT / "examples" / "train_language_model.py")
    module.BATCH, module.LENGTH = 4, 32  # this tests that it trains, not how well
    return module


@pytest.mark.processes
def test_training_without_dropout_equals_torch(example: ModuleType, backend: str) -> None:
    """Same weights, data and encoding: only the last bits of the table and of sums differ."""
    name, text = example.read_text(None)
    assert "Python" in name and len(text) > 100_000
    index = {character: number for number, character in enumerate(sorted(set(text)))}
    data = torch.tensor([index[character] for character in text[:20_000]])
    losses = [example.train(kind, data, len(index), seed=0, steps=4, dropout=0.0)[0] for kind in ("torch", "sinpe_ext")]
    assert abs(losses[0] - losses[1]) < 1e-4
    dropped = example.train("sinpe_ext", data, len(index), seed=0, steps=4, dropout=0.3)[0]
    assert 1e-3 < abs(dropped - losses[1]) < 1.0  # dropout is active, and the loss stays close


def test_example_runs(example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcdefgh " * 400)
    monkeypatch.setattr(sys, "argv", ["train", "--text", str(text), "--steps", "2", "--seeds", "0", "1"])
    status = example.main()
    printed = capsys.readouterr().out
    assert printed.count("held-out loss") == 4 and "over 2 seeds" in printed
    assert ("NOT within noise" in printed) == (status == 1)


@pytest.mark.processes
def test_distributed_example(tmp_path: Path) -> None:
    """Two processes share the rows of each of two groups of samples."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += [str(ROOT / "examples" / "train_distributed.py"), "--samples", "2", "--steps", "3"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    run = execute(command, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path)
    assert re.search(r"largest difference \S+: the same", run.stdout)
    assert "4 ranks: 2 group(s) of samples x 2 part(s) of rows, dropout 0.1" in run.stdout
