"""What a step of training does to weights: with which moments, at which rates, and how it is rounded."""

import hashlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch

from localspec.training.trainable import TrainableDrafter

ADAMW = "AdamW"  # the optimiser of checkpoints that do not name one


def rounded_by_chance(x: torch.Tensor, seed: str) -> torch.Tensor:
    """Return fp32 numbers in bf16: each becomes one of its two neighbours, the nearer one the more often."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
    generator = torch.Generator(x.device).manual_seed(number)
    chance = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    bits = (x.view(torch.int32) + chance) & -(2**16)  # what bf16 has no room for
    return bits.view(torch.float32).to(torch.bfloat16)


def optimizer_class(device: str, resumed: Mapping[str, Any] | None = None) -> Callable[..., torch.optim.Optimizer]:
    """AdamW; on CUDA with moments in eight bits, as Medusa was trained, where bitsandbytes is there.

    A training that goes on keeps what it began with, in `resumed`, the state of its checkpoint.
    """
    if has_small_moments(device) if resumed is None else resumed.get("optimizer", ADAMW) != ADAMW:
        from localspec.nn.linear_bitsandbytes import adamw_8bit  # on a Mac there is none

        found: Callable[..., torch.optim.Optimizer] = adamw_8bit()
        return found
    return torch.optim.AdamW


def has_small_moments(device: str) -> bool:
    """Whether a training on this device keeps its moments in eight bits."""
    return torch.device(device).type == "cuda" and find_spec("bitsandbytes") is not None


def trainable_groups(drafter: TrainableDrafter) -> list[tuple[list[torch.nn.Parameter], float]]:
    """Return (parameters, multiple of the learning rate) of what is trained."""
    groups = drafter.parameter_groups()
    return [([p for p in group["params"] if p.requires_grad], group["lr_scale"]) for group in groups]
