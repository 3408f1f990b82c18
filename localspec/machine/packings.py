"""Which packings of weights this machine can compute with. Loads neither a model nor the libraries that compute."""

from importlib.util import find_spec

from localspec.machine import compiled

_OPERATORS = {"int8": "aten::_weight_int8pack_mm", "int4": "aten::_weight_int4pack_mm"}  # on Apple's GPUs


def lacking(quantize: str, device: str) -> str:
    """A clause that says what this machine lacks to compute in a packing (or `none`) on a device; empty for nothing."""
    device_type = device.partition(":")[0]
    if quantize == "none":
        return ""
    if device_type == "mps" and quantize in _OPERATORS:
        import torch

        known = torch._C._dispatch_has_kernel_for_dispatch_key(_OPERATORS[quantize], "MPS")
        return "" if known else f"this build of torch has no {quantize} kernels for Apple's GPUs"
    if device_type == "cpu" and quantize in ("int8", "int4"):
        return compiled.missing()
    if quantize == "int4":
        return "int4 is for CPUs and Apple's GPUs"
    if device_type != "cuda":
        return f"{quantize} is not for {device_type}"
    if quantize == "int8" and _older_than_turing(device):
        return f"int8 on {device} needs a GPU of compute capability 7.5 or more"
    return "" if find_spec("bitsandbytes") else "bitsandbytes is not installed; pip install bitsandbytes"


def _older_than_turing(device: str) -> bool:
    import torch

    return torch.cuda.get_device_capability(device) < (7, 5)
