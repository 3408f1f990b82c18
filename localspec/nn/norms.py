"""Norms of a transformer's rows: by localspec's own kernels if they work, otherwise by torch."""

import torch
import torch.nn.functional as F

from localspec.families.architecture import TransformerConfig
from localspec.nn import kernel_checks, layer_kernels


def norm(x: torch.Tensor, weight: torch.Tensor, config: TransformerConfig) -> torch.Tensor:
    """Return x, each row divided by the root of its mean square and multiplied by the weight (RMSNorm)."""
    return added_norm(x, None, weight, config)[1]


def added_norm(
    x: torch.Tensor, given: torch.Tensor | None, weight: torch.Tensor, config: TransformerConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x plus `given`, if there is one, and the norm of that sum."""
    others = (weight,) if given is None else (weight, given)
    same_dtype = all(one.dtype == x.dtype for one in others) and layer_kernels.fits(x)
    if kernel_checks.serve(x, *others) and same_dtype:
        return layer_kernels.add_norm(x, given, weight, config.norm_offset, config.rms_norm_eps)
    x = x if given is None else x + given
    if not config.norm_offset:
        return x, F.rms_norm(x, weight.shape, weight, config.rms_norm_eps)
    # One plus a weight has more digits than bf16 can represent.
    wide = F.rms_norm(x.float(), weight.shape, weight.float() + config.norm_offset, config.rms_norm_eps)
    return x, wide.to(x.dtype)
