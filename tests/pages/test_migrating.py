"""docs/migrating.md: each adapter equals its library for the recorded calls (tests/support/library_calls.json)."""

from __future__ import annotations

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


def test_dtype_of_x(adapters: dict) -> None:
    x = torch.ones(2, 4, 8)
    for heading, call in (
        ("The PyTorch tutorial", "PositionalEncoding(8, 0.0)(x)"),
        ("ESPnet", "PositionalEncoding(8, 0.0)(x)"),
        ("ESPnet", "RelPositionalEncoding(8, 0.0)(x)[1]"),
    ):
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
