"""SinusoidalPositionalEncoding: usage, results, state, and old checkpoints."""

from __future__ import annotations

import copy
import io
import math
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalPositionalEncoding as Layer
from sinpe_ext.naive import naive_table

B, S, D = 3, 6, 8
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


class Tutorial(nn.Module):
    """A layer with a table buffer of the given shape, as in existing models."""

    def __init__(self, d_model: int, max_len: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
        super().__init__()
        self.register_buffer("pe", naive_table(torch.arange(float(max_len)), d_model).reshape(shape).to(dtype))


def test_tutorial_arguments(backend: str) -> None:
    layer = Layer(512, 0.1, 5000)
    assert layer.dropout.p == 0.1 and layer.max_len == 5000 and layer.d_model == 512
    x = randn(2, 10, 512)
    assert torch.equal(layer.eval()(x), x + sinpe.table(10, 512))
    assert torch.allclose(layer(x), x + naive_table(torch.arange(10.0), 512), atol=1e-6)


def test_documented_shapes(backend: str) -> None:
    two = randn(10, 4)  # (length, channels)
    assert torch.equal(Layer(4).eval()(two), two + sinpe.table(10, 4))
    first = randn(S, B, D)  # sequence first, one frequency per channel
    encoding = sinpe.convention("own_index", D)
    layer = Layer(D, encoding=encoding, batch_first=False).eval()
    assert torch.equal(layer(first), first + sinpe.table(S, encoding).unsqueeze(1))
    assert torch.equal(layer(first[:, 0]), first[:, 0] + sinpe.table(S, encoding))
    batch = randn(8, 128, 256)  # batch first
    assert torch.equal(Layer(256, 0.0)(batch), batch + sinpe.table(128, 256))


@pytest.mark.parametrize("dtype", FLOATS)
def test_options(dtype: torch.dtype, backend: str) -> None:
    x, starts = randn(B, S, D, dtype=dtype), torch.tensor([0, 5, -3])
    positions, mask = torch.arange(B * S).reshape(B, S), torch.arange(S) > 3
    layer = Layer(D, 0.0, encoding="fairseq", scale=2.0, alpha=0.5)
    sequence_first = Layer(D, 0.0, encoding="fairseq", scale=2.0, alpha=0.5, batch_first=False)
    for arguments in ({}, {"start": 7}, {"start": starts}, {"positions": positions}, {"padding_mask": mask}):
        want = sinpe.add(x, "fairseq", scale=2.0, alpha=0.5, **arguments)
        assert torch.equal(layer(x, **arguments), want)
        assert torch.equal(sequence_first(x.transpose(0, 1), **arguments), want.transpose(0, 1))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("encoding", [None, "fairseq", sinpe.Encoding(D, cos_frequency="own", amplitude=0.3)])
def test_inference_fast_path_is_bitwise_equal(encoding: Any, dtype: torch.dtype, backend: str) -> None:
    layer, x = Layer(D, 0.0, encoding=encoding, scale=1.7).eval(), randn(B, S, D, dtype=dtype)
    for given in (x, x[0], x[:, :1], x.transpose(0, 1).contiguous().transpose(0, 1), x[..., :D], x[:, ::2], x[:0]):
        for start in (0, 9, -4, 10**12):
            short, long = layer(given, start=start), layer.train()(given, start=start)
            assert torch.equal(short, long) and short.stride() == long.stride()
            layer.eval()
            assert torch.equal(layer(given.requires_grad_(), start=start).detach(), short)
            given.requires_grad_(False)


LIMITS: dict[str, tuple[dict[str, Any], str | None]] = {  # for max_len=10 and 6 rows: the position in the message
    "start 4": ({"start": 4}, None),
    "start 5": ({"start": 5}, "10"),
    "start -1": ({"start": -1}, "-1"),
    "starts": ({"start": torch.tensor([0, 4, 2])}, None),
    "starts beyond": ({"start": torch.tensor([0, 5, 2])}, "10"),
    "starts below": ({"start": torch.tensor([0, -2, 2])}, "-2"),
    "positions": ({"positions": torch.tensor([9, 0, 0, 0, 3, 9])}, None),
    "positions beyond": ({"positions": torch.tensor([9, 0, 10, 0, 3, 9])}, "10"),
    "positions below": ({"positions": torch.tensor([9, 0, -1, 0, 3, 9])}, "-1"),
    "positions float": ({"positions": torch.tensor([9, 0, 9.5, 0, 3, 9])}, "9.5"),
    "positions nan": ({"positions": torch.tensor([9, 0, math.nan, 0, 3, 9])}, "nan"),
}


@pytest.mark.parametrize("case", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("training", [False, True])
def test_max_len_is_a_limit(case: Any, training: bool, backend: str) -> None:
    arguments, beyond = case
    layer, x = Layer(D, 0.0, 10).train(training), randn(B, S, D)
    shifted = Layer(D, 0.0, 10, encoding=sinpe.Encoding(D, start=100)).train(training)
    if beyond is None:
        assert torch.equal(layer(x, **arguments), sinpe.add(x, **arguments))
    else:
        advice = "pass (a start of )?0 or more" if beyond.startswith("-") else "raise max_len or leave it"
        with pytest.raises(IndexError, match=f"expected .*0 to 9, .* got {beyond}; {advice}"):
            layer(x, **arguments)
    if "positions" in arguments:
        arguments = {"positions": arguments["positions"] + 100}
    if beyond is None:
        assert torch.equal(shifted(x, **arguments), sinpe.add(x, sinpe.Encoding(D, start=100), **arguments))
    else:
        with pytest.raises(IndexError, match="expected .*100 to 109, "):
            shifted(x, **arguments)


def test_max_len_with_sequence_first(backend: str) -> None:
    first = Layer(D, max_len=S, batch_first=False).eval()
    assert first(randn(S, 2 * S, D)).shape == (S, 2 * S, D)
    with pytest.raises(IndexError):
        first(randn(S + 1, B, D))
    assert Layer(D, max_len=0).eval()(randn(B, 0, D)).shape == (B, 0, D)
    with pytest.raises(IndexError):
        Layer(D, max_len=0).eval()(randn(B, 1, D))
    assert Layer(D, max_len=2)(torch.empty(B, 2, D, device="meta"), positions=torch.empty(2, device="meta")).is_meta


@pytest.mark.bad_input(25, "layer")
def test_state_dict_is_empty() -> None:
    layer = Layer(D, 0.1, 5000)
    assert not layer.state_dict() and not list(layer.parameters()) and not list(layer.buffers())
    model = nn.Sequential(nn.Linear(D, D), layer)
    assert set(model.state_dict()) == {"0.weight", "0.bias"}


SHAPES = [(1, 50, D), (50, 1, D), (50, D)]


@pytest.mark.bad_input(25, "layer")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_old_checkpoint_loads_without_warning(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    state = nn.Sequential(nn.Linear(D, D), nn.Sequential(Tutorial(D, 50, shape, dtype))).state_dict()
    model = nn.Sequential(nn.Linear(D, D), nn.Sequential(Layer(D, batch_first=shape[1] != 1)))
    keys = set(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not any(model.load_state_dict(state, strict=True))
    assert set(state) == keys == {"0.weight", "0.bias", "1.0.pe"}


def test_long_old_tables_load_without_warning() -> None:
    """The error of the naive float32 formula, 3e-4 at position 5000 and beyond, is not taken for another encoding."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dim in (64, 512):
            Layer(dim).load_state_dict({"pe": naive_table(torch.arange(20000.0 if dim == 64 else 5000.0), dim)[None]})


WRONG: dict[str, tuple[Any, str]] = {
    "t2t": (sinpe.table(50, sinpe.convention("t2t", D)), r'row 0 differs by 1, .*; it is sinpe.convention\("t2t", 8\)'),
    "own index": (sinpe.table(50, sinpe.convention("own_index", D)), r'it is sinpe.convention\("own_index", 8\)'),
    "shifted": (sinpe.table(50, D, start=1), "row 0 differs by 0.841, and 50 of 50 rows differ"),
    "base": (sinpe.table(50, sinpe.Encoding(D, base=500)), "row 1 differs by"),
    "one entry": (
        naive_table(torch.arange(50.0), D).index_put((torch.tensor(7), torch.tensor(3)), torch.tensor(0.5)),
        "row 7 .*and 1 of",
    ),
    "nan": (torch.full((50, D), torch.nan), "row 0 differs by nan"),
    "width": (torch.zeros(1, 50, D + 2), r"its shape \(1, 50, 10\) is not that of a table, \(rows, 8\)"),
    "rank": (torch.zeros(2, 3, 50, D), "its shape"),
    "no tensor": ("pe", "it is a str, not a tensor"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_table_of_another_encoding_warns_once(case: Any) -> None:
    table, pattern = case
    model = nn.Sequential(nn.Sequential(Layer(D)))
    with pytest.warns(UserWarning) as caught:
        model.load_state_dict({"0.0.pe": table}, strict=True)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.startswith(
        "0.0.pe: the checkpoint's table is not this layer's encoding, sinpe.convention(\"paper\", 8): "
    )
    assert re.search(pattern, message), message
    assert "pass the encoding= that the model was trained with" in message


@pytest.mark.parametrize("name", ["t2t", "fairseq", "own_index", "adm", "unit"])
def test_table_of_the_same_convention_loads_without_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Layer(D, encoding=name).load_state_dict({"pe": sinpe.table(50, sinpe.convention(name, D))[None]})
        Layer(D).load_state_dict({"pe": torch.empty(1, 50, D, device="meta")})


@pytest.mark.parametrize("batch_first, shape", [(True, (1, 20, D)), (False, (20, 1, D))])
def test_persistent_table(batch_first: bool, shape: tuple[int, ...]) -> None:
    layer = Layer(D, 0.1, 20, batch_first=batch_first, persistent_table=True)
    state = nn.Sequential(layer).state_dict()
    assert list(state) == ["0.pe"] and state["0.pe"].shape == shape
    assert torch.equal(state["0.pe"].reshape(20, D), sinpe.table(20, D))
    old = nn.Sequential(Tutorial(D, 20, shape))
    old.load_state_dict(state, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.Sequential(Layer(D, batch_first=batch_first)).load_state_dict(state, strict=True)
        nn.Sequential(layer).load_state_dict(old.state_dict(), strict=True)
        nn.Sequential(layer).load_state_dict({}, strict=True)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("batch_first, shape", [(True, (50, 1, D)), (False, (1, 50, D))])
def test_table_of_the_other_dimension_order_warns(batch_first: bool, shape: tuple[int, ...], persistent: bool) -> None:
    """PyTorch's tutorial is sequence first: replaced by a batch-first layer, it would encode the batch dimension."""
    layer = Layer(D, 0.1, 50, batch_first=batch_first, persistent_table=persistent)
    with pytest.warns(UserWarning) as caught:
        nn.Sequential(layer).load_state_dict({"0.pe": naive_table(torch.arange(50.0), D).reshape(shape)}, strict=True)
    ours, theirs = ("batch", "sequence") if batch_first else ("sequence", "batch")
    assert [str(w.message) for w in caught] == [
        f"0.pe: the checkpoint's table has shape {shape}, that of a model with the {theirs} first, and this layer "
        f"takes the {ours} first; pass batch_first={not batch_first}, or transpose its input"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a single row fits either order
        layer.load_state_dict({"pe": naive_table(torch.arange(1.0), D).reshape(1, 1, D)}, strict=True)


def with_table(**options: Any) -> nn.Module:
    return Layer(D, 0.1, 20, persistent_table=True, **options)


def half_and_back(layer: nn.Module) -> nn.Module:
    return layer.half().float()


def emptied(layer: nn.Module) -> nn.Module:
    layer = layer.to("meta").to_empty(device="cpu")
    layer.pe.fill_(torch.nan)
    return layer


def assigned(layer: nn.Module) -> nn.Module:
    layer.load_state_dict({"pe": sinpe.table(20, D).half()[None]}, assign=True)
    return layer


def overwritten(layer: nn.Module) -> nn.Module:
    layer.pe.zero_()
    return layer


@pytest.mark.parametrize(
    "change", [half_and_back, emptied, assigned, overwritten, copy.deepcopy, lambda layer: layer.double()]
)
def test_table_buffer_is_restored_after_changes(change: Any, backend: str) -> None:
    layer = with_table().eval()
    want, x = sinpe.table(20, D)[None], randn(B, S, D)
    assert torch.equal(layer.get_buffer("pe"), want) and [name for name, _ in layer.named_buffers()] == ["pe"]
    layer = change(layer)
    assert layer.get_buffer("pe").shape == want.shape
    state = layer.state_dict()
    assert state["pe"].dtype == torch.float32 and torch.equal(state["pe"], want)
    assert torch.equal(layer(x), sinpe.add(x))  # the buffer is not read
    layer.reset_parameters()
    assert torch.equal(layer.get_buffer("pe").float(), want)


def test_table_of_a_layer_on_meta() -> None:
    with torch.device("meta"):
        layer = with_table()
    assert layer.pe.is_meta and torch.equal(layer.state_dict()["pe"], sinpe.table(20, D)[None])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.load_state_dict({}, strict=True)
        layer.load_state_dict({"pe": sinpe.table(20, D)[None]}, strict=True)
        assert layer.pe.is_meta
        layer.load_state_dict({"pe": sinpe.table(20, D)[None]}, strict=True, assign=True)
    assert torch.equal(layer.pe, sinpe.table(20, D)[None])


def test_loaded_table_does_not_replace_the_buffer() -> None:
    for assign in (False, True):
        layer = with_table()
        with pytest.warns(UserWarning, match=r'it is sinpe.convention\("t2t", 8\)'):
            layer.load_state_dict({"pe": sinpe.table(50, sinpe.convention("t2t", D))[None]}, assign=assign)
        assert torch.equal(layer.pe, sinpe.table(20, D)[None])


def test_equivalent_tables_load_without_warning() -> None:
    grid, rows = sinpe.convention("mae2d", D), sinpe.table(20, D)
    cells = sinpe.table((4, 5), grid)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Layer(D, extra_tokens=1).load_state_dict({"pe": rows[None]})  # no row for the extra token
        Layer(D, extra_tokens=1).load_state_dict({"pe": torch.cat([torch.zeros(1, D), rows])[None]})
        for shape in ((4, 5, D), (1, 4, 5, D), (1, 20, D), (20, D)):
            Layer(D, encoding=grid, grid_shape=(4, 5)).load_state_dict({"pe": cells.reshape(shape)})
        layer = with_table()
        layer.max_len = 30
        layer.load_state_dict(layer.state_dict())
    assert layer.pe.shape == (1, 30, D) and torch.equal(layer.pe, sinpe.table(30, D)[None])
    with pytest.warns(UserWarning, match="row 0 differs by"):
        Layer(D, encoding=grid, grid_shape=(4, 5)).load_state_dict({"pe": rows.reshape(1, 4, 5, D)})
    with pytest.warns(UserWarning, match="row 1 differs by"):
        Layer(D, extra_tokens=1).load_state_dict({"pe": sinpe.table(20, sinpe.convention("t2t", D))[None]})


def test_assigned_table_is_compared() -> None:
    layer = with_table()
    with pytest.warns(UserWarning, match=r'it is sinpe.convention\("t2t", 8\)'):
        layer.pe = sinpe.table(20, sinpe.convention("t2t", D))[None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.pe = sinpe.table(20, D)[None]
        layer.pe = torch.full((1, 20, D), torch.nan)  # unlike any convention
        assert torch.equal(layer.pe, sinpe.table(20, D)[None])  # it stays the layer's own table
        layer.pe = torch.empty(1, 20, D, device="meta")
        assert layer.pe.is_meta
        layer.pe = None
    assert torch.equal(layer.state_dict()["pe"], sinpe.table(20, D)[None])


def test_safetensors_with_a_persistent_table(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = nn.Sequential(nn.Linear(D, D), with_table(learned_alpha=True, alpha=0.5)).half()
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    stored = safetensors.load_file(str(tmp_path / "model.safetensors"))
    assert torch.equal(stored["1.pe"], sinpe.table(20, D)[None])
    other = nn.Sequential(nn.Linear(D, D), with_table(learned_alpha=True))
    assert not any(safetensors.load_model(other, str(tmp_path / "model.safetensors"), strict=True))
    assert other[1].alpha.item() == 0.5 and torch.equal(other[1].pe, sinpe.table(20, D)[None])


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("make", [Layer, lambda dim, **options: sinpe.SinusoidalEmbedding(5, dim, **options)])
def test_alpha_of_either_shape_loads(make: Any, assign: bool) -> None:
    """ESPnet's and SpeechT5's alpha has shape ()."""
    layer = make(D, learned_alpha=True)
    for given in (torch.tensor(0.75), torch.tensor([0.75])):
        layer.reset_parameters()
        state = {**layer.state_dict(), "alpha": given}
        assert not any(nn.Sequential(layer).load_state_dict({f"0.{k}": v for k, v in state.items()}, assign=assign))
        assert layer.alpha.shape == (1,) and layer.alpha.item() == 0.75 and layer.alpha.requires_grad
    layer.alpha = nn.Parameter(torch.tensor(1.0))
    layer.load_state_dict({**layer.state_dict(), "alpha": torch.tensor([0.25])}, assign=assign)
    assert layer.alpha.shape == () and layer.alpha.item() == 0.25
    with pytest.raises(RuntimeError, match="size mismatch for alpha"):
        layer.load_state_dict({**layer.state_dict(), "alpha": torch.ones(2)})


def test_learned_alpha(backend: str) -> None:
    layer = Layer(D, 0.0, alpha=0.5, learned_alpha=True)
    assert isinstance(layer.alpha, nn.Parameter) and layer.alpha.shape == (1,) and layer.alpha.item() == 0.5
    assert list(layer.state_dict()) == ["alpha"]
    x = randn(B, S, D, dtype=torch.float64)
    layer(x).sum().backward()
    want = B * sinpe.table(S, D, dtype=torch.float64).sum()
    assert torch.allclose(layer.alpha.grad.double(), want.reshape(1))
    other = Layer(D, learned_alpha=True)
    other.load_state_dict({**layer.state_dict(), "pe": naive_table(torch.arange(50.0), D)}, strict=True)
    assert other.alpha.item() == 0.5
    with torch.no_grad():
        layer.alpha.fill_(9.0)
    layer.reset_parameters()
    assert layer.alpha.item() == 0.5


@pytest.mark.bad_input(25, "compiled", "eager", "layer")
@pytest.mark.parametrize("learned", [False, True])
def test_copies(learned: bool, backend: str) -> None:
    layer, x = Layer(D, 0.0, 50, encoding="fairseq", scale=3.0, alpha=0.5, learned_alpha=learned), randn(B, S, D)
    want = layer(x)
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    copies = (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(saved, weights_only=False))
    for made in copies:
        assert torch.equal(made(x), want) and repr(made) == repr(layer) and made.encoding == layer.encoding
        assert list(made.state_dict()) == list(layer.state_dict())
        with pytest.warns(UserWarning, match="not this layer's encoding"):
            made.load_state_dict({**layer.state_dict(), "pe": torch.zeros(3, D)})


@pytest.mark.bad_input(25, "compiled", "eager", "layer")
@pytest.mark.parametrize("learned", [False, True])
def test_casts_do_not_change_the_encoding(learned: bool, backend: str) -> None:
    """A table buffer that is cast to bfloat16 loses its positions; this layer has none to cast."""
    for dtype in FLOATS:
        layer = Layer(D, 0.0, learned_alpha=learned).to(dtype)
        x = randn(B, S, D, dtype=dtype)
        assert torch.equal(layer(x, start=5000), sinpe.add(x, start=5000))
        assert torch.equal(layer(randn(B, S, D), start=5000), sinpe.add(randn(B, S, D), start=5000))
    layer = nn.Sequential(Layer(D, 0.0, learned_alpha=learned)).to("meta").to_empty(device="cpu")
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert torch.equal(layer(randn(B, S, D)), sinpe.add(randn(B, S, D)))
    with torch.device("meta"):
        made = Layer(D, learned_alpha=learned).eval()
    assert made(torch.empty(B, S, D, device="meta")).is_meta
    if not learned:
        assert torch.equal(made(randn(B, S, D)), sinpe.add(randn(B, S, D)))


def test_dropout(backend: str) -> None:
    x = torch.full((64, 100, 32), 10.0)
    encoded = sinpe.add(x)
    layer = Layer(32, 0.25)
    torch.manual_seed(0)
    out = layer(x)
    with_table = out != 0
    share = float(with_table.float().mean())
    assert abs(share - 0.75) < 5 * math.sqrt(0.25 * 0.75 / x.numel())  # five standard deviations
    assert torch.allclose(out[with_table], encoded[with_table] / 0.75)
    assert not torch.equal(layer(x), out)
    torch.manual_seed(0)
    assert torch.equal(layer(x), out)
    assert torch.equal(layer.eval()(x), encoded) and torch.equal(Layer(32, 0.0)(x), encoded)
    gone = Layer(32, 1.0)(x.requires_grad_())
    gone.sum().backward()
    assert not bool(gone.any()) and torch.equal(x.grad, torch.zeros_like(x))


def test_repr() -> None:
    assert (
        repr(Layer(D)) == "SinusoidalPositionalEncoding(\n  Encoding(8)\n  (dropout): Dropout(p=0.1, inplace=False)\n)"
    )
    layer = Layer(D, 0.0, 9, batch_first=False, scale=2, alpha=0.5, learned_alpha=True, persistent_table=True)
    shown = "Encoding(8), max_len=9, batch_first=False, scale=2, alpha=0.5, learned_alpha=True, persistent_table=True"
    assert layer.extra_repr() == shown


@pytest.mark.parametrize("encoding", ["t2t", sinpe.Encoding(D)])
def test_encoding_passed_as_dropout_is_rejected(encoding: Any) -> None:
    with pytest.raises(TypeError, match=r"^dropout: expected a float, got .*pass encoding="):
        Layer(D, encoding)
