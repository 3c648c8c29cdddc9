"""The operators torch.ops.sinpe_ext.*, one file per family, and their forms for torch.compile and ONNX."""

# Importing one registers all.
from . import embed as embed
from . import rows as rows
from . import seed_tensor as seed_tensor
