"""`identify` on unusual input: tensors without rows, or that repeat what they hold."""

from __future__ import annotations

import warnings

import numpy  # noqa: F401, for the names below
import pytest
import torch

import sinpe_ext as sinpe

PAPER = sinpe.table(100, 64)

# sinpe_ext.identify returns no match for these, with this reason.
FUNCTION = {
    "torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(2, 4)])": "a nested tensor has no rows of one length",
    "torch.zeros(1, 64).expand(2**40, 64)": "repeats what it holds",
    "torch.zeros(64, 1).expand(64, 2**40)": "repeats what it holds",
    "sinpe.table(100, 64).expand(2**40, 100, 64)": "repeats what it holds",
    "torch.arange(2.0**10).as_strided((2**30, 2**9), (0, 1))": "repeats what it holds",
    "numpy.broadcast_to(numpy.float32(1), (2**20, 2**20))": "repeats what it holds",
    "torch.ones(()).expand(16, 2**20)": "more than the 65536",
    "torch.eye(9).to_sparse()": "no rows to look at",
    "torch.zeros(9, 9, device='meta')": "no rows to look at",
    "torch.zeros(9, 9).to(torch.float8_e5m2)": "float8_e5m2 values are not read",
    "torch.zeros(0, 512)": "is not that of rows of channels",
}


@pytest.mark.parametrize("made", FUNCTION)
def test_function_rejects_with_a_reason(made: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about prototypes
        assert FUNCTION[made] in sinpe.identify(eval(made)).reason


def test_function_accepts_views_and_lazy_negatives() -> None:
    with torch.inference_mode():
        inference = PAPER.clone()
    imaginary = torch.complex(torch.zeros(100, 64), -PAPER).conj().imag  # a lazy negative
    for table in (inference, torch.nn.Parameter(PAPER.clone()), imaginary, PAPER.expand(8, 100, 64)):
        assert sinpe.identify(table)[0].name == "paper"


def test_function_rejects_fake_tensors() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.randn(64, 64)
    with pytest.raises(TypeError, match="table: expected a tensor or a NumPy array, got FakeTensor; pass the values"):
        sinpe.identify(fake)
