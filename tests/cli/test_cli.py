"""The command line: each subcommand runs, prints parseable output, and reports bad usage in one line, status 2."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import execute

from sinpe_ext import __main__ as cli
from sinpe_ext._version import __version__
from sinpe_ext.cli import field

ROOT = Path(__file__).resolve().parent.parent.parent
COMMANDS = ("info", "demo", "plot", "build", "export", "identify")


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """On the CPU: these tests must not build CUDA kernels on a machine with a GPU."""
    kept = {name: value for name, value in os.environ.items() if name != "TORCH_CUDA_ARCH_LIST"}
    env = {**kept, "CUDA_VISIBLE_DEVICES": "", **environment}
    return execute([sys.executable, "-m", "sinpe_ext", *arguments], cwd=ROOT, env=env, status=None)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*filter(None, [command]), "-h"])
    assert ended.value.code == 0
    assert f"python -m sinpe_ext {command}".strip() in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"sinpe_ext {__version__}\n"


def test_info() -> None:
    done = run("info", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["devices"]["cpu"]["backend"] in ("compiled", "eager")
    assert facts["devices"]["cpu"]["reason"]
    assert {"torch", "python", "instruction_set", "threads", "cache_dir", "conclusion", "todo"} <= set(facts)


def test_info_says_how_to_get_the_compiled_backend(capsys: pytest.CaptureFixture[str]) -> None:
    done = run("info", SINPE_EXT_BACKEND="eager", SINPE_EXT_JIT="0")
    assert done.returncode == 0, done.stderr
    assert "The CPU runs eager PyTorch: the same values, slower.\nTo change that:\n  - unset " in done.stdout


@pytest.mark.parametrize("kind", ["heatmap", "curves", "similarity", "error"])
def test_plot(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"{kind}.png"
    options = ["--dim", "20", "--convention", "own_index", "--kind", kind, "-o", str(path)]
    length = ["--length", "50"] if kind in ("heatmap", "similarity") else []
    assert cli.main(["plot", *options, *length]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.strip() == str(path)


def test_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.h"
    assert cli.main(["export", "t2t", "8", "--name", "my_plan", "--set", "base=500.5", "-o", str(path)]) == 0
    text = path.read_text()
    assert "my_plan[]" in text and "500.5" in text
    capsys.readouterr()
    assert cli.main(["export", "t2t", "8", "--name", "my_plan", "--set", "base=500.5", "-o", "-"]) == 0
    assert capsys.readouterr().out == text
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler to compile the header")
    (tmp_path / "main.c").write_text('#include "plan.h"\nint main(void) { return my_plan_dim - 8; }\n')
    execute([compiler, "-std=c99", tmp_path / "main.c", "-o", tmp_path / "main"])
    execute([tmp_path / "main"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_full_disk_on_standard_output() -> None:
    command = [sys.executable, "-m", "sinpe_ext", "export", "t2t", "8", "-o", "-"]
    with open("/dev/full", "w") as full:
        done = execute(command, stdout=full.fileno(), status=1)
    assert done.stderr == "python -m sinpe_ext export: [Errno 28] No space left on device\n"


def test_file_name_that_the_terminal_cannot_encode(tmp_path: Path) -> None:
    path = tmp_path / "日é.h"
    command = [sys.executable, "-m", "sinpe_ext", "export", "t2t", "8", "-o", str(path)]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = execute(command, env=env)
    assert done.stderr == ""
    assert done.stdout == f"{tmp_path}/\\u65e5\\xe9.h\n" and path.is_file()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("dim=3", 3),
        ("base=1e4", 1e4),
        ("odd=pad", "pad"),
        ("frequencies=1,0.5", (1.0, 0.5)),
        ("frequencies=1,", (1.0,)),
        ("exponent_dim=None", None),
    ],
)
def test_set(setting: str, value: object) -> None:
    assert field(setting) == (setting.partition("=")[0], value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: COMMAND"),
        (["nonsense"], "invalid choice"),
        (["export", "papre", "8", "-o", "-"], "pass one of paper, "),
        (["export", "paper", "0", "-o", "-"], "dim: expected"),
        (["export", "paper", "8", "--name", "1x", "-o", "-"], "name: expected a C identifier"),
        (["export", "paper", "8", "--set", "bas=3", "-o", "-"], "bas: expected a field of Encoding"),
        (["export", "paper", "8", "--set", "base", "-o", "-"], "--set: expected FIELD=VALUE"),
        (["plot", "--dim", "x", "-o", "a.png"], "--dim"),
        (["plot", "--length", "0", "-o", "a.png"], "length: expected"),
        (["plot", "--kind", "curves", "--positions", "1;2", "-o", "a.png"], "--positions: expected whole numbers"),
        (["plot", "-o", "a.nonsense"], "Format 'nonsense' is not supported"),
        (["plot", "--kind", "curves", "--positions", "9" * 20, "-o", "a.png"], "got object, as for integers beyond 64"),
        (["plot", "--kind", "curves", "--positions", "", "-o", "a.png"], "--positions: expected whole numbers"),
        (["plot", "--kind", "error", "--positions", "0", "-o", "a.png"], "positions: expected whole numbers of 1"),
        (["plot", "--length", "1000000000", "--dim", "1000000", "-o", "a.png"], "length: expected at most 67108864"),
        (["plot", "--cmap", "virids", "-o", "a.png"], "virids"),
        (["plot", "--convention", "mae2d", "--dim", "16", "-o", "a.png"], "got a GridEncoding of 2 axes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "plot" in arguments:
        pytest.importorskip("matplotlib")
    try:
        code = cli.main(arguments)
    except SystemExit as ended:  # raised by argparse
        code = ended.code
    message = capsys.readouterr().err
    assert code == 2
    assert words in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "paper", "8", "-o", "/nowhere/plan.h"],
        ["export", "paper", "8", "-o", "."],
        ["plot", "-o", "/nowhere/p.png"],
        ["demo", "--text", "/nowhere.txt"],
    ],
    ids=" ".join,
)
def test_files_that_cannot_be_used(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if "plot" in arguments:
        pytest.importorskip("matplotlib")
    assert cli.main(arguments) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"python -m sinpe_ext {arguments[0]}: [Errno ") and message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "cuda", "listed", "devices"),
    [
        ([], "12.8", "9.0", ["cpu", "cuda"]),
        ([], "12.8", " ; ", ["cpu"]),
        ([], None, "9.0", ["cpu"]),
        (["--device", "cuda"], None, "", ["cuda"]),
        (["--device", "cpu"], "12.8", "9.0", ["cpu"]),
    ],
)
def test_build(
    arguments: list[str],
    cuda: str | None,
    listed: str,
    devices: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import torch

    from sinpe_ext.backend import loader

    def build(device: str, verbose: bool) -> str:
        if device == "cuda" and cuda is None:
            raise loader.BackendUnavailableError("torch is a CPU build")
        return f"/{device}.so"

    monkeypatch.setattr(loader, "build", build)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    code = cli.main(["build", *arguments])
    shown = capsys.readouterr()
    if cuda is None and "cuda" in devices:
        assert code == 1 and shown.err == "python -m sinpe_ext build: torch is a CPU build\n"
    else:
        assert code == 0 and shown.out.split() == [f"/{device}.so" for device in devices]


def test_demo(tmp_path: Path) -> None:
    pytest.importorskip("mpmath")
    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst of times.\n")
    done = run("demo", "--text", tmp_path / "text.txt", "--output", tmp_path / "pictures")
    assert done.returncode == 0, done.stderr
    assert "14 tokens, a vocabulary of 9" in done.stdout
    million = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["1,000,000"])
    assert float(million[1]) > 1e-3  # the naive float32 formula
    assert float(million[4]) <= 0.5001  # sinpe_ext, in ULP
    assert "cpu: " in done.stdout
    if importlib.util.find_spec("matplotlib"):
        assert {path.name for path in (tmp_path / "pictures").glob("*.png")} >= {"heatmap.png", "curves.png"}


def test_demo_with_an_empty_text(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    done = run("demo", "--text", tmp_path / "empty.txt")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "text: expected at least one word" in done.stderr
