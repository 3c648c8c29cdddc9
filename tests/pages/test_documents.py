"""Printed outputs of three published implementations, reproduced with the public API to the last digit.

Only the numbers are taken from those implementations.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from ulp import same_bits

import sinpe_ext as sinpe
from sinpe_ext import Encoding, SinusoidalPositionalEncoding, convention


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


TABLE_000 = """
 0.0000  1.0000 0.0000 1.0000 0.0000 1.0000    0.8415  0.5403 0.0464 0.9989 0.0022 1.0000
 0.9093 -0.4161 0.0927 0.9957 0.0043 1.0000    0.1411 -0.9900 0.1388 0.9903 0.0065 1.0000
-0.7568 -0.6536 0.1846 0.9828 0.0086 1.0000   -0.9589  0.2837 0.2300 0.9732 0.0108 0.9999
-0.2794  0.9602 0.2749 0.9615 0.0129 0.9999    0.6570  0.7539 0.3192 0.9477 0.0151 0.9999
 0.9894 -0.1455 0.3629 0.9318 0.0172 0.9999    0.4121 -0.9111 0.4057 0.9140 0.0194 0.9998 """


def test_000(backend: str) -> None:
    assert_printed(Encoding(6).timescales()[:2], "1.0000 21.5443")
    halves = sinpe.table(10, convention("paper_concat", 6))
    for table in (sinpe.table(10, 6), torch.stack([halves[:, :3], halves[:, 3:]], dim=2)):
        assert_printed(table, TABLE_000)


TABLE_001A = """
 0.0000e+00 1.0000e+00 0.0000e+00 1.0000e+00 0.0000e+00 1.0000e+00
 8.4147e-01 1.0000e+00 1.0000e-08 1.0000e+00 1.0000e-16 1.0000e+00 """
TABLE_001B = """
 0.0000  1.0000 0.0000 1.0000    0.8415  0.5403 0.0100 0.9999    0.9093 -0.4161 0.0200 0.9998
 0.1411 -0.9900 0.0300 0.9996   -0.7568 -0.6536 0.0400 0.9992   -0.9589  0.2837 0.0500 0.9988
-0.2794  0.9602 0.0600 0.9982    0.6570  0.7539 0.0699 0.9976 """


def test_001_positional_encoder(backend: str) -> None:
    encoding = convention("doubled_index", 6, exponent_dim=2)
    assert encoding == Encoding(6, cos_frequency="own", exponent_scale=2, exponent_dim=2)
    batch = torch.rand(2, 6)  # its number of rows is both the length and the exponent's dimension
    table = sinpe.table(len(batch), encoding)
    assert_printed(table, TABLE_001A)
    assert same_bits(sinpe.add(batch, encoding), batch + table)
    assert float(table[1, 4]) == float(torch.tensor(1e-16))  # to the last bit


def test_001_positional_encodings(backend: str) -> None:
    assert_printed(sinpe.table(8, Encoding(4, base=10000)), TABLE_001B)
    assert_printed(sinpe.table(8, Encoding(4, angle="float32_exp")), TABLE_001B)


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


def test_003_numpy_half(backend: str) -> None:
    pe = sinpe.numpy.table(10, convention("own_index", 8))
    assert_printed(pe, NUMPY_003)
    assert str(pe) == NUMPY_003.strip()


def test_003_torch_half(backend: str) -> None:
    layer = SinusoidalPositionalEncoding(
        10, 0.0, max_len=8, encoding="own_index", batch_first=False, persistent_table=True
    )
    pe = layer.state_dict()["pe"]
    assert pe.shape == (8, 1, 10)
    assert_printed(pe.squeeze(1), TORCH_003)
    x = torch.rand(6, 3, 10)  # (sequence, batch, d)
    assert same_bits(layer(x), x + pe[: x.size(0), :])
    assert same_bits(sinpe.add(x, "own_index", seq_dim=0), x + pe[: x.size(0), :])
