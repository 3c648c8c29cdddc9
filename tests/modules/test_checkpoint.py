"""State dicts of the layers: the table `pe` and the learned alpha of checkpoints, and the buffer of a layer."""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from widths import every_width, names_at

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding, TimestepEncoding
from sinpe_ext import SinusoidalPositionalEncoding as Layer
from sinpe_ext.reference.naive import naive_table

D, ROWS = 64, 50
PAPER = naive_table(torch.arange(float(ROWS)), D)  # as in existing models
OURS, T2T = sinpe.table(ROWS, D), sinpe.table(ROWS, "t2t", dim=D)
IS_T2T = rf'it is sinpe.convention\("t2t", {D}\)'


@contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def with_table(**options: Any) -> Layer:
    return Layer(D, 0.1, ROWS, persistent_table=True, **options)


@pytest.mark.bad_input(25, "layer", "embedding", "timestep")
def test_keys_of_state_dicts() -> None:
    model = nn.ModuleList(
        [
            Layer(D, 0.1, 5000),
            Layer(D, learned_alpha=True),
            with_table(),
            SinusoidalEmbedding(5, D, learned_alpha=True),
            TimestepEncoding(D),
        ]
    )
    assert list(model.state_dict()) == ["1.alpha", "2.pe", "3.weight", "3.alpha"]
    assert [name for name, _ in model.named_buffers()] == ["2.pe"]


@pytest.mark.bad_input(25, "layer")
@pytest.mark.parametrize("dim, rows, dtype", [
    (64, 20000, torch.float32), (512, 5000, torch.float32), (128, 300, torch.float64), (512, 300, torch.bfloat16),
    (128, 300, torch.bfloat16), (64, 300, torch.float16),
])  # fmt: skip
def test_tables_of_the_same_encoding_load(dim: int, rows: int, dtype: torch.dtype) -> None:
    """In any shape; the error of the naive float32 formula, 3e-4 at position 5000, is no other encoding."""
    pe = naive_table(torch.arange(float(rows)), dim).to(dtype)
    before = pe.clone()
    for shape in ((1, rows, dim), (rows, 1, dim), (rows, dim)):
        model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Layer(dim, batch_first=shape[1] != 1)))
        state = {**model.state_dict(), "1.0.pe": pe.reshape(shape)}
        with no_warning():
            assert not any(model.load_state_dict(state, strict=True))
        assert list(state) == ["0.weight", "0.bias", "1.0.pe"] and torch.equal(pe, before)  # the caller's


# An entry near 1 and one near 0 that differ by four times the rounding of the dtype, and the naive table's own error.
STEPS = {torch.float32: (4e-6, 4e-6), torch.float64: (4e-6, 4e-6), torch.bfloat16: (0.035, 2.5e-3)}
STEPS[torch.float16] = (4.4e-3, 3e-4)


@pytest.mark.parametrize("dtype", STEPS)
@pytest.mark.parametrize("dim", [64, 512])
def test_one_wrong_entry_is_found(dim: int, dtype: torch.dtype) -> None:
    """The tolerance is a few rounding errors of the stored dtype, and small where the values are small."""
    large, small = STEPS[dtype]
    for row, channel, step in ((2, 0, -large), (0, 2, small), (1, dim - 2, small), (49, dim - 1, -large)):
        pe = naive_table(torch.arange(50.0), dim)
        pe[row, channel] += step
        with pytest.warns(UserWarning, match=f"row {row} differs by .*, and 1 of 50 rows differ"):
            Layer(dim).load_state_dict({"pe": pe.to(dtype)})


FLUX = sinpe.Encoding(D, position_scale=1000.0)


def test_tolerance_of_scaled_positions() -> None:
    """The float32 formula rounds angles that are 1000 times larger, and so errs 1000 times more."""
    with no_warning():
        Layer(D, encoding=FLUX).load_state_dict({"pe": naive_table(torch.arange(50.0) * 1000, D)})
    for encoding, pe in ((FLUX, PAPER), (None, sinpe.table(50, FLUX)), (sinpe.Encoding(D, position_scale=1.01), PAPER)):
        with pytest.warns(UserWarning, match="row 1 differs by"):
            Layer(D, encoding=encoding).load_state_dict({"pe": pe})


def wrong_tables(width: int) -> dict[str, tuple[Any, str]]:
    """And what the warning says."""
    pe, late = sinpe.table(50, width), sinpe.table(100, width)
    noise = torch.randn(50, width, generator=torch.Generator().manual_seed(0))
    late[70] = 0.0
    angle = torch.arange(50).bfloat16()[:, None] / 10000 ** (torch.arange(0, width, 2) / width).bfloat16()
    return {
        "shifted": (sinpe.table(50, width, start=1), "row 0 differs by 0.841, and 50 of 50 rows differ"),
        "base": (sinpe.table(50, sinpe.Encoding(width, base=500)), r"row 1 differs by 0.\d+, and 49 of 50"),
        "nan": (torch.full((50, width), torch.nan), "row 0 differs by nan"),
        "zeros": (torch.zeros(50, width), "row 0 differs by 1, and 50 of 50"),
        "random": (noise, "row 0 differs by .*, and 50 of 50"),
        "fine-tuned": (pe + noise / 100, r"row 0 differs by 0.0\d+, and 50 of 50"),
        "in bfloat16": (torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :width], r"differs by 0.\d+, and 4"),
        "late": (late, r"row 70 differs by 1, and 1 of 100 rows differ\. The layer keeps"),  # names no convention
        "width": (torch.zeros(1, 50, width + 2), rf"its shape .* is not that of a table, \(rows, {width}\)"),
        "rank": (torch.zeros(2, 3, 50, width), "its shape"),
        "no tensor": ("pe", "it is a str, not a tensor"),
    }


@every_width
def test_table_of_another_encoding_warns_once(width: int) -> None:
    """Every kind of layer."""
    grid, held = {"encoding": "multidim2d", "grid_shape": (5, 10)}, {"max_len": 50, "persistent_table": True}
    kinds = [{"encoding": "t2t"}, {"batch_first": False}, {"extra_tokens": 1}, held, grid | {"persistent_table": True}]
    for k, (table, pattern) in enumerate(wrong_tables(width).values()):
        for options in ({}, kinds[k % 5]):
            layer = Layer(width, **options)
            with pytest.warns(UserWarning) as caught:
                nn.ModuleDict({"0": layer}).load_state_dict({"0.pe": table}, strict=k % 2 > 0, assign=k % 3 > 0)
            (message,) = (str(w.message) for w in caught)
            assert message.startswith("0.pe: the checkpoint's table is not this layer's encoding, sinpe.convention(")
            assert options or (re.search(pattern, message) and "pass the encoding= that the model was" in message)
            if layer.persistent_table and isinstance(table, Tensor):
                with no_warning():
                    layer.pe = table  # unlike any convention
                assert torch.equal(layer.pe, layer.state_dict()["pe"])


@every_width
def test_table_of_another_convention_is_named(width: int) -> None:
    """Where names are of the same table, by the first of them."""
    for size in (9, (3, 3), (3, 1, 3)):
        lengths: Any = size if isinstance(size, tuple) else None
        tables = {name: sinpe.table(size, name, width) for name in names_at(width, len(lengths or (9,)))}
        for name, pe in tables.items():
            with no_warning():
                Layer(width, encoding=name, grid_shape=lengths).load_state_dict({"pe": pe})
            for other in [other for other in tables if not torch.equal(tables[other], pe)][:1]:
                with pytest.warns(UserWarning, match="is not this layer's encoding") as caught:
                    Layer(width, encoding=other, grid_shape=lengths).load_state_dict({"pe": pe})
                (code,) = re.findall(r"; it is (sinpe\..*)\. The layer", str(caught[0].message))
                assert torch.equal(sinpe.table(size, eval(code)), pe), name


def test_forms_of_tables() -> None:
    """With extra tokens, of grids, on meta."""
    grid = sinpe.convention("mae2d", D)
    cells, head = sinpe.table((4, 5), grid), torch.zeros(1, D)
    whole: dict[str, Any] = {"encoding": grid, "grid_shape": (4, 5)}
    behind: dict[str, Any] = {**whole, "extra_tokens": 1}
    flat = torch.cat([head, cells.flatten(0, 1)])
    with no_warning():
        Layer(D).load_state_dict({"pe": torch.empty(1, 50, D, device="meta")})
        Layer(D, extra_tokens=1).load_state_dict({"pe": OURS[None]})  # no row for the extra token
        Layer(D, extra_tokens=1).load_state_dict({"pe": torch.cat([head, OURS])[None]})
        for shape in ((4, 5, D), (1, 4, 5, D), (1, 20, D), (20, D)):
            Layer(D, **whole).load_state_dict({"pe": cells.reshape(shape)})
        Layer(D, **behind).load_state_dict({"pe": flat})
        made = Layer(D, **behind, persistent_table=True)
        assert torch.equal(made.state_dict()["pe"], flat[None])
        made.load_state_dict(made.state_dict())
        Layer(D, encoding=grid).load_state_dict({"pe": torch.zeros(20, D)})  # of unknown coordinates
    hf2d = sinpe.table((4, 5), "hf2d", dim=D, extra_tokens=1)
    wrong: list[tuple[dict[str, Any], Tensor, str]] = [
        (whole, sinpe.table(20, D).reshape(1, 4, 5, D), "row 0 differs by"),
        (behind, hf2d[None], rf'row 2 differs by .*; it is sinpe.convention\("hf2d", {D}\)'),
        (behind, flat[1:], r"it has 20 rows, not the 21 of grid_shape .*pass the grid_shape= and extra_tokens="),
        ({"extra_tokens": 1}, T2T[None], r"row 1 differs by 1, .*"),
        ({"extra_tokens": 1}, torch.cat([head, T2T])[None], rf"row 1 differs by 1, .*{IS_T2T}"),
    ]
    for options, pe, pattern in wrong:
        with pytest.warns(UserWarning, match=pattern):
            Layer(D, **options).load_state_dict({"pe": pe})


@pytest.mark.parametrize("batch_first", [True, False])
def test_persistent_table(batch_first: bool) -> None:
    layer = with_table(batch_first=batch_first)
    state = nn.Sequential(layer).state_dict()
    assert torch.equal(state["0.pe"], OURS.unsqueeze(0 if batch_first else 1))
    with no_warning():
        nn.Sequential(Layer(D, batch_first=batch_first)).load_state_dict(state, strict=True)
        for given in ({"0.pe": PAPER.reshape(state["0.pe"].shape)}, {}):
            assert not any(nn.Sequential(layer).load_state_dict(given, strict=True))
    assert torch.equal(layer.pe.reshape(ROWS, D), OURS)
    layer.max_len = 30
    layer.load_state_dict(layer.state_dict())
    assert layer.pe.numel() == 30 * D and torch.equal(layer.pe.flatten(0, 1), OURS[:30])
    with pytest.raises(AttributeError, match="pass persistent_table=True and max_len"):
        _ = Layer(D).pe


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("make", [Layer, with_table])
def test_table_of_the_other_dimension_order_warns(make: Any, batch_first: bool) -> None:
    """PyTorch's tutorial is sequence first: replaced by a batch-first layer, it would encode the batch dimension."""
    layer = make(D, batch_first=batch_first) if make is Layer else make(batch_first=batch_first)
    with pytest.warns(UserWarning) as caught:
        nn.Sequential(layer).load_state_dict({"0.pe": PAPER.unsqueeze(1 if batch_first else 0)}, strict=True)
    ours, theirs = ("batch", "sequence") if batch_first else ("sequence", "batch")
    (message,) = (str(w.message) for w in caught)
    assert re.match(rf"0.pe: .* a model with the {theirs} first.* takes the {ours} first; pass batch_first=", message)
    assert f"batch_first={not batch_first}" in message
    with no_warning():  # a single row fits either order
        layer.load_state_dict({"pe": PAPER[:1, None]}, strict=True)


def emptied(layer: nn.Module) -> nn.Module:
    layer = layer.to("meta").to_empty(device="cpu")
    layer.pe.fill_(torch.nan)
    return layer


def loaded(table: Tensor, assign: bool) -> Callable[[nn.Module], nn.Module]:
    def load(layer: nn.Module) -> nn.Module:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            layer.load_state_dict({"pe": table[None]}, assign=assign)
        assert len(caught) == (table is T2T)
        assert torch.equal(layer.pe, OURS[None])
        return layer

    return load


CHANGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "half and back": lambda layer: layer.half().float(),
    "double": lambda layer: layer.double(),
    "to_empty": emptied,
    "overwritten": lambda layer: (layer.pe.zero_(), layer)[1],
    "deepcopy": copy.deepcopy,
    "loaded": loaded(T2T, False),
    "assigned": loaded(T2T, True),
    "assigned, half": loaded(OURS.half(), True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_buffer_is_never_another_table(change: Callable[[nn.Module], nn.Module], backend: str) -> None:
    x = torch.randn(2, 6, D)
    layer = change(with_table().eval())
    state = layer.state_dict()["pe"]
    assert state.dtype == torch.float32 and torch.equal(state, OURS[None])
    assert torch.equal(layer(x), sinpe.add(x))  # the buffer is not read
    layer.reset_parameters()
    assert torch.equal(layer.pe.float(), OURS[None])


def test_table_of_a_layer_on_meta() -> None:
    with torch.device("meta"):
        layer = with_table(learned_alpha=True, alpha=0.5)
    assert layer.pe.is_meta and torch.equal(layer.state_dict()["pe"], OURS[None])
    made = copy.deepcopy(layer).to_empty(device="cpu")
    made.reset_parameters()
    assert torch.equal(made.pe, OURS[None]) and made.alpha.tolist() == [0.5]
    with torch.device("meta"):
        layer = with_table()
    with no_warning():
        layer.load_state_dict({"pe": OURS[None]}, strict=True)
        assert layer.pe.is_meta
        layer.load_state_dict({"pe": OURS[None]}, strict=True, assign=True)
    assert torch.equal(layer.pe, OURS[None])


def test_assigned_buffer_is_compared() -> None:
    """As from_pretrained of transformers assigns it, uninitialized memory too."""
    layer = with_table()
    with pytest.warns(UserWarning, match=IS_T2T):
        layer.pe = T2T[None]
    with no_warning():
        for pe in (OURS[None], torch.full((1, ROWS, D), torch.nan)):  # unlike any convention
            layer.pe = pe
            assert torch.equal(layer.pe, OURS[None])
        layer.pe = torch.empty(1, ROWS, D, device="meta")
        assert layer.pe.is_meta
        layer.pe = None
    assert torch.equal(layer.state_dict()["pe"], OURS[None])


def test_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = nn.Sequential(nn.Linear(D, D), with_table(learned_alpha=True, alpha=0.5)).half()
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    assert torch.equal(safetensors.load_file(str(tmp_path / "model.safetensors"))["1.pe"], OURS[None])
    other = nn.Sequential(nn.Linear(D, D), with_table(learned_alpha=True))
    assert not any(safetensors.load_model(other, str(tmp_path / "model.safetensors"), strict=True))
    assert other[1].alpha.item() == 0.5 and torch.equal(other[1].pe, OURS[None])


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("make", [Layer, lambda dim, **options: SinusoidalEmbedding(5, dim, **options)])
def test_alpha_of_either_shape_loads(make: Any, assign: bool) -> None:
    """ESPnet's and SpeechT5's alpha has shape ()."""
    layer = make(D, learned_alpha=True)
    for shape in ((1,), ()):
        layer.alpha = nn.Parameter(torch.ones(shape))
        for given in (torch.tensor(0.75), torch.tensor([0.25])):
            state = {f"0.{name}": t for name, t in {**layer.state_dict(), "alpha": given}.items()}
            assert not any(nn.Sequential(layer).load_state_dict(state, assign=assign))
            assert layer.alpha.shape == shape and layer.alpha.item() == given.item() and layer.alpha.requires_grad
    with pytest.raises(RuntimeError, match="size mismatch for alpha"):
        layer.load_state_dict({**layer.state_dict(), "alpha": torch.ones(2)})
    assert math.isclose(layer.alpha.item(), 0.25)
