"""The command line: each subcommand runs and prints parseable output; bad usage is one line and status 2."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from children import environment, execute, library_environment
from widths import WIDTHS, every_width, names_at

import sinpe_ext as sinpe
from sinpe_ext import __main__ as cli
from sinpe_ext._version import __version__
from sinpe_ext.backend import loader
from sinpe_ext.cli import demo, field
from sinpe_ext.cli.export import export_header
from sinpe_ext.encodings.catalogue import CATALOGUE

COMMANDS = ("info", "demo", "plot", "build", "export", "identify")
Capture = pytest.CaptureFixture[str]


def status(arguments: list[str]) -> object:
    """That of `main`, or of argparse."""
    if arguments[:1] == ["plot"]:
        pytest.importorskip("matplotlib")
    try:
        return cli.main(arguments)
    except SystemExit as ended:
        return ended.code


def test_help_and_version(capsys: Capture) -> None:
    for command in ("", *COMMANDS):
        assert status([*filter(None, [command]), "-h"]) == 0
        assert f"python -m sinpe_ext {command}".strip() in capsys.readouterr().out
    assert status(["--version"]) == 0 and capsys.readouterr().out == f"sinpe_ext {__version__}\n"


def test_set() -> None:
    settings = "dim=3 base=1e4 odd=pad frequencies=1,0.5 exponent_dim=None".split()
    expected = {"dim": 3, "base": 1e4, "odd": "pad", "frequencies": (1.0, 0.5), "exponent_dim": None}
    assert [field(setting) for setting in settings] == [*expected.items()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: COMMAND"),
        (["nonsense"], "invalid choice"),
        (["export", "papre", "8", "-o", "-"], "pass one of paper, "),
        (["export", "paper", "0", "-o", "-"], "dim: expected"),
        (["export", "paper", "8", "--name", "a\nb", "-o", "-"], "name: expected a C identifier, got 'a\\nb'"),
        (["export", "paper", "8", "--set", "bas=3", "-o", "-"], "bas: expected a field of Encoding"),
        (["export", "paper", "8", "--set", "base", "-o", "-"], "--set: expected FIELD=VALUE"),
        (["export", "paper", "8", "--set", "=3", "-o", "-"], "--set: expected FIELD=VALUE"),
        (["export", "paper", "8", "--set", "angle=float32_exp", "-o", "-"], 'expected angle="exact"'),
        (["export", "mae2d", "16", "-o", "-"], "encoding: expected Encoding, got GridEncoding"),
        (["plot", "--dim", "x", "-o", "a.png"], "--dim"),
        (["plot", "-o", "a.nonsense"], "Format 'nonsense' is not supported"),
        (["plot", "--kind", "curves", "--positions", "1;2", "-o", "a.png"], "--positions: expected whole numbers"),
        (["plot", "--cmap", "virids", "-o", "a.png"], "virids"),
        (["plot", "--convention", "mae2d", "--dim", "16", "-o", "a.png"], "got a GridEncoding of 2 axes"),
    ],
    ids=str,
)
def test_bad_usage(arguments: list[str], words: str, capsys: Capture) -> None:
    assert status(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and words in printed.err and "Traceback" not in printed.err
    assert printed.err.startswith("usage: ") or printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    ["export paper 8 -o /nowhere/plan.h", "export paper 8 -o .", "plot -o /none/p.png", "demo --text /no.txt"],
)
def test_files_that_cannot_be_used(line: str, capsys: Capture) -> None:
    assert status(line.split()) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"python -m sinpe_ext {line.split()[0]}: [Errno ") and message.count("\n") == 1


@pytest.mark.parametrize("kind, width", [*zip(("heatmap", "curves", "similarity", "error") * 2, WIDTHS, strict=True)])
def test_plot(kind: str, width: int, tmp_path: Path, capsys: Capture) -> None:
    """PNG if the name of the file does not say otherwise."""
    path = tmp_path / kind
    options = ["--dim", str(width), "--convention", "own_index", "--kind", kind, "--length", "50", "-o", str(path)]
    assert status(["plot", *options]) == 0
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.strip() == f"{path}.png"


def test_options_of_plot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sinpe_ext import plot

    made = []
    for kind in ("heatmap", "curves"):
        draw = getattr(plot, kind)
        monkeypatch.setattr(plot, kind, lambda *a, draw=draw, **named: made.append(draw(*a, **named)))
    path = str(tmp_path / "a.svg")
    options = ["--transpose", "--cmap", "Purples", "--length", "7", "--set", "base=100", "--dpi", "9"]
    assert status(["plot", *options, "-o", path]) == 0
    (image,) = made[0].get_images()
    assert image.get_array().shape == (100, 7) and image.get_cmap().name == "Purples"
    assert abs(image.get_array()[98, 6] - sinpe.table(7, sinpe.Encoding(100, base=100))[6, 98].item()) < 1e-7
    assert status(["plot", "--kind", "curves", "--positions", "3,1", "--convention", "t2t", "-o", path]) == 0
    assert [line.get_label() for line in made[1].get_lines()] == ["3", "1"] and '"t2t"' in made[1].get_title()


def test_export(tmp_path: Path, capsys: Capture) -> None:
    """The header compiles as strict C, and names of any conventions are identifiers."""
    path = tmp_path / "plan.h"
    options = ["export", "t2t", "8", "--name", "my_plan", "--set", "base=500.5"]
    assert cli.main([*options, "-o", str(path)]) == 0 and capsys.readouterr().out == f"{path}\n"
    text = path.read_text()
    assert text == export_header(sinpe.convention("t2t", 8, base=500.5), "my_plan") and "base=500.5" in text
    assert cli.main([*options, "-o", "-"]) == 0 and capsys.readouterr().out == text
    half = export_header(sinpe.Encoding(2, frequencies=(0.5,), unit="turn"), "half")
    assert "(-9223372036854775807 - 1)" in half and "-9223372036854775808" not in half  # no literal of C
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler to compile the header")
    (tmp_path / "main.c").write_text('#include "plan.h"\nint main(void) { return my_plan_dim - 8; }\n')
    execute([compiler, "-std=c99", "-pedantic-errors", tmp_path / "main.c", "-o", tmp_path / "main"])
    execute([tmp_path / "main"])


@every_width
def test_export_and_identify_at_every_width(width: int, tmp_path: Path, capsys: Capture) -> None:
    for name in CATALOGUE:
        code = status(["export", name, str(width), "-o", "-"])
        out, err = capsys.readouterr()
        assert code == (0 if name in names_at(width) else 2), name
        assert f"{name}{width}_dim = {width} }}" in out or err.startswith("python -m sinpe_ext export: dim, "), name
    torch.save({"pe": sinpe.table(20, "t2t", width)}, tmp_path / "a.pt")
    assert status(["identify", str(tmp_path / "a.pt")]) == 0
    assert f'sinpe.convention("t2t", {width})' in capsys.readouterr().out


def test_names_that_are_no_identifiers_are_rejected() -> None:
    for name in ("", "1x", "a b", "a-b", "a\n", "é6", "ｐａｐｅｒ", "aé", "a$", "*/", "_a", "a.b"):
        with pytest.raises(ValueError, match="name: expected a C identifier, got .*; pass letters"):
            export_header(sinpe.Encoding(6), name)
    with pytest.raises(TypeError, match="name: expected str"):
        export_header(sinpe.Encoding(6), 6)  # type: ignore[arg-type]


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
def test_build(arguments, cuda, listed, devices, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
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


def test_demo(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpmath")
    from torch.utils.benchmark import Timer

    measure = Timer.blocked_autorange
    monkeypatch.setattr(Timer, "blocked_autorange", lambda timer, **_: measure(timer, min_run_time=1e-3))
    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst of times.\n")
    assert cli.main(["demo", "--text", str(tmp_path / "text.txt"), "--output", str(tmp_path / "pictures")]) == 0
    out = capsys.readouterr().out
    assert "14 tokens, a vocabulary of 9" in out and "cpu: " in out
    million = next(line.split() for line in out.splitlines() if line.split()[:1] == ["1,000,000"])
    assert float(million[1]) > 1e-3  # the naive float32 formula
    assert float(million[4]) <= 0.5001  # sinpe_ext, in ULP
    if importlib.util.find_spec("matplotlib"):
        names = {path.name for path in (tmp_path / "pictures").glob("*.png")}
        assert names == {"heatmap.png", "curves.png", "error.png"}
    (tmp_path / "empty.txt").write_text(" \n")
    assert cli.main(["demo", "--text", str(tmp_path / "empty.txt")]) == 2
    assert "text: expected at least one word" in capsys.readouterr().err


def test_demo_says_which_ratios_differ_from_round_to_round() -> None:
    """As they do on a busy machine."""
    assert demo.disagreements({"table": [8.0, 9.0, 8.5], "x + PE": [1.0, 1.0, 1.0]}) == []
    lines = demo.disagreements({"table": [8.0, 9.0, 8.5], "x + PE": [1.5, 0.6, 1.0]})
    assert "busy" in lines[0] and [line.strip() for line in lines[1:]] == ["x + PE: 0.6 to 1.5"]


# processes: standard output


def test_full_disk_closed_pipe_and_unencodable_name(tmp_path: Path) -> None:
    """Standard output that cannot be written to is status 1; a name is escaped where the terminal cannot show it."""
    command = [sys.executable, "-m", "sinpe_ext", "export", "t2t", "8", "-o"]
    env = {**library_environment(), "PYTHONIOENCODING": "ascii"}
    path = tmp_path / "日é.h"
    done = execute([*command, path], env=env)
    assert done.stderr == "" and done.stdout == f"{tmp_path}/\\u65e5\\xe9.h\n" and path.is_file()
    reading, writing = os.pipe()
    os.close(reading)
    assert execute([*command, "-"], env=env, stdout=writing, status=1).stderr == ""
    os.close(writing)
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            done = execute([*command, "-"], env=env, stdout=full.fileno(), status=1)
        assert done.stderr == "python -m sinpe_ext export: [Errno 28] No space left on device\n"


def test_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom sinpe_ext.__main__ import main\nmain(['info'])"
    text = execute([sys.executable, "-c", code], env=environment()).stdout
    assert "torch not installed" in text
    assert text.endswith("The CPU runs nothing (NumPy alone).\nTo change that:\n  - pip install torch\n")
