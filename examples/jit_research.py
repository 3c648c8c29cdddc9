"""Use from a clone, without installation; kernels are compiled on first use. Run: python examples/jit_research.py"""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone
import sinpe_ext as sinpe

ids = torch.randint(32000, (8, 128))  # (batch, sequence)
embedding = nn.Embedding(32000, 256)
encode = sinpe.SinusoidalPositionalEncoding(256, dropout=0.1)
layer = nn.TransformerEncoderLayer(256, nhead=4, batch_first=True)

y = layer(encode(embedding(ids) * 256**0.5))
y.sum().backward()
print(tuple(y.shape), "by the", sinpe.backend_info().device("cpu").backend, "backend")
