"""How a training step changes weights: moments, learning rates and rounding."""

import hashlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch

from localspec.training.trainable import TrainableDrafter

ADAMW = "AdamW"  # the optimiser of checkpoints that do not name one


def rounded_by_chance(x: torch.Tensor, seed: str) -> torch.Tensor:
    """Return fp32 numbers rounded to bf16 at random: the nearer of the two neighbours is likelier."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
    generator = torch.Generator(x.device).manual_seed(number)
    chance = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    bits = (x.view(torch.int32) + chance) & -(2**16)  # bits that bf16 has no room for
    return bits.view(torch.float32).to(torch.bfloat16)


def optimizer_class(device: str, resumed: Mapping[str, Any] | None = None) -> Callable[..., torch.optim.Optimizer]:
    """Return AdamW. On CUDA its moments have eight bits, as in Medusa's training, if bitsandbytes is installed.

    A resumed training uses the optimiser of its checkpoint's state, `resumed`.
    """
    if has_small_moments(device) if resumed is None else resumed.get("optimizer", ADAMW) != ADAMW:
        from localspec.nn.linear_bitsandbytes import adamw_8bit  # not available on a Mac

        found: Callable[..., torch.optim.Optimizer] = adamw_8bit()
        return found
    return torch.optim.AdamW


def has_small_moments(device: str) -> bool:
    """Return whether a training on this device has moments in eight bits."""
    return torch.device(device).type == "cuda" and find_spec("bitsandbytes") is not None


def trainable_groups(drafter: TrainableDrafter) -> list[tuple[list[torch.nn.Parameter], float]]:
    """Return (parameters, multiple of the learning rate) of all trained weights."""
    groups = drafter.parameter_groups()
    return [([p for p in group["params"] if p.requires_grad], group["lr_scale"]) for group in groups]
