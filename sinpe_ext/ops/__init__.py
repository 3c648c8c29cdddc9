"""The operators torch.ops.sinpe_ext.*, a file a family, and what a compiler and ONNX see of them."""

# Whoever imports one has them all.
from . import embed as embed
from . import rows as rows
from . import seed_tensor as seed_tensor
