"""All rows of the benchmark with their targets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import sinpe_ext as sinpe

from . import peers as peer
from .cases import (
    COMPILED,
    NAIVE,
    Calls,
    P,
    Place,
    Row,
    add,
    add_image,
    against,
    compiled_chain,
    copy_or_fill,
    embed,
    encode,
    identified,
    layout,
    library_table,
    points,
    table,
    timesteps,
    training_step,
)
from .small import (
    CACHED_ROWS,
    COMPILED_ROWS,
    CUDA_DECODE_ROWS,
    CUDA_HOST_ROWS,
    DECODE_ROWS,
    EAGER_ROWS,
    HOST_ROWS,
)
from .survey import SURVEY

WIDE, ALONE, TRAINED = (32, 512, 1024), (1, 16384, 1024), (16, 512, 1024)
FILL, FULL, CLONE, COPY = "out.fill_(1)", "torch.full", "x.clone()", "y.copy_(x)"
STORED, LAYOUTS = "a stored table", ("sequence first", "channels first", "heads")
BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
long_table = partial(table, length=4096, dim=1024)

# fmt: off
TABLES: tuple[Row, ...] = (
    # name, title, calls, floor, target, peers with their targets
    Row("table", "table 4096x1024, reused", long_table, FILL, 1.45, {NAIVE: 9.0}),
    Row("fairseq", "table 4096x1024 t2t", partial(library_table, convention="t2t", name="fairseq",
        build=peer.fairseq_table), FILL, None, {"fairseq": 10.0}),
    Row("diffusers", "table 4096x1024 ddpm", partial(library_table, convention="ddpm", name="diffusers",
        build=peer.diffusers_table), FILL, None, {"diffusers": 10.0}),
    Row("transformers", "table 4096x1024 paper_concat", partial(library_table, convention="paper_concat",
        name="transformers", build=peer.transformers_table), FILL, None, {"transformers": 10.0}, slow=True),
    Row("table_long", "table 131072x512, reused", partial(table, length=131072, dim=512), FILL, 1.2, {NAIVE: None}),
    Row("table_fresh", "table 131072x512, fresh", partial(table, length=131072, dim=512, into="new"), FULL, 1.2,
        {NAIVE: 4.0}),
    Row("table_bf16", "table 4096x1024 bf16", partial(long_table, dtype=BF16), FILL, 2.5, {NAIVE: 12.0}),
    Row("table_f16", "table 4096x1024 f16", partial(long_table, dtype=F16), FILL, 3.5, {NAIVE: 12.0}),
    Row("table_f64", "table 4096x1024 f64", partial(long_table, dtype=F64), FILL, 3.5, {NAIVE: 3.0}),
    Row("table_odd", "table 4096x1023", partial(table, length=4096, dim=1023), FILL),
    Row("table_own", "table 4096x1024 own_index", partial(long_table,
        encoding=sinpe.convention("own_index", 1024, start=0)), FILL),
    Row("table_kept", "table 512x512", partial(table, length=512, dim=512, into="kept"), "pe.clone()", 1.5),
    Row("table_kept_bf16", "table 512x512 bf16", partial(table, length=512, dim=512, into="kept", dtype=BF16),
        "pe.clone()", 2.0),
    Row("add", "add (32,512,1024), fresh", partial(add, shape=WIDE), CLONE, 1.10, {"eager": 1.0}),
    Row("add_out", "add (32,512,1024), out=", partial(add, shape=WIDE, into="out"), COPY, 1.05, {"eager": 1.0}),
    Row("add_inplace", "add_ (32,512,1024)", partial(add, shape=WIDE, into="inplace"), "x.mul_(1.0)", 1.10,
        {"eager": 1.0}),
    Row("add_one", "add (1,16384,1024), fresh", partial(add, shape=ALONE), CLONE, 1.2, {"eager": 1.0}),
    Row("add_one_out", "add (1,16384,1024), out=", partial(add, shape=ALONE, into="out"), COPY, 1.35, {"eager": 1.0}),
    Row("add_one_inplace", "add_ (1,16384,1024)", partial(add, shape=ALONE, into="inplace"), "x.mul_(1.0)", None,
        {"eager": None}),
    Row("add_positions", "add (32,512,1024), random positions, out=", partial(add, shape=WIDE, into="out",
        positions=True), COPY, None, {"eager": None}),
    *(Row(f"layout_{kind.replace(' ', '_')}{case}{suffix}", f"add {str(shape).replace(' ', '')}, {kind}{title}{half}",
          partial(layout, shape=shape, kind=kind, dtype=dtype, dropout=P if case not in ("", "_small") else 0.0,
                  backward=case == "_train"), floor, target)
      for kind in LAYOUTS
      for dtype, suffix, half in ((torch.float32, "", ""), (BF16, "_bf16", " bf16"))
      for case, shape, title, floor, target in (
          ("", WIDE, "", STORED, 1.15), ("_small", (4, 16, 512), "", STORED, 1.3),
          ("_dropout", WIDE, ", dropout", "batch first", 1.15),
          ("_train", TRAINED, ", dropout, backward", "batch first", 1.15))),
    Row("encode", "encode 1M random int64 x 128", partial(encode, count=1_000_000, largest=2.0**31), FULL, 1.5,
        {"float64 formula": 5.0}),
    # No page faults: malloc keeps up to 32 MiB for the next call. The float64 result is larger.
    Row("encode_kept", "encode 50k random int64 x 128, kept memory", partial(encode, count=50_000, largest=2.0**31),
        FULL, 2.4, {"float64 formula": 5.0}),
    Row("encode_bf16", "encode 50k random int64 x 128, bfloat16", partial(encode, count=50_000, largest=2.0**31,
        dtype=BF16), FULL),
    *DECODE_ROWS,
    Row("timesteps", "encode 8 timesteps x 320", timesteps, "empty, fill_", 2.5, {"diffusers": 4.0}),
    Row("eager", "eager reference, table 4096x1024", partial(against, partial(long_table, into="new"), NAIVE),
        NAIVE, 1.5, backend="eager"),
    Row("compile", "compiled embed, PE, LayerNorm", partial(compiled_chain, shape=WIDE, fused=False), "ready table",
        1.05, {"eager": None}, slow=True),
)

TRAINING: tuple[Row, ...] = (
    Row("dropout", "add + dropout (32,512,1024), fresh", partial(add, shape=WIDE, dropout=P), CLONE, 1.3,
        {"eager": 5.5, COMPILED: 3.0}),
    Row("dropout_inplace", "add_ + dropout (32,512,1024)", partial(add, shape=WIDE, into="inplace", dropout=P),
        "x.mul_(1.0)", 2.0, {"eager": 20.0}),
    Row("dropout_one", "add + dropout (1,16384,1024), fresh", partial(add, shape=ALONE, dropout=P), CLONE, None,
        {"eager": None}),
    Row("dropout_train", "add + dropout (16,512,1024), backward", partial(add, shape=TRAINED, dropout=P, backward=True),
        "two clones", 1.35, {"eager": 3.5}),
    Row("alpha_train", "the same with a learned alpha", partial(add, shape=TRAINED, dropout=P, backward=True,
        alpha=0.5), "two clones", None, {"eager": None}),
    Row("embed", "embed (32,512,1024), fresh", partial(embed, shape=WIDE, floor="lookup"), "F.embedding", 1.0,
        {"eager": 2.5, COMPILED: 1.0}),
    Row("embed_one", "embed (1,16384,1024), fresh", partial(embed, shape=ALONE, floor="lookup"), "F.embedding", None,
        {"eager": None}),
    Row("embed_train", "embed + dropout (16,512,1024), backward", partial(embed, shape=TRAINED, dropout=P,
        backward=True), "two copies", None, {"eager": 3.0}),
    Row("embed_train_text", "the same with ids of a text", partial(embed, shape=TRAINED, dropout=P, backward=True,
        of_text=True), "two copies", None, {"eager": 3.0}),
    Row("eager_dropout", "eager reference, add + dropout", partial(against, partial(add, shape=TRAINED, dropout=P),
        "eager"), "F.dropout(x + pe)", backend="eager"),
    Row("compile_dropout", "compiled embed, PE, dropout, LayerNorm", partial(compiled_chain, shape=WIDE, dropout=P),
        "ready table", 1.0, {"eager": None}, slow=True),
    Row("compile_train", "the same (16,512,1024), backward", partial(compiled_chain, shape=TRAINED, dropout=P,
        backward=True), "ready table", 1.0, {"eager": None}, grad=True, slow=True),
    Row("compile_train_plain", "the same without dropout", partial(compiled_chain, shape=TRAINED, backward=True),
        "ready table", 1.05, {"eager": None}, grad=True, slow=True),
    Row("train_step", "training step, small language model", training_step, "torch layers", grad=True, slow=True),
    Row("train_step_compiled", "the same under torch.compile", partial(training_step, compiled=True), "torch layers",
        grad=True, slow=True),
)

GRIDS: tuple[Row, ...] = (
    Row("grid_add", "add mae2d (64,14*14,768), out=", partial(add_image, shape=(64, 14, 14, 768)), COPY, None,
        {"eager": None}),
    Row("grid_add_large", "add mae2d (8,64*64,1024), out=", partial(add_image, shape=(8, 64, 64, 1024)), COPY, 1.10,
        {"eager": 1.0}),
    Row("grid_add_first", "add detr2d (8,256,100,100), out=", partial(add_image, shape=(8, 100, 100, 256),
        channels_first=True), COPY, 1.10, {"DETR": None}),
    Row("points", "encode 1M points x 3, nerf 60", partial(points, count=1_000_000, octaves=10), FULL, None,
        {"NeRF": None}),
    Row("timestep_layer", "TimestepEncoding, 8 x 320", partial(timesteps, layer=True), "empty, fill_", 3.0,
        {"diffusers": 4.0}),
    Row("identify", "identify 5000x512", partial(identified, length=5000, dim=512)),
)

SMALL: tuple[Row, ...] = (
    # results of 8 MiB, for which malloc keeps its memory
    *(Row(f"encode_{dim}_{kind}", f"encode {2**21 // dim} {kind} x {dim}",
          partial(encode, count=2**21 // dim, dim=dim, largest=1000.0, integers=kind == "int64"), FULL, None,
          {NAIVE: 1.0})
      for dim in (2, 4, 8, 16, 32, 64) for kind in ("int64", "float32")),
    *CACHED_ROWS,
    *COMPILED_ROWS,
    *EAGER_ROWS,
)


def cuda(name: str, title: str, build: Callable[[Place], Calls], floor: str, target: float | None = None,
         **peers: float | None) -> Row:
    named = {{"compiled": COMPILED, "naive": NAIVE}.get(peer, peer): aim for peer, aim in peers.items()}
    return Row(f"cuda_{name}", f"CUDA: {title}", build, floor, target, named, device="cuda")


# Targets of ours / floor in float32 and in 16 bits.
CUDA: tuple[Row, ...] = (
    *(cuda(f"{name}_{s}", f"torch's {name} {s}", partial(copy_or_fill, dtype=dtype, copy=name == "copy"), "itself")
      for dtype, s in ((torch.float32, "f32"), (BF16, "bf16")) for name in ("copy", "fill")),
    cuda("add_f64", "add f64", partial(add, dtype=F64, into="out"), COPY, eager=None, compiled=None),
    *(row
    for dtype, s, half in ((torch.float32, "f32", 0), (BF16, "bf16", 1), (F16, "f16", 1))
    for row in (
        cuda(f"table_{s}", f"table {s}", partial(table, dtype=dtype), FILL, (1.05, 1.08)[half], naive=None),
        cuda(f"add_{s}", f"add {s}", partial(add, dtype=dtype, into="out"), COPY, (1.03, 1.02)[half], eager=None,
             compiled=1.0),
        cuda(f"positions_{s}", f"add, positions {s}", partial(add, dtype=dtype, into="out", positions=True), COPY,
             (1.05, 1.04)[half], eager=None, compiled=1.0),
        cuda(f"dropout_{s}", f"add + dropout {s}", partial(add, dtype=dtype, into="out", dropout=P), COPY, 1.05,
             eager=None, compiled=1.0),
        cuda(f"dropout_train_{s}", f"add + dropout, backward {s}", partial(add, dtype=dtype, dropout=P, backward=True),
             "two clones", 1.04, eager=None, compiled=1.0),
        cuda(f"embed_{s}", f"embed {s}", partial(embed, dtype=dtype), COPY, 1.03, eager=None, compiled=1.0),
        cuda(f"embed_text_{s}", f"embed, ids of a text {s}", partial(embed, dtype=dtype, of_text=True), COPY,
             (0.78, 0.73)[half], eager=None, compiled=1.0),
        cuda(f"embed_dropout_{s}", f"embed + dropout {s}", partial(embed, dtype=dtype, dropout=P), COPY, eager=None,
             compiled=1.0),
        cuda(f"add_inplace_{s}", f"add_ {s}", partial(add, dtype=dtype, into="inplace"), "x.mul_(1.0)", eager=None),
        cuda(f"timesteps_{s}", f"encode 8 timesteps {s}", partial(timesteps, dtype=dtype), "empty, fill_",
             diffusers=None),
        cuda(f"timesteps_many_{s}", f"encode 16384 timesteps x 512 {s}",
             partial(timesteps, count=16384, dim=512, dtype=dtype), "empty, fill_", diffusers=None),
        cuda(f"encode_{s}", f"encode 1M positions x 128 {s}", partial(encode, dtype=dtype), FULL, (1.12, 1.20)[half],
             naive=None),
        *(cuda(f"encode_{dim}_{s}", f"encode random positions x {dim} {s}", partial(encode, dtype=dtype, dim=dim), FULL,
               target, naive=1.0)
          for dim, target in ((2, (1.6, 2.5)[half]), (8, (1.4, 2.0)[half]), (32, None))),
    )),
    *(row
    for dtype, s, half in ((torch.float32, "f32", 0), (BF16, "bf16", 1))
    for row in (
        cuda(f"grid_{s}", f"add mae2d {s}", partial(add_image, dtype=dtype), COPY, (1.05, 1.08)[half], eager=None),
        cuda(f"grid_first_{s}", f"add detr2d, channels first {s}", partial(add_image, dtype=dtype, channels_first=True),
             COPY, (1.05, 1.08)[half], eager=None),
        *(cuda(f"layout_{kind.replace(' ', '_')}{case}_{s}", f"add, {kind}{title} {s}",
               partial(layout, kind=kind, dtype=dtype, dropout=dropout), floor, 1.15)
          for kind in LAYOUTS
          for case, title, dropout, floor in (("", "", 0.0, STORED), ("_dropout", ", dropout", P, "batch first"))),
        cuda(f"embed_train_{s}", f"embed + dropout, backward {s}", partial(embed, dtype=dtype, dropout=P,
             backward=True), "two copies", (1.0, 1.08)[half], eager=None, compiled=1.0),
        cuda(f"embed_train_text_{s}", f"embed + dropout, ids of a text, backward {s}", partial(embed, dtype=dtype,
             dropout=P, backward=True, of_text=True), "two copies", (0.9, 1.04)[half], eager=None, compiled=1.0),
        cuda(f"alpha_train_{s}", f"learned alpha, backward {s}", partial(add, dtype=dtype, dropout=P, alpha=0.5,
             backward=True), "two clones", (1.10, 1.12)[half], eager=None, compiled=1.0),
    )),
    *CUDA_DECODE_ROWS,
)
# fmt: on

ROWS: tuple[Row, ...] = (*TABLES, *TRAINING, *GRIDS, *SMALL, *HOST_ROWS, *SURVEY, *CUDA, *CUDA_HOST_ROWS)
