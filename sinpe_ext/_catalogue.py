"""Conventions by name. A convention is a row of `CATALOGUE`: adding one is one entry and no other code."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .encoding import MAX_DIM, Encoding, integer


class Convention(NamedTuple):
    """What a name stands for; a field given as a function is computed from dim."""

    description: str
    users: str
    fields: Mapping[str, Any | Callable[[int], Any]]


_T2T = {"layout": "sin_cos", "shift": 1, "odd": "pad"}
_ADM = {"layout": "cos_sin", "odd": "pad"}

CATALOGUE: dict[str, Convention] = {
    "paper": Convention(
        "sin and cos alternate, frequency 10000^(-2i/d)",
        "Vaswani et al. 2017, the PyTorch tutorial, The Annotated Transformer, ESPnet, WeNet, SpeechBrain, KerasHub, "
        "xFormers, DistilBERT",
        {},
    ),
    "paper_concat": Convention(
        "the paper's frequencies, all sin then all cos",
        "Marian and CTRL in Hugging Face transformers, x-transformers",
        {"layout": "sin_cos"},
    ),
    "own_index": Convention(
        "sin and cos alternate, each channel j with its own frequency 10000^(-j/d)",
        "tutorials that use the odd index for the cos",
        {"cos_frequency": "own"},
    ),
    "doubled_index": Convention(
        "sin and cos alternate, each channel j with its own frequency 10000^(-2j/exponent_dim)",
        "tutorials that double an index that already steps by two",
        {"cos_frequency": "own", "exponent_scale": 2},
    ),
    "t2t": Convention(
        "all sin then all cos, frequency 10000^(-i/(d/2-1)), odd d ends in a zero channel",
        "Tensor2Tensor, Whisper, AllenNLP, Texar, fairseq2, OpenNMT-py (SinusoidalConcat), Marian",
        _T2T,
    ),
    "fairseq": Convention(
        "t2t with the first position at 2 (padding_idx + 1)",
        "fairseq, M2M100, Speech2Text, FSMT",
        {**_T2T, "start": 2},
    ),
    "ctranslate2": Convention("t2t with the first position at 1", "CTranslate2", {**_T2T, "start": 1}),
    "musicgen": Convention("t2t with all cos before all sin", "MusicGen", {**_T2T, "layout": "cos_sin"}),
    "ddpm": Convention(
        "t2t's frequencies on diffusion timesteps: all sin then all cos",
        "DDPM, diffusers (flip_sin_to_cos=False, downscale_freq_shift=1)",
        _T2T,
    ),
    "adm": Convention(
        "all cos then all sin, frequency 10000^(-i/(d//2)), odd d ends in a zero channel",
        "guided-diffusion, DiT, diffusers (flip_sin_to_cos=True, downscale_freq_shift=0)",
        _ADM,
    ),
    "flux": Convention("adm with timesteps in 0..1 times 1000", "FLUX", {**_ADM, "position_scale": 1000}),
    "unit": Convention(
        "the paper's encoding divided by sqrt(d)",
        "NeMo (FixedPositionalEncoding)",
        {"amplitude": lambda dim: 1 / math.sqrt(dim)},
    ),
}


def convention(name: str, dim: int, **fields: Any) -> Encoding:
    """The encoding that a library or paper uses, by name.

    Equivalent to, for `convention("t2t", 512, start=3)`:
        Encoding(512, layout="sin_cos", shift=1, odd="pad", start=3)

    Args:
        name: a key of `conventions()`; case and the difference between - and _ do not count.
        dim: number of channels.
        fields: fields of `Encoding` that override the convention's.

    Raises:
        TypeError: a name that is no string, or a field that Encoding lacks.
        ValueError: an unknown name, or a field out of range.
    """
    entry = CATALOGUE[resolve(name)]
    dim = integer("dim", dim, 1, MAX_DIM, "pass the number of channels")
    own = {key: value(dim) if callable(value) else value for key, value in entry.fields.items()}
    return Encoding(dim, **{**own, **fields})


def conventions() -> dict[str, str]:
    """Every name that `convention` knows, with one line on what it is and who uses it."""
    return {name: f"{entry.description}; used by {entry.users}" for name, entry in CATALOGUE.items()}


def resolve(name: str) -> str:
    """The catalogue's spelling of a convention's name."""
    if not isinstance(name, str):
        raise TypeError(f"convention: expected a name, got {type(name).__name__}; pass one of {_all()}")
    key = name.lower().replace("-", "_")
    if key not in CATALOGUE:
        close = difflib.get_close_matches(key, CATALOGUE, n=3, cutoff=0.5)
        advice = f"did you mean {' or '.join(close)}? All" if close else "the"
        raise ValueError(f'convention: expected a known name, got "{name}"; {advice} names: {_all()}')
    return key


def _all() -> str:
    return ", ".join(CATALOGUE)
