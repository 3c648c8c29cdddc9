"""The encoding and a Transformer layer in ONNX Runtime, at other lengths and positions than in the export.

    python examples/onnx_session.py     needs onnx, onnxscript, onnxruntime

`torch.onnx.export(dynamo=True)` writes the encoding as standard operations; the session does not need this library.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from torch.export import Dim

import sinpe_ext as sinpe

WIDTH = 64
ROWS_ULP = 2.0**-23  # rows: 1 ULP of a float32 just below 1, see docs/graphs.md
TOLERANCE = 1e-4  # difference of a layer's output, which ONNX Runtime sums in another order


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = sinpe.SinusoidalEmbedding(1000, WIDTH, dropout=0.1, scale=WIDTH**0.5)
        self.norm, self.feed = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.tokens.weight[0].data)  # the embedding of token 0 is zero, so its output is the encoding

    def forward(self, ids: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(ids, start=start)
        return x, self.feed(self.norm(x))


def main() -> None:
    warnings.simplefilter("ignore")  # of torch's exporter
    torch.manual_seed(0)
    model = Model().eval()
    ids, start = torch.randint(1000, (2, 16)), torch.tensor([0, 7])
    dynamic = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    print(f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "model.onnx"))
        torch.onnx.export(model, (ids, start), dynamo=True, dynamic_shapes=dynamic, verbose=False).save(file)
        domains = {node.domain for node in onnx.load(file).graph.node}
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert domains <= {"", "ai.onnx"}, domains
    names = [given.name for given in session.get_inputs()]
    print("exported from (2, 16); operators of the standard's domain alone")
    for shape, first in (((2, 16), 0), ((1, 17), 5), ((3, 300), 0), ((2, 4096), 0), ((1, 64), 2**40)):
        ids = torch.randint(1000, shape)
        ids[:, ::2] = 0
        start = torch.arange(first, first + shape[0])
        given = dict(zip(names, (ids.numpy(), start.numpy()), strict=True))
        found = [torch.from_numpy(array) for array in session.run(None, given)]
        with torch.no_grad():
            rows, output = [float((a - b).abs().max()) for a, b in zip(found, model(ids, start), strict=True)]
        print(f"  {shape!s:10} from position {first:<13}  tokens + rows: {rows:.1e}, layer: {output:.1e}")
        assert rows <= 4 * ROWS_ULP and output <= TOLERANCE


if __name__ == "__main__":
    main()
