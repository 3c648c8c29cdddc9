"""The operators torch.ops.sinpe_ext.*: schemas, dispatch, derivatives, and what a compiler and ONNX see of them."""
