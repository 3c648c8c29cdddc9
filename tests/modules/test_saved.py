"""Objects saved by an earlier version load and give the same bits; results and error messages are unchanged."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations.dropin import DropIn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "saved"))
import write
from write import ENCODINGS, GRAPH_ARGUMENTS, HERE, LAYERS

pytestmark = [pytest.mark.emulated, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def earlier() -> dict[str, Tensor]:
    return torch.load(HERE / "results.pt")


@pytest.fixture(scope="module")
def layers() -> dict[str, nn.Module]:
    return torch.load(HERE / "layers.pt", weights_only=False)


def result(layer: nn.Module, name: str) -> Tensor:
    _, arguments, named = LAYERS[name]
    return layer(*arguments, **named).detach()


@pytest.mark.parametrize("name", LAYERS)
def test_pickled_layer(name: str, layers: dict[str, nn.Module], earlier: dict[str, Tensor], backend: str) -> None:
    assert torch.equal(result(layers[name], name), earlier[name])
    again = pickle.loads(pickle.dumps(layers[name]))
    assert torch.equal(result(again, name), earlier[name]) and repr(again) == repr(LAYERS[name][0]())


@pytest.mark.parametrize("name", LAYERS)
def test_state_dict(name: str, earlier: dict[str, Tensor], backend: str) -> None:
    state = torch.load(HERE / "state_dicts.pt")[name]
    layer = LAYERS[name][0]()
    layer.load_state_dict(state, strict=True)
    assert torch.equal(result(layer, name), earlier[name])
    own = layer.state_dict()
    assert list(own) == list(state) and all(torch.equal(own[key], state[key]) for key in state)


def test_pickled_encodings() -> None:
    found = pickle.loads((HERE / "encodings.pickle").read_bytes())
    assert found.keys() == ENCODINGS.keys()
    for name, encoding in ENCODINGS.items():
        assert found[name] == encoding and repr(found[name]) == repr(encoding) and type(found[name]) is type(encoding)
        axes = getattr(encoding, "ndim", None)
        length: Any = 9 if axes is None else (3, 4, 5)[:axes]
        assert torch.equal(sinpe.table(length, found[name]), sinpe.table(length, encoding))


def test_swapped_model(earlier: dict[str, Tensor], backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write.Tutorial, "__module__", "saved_model")
    monkeypatch.setitem(sys.modules, "saved_model", write)
    model = torch.load(HERE / "swapped.pt", weights_only=False)
    assert torch.equal(model(write.x(5, 2, write.D)), earlier["swapped"])
    assert torch.equal(pickle.loads(pickle.dumps(model))(write.x(5, 2, write.D)), earlier["swapped"])


@pytest.mark.parametrize("name", ["computed", "detr", "diffusers", "dropin", "plain_forms", "transformers"])
def test_classes_of_swapped_modules_keep_their_names(name: str) -> None:
    earlier = importlib.import_module(f"sinpe_ext._swap_{name}")
    own = importlib.import_module(f"sinpe_ext.integrations.{name}")
    mixins = [kind for kind in vars(own).values() if isinstance(kind, type) and issubclass(kind, DropIn)]
    assert mixins and all(getattr(earlier, kind.__name__) is kind for kind in mixins)


NAMES = {
    "_backend": ("BackendUnavailableError", "use_backend"),
    "_backend_info": ("BackendInfo",),
    "_catalogue": ("convention", "conventions"),
    "_checkpoint": ("write_table", "compare_table"),
    "_identify": ("Match", "Matches", "identify"),
    "encoding": ("Encoding", "LAYOUTS", "ODD_POLICIES"),
    "grid": ("GridEncoding", "Piece", "ARRANGEMENTS"),
    "reference_apply": ("add", "embed"),
    "reference_grid": ("add",),
    "timestep": ("TimestepEncoding",),
}


@pytest.mark.parametrize("module", NAMES)
def test_earlier_module_names(module: str) -> None:
    """Pickles name functions and classes by module: the earlier name imports the current module."""
    earlier = importlib.import_module(f"sinpe_ext.{module}")
    assert all(hasattr(earlier, name) for name in NAMES[module]), NAMES[module]
    assert getattr(sinpe, module) is earlier


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="torch cannot load programs exported by a later version")
def test_exported_program(earlier: dict[str, Tensor], backend: str) -> None:
    model = torch.export.load(HERE / "model.pt2").module()
    assert torch.equal(model(*GRAPH_ARGUMENTS).detach(), earlier["graph"])


def test_onnx_file(earlier: dict[str, Tensor]) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs the model")
    session = runtime.InferenceSession(HERE / "model.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: GRAPH_ARGUMENTS[0].numpy()})[0]
    assert torch.allclose(torch.from_numpy(found), earlier["onnx"], rtol=0, atol=2.0**-21)


@pytest.mark.parametrize("name", ["bits", "messages"])
def test_bits_and_messages(name: str, backend: str, request: pytest.FixtureRequest) -> None:
    if name == "messages" and request.config.getoption("--require-backend") == "emulated":
        pytest.skip("CUDA kernels do not check ids (docs/cuda.md)")
    want = json.loads((HERE / f"{name}.json").read_text())
    found = getattr(write, name)()
    differ = {key: (found.get(key), want.get(key)) for key in {*found, *want} if found.get(key) != want.get(key)}
    assert not differ, f"if intended: python tests/saved/write.py {name.upper()}"
