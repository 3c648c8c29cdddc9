"""sinpe_ext.numpy: the same bits with and without the compiled module, clear errors, torch is not imported."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from children import run
from widths import WIDTHS

import sinpe_ext.numpy as sinpe
from sinpe_ext import reference
from sinpe_ext.backend import loader
from sinpe_ext.encodings.plan import plan
from sinpe_ext.numpy import Encoding, GridEncoding, convention

INT64_MAX = 2**63 - 1
NONE = np.empty((0, 6), "f4")
GRID = GridEncoding((Encoding(4, start=2), Encoding(6, base=100)), dim=12)


@pytest.fixture(params=["compiled", "eager"])
def front(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test with and without _core."""
    module, reason = loader.core_module()
    if request.param == "compiled" and module is None:
        if request.config.getoption("--require-backend") == "compiled":
            pytest.fail(f"no _core: {reason}")
        pytest.skip(f"no _core: {reason}")
    with loader.use_backend("eager" if request.param == "eager" else "auto"):
        assert (sinpe._core() is None) == (request.param == "eager")
        yield request.param


@pytest.mark.parametrize(
    "encoding",
    [*map(Encoding, WIDTHS), convention("t2t", 33), convention("own_index", 24), Encoding(7, amplitude=-0.3, start=-4)],
    ids=repr,
)
def test_table_is_encode_at_its_positions(front: str, encoding: Encoding) -> None:
    positions = encoding.start + 7 + np.arange(50)
    for dtype in (np.float32, np.float64, np.float16, "float32"):
        got = sinpe.table(50, encoding, start=7, dtype=dtype)
        assert got.shape == (50, encoding.dim) and got.dtype == np.dtype(dtype)
        assert np.array_equal(got, sinpe.encode(positions, encoding, dtype=dtype))
        if got.dtype != np.float64:  # float64: within 1 ULP
            want = reference.encode(plan(encoding), positions, np.dtype(np.float32), np).astype(dtype)
            assert got.tobytes() == want.tobytes()
        if encoding == Encoding(64):
            angles = positions[:, None] / 10000.0 ** (np.arange(32) / 32)
            want = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(50, 64)
            assert np.allclose(got, want, rtol=0, atol=np.finfo(got.dtype).eps + 1e-12)


def test_grid_by_formula(front: str) -> None:
    """Channels without an encoding are 0. The start of an axis is added to its encoding's, but to no positions."""

    def rows(p: int, dim: int, base: float) -> np.ndarray:
        angles = p / base ** (np.arange(dim // 2) * 2 / dim)
        return np.stack([np.sin(angles), np.cos(angles)], -1).ravel()

    def want(y: int, x: int) -> np.ndarray:
        return np.concatenate([rows(y, 4, 10000.0), rows(x, 6, 100.0), [0, 0]])

    for dtype in ("float64", "float32"):
        got = sinpe.table((3, 2), GRID, start=(1, -5), dtype=dtype)
        assert got.shape == (3, 2, 12) and got.dtype == dtype
        assert np.allclose(got, [[want(y, x) for x in (-5, -4)] for y in (3, 4, 5)], rtol=0, atol=1e-7)
        out = np.full((3, 2, 24), np.nan, dtype)[:, :, ::2]
        assert sinpe.table((3, 2), GRID, start=(1, -5), dtype=dtype, out=out) is out and np.array_equal(out, got)
        encoded = sinpe.encode(np.array([[[3, -5], [5, -4]]]), GRID, dtype=dtype)
        assert encoded.dtype == dtype and np.array_equal(encoded, [[got[0, 0], got[2, 1]]])


def test_table_writes_into_out(front: str) -> None:
    for rows, out in ((9, np.full((9, 6), np.nan, "f4")), (9, np.full((9, 12), np.nan, "f4")[:, ::2]), (0, NONE)):
        assert sinpe.table(rows, 6, out=out) is out and np.array_equal(out, sinpe.table(rows, dim=6))


@pytest.mark.parametrize(
    "positions, same",
    [
        (3, 3),
        (3.0, 3),
        (np.int8(3), 3),
        (np.array([[3], [5]], np.uint64), [[3], [5]]),
        (np.array([INT64_MAX], np.uint64), [INT64_MAX]),
        (np.array([3, 5], ">i4"), [3, 5]),
        (np.array([3.5, 5], ">f4"), [3.5, 5]),
        (np.arange(12).reshape(3, 4).T[::2], np.arange(12).reshape(3, 4).T[::2].copy()),
        ([], np.empty(0)),
        (range(4), [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_encode_takes_positions_of_any_shape_and_width(front: str, positions, same) -> None:
    """encoding.start is not added."""
    got = sinpe.encode(positions, Encoding(8, start=9))
    assert got.shape == (*np.shape(positions), 8)
    assert np.array_equal(got, sinpe.encode(np.asarray(same), 8))


def test_encode_at_the_ends_of_int64(front: str) -> None:
    ends = np.array([-INT64_MAX - 1, INT64_MAX])
    assert np.array_equal(sinpe.encode(ends[1:], 8), sinpe.table(1, 8, start=INT64_MAX))
    assert np.array_equal(sinpe.encode(ends[:1], 8), sinpe.table(1, 8, start=-INT64_MAX - 1))
    got = sinpe.encode(np.array([np.nan, 0.0, np.inf]), convention("t2t", 5))
    assert np.isnan(got[[0, 2], :4]).all() and (got[:, 4] == 0).all() and (got[1] == [0, 0, 1, 1, 0]).all()


SHARED = np.lib.stride_tricks.as_strided(np.zeros(99, "f4"), (3, 8), (28, 4))  # rows that overlap by one element
SHARED_3D = np.lib.stride_tricks.as_strided(np.zeros(99, "f4"), (3, 2, 12), (92, 48, 4))
FLOAT16 = np.empty((3, 8), "f2")
BAD = [
    (lambda: sinpe.table(-1, 8), ValueError, "length: expected an int in 0"),
    (lambda: sinpe.table(2.5, 8), TypeError, "length: expected int, got float"),
    (lambda: sinpe.table(3, 8, start=1.0), TypeError, "start: expected int, got float"),
    (lambda: sinpe.table(3, 8, start=INT64_MAX - 1), ValueError, "start: expected every position"),
    (lambda: sinpe.table(0, Encoding(8, start=1), start=INT64_MAX), ValueError, "start: expected every position"),
    (lambda: sinpe.table(2**60, 8), ValueError, "^length: "),
    (lambda: sinpe.table((2**31, 2**31), GRID), ValueError, "^length: "),
    (lambda: sinpe.encode(np.broadcast_to(np.float32(0), (2**59,)), 8), ValueError, "^positions: "),
    (lambda: sinpe.table(3, "t2t"), TypeError, r'encoding: .*no dim.*convention\("t2t", dim\)'),
    (lambda: sinpe.table(3, None), TypeError, "dim: expected the number of channels with encoding=None"),
    (lambda: sinpe.table(3, Encoding(8), dim=8), TypeError, r"^dim: expected None, because encoding \(Encoding\)"),
    (lambda: sinpe.table(3, Encoding(8, angle="float32_exp")), ValueError, 'encoding: expected angle="exact"'),
    (lambda: sinpe.table(3, 8, dtype="bfloat16"), TypeError, "dtype: expected float32.*bfloat16.*sinpe_ext.table"),
    (lambda: sinpe.table(3, 8, dtype=np.int64), TypeError, "dtype: expected float32, float64 or float16, got int64"),
    (lambda: sinpe.table(3, 8, out=[1]), TypeError, "out: expected a numpy.ndarray, got list"),
    (lambda: sinpe.table(3, 8, out=np.empty((8, 3), "f4")), ValueError, r"out: expected shape \(3, 8\), got \(8, 3\)"),
    (lambda: sinpe.table(3, 8, out=FLOAT16), TypeError, "out: expected float32, got float16"),
    (lambda: sinpe.table(5, GRID), TypeError, "length: expected 2 ints, the grid's lengths, got int"),
    (lambda: sinpe.table((5, 6), GRID, start=(1,)), ValueError, "start: expected an int or 2 of them"),
    (lambda: sinpe.table(3, 8, out=np.broadcast_to(np.float32(0), (3, 8))), ValueError, "out: expected a writeable"),
    (lambda: sinpe.table((3, 2), GRID, out=SHARED_3D), ValueError, "out: expected one memory location for each"),
    (lambda: sinpe.table(3, 8, out=SHARED), ValueError, "out: expected one memory location for each"),
    (lambda: sinpe.encode(True, 8), TypeError, "positions: expected integers or float32/float64, got bool"),
    (lambda: sinpe.encode([1j], 8), TypeError, "positions: expected integers .* got complex128"),
    (lambda: sinpe.encode([2**70], 8), TypeError, "positions: expected integers .* got object"),
    (lambda: sinpe.encode(np.float16(3), 8), TypeError, "positions: .*float16 cannot hold integers above 2048"),
    (lambda: sinpe.encode(np.array([2**63], np.uint64), 8), ValueError, "positions: expected values within int64"),
    (lambda: sinpe.encode(np.zeros((2, 3)), GRID), ValueError, "positions: expected 2 coordinates"),
]


@pytest.mark.bad_input(5, "NumPy")
@pytest.mark.bad_input(6, "NumPy")
@pytest.mark.bad_input(7, "NumPy")
@pytest.mark.bad_input(16, "NumPy")
@pytest.mark.bad_input(17, "NumPy")
@pytest.mark.parametrize("call, error, message", BAD, ids=[f"{k}-{case[2]}" for k, case in enumerate(BAD)])
def test_bad_arguments(front: str, call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_required_compiled_module_raises_if_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinpe, "_find_core", lambda: (None, "nothing was built"))
    monkeypatch.setattr(loader, "_setting", "compiled")
    with pytest.raises(loader.BackendUnavailableError, match="NumPy: nothing was built"):
        sinpe.table(3, 8)
    monkeypatch.setattr(loader, "_setting", "auto")
    assert sinpe.table(3, 8).shape == (3, 8)


def test_torch_is_not_imported() -> None:
    code = """
import sys, sinpe_ext.numpy as s
from sinpe_ext.backend.loader import use_backend
for setting in ("auto", "eager"):
    with use_backend(setting):
        s.table(4, 8); s.encode([1.5, 2.0], s.convention("t2t", 8))
assert "torch" not in sys.modules, "torch was imported"
"""
    run(code)
