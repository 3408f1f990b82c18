"""From weights as they are trained to what drafts with them, for targets of torch and of the CPU engine; and its drafts."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from quantized_layers import packed_target

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Drafter
from localspec.decoding.logits import Hidden
from localspec.decoding.numpy_logits import NumpyHidden
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.trained import TrainedDrafter
from localspec.models.architecture import weight_map
from localspec.nn.adapters import Adapters
from localspec.nn.logits import TorchHidden
from localspec.nn.target import Target
from localspec.nn.transformer import Transformer
from localspec.training.merging import write_merged
from localspec.training.trainable import TrainableDrafter

D = TypeVar("D", bound=TrainableDrafter)


def torch_form(target: Any) -> Target:
    """A target that can be trained for: itself, or the same model in torch where the CPU engine computes it."""
    return target if isinstance(target, Target) else _in_torch(target.read_from, target.context)


@cache
def _in_torch(path: Path, context: int) -> Target:
    return Target.load(path, context=context)


def drafting(drafter: TrainableDrafter, target: Any = None, kind: type[TrainedDrafter] | None = None) -> Any:
    """What drafts with these weights as they are now, for the drafter's own target or for the same model elsewhere."""
    made = (kind or drafter.Drafter)(target or drafter.target, drafter.options, drafter.numbers())
    made.accuracies = getattr(drafter, "accuracies", ())
    return made


def perturbed(drafter: D, spread: float = 0.4) -> D:
    """With weights so large that it is sure of what it says, which is nonsense."""
    chance = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=chance) * spread)
    return drafter


def session_of(target: Any, drafter: TrainableDrafter | Drafter, budget: Budget) -> Session:
    """A session with a drafter, whether it was trained just now or drafts already."""
    return Session(target, drafting(drafter, target) if isinstance(drafter, TrainableDrafter) else drafter, budget)


def prefilled(target: Any, text: Sequence[int]) -> Any:
    """A cache that holds all but the last token of a text, which is the root."""
    kept = target.cache(len(text) + 32)
    target.forward(DraftTree.chain(text[:-1]), kept, last=True)
    kept.keep(range(len(text) - 1))
    return kept


def watched(drafter: Drafter) -> list[tuple[list[int], DraftTree]]:
    """What it drafts from now on: the text, and the tree."""
    seen: list[tuple[list[int], DraftTree]] = []
    draft = drafter.draft

    def watch(context: Context) -> DraftTree:
        seen.append((list(context.committed), draft(context)))
        return seen[-1][1]

    drafter.draft = watch  # type: ignore[method-assign]
    return seen


@torch.no_grad()
def add_changes(adapters: Adapters, transformer: Transformer) -> None:
    """What adapters amount to becomes part of dense weights."""
    for name in weight_map(transformer.config):
        if (change := adapters.change_of(name)) is not None:
            transformer.get_parameter(name).add_(change)


def after_training(drafter: Any, origin: Path, path: Path, packing: str = "") -> tuple[Any, Target]:
    """A drafter that changed its target by adapters, for the target as it is written, in fp32 or packed by our library.

    Returns that target, too.
    """
    write_merged(origin, drafter.target, drafter.adapters, path)
    target = packed_target(path, packing) if packing else Target.load(path)
    return drafter.for_changed(target), target


def hidden_for(target: Any, states: torch.Tensor) -> Hidden:
    """States [rows, hidden_size] as this target's backend gives them."""
    return TorchHidden(states) if isinstance(target, Target) else NumpyHidden(states.numpy())
