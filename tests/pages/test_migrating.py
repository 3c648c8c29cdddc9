"""docs/migrating.md: each adapter equals its library for the recorded calls (tests/support/library_calls.json)."""

from __future__ import annotations

import ast
import re
from typing import Any

import migrating
import pages
import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe

RECORDED = migrating.recorded()
CALLS = [(heading, entry) for heading, library in RECORDED.items() for entry in library["calls"]]
LINES = 26  # per class or function


@pytest.fixture(scope="module")
def text() -> str:
    return pages.text_of(migrating.PAGE)


@pytest.fixture(scope="module")
def adapters() -> dict[str, tuple[str, dict[str, Any]]]:
    return migrating.adapters()


def values(entry: dict[str, Any]) -> Tensor:
    return torch.tensor(entry["values"], dtype=getattr(torch, entry["dtype"])).reshape(entry["shape"])


@pytest.mark.parametrize(("heading", "entry"), CALLS, ids=[f"{heading}: {entry['call']}" for heading, entry in CALLS])
def test_adapter_equals_the_library(heading: str, entry: dict[str, Any], adapters: dict) -> None:
    got, want = migrating.result(entry["call"], adapters[heading][1]), values(entry)
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.allclose(got.double(), want.double(), rtol=0, atol=migrating.TOLERANCE)


# Mistakes in the adapter of a heading.
MISTAKES = {
    "fairseq": [("_idx + step", "_idx + 1 + step"), (".masked_fill(padding[..., None], 0)", ""), ('"t2t"', '"adm"')],
    "ESPnet": [("last, last - x.size(1), -1", "0, x.size(1)"), (", scale=math.sqrt(d_model)", "")],
    "diffusers": [('odd="pad"', 'odd="truncate"'), ('"position_scale": scale, ', "")],
    "MAE": [('"mae2d"', '"hf2d"'), ("torch.float64", "torch.float32")],
    "DETR": [('"detr2d"', '"hf2d"')],
    "nerfstudio": [('unit="turn", ', ""), ("2.0**min_freq_exp", "1.0")],
}


@pytest.mark.parametrize(("heading", "old", "new"), [(h, *pair) for h, pairs in MISTAKES.items() for pair in pairs])
def test_mistake_is_detected(heading: str, old: str, new: str, text: str) -> None:
    section = migrating.sections(text)[heading]
    assert old in section
    start = text[: text.index("\n## ")]
    names = migrating.adapters(f"{start}\n## {heading}\n{section.replace(old, new)}")[heading][1]

    def equals_library(entry: dict[str, Any]) -> bool:
        try:
            got, want = migrating.result(entry["call"], names), values(entry)
        except (ValueError, RuntimeError):
            return False
        same = got.shape == want.shape and got.dtype == want.dtype
        return same and torch.allclose(got.double(), want.double(), rtol=0, atol=migrating.TOLERANCE)

    assert not all(equals_library(entry) for entry in RECORDED[heading]["calls"])


def test_every_library_is_recorded_and_listed(text: str, adapters: dict) -> None:
    assert set(adapters) == set(RECORDED)
    contents = text[: text.index("\n## ")]
    for heading, section in migrating.sections(text).items():
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        assert f"[{heading}](#{anchor})" in contents
        if heading in RECORDED:
            said = " ".join(section.split())
            library = RECORDED[heading]
            assert library["version"].partition(",")[0] in said
            assert ("`swap` does" in said) == bool(library["swapped"])
            defined = [name for name in library["names"] if name in adapters[heading][1]]
            assert defined and all(library["names"][name] in said for name in defined)
            assert any(name in entry["call"] for name in defined for entry in library["calls"])


def test_adapters_are_short(adapters: dict) -> None:
    for heading, (code, _) in adapters.items():
        defined = [node for node in ast.parse(code).body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
        assert len(defined) == len(ast.parse(code).body), heading
        for node in defined:
            assert node.end_lineno - node.lineno < LINES, f"{heading}: {node.name}"
            assert any(node.name in entry["call"] for entry in RECORDED[heading]["calls"]) or any(
                node.name in other for other in RECORDED[heading]["names"]
            ), f"{heading}: no call of {node.name}"
        assert len(code.splitlines()) >= 2


X16 = [
    ("The PyTorch tutorial", "PositionalEncoding(8, 0.0)(x)"),
    ("ESPnet", "PositionalEncoding(8, 0.0)(x)"),
    ("ESPnet", "RelPositionalEncoding(8, 0.0)(x)[1]"),
]


@pytest.mark.parametrize(("heading", "call"), X16)
def test_dtype_of_x(heading: str, call: str, adapters: dict) -> None:
    x = torch.ones(2, 4, 8)
    wide, narrow = (migrating.result(call, {**adapters[heading][1], "x": v}) for v in (x, x.bfloat16()))
    assert narrow.dtype == torch.bfloat16 and wide.dtype == torch.float32
    assert torch.allclose(narrow.float(), wide, rtol=0, atol=2.0**-5)  # bfloat16 has 8 bits for values up to 4


@pytest.mark.parametrize(
    ("heading", "layer", "read", "value", "reader"), migrating.ATTRIBUTES, ids=lambda value: str(value)
)
def test_attributes(heading: str, layer: str, read: str, value: Any, reader: str, adapters: dict) -> None:
    names = adapters[heading][1]
    assert eval(read, {"torch": torch, "layer": eval(layer, names)}) == value, f"read by {reader}"


def test_alpha_can_be_set_as_in_espnet(adapters: dict) -> None:
    """espnet2/tts/transformer: `embed[-1].alpha.data = torch.tensor(init_enc_alpha)`, of shape ()."""
    layer, x = adapters["ESPnet"][1]["ScaledPositionalEncoding"](8, 0.0), torch.ones(2, 4, 8)
    layer.alpha.data = torch.tensor(0.5)
    assert torch.equal(layer(x), sinpe.add(x, alpha=0.5))


@pytest.mark.parametrize(("heading", "layer", "call", "half", "single"), migrating.DTYPES)
def test_dtype_of_the_module(
    heading: str, layer: str, call: str, half: torch.dtype, single: torch.dtype, adapters: dict
) -> None:
    made = eval(layer, adapters[heading][1])
    wide = eval(call, {**migrating.given(), "layer": made})
    narrow = eval(call, {**migrating.given(), "layer": made.half()})
    assert (narrow.dtype, wide.dtype) == (half, single)
    assert torch.allclose(narrow.float(), wide.float(), rtol=0, atol=2.0**-10)


# Buffers in a checkpoint of the library, and the layer that loads it with strict=True.
CHECKPOINTS = [
    ("The PyTorch tutorial", "PositionalEncoding(8, max_len=9)", {"pe": (9, 1, 8)}),
    ("fairseq", "SinusoidalPositionalEmbedding(8, 1)", {"weights": (9, 8), "_float_tensor": (1,)}),
    ("ESPnet", "PositionalEncoding(8, 0.1)", {"pe": (1, 9, 8)}),
    ("ESPnet", "ScaledPositionalEncoding(8, 0.1)", {"alpha": ()}),
]


@pytest.mark.parametrize(("heading", "call", "shapes"), CHECKPOINTS, ids=[f"{h}: {c}" for h, c, _ in CHECKPOINTS])
def test_checkpoint_of_the_library_loads(heading: str, call: str, shapes: dict, adapters: dict) -> None:
    layer = eval(call, adapters[heading][1])
    rows = sinpe.table(9, sinpe.Encoding(8))
    layer.load_state_dict(
        {name: rows.reshape(shape) if rows.numel() == torch.Size(shape).numel() else torch.ones(shape)
         for name, shape in shapes.items()}
    )  # fmt: skip
