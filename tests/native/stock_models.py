"""Random stock models of transformers, in memory."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM


def stock_of(config: Any, seed: int, spread: float = 0.18) -> Any:
    """Random weights, norms and biases too, for the usual ones and zeros would hide what is left out."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, spread, generator=generator)
            else:
                # states that forget quickly would hide what is wrong with them
                mean = -2.0 if name.endswith("A_log") else 0.0 if name.endswith("bias") else 1.0
                parameter.normal_(mean, 0.3, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.normal_(1.0, 0.3, generator=generator)
    return model
