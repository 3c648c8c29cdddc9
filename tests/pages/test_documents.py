"""Printed outputs of five published implementations, reproduced with the public API.

Fixed numbers are equal to the last digit, random ones in distribution. Only the numbers are taken from those
implementations.
"""

from __future__ import annotations

import math
import os
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import execute
from torch import nn
from ulp import same_bits

import sinpe_ext as sinpe
from sinpe_ext import Encoding, SinusoidalPositionalEncoding, convention, plot

FORMULA = 1e-12  # a float64 formula at positions below 1000
TWO_ROUNDINGS = 2.0**-23  # relative: torch's dropout multiplies by the rounded 1 / 0.9, and rounds the product


def assert_printed(values: Any, text: str) -> None:
    """Each value, formatted with the digits of `text`, equals the number in `text`."""
    got = [Decimal(float(v)) for v in np.asarray(values, dtype=np.float64).ravel()]
    printed = re.findall(r"-?\d+\.\d*(?:e[-+]\d+)?", text)
    assert len(got) == len(printed) and got
    # NumPy drops trailing zeros: the longest number has all digits.
    places = max(len(number.partition("e")[0].partition(".")[2]) for number in printed)
    for value, number in zip(got, printed, strict=True):
        unit = Decimal(10) ** (int(number.partition("e")[2] or 0) - places)
        assert abs(value - Decimal(number)) <= unit / 2, (float(value), number)


# document 000
SINES_000 = """
  0.0000 0.0000 0.0000   0.8415 0.0464 0.0022   0.9093 0.0927 0.0043   0.1411 0.1388 0.0065   -0.7568 0.1846 0.0086
 -0.9589 0.2300 0.0108  -0.2794 0.2749 0.0129   0.6570 0.3192 0.0151   0.9894 0.3629 0.0172    0.4121 0.4057 0.0194 """
COSINES_000 = """
  1.0000 1.0000 1.0000   0.5403 0.9989 1.0000  -0.4161 0.9957 1.0000  -0.9900 0.9903 1.0000   -0.6536 0.9828 1.0000
  0.2837 0.9732 0.9999   0.9602 0.9615 0.9999   0.7539 0.9477 0.9999  -0.1455 0.9318 0.9999   -0.9111 0.9140 0.9998 """
TABLE_000 = """
 0.0000  1.0000 0.0000 1.0000 0.0000 1.0000    0.8415  0.5403 0.0464 0.9989 0.0022 1.0000
 0.9093 -0.4161 0.0927 0.9957 0.0043 1.0000    0.1411 -0.9900 0.1388 0.9903 0.0065 1.0000
-0.7568 -0.6536 0.1846 0.9828 0.0086 1.0000   -0.9589  0.2837 0.2300 0.9732 0.0108 0.9999
-0.2794  0.9602 0.2749 0.9615 0.0129 0.9999    0.6570  0.7539 0.3192 0.9477 0.0151 0.9999
 0.9894 -0.1455 0.3629 0.9318 0.0172 0.9999    0.4121 -0.9111 0.4057 0.9140 0.0194 0.9998 """


def test_000_denominators() -> None:
    shared, per_channel = Encoding(6), Encoding(6, cos_frequency="own")
    assert_printed(shared.timescales()[:2], "1.0000 21.5443")
    # 10000^(2/3) is 464.15888; the printed number has a float32 exponent.
    assert shared.timescales()[2] == pytest.approx(464.1590, abs=5e-5 + 464.159 * math.log(10000) * 2.0**-24)
    assert_printed([6 * math.log(t, 10000) for t in shared.timescales()], "0. 2. 4.")  # even_i
    assert_printed([6 * math.log(t, 10000) for t in per_channel.timescales()[1::2]], "1. 3. 5.")  # odd_i
    # One denominator serves both, as the document notes.
    by_hand = [10000 ** ((i - 1) / 6) for i in (1, 3, 5)]
    assert shared.timescales() == pytest.approx(by_hand, rel=FORMULA)


def test_000_tables(backend: str) -> None:
    position = torch.arange(10, dtype=torch.float).reshape(10, 1)
    table = sinpe.table(10, Encoding(6))
    assert_printed(table[:, 0::2], SINES_000)
    assert_printed(table[:, 1::2], COSINES_000)
    halves = sinpe.table(10, convention("paper_concat", 6))
    assert_printed(halves[:, :3], SINES_000)
    assert_printed(halves[:, 3:], COSINES_000)
    stacked = torch.stack([halves[:, :3], halves[:, 3:]], dim=2)
    assert stacked.shape == torch.Size([10, 3, 2])
    assert_printed(stacked, TABLE_000)
    assert_printed(torch.flatten(stacked, start_dim=1, end_dim=2), TABLE_000)
    assert_printed(table, TABLE_000)  # also the class
    assert_printed(sinpe.encode(position, 6).squeeze(1), TABLE_000)
    assert_printed(SinusoidalPositionalEncoding(6, 0.0)(torch.zeros(1, 10, 6)), TABLE_000)
    assert_printed(sinpe.table(10, Encoding(6, angle="float32_pow")), TABLE_000)


# document 001
TABLE_001A = """
 0.0000e+00 1.0000e+00 0.0000e+00 1.0000e+00 0.0000e+00 1.0000e+00
 8.4147e-01 1.0000e+00 1.0000e-08 1.0000e+00 1.0000e-16 1.0000e+00 """
SINES_001A = "0.0000e+00 0.0000e+00 0.0000e+00 8.4147e-01 1.0000e-08 1.0000e-16"
TABLE_001B = """
 0.0000  1.0000 0.0000 1.0000    0.8415  0.5403 0.0100 0.9999    0.9093 -0.4161 0.0200 0.9998
 0.1411 -0.9900 0.0300 0.9996   -0.7568 -0.6536 0.0400 0.9992   -0.9589  0.2837 0.0500 0.9988
-0.2794  0.9602 0.0600 0.9982    0.6570  0.7539 0.0699 0.9976 """


@pytest.mark.parametrize(
    "encoding",
    [
        convention("doubled_index", 6, exponent_dim=2),
        Encoding(6, cos_frequency="own", exponent_scale=2, exponent_dim=2),
    ],
    ids=["convention", "fields"],
)
def test_001_positional_encoder(backend: str, encoding: Encoding) -> None:
    batch = torch.rand(2, 6)  # its number of rows is both the length and the exponent's dimension
    table = sinpe.table(len(batch), encoding)
    assert_printed(table, TABLE_001A)
    assert_printed(table[:, 0::2], SINES_001A)
    assert_printed(table[:, 1::2], "1. 1. 1. 1. 1. 1.")
    assert encoding.timescales() == (1.0, 1e4, 1e8, 1e12, 1e16, 1e20)
    assert same_bits(sinpe.add(batch, encoding), batch + table)
    assert float(table[1, 4]) == float(torch.tensor(1e-16))  # to the last bit


def test_001_positional_encodings(backend: str) -> None:
    assert_printed(sinpe.table(8, Encoding(4, base=10000)), TABLE_001B)
    assert_printed(sinpe.table(8, Encoding(4, angle="float32_exp")), TABLE_001B)
    other = sinpe.table(8, Encoding(4, base=100), dtype=torch.float64)
    assert other[7].tolist() == pytest.approx([math.sin(7), math.cos(7), math.sin(0.7), math.cos(0.7)], abs=FORMULA)


def test_001_module(backend: str) -> None:
    """dropout(x + pe[:x.size(0)]) of x (length, d): kept elements are the sum over 0.9, others are 0."""
    layer = SinusoidalPositionalEncoding(4, 0.1, 5000)
    keeping = 1 - round(0.1 * 65536) / 65536  # 0.9, except for the rounding of the probability to 16 bits
    for length in (10, 5000):
        x = torch.rand(length, 4)
        total = x + sinpe.table(5000, 4)[: x.size(0)]
        torch.manual_seed(length)
        y = layer.train()(x)
        assert y.shape == x.shape
        kept = y != 0
        assert torch.allclose(y[kept], total[kept] / keeping, rtol=TWO_ROUNDINGS, atol=0)
        assert same_bits(layer.eval()(x), total)
    assert 0.05 < 1 - float(kept.float().mean()) < 0.15  # a tenth of 20,000
    with pytest.raises(IndexError, match="max_len"):
        layer(torch.rand(5001, 4))


# document 002
OWN_INDEX = convention("own_index", 100)


def own_index(positions: np.ndarray, dim: int) -> np.ndarray:
    """sin(p / n^(even/dim)) and cos(p / n^(odd/dim)), alternating."""
    angle = positions[:, None] / 10000.0 ** (np.arange(dim) / dim)
    return np.where(np.arange(dim) % 2 == 0, np.sin(angle), np.cos(angle))


def test_002_encoding_of_positions(backend: str) -> None:
    y = sinpe.encode(torch.tensor(range(200)), OWN_INDEX)
    assert y.shape == torch.Size([200, 100])
    assert OWN_INDEX == Encoding(100, cos_frequency="own")
    assert np.allclose(y, own_index(np.arange(200), 100), rtol=0, atol=2.0**-24)
    positions = torch.tensor([7, 3, 199, 3, 12.5])  # any vector of positions
    got = sinpe.encode(positions, OWN_INDEX, dtype=torch.float64)
    assert np.allclose(got, own_index(positions.numpy(), 100), rtol=0, atol=FORMULA)
    assert same_bits(sinpe.encode(positions[:4].long(), OWN_INDEX), y[[7, 3, 199, 3]])


def test_002_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    y = sinpe.encode(torch.arange(200), OWN_INDEX)
    lines = plot.curves(y, (5, 6, 50), ax=Figure().add_subplot())
    assert [line.get_label() for line in lines.get_lines()] == ["5", "6", "50"]
    for line, row in zip(lines.get_lines(), (5, 6, 50), strict=True):
        assert np.array_equal(line.get_ydata(), y[row])
    image = plot.heatmap(y, transpose=True, cmap="Purples", ax=Figure().add_subplot())
    assert np.array_equal(image.get_images()[0].get_array(), y.T)
    for name, ax in (("lines", lines), ("matshow", image)):
        ax.figure.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


# document 003
TERM_SIN_003 = """
 0.          0.          0.          0.           0.84147098  0.09983342  0.00999983  0.001
 0.90929743  0.19866933  0.01999867  0.002        0.14112001  0.29552021  0.0299955   0.003
-0.7568025   0.38941834  0.03998933  0.00399999  -0.95892427  0.47942554  0.04997917  0.00499998
-0.2794155   0.56464247  0.05996401  0.00599996   0.6569866   0.64421769  0.06994285  0.00699994
 0.98935825  0.71735609  0.07991469  0.00799991   0.41211849  0.78332691  0.08987855  0.00899988 """
TERM_COS_003 = """
 1.          1.          1.          1.           0.95041528  0.99950004  0.999995    0.99999995
 0.80657841  0.99800067  0.99998     0.9999998    0.58275361  0.99550337  0.999955    0.99999955
 0.30113746  0.99201066  0.99992     0.9999992   -0.01034232  0.98752602  0.999875    0.99999875
-0.32079646  0.98205394  0.99982001  0.9999982   -0.59943739  0.97559988  0.99975501  0.99999755
-0.81863246  0.9681703   0.99968002  0.9999968   -0.9566442   0.95977264  0.99959503  0.99999595 """
NUMPY_003 = """
[[ 0.0000000e+00  1.0000000e+00  0.0000000e+00  1.0000000e+00
   0.0000000e+00  1.0000000e+00  0.0000000e+00  1.0000000e+00]
 [ 8.4147096e-01  9.5041525e-01  9.9833414e-02  9.9950004e-01
   9.9998331e-03  9.9999499e-01  9.9999981e-04  9.9999994e-01]
 [ 9.0929741e-01  8.0657840e-01  1.9866933e-01  9.9800068e-01
   1.9998666e-02  9.9997997e-01  1.9999987e-03  9.9999982e-01]
 [ 1.4112000e-01  5.8275360e-01  2.9552022e-01  9.9550337e-01
   2.9995501e-02  9.9995500e-01  2.9999956e-03  9.9999952e-01]
 [-7.5680250e-01  3.0113748e-01  3.8941833e-01  9.9201065e-01
   3.9989334e-02  9.9992001e-01  3.9999895e-03  9.9999923e-01]
 [-9.5892429e-01 -1.0342319e-02  4.7942555e-01  9.8752600e-01
   4.9979169e-02  9.9987501e-01  4.9999794e-03  9.9999875e-01]
 [-2.7941549e-01 -3.2079646e-01  5.6464249e-01  9.8205394e-01
   5.9964005e-02  9.9981999e-01  5.9999642e-03  9.9999821e-01]
 [ 6.5698659e-01 -5.9943742e-01  6.4421767e-01  9.7559988e-01
   6.9942847e-02  9.9975502e-01  6.9999429e-03  9.9999756e-01]
 [ 9.8935825e-01 -8.1863248e-01  7.1735609e-01  9.6817029e-01
   7.9914697e-02  9.9968004e-01  7.9999147e-03  9.9999678e-01]
 [ 4.1211849e-01 -9.5664418e-01  7.8332692e-01  9.5977265e-01
   8.9878552e-02  9.9959505e-01  8.9998785e-03  9.9999595e-01]]
"""
TORCH_003 = """
 0.0000e+00  1.0000e+00  0.0000e+00  1.0000e+00  0.0000e+00  1.0000e+00  0.0000e+00  1.0000e+00  0.0000e+00  1.0000e+00
 8.4147e-01  9.2180e-01  1.5783e-01  9.9801e-01  2.5116e-02  9.9995e-01  3.9811e-03  1.0000e+00  6.3096e-04  1.0000e+00
 9.0930e-01  6.9942e-01  3.1170e-01  9.9205e-01  5.0217e-02  9.9980e-01  7.9621e-03  9.9999e-01  1.2619e-03  1.0000e+00
 1.4112e-01  3.6764e-01  4.5775e-01  9.8214e-01  7.5285e-02  9.9955e-01  1.1943e-02  9.9999e-01  1.8929e-03  1.0000e+00
-7.5680e-01 -2.1631e-02  5.9234e-01  9.6832e-01  1.0031e-01  9.9920e-01  1.5924e-02  9.9998e-01  2.5238e-03  1.0000e+00
-9.5892e-01 -4.0752e-01  7.1207e-01  9.5065e-01  1.2526e-01  9.9875e-01  1.9904e-02  9.9997e-01  3.1548e-03  1.0000e+00
-2.7942e-01 -7.2968e-01  8.1396e-01  9.2919e-01  1.5014e-01  9.9820e-01  2.3884e-02  9.9995e-01  3.7857e-03  1.0000e+00
 6.5699e-01 -9.3770e-01  8.9544e-01  9.0404e-01  1.7493e-01  9.9755e-01  2.7864e-02  9.9994e-01  4.4167e-03  1.0000e+00
"""
NUMPY_SCRIPT = """
import sys
import numpy as np
import sinpe_ext.numpy as sinpe

encoding = sinpe.convention("own_index", 8)
position = np.arange(0, 10, dtype=np.float32)
pe = np.zeros((10, 8), dtype=np.float32)
sinpe.table(10, encoding, out=pe)
terms = sinpe.encode(position, encoding, dtype=np.float64)
long = sinpe.table(5000, sinpe.convention("own_index", 512))
assert "torch" not in sys.modules
np.savez(sys.argv[1], pe=pe, terms=terms, function=sinpe.table(10, encoding), long=long, text=str(pe))
"""


@pytest.mark.parametrize("setting", ["auto", "eager"])
def test_003_numpy_half(setting: str, tmp_path: Path) -> None:
    path = str(tmp_path / "made.npz")
    env = {**os.environ, "SINPE_EXT_BACKEND": setting}
    execute([sys.executable, "-c", NUMPY_SCRIPT, path], env=env)
    with np.load(path) as made:
        assert_printed(made["terms"][:, 0::2], TERM_SIN_003)
        assert_printed(made["terms"][:, 1::2], TERM_COS_003)
        assert_printed(made["pe"], NUMPY_003)
        assert str(made["text"]) == NUMPY_003.strip()
        assert_printed(made["function"], NUMPY_003)
        assert made["long"].shape == (5000, 512) and made["long"].dtype == np.float32
        assert np.allclose(made["long"], own_index(np.arange(5000), 512), rtol=0, atol=2.0**-24)


def test_003_torch_half(backend: str) -> None:
    layer = SinusoidalPositionalEncoding(
        10, 0.0, max_len=8, encoding="own_index", batch_first=False, persistent_table=True
    )
    pe = layer.state_dict()["pe"]
    assert pe.shape == (8, 1, 10)
    assert_printed(pe.squeeze(1), TORCH_003)
    assert_printed(sinpe.table(8, convention("own_index", 10)), TORCH_003)
    x = torch.rand(6, 3, 10)  # (sequence, batch, d)
    assert same_bits(layer(x), x + pe[: x.size(0), :])
    assert same_bits(sinpe.add(x, "own_index", seq_dim=0), x + pe[: x.size(0), :])


def test_003_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    encoding = convention("own_index", 8)
    ax = plot.heatmap(encoding, length=10, ax=Figure(figsize=(10, 8)).add_subplot())
    assert ax.get_images()[0].get_cmap().name == "coolwarm"
    assert_printed(ax.get_images()[0].get_array().astype(np.float32), NUMPY_003)
    ax.figure.savefig(tmp_path / "heatmap.png", bbox_inches="tight")
    assert (tmp_path / "heatmap.png").read_bytes().startswith(b"\x89PNG")


# document 004


def paper(length: int, dim: int) -> np.ndarray:
    angle = np.arange(length)[:, None] * np.exp(-np.arange(0, dim, 2) / dim * math.log(10000.0))
    return np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(length, dim)


def test_004_division_term() -> None:
    term = Encoding(20000).frequencies_radians()
    assert len(term) == 10000
    assert np.allclose(term, np.exp(-np.arange(0, 20000, 2) / 20000 * math.log(10000.0)), rtol=FORMULA, atol=0)


@pytest.mark.parametrize("length, dim", [(128, 256), (1, 2), (37, 20)])
def test_004_table(backend: str, length: int, dim: int) -> None:
    pe = sinpe.table(length, dim)
    assert pe.shape == (length, dim) and pe.dtype == torch.float32
    assert np.allclose(pe, paper(length, dim), rtol=0, atol=2.0**-24)
    assert np.allclose(sinpe.table(length, dim, dtype=torch.float64), paper(length, dim), rtol=0, atol=FORMULA)


def test_004_float32_angles(backend: str) -> None:
    """The document's float32 rounding, for models trained with it."""
    step = torch.exp(-torch.arange(0, 256, 2) / 256 * math.log(10000.0))
    angle = torch.arange(3000).unsqueeze(1) * step
    got = sinpe.table(3000, Encoding(256, angle="float32_exp"))
    assert same_bits(got[:, 0::2], torch.sin(angle)) and same_bits(got[:, 1::2], torch.cos(angle))


def test_004_batch_first_embedding(backend: str) -> None:
    torch.manual_seed(4)
    ids = torch.randint(low=0, high=32000, size=(8, 128))
    with torch.no_grad():
        x = nn.Embedding(32000, 256)(ids)
        want = x + sinpe.table(128, 256).unsqueeze(0)
        assert x.shape == want.shape == (8, 128, 256)
        assert np.allclose(want, x.double() + torch.from_numpy(paper(128, 256)), rtol=0, atol=2.0**-21)
        for layer in (SinusoidalPositionalEncoding(256, 0.0), SinusoidalPositionalEncoding(256).eval()):
            assert same_bits(layer(x), want)
        assert same_bits(sinpe.add(x), want)
        assert same_bits(sinpe.add_(x.clone(), "paper"), want)
