"""One compiled library works with every torch from 2.11 on: libraries of other versions load and give the same bits."""

from __future__ import annotations

import hashlib
import os
import sys
from itertools import product

import pytest
import torch
from children import REPOSITORY, execute
from public_calls import MAKERS, Form

from sinpe_ext.backend import loader

# Packages with a library built with another torch; named by noxfile.py.
FOLDERS = [folder for folder in os.environ.get("SINPE_EXT_OTHER_LIBRARIES", "").split(os.pathsep) if folder]

LOAD = """
import sys
from pathlib import Path
from sinpe_ext.backend import loader
backend = loader._backends["cpu"] = loader._load_prebuilt("cpu", Path(sys.argv[1]))
import test_stable_abi
print(backend.build["torch"], test_stable_abi.digest())
"""


def digest() -> str:
    """Of the result and the gradients of every public function."""
    whole = hashlib.sha256()
    for make, dtype in product(MAKERS.values(), (torch.float32, torch.bfloat16, torch.float16)):
        call = make(Form(dim=12, length=6, dtype=dtype))
        tensors = {name: tensor.requires_grad_() for name, tensor in call.tensors.items()}
        y = call.run(**tensors)
        gradients = torch.autograd.grad(y, [*tensors.values()], torch.cos(y.detach())) if tensors else ()
        for part in (y, *gradients):
            whole.update(part.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


@pytest.mark.skipif(not FOLDERS, reason="no library built with another torch was given; make check-matrix builds them")
@pytest.mark.parametrize("number", range(max(len(FOLDERS), 1)))
def test_libraries_give_the_same_bits(number: int, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--require-backend") == "eager" or not loader.compiled("cpu"):
        pytest.skip("eager PyTorch has no library")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    done = execute([sys.executable, "-W", "ignore", "-c", LOAD, FOLDERS[number]], env=environment)
    assert done.stdout.split()[-1] == digest(), f"the library of torch {done.stdout.split()[0]}"
