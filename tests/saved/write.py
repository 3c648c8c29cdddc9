"""Writes the data of tests/modules/test_saved.py: pickles, checkpoints, graphs, digests of results, error messages.

    python tests/saved/write.py FILES|BITS|MESSAGES

FILES are from an earlier version and must not be rewritten; rewrite `bits.json` and `messages.json` with each change
that intentionally alters a result or a message.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sinpe_ext as sinpe

HERE = Path(__file__).parent
D = 8
GRID = sinpe.convention("mae2d", 16)
T2T = sinpe.convention("t2t", D, start=4)


def ids(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) * 7 % 5


def x(*shape: int) -> Tensor:
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) * 37 % 64 - 31) / 16


def weight(rows: int, dim: int) -> Tensor:
    return x(rows, dim) / 2


def filled(layer: nn.Module) -> nn.Module:
    """Sets parameters to values other than the initial ones."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(x(*parameter.shape) + 1)
    return layer


# Layer -> its arguments. In training, a seed determines the mask.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], dict[str, Any]]] = {
    "plain": (lambda: sinpe.SinusoidalPositionalEncoding(D, 0.1).eval(), (x(2, 5, D),), {"start": 3}),
    "training": (lambda: sinpe.SinusoidalPositionalEncoding(D, 0.5, 40), (x(2, 5, D),), {"seed": 7}),
    "named": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, 0, encoding="fairseq", batch_first=False, scale=2.0, alpha=0.5),
        (x(5, 2, D),), {},
    ),
    "learned alpha": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, 0.5, learned_alpha=True), (x(2, 5, D),), {"seed": 2},
    ),
    "persistent table": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, 0.0, 20, encoding=T2T, persistent_table=True), (x(2, 5, D),), {},
    ),
    "everything": (
        lambda: sinpe.SinusoidalPositionalEncoding(
            D, 0.25, 20, learned_alpha=True, persistent_table=True, extra_tokens=1, require_positions=True
        ),
        (x(2, 5, D),), {"positions": torch.tensor([0, 3, 9, 19]), "seed": 5},
    ),
    "grid": (lambda: sinpe.SinusoidalPositionalEncoding(16, 0.5, encoding=GRID), (x(2, 3, 4, 16),), {"seed": 3}),
    "flat grid": (
        lambda: sinpe.SinusoidalPositionalEncoding(
            16, 0.0, encoding=GRID, grid_shape=(3, 4), extra_tokens=1, persistent_table=True
        ),
        (x(2, 13, 16),), {},
    ),
    "pictures": (
        lambda: sinpe.SinusoidalPositionalEncoding(16, 0.0, encoding="detr2d", channel_dim=1), (x(2, 16, 3, 4),), {},
    ),
    "embedding": (
        lambda: sinpe.SinusoidalEmbedding(5, D, 0, scale=3.0, learned_alpha=True, encode_padding=False),
        (ids(2, 6),), {"seed": 4},
    ),
    "sparse embedding": (lambda: sinpe.SinusoidalEmbedding(5, D, sparse=True, max_len=9).eval(), (ids(2, 6),), {}),
    "timesteps": (lambda: sinpe.TimestepEncoding(D), (x(7) * 100,), {}),
    "16-bit timesteps": (
        lambda: sinpe.TimestepEncoding(D, encoding="adm", dtype=None, position_scale=1000).half(), (x(7),), {},
    ),
}  # fmt: skip

ENCODINGS: dict[str, Any] = {
    "plain": sinpe.Encoding(D),
    "every field": sinpe.Encoding(
        9, base=500, layout="sin_cos", shift=0.5, odd="pad", exponent_scale=2, exponent_dim=10, unit="turn",
        position_scale=3, start=5, amplitude=0.5, cos_frequency="own", angle="exact",
    ),
    "frequencies": sinpe.Encoding(6, frequencies=(1.0, 0.5, 0.25), unit="half_turn"),
    "fraction": sinpe.Encoding(D, position_scale=sinpe.convention("mae2d", 16).axes[0].position_scale),
    "float32": sinpe.Encoding(D, angle="float32_pow"),
    **{name: sinpe.convention(name, D) for name in ("paper", "t2t", "fairseq", "ddpm", "unit")},
    **{name: sinpe.convention(name, 16) for name in ("mae2d", "hf2d", "detr2d", "timm2d", "t2t2d")},
    "points": sinpe.convention("nerf", 18),
}  # fmt: skip


class Model(nn.Module):
    """The three operators in a model's graph: embed, then add with dropout, in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = sinpe.SinusoidalEmbedding(5, D, 0, dropout=0.0, scale=2.0)
        self.position = sinpe.SinusoidalPositionalEncoding(D, 0.0, encoding=T2T, learned_alpha=True)

    def forward(self, ids: Tensor, seed: Tensor) -> Tensor:
        hidden = self.position(self.embedding(ids))
        return sinpe.add(hidden, "fairseq", dropout=0.5, seed=seed) + sinpe.add(hidden, start=2, scale=0.5)


class WithoutDropout(Model):
    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        hidden = self.position(self.embedding(ids))
        return sinpe.add(hidden, "fairseq") + sinpe.add(hidden, start=2, scale=0.5)


GRAPH_ARGUMENTS = ids(2, 6), torch.tensor(11)


class Tutorial(nn.Module):
    """The layer of PyTorch's tutorial, for swap."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.0)
        self.register_buffer("pe", sinpe.table(50, D).unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.pe[: x.size(0)])  # type: ignore[index]


def write_files() -> None:
    from sinpe_ext.integrations import swap

    layers = {name: filled(make()) for name, (make, _, _) in LAYERS.items()}
    torch.save(layers, HERE / "layers.pt")
    torch.save({name: layer.state_dict() for name, layer in layers.items()}, HERE / "state_dicts.pt")
    results = {name: layer(*LAYERS[name][1], **LAYERS[name][2]).detach() for name, layer in layers.items()}
    (HERE / "encodings.pickle").write_bytes(pickle.dumps(ENCODINGS, protocol=4))
    Tutorial.__module__, sys.modules["saved_model"] = "saved_model", sys.modules[__name__]
    model = nn.Sequential(Tutorial())
    swap(model)
    torch.save(model, HERE / "swapped.pt")
    results["swapped"] = model(x(5, 2, D)).detach()
    model = filled(Model())
    results["graph"] = model(*GRAPH_ARGUMENTS).detach()
    graph = torch.export.export(model, GRAPH_ARGUMENTS)
    for node in graph.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains paths of the machine
    torch.export.save(graph, HERE / "model.pt2")
    model = filled(WithoutDropout())
    results["onnx"] = model(GRAPH_ARGUMENTS[0]).detach()
    program = torch.onnx.export(model, GRAPH_ARGUMENTS[:1], dynamo=True)
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()
    program.save(HERE / "model.onnx", external_data=False)
    torch.save(results, HERE / "results.pt")


def results() -> Iterator[tuple[str, Tensor]]:
    """Results of all kinds that are equal bit by bit on all backends: no float64, and only some gradients."""
    floats = torch.float32, torch.bfloat16, torch.float16
    for name in sinpe.conventions():
        dim = 48 if name == "cogvideo3d" else 18 if name == "nerf" else 7 if name == "tcnn" else 24
        encoding = sinpe.convention(name, dim)
        axes = getattr(encoding, "ndim", 1)
        for dtype in floats:
            if axes > 1:
                yield f"table {name} {dtype}", sinpe.table((5, 6, 7)[:axes], encoding, dtype=dtype)
                continue
            yield f"table {name} {dtype}", sinpe.table(70, encoding, dtype=dtype)
            yield f"far {name} {dtype}", sinpe.table(9, encoding, start=2**40 + 3, dtype=dtype)
            yield f"encode {name} {dtype}", sinpe.encode(x(64) * 333.3, encoding, dtype=dtype)
        if axes == 1:
            yield f"add {name}", sinpe.add(x(2, 9, dim), encoding, positions=ids(2, 9) * 2**33, scale=2, alpha=0.5)
    for dtype in floats:
        data = x(3, 11, 24).to(dtype)
        yield f"masked {dtype}", sinpe.add(data, start=ids(3), padding_mask=ids(3, 11) == 0, dropout=0.3, seed=5)
        yield f"grid {dtype}", sinpe.add(x(2, 3, 4, 24).to(dtype), "mae2d", dropout=0.3, seed=-5)
        yield f"first {dtype}", sinpe.add(x(11, 3, 24).to(dtype), seq_dim=0, dropout=0.9, seed=2**62)
        yield f"channels {dtype}", sinpe.add(x(3, 24, 11).to(dtype), seq_dim=2, channel_dim=1, dropout=0.1, seed=1)
        data, rows, alpha = (
            data.requires_grad_(),
            weight(5, 24).to(dtype).requires_grad_(),
            torch.ones((), requires_grad=True),
        )
        sinpe.add(data, dropout=0.3, seed=9, scale=0.7, alpha=alpha).backward(x(3, 11, 24).to(dtype))
        yield f"gradient of x {dtype}", data.grad  # type: ignore[misc]
        out = sinpe.embed(ids(3, 11), rows, "t2t", scale=3, dropout=0.3, seed=8, padding_idx=1, alpha=alpha)
        yield f"embed {dtype}", out.detach()
        out.backward(x(3, 11, 24).to(dtype))
        yield f"gradient of weight {dtype}", rows.grad  # type: ignore[misc]
        # Tokens with frequencies as in text: sums of two levels of the tree, of one, and of few tokens.
        k, rows = torch.arange(5000)[None], weight(8, 24).to(dtype).requires_grad_()
        often = torch.where(k % 8 != 0, 0, torch.where(k % 64 != 0, 1, 2 + k // 64 % 6))  # 4375, 546, 13 or 14 times
        sinpe.embed(often, rows, dropout=0.3, seed=8).backward((k[..., None] * 37 % 1021 + x(1, 1, 24)).to(dtype) / 7)
        yield f"gradient of weight, frequent tokens {dtype}", rows.grad  # type: ignore[misc]


def digest(result: Tensor) -> str:
    return hashlib.sha256(result.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def bits() -> dict[str, str]:
    return {name: digest(result) for name, result in results()}


# Test modules and their tables of bad calls: (call, error, part of the message).
ERRORS = {
    "test_bad_input": ("ADD", "TABLE", "ENCODE", "NUMBERS"),
    "test_bad_writes": ("LAYER", "NUMPY"),
    "test_error_messages": ("MESSAGES",),
    "test_grid_errors": ("ERRORS",),
    "test_embed": ("ERRORS",),
    "test_positions": ("ERRORS",),
    "test_timestep": ("ERRORS",),
}


# Depends on which modules the process has imported.
SAID_WITH_FSDP = "; fully_shard casts float inputs so, unless MixedPrecisionPolicy has cast_forward_inputs=False"


def messages() -> dict[str, str]:
    """Complete error messages of the bad calls of other tests."""
    found = {}
    for module, tables in ERRORS.items():
        for table in tables:
            cases = getattr(importlib.import_module(module), table)
            for name, case in cases.items() if isinstance(cases, dict) else enumerate(cases):
                arguments = ("cpu",) if module == "test_bad_input" else ()
                try:
                    case[0](*arguments)
                    found[f"{module} {table} {name}"] = "nothing"
                except Exception as error:
                    said = str(error).partition("\n\nfrom user code")[0].replace(SAID_WITH_FSDP, "")
                    found[f"{module} {table} {name}"] = f"{type(error).__name__}: {said}"
    return found


def write_json(name: str, content: dict[str, str]) -> None:
    (HERE / name).write_text(json.dumps(content, indent=0) + "\n")


if __name__ == "__main__":
    sys.path[:0] = [str(folder) for folder in HERE.parent.iterdir()]  # for the tables of other tests
    warnings.simplefilter("ignore")
    if "FILES" in sys.argv:
        write_files()
    if "BITS" in sys.argv:
        write_json("bits.json", bits())
    if "MESSAGES" in sys.argv:
        write_json("messages.json", messages())
