"""Make drafters from trained weights, for targets of torch and of the CPU engine, and record their drafts."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from quantized_layers import packed_target
from tiny_models import END

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Drafter
from localspec.decoding.logits import Hidden, NumpyHidden
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.trained import TrainedDrafter, load_drafter
from localspec.families.architecture import weight_map
from localspec.models.drafter_cards import read_drafter
from localspec.models.drafter_kinds import kind_of
from localspec.nn.adapters import Adapters
from localspec.nn.logits import TorchHidden
from localspec.nn.target import Target
from localspec.nn.transformer import Transformer
from localspec.training.result import write_merged
from localspec.training.trainable import Batch, ConvertedDrafter, TrainableDrafter, save_drafter

D = TypeVar("D", bound=TrainableDrafter)


def torch_form(target: Any) -> Target:
    """Return a target for training: itself, or the same model in torch if the CPU engine computes it."""
    return target if isinstance(target, Target) else _in_torch(target.read_from, target.context)


@cache
def _in_torch(path: Path, context: int) -> Target:
    return Target.load(path, context=context)


def drafting(drafter: TrainableDrafter, target: Any = None, kind: type[TrainedDrafter] | None = None) -> Any:
    """Return a drafter with the present weights, for the drafter's target or the same model on another engine."""
    made = (kind or drafter.Drafter)(target or drafter.target, drafter.options, drafter.numbers())
    made.accuracies = getattr(drafter, "accuracies", ())
    return made


def published(found: ConvertedDrafter, target: Any) -> Any:
    """Return the drafter of a published drafter's files."""
    class_ = import_module(kind_of(found.kind).file).Drafter
    return class_(target, found.options, {name: tensor.numpy() for name, tensor in found.tensors().items()})


def perturbed(drafter: D, spread: float = 0.4) -> D:
    """Return the drafter with large random weights, so that it proposes nonsense with great confidence."""
    chance = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=chance) * spread)
    return drafter


def session_of(target: Any, drafter: TrainableDrafter | Drafter, budget: Budget) -> Session:
    """Return a session with a drafter, given in its training form or in its drafting form."""
    return Session(target, drafting(drafter, target) if isinstance(drafter, TrainableDrafter) else drafter, budget)


def prefilled(target: Any, text: Sequence[int]) -> Any:
    """Return a cache that holds all but the last token of a text, which is the root."""
    kept = target.cache(len(text) + 32)
    target.forward(DraftTree.chain(text[:-1]), kept, last=True)
    kept.keep(range(len(text) - 1))
    return kept


def watched(drafter: Drafter) -> list[tuple[list[int], DraftTree]]:
    """Record each draft from now on: the text, and the tree."""
    seen: list[tuple[list[int], DraftTree]] = []
    draft = drafter.draft

    def watch(context: Context) -> DraftTree:
        seen.append((list(context.committed), draft(context)))
        return seen[-1][1]

    drafter.draft = watch  # type: ignore[method-assign]
    return seen


@torch.no_grad()
def add_changes(adapters: Adapters, transformer: Transformer) -> None:
    """Add the changes of adapters to dense weights."""
    for name in weight_map(transformer.config):
        if (change := adapters.change_of(name)) is not None:
            transformer.get_parameter(name).add_(change)


def after_training(drafter: Any, origin: Path, path: Path, packing: str = "") -> tuple[Any, Target]:
    """Return a drafter that changed its target by adapters, for the target as written, in fp32 or packed by our library.

    Returns that target, too.
    """
    write_merged(origin, drafter.target, drafter.adapters, path)
    target = packed_target(path, packing) if packing else Target.load(path)
    return drafter.for_changed(target), target


def hidden_for(target: Any, states: torch.Tensor) -> Hidden:
    """Return states [rows, hidden_size] in the form of this target's backend."""
    return TorchHidden(states) if isinstance(target, Target) else NumpyHidden(states.numpy())


def path_tokens(tree: DraftTree, node: int) -> tuple[int, ...]:
    """Return the tokens from below the root to a node."""
    tokens: list[int] = []
    while node:
        tokens.append(tree.tokens[node])
        node = tree.parents[node]
    return tuple(tokens[::-1])


@torch.no_grad()
def states(target: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the target's own states of whole texts, [texts, n, width]."""
    n = tokens.shape[1]
    causal = torch.ones(n, n, dtype=torch.bool).tril_()
    hidden: torch.Tensor = torch_form(target).transformer(tokens, torch.arange(n), causal)
    return hidden


def batch_of(
    target: Any, texts: Sequence[Sequence[int]], start: int = 0, distill: bool = False, seed: int | None = None
) -> Batch:
    """Return texts as training reads them, padded with END; tokens before `start` are the prompt."""
    longest = max(map(len, texts))
    tokens = torch.tensor([[*text, *[END] * (longest - len(text))] for text in texts])
    counts = torch.tensor([[start <= place < len(text) for place in range(longest)] for text in texts])
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return Batch(tokens, counts, states(target, tokens), distill, generator)


def train(
    drafter: D,
    lesson: Batch | Callable[[int], Batch],
    steps: int,
    rate: float = 0.01,
    heard: Callable[[float], None] = lambda loss: None,
) -> D:
    """Train by Adam, ever slower in the second half; `heard` is called with each loss."""
    groups = [
        {**group, "params": [part for part in group["params"] if part.requires_grad]}
        for group in drafter.parameter_groups()
    ]
    optimizer = torch.optim.Adam(groups, lr=rate)
    for step in range(steps):
        drafter.train().progress = step / steps
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("lr_scale", 1.0) * min(1.0, 2 * (1 - step / steps))
        optimizer.zero_grad()
        loss = drafter.loss(lesson if isinstance(lesson, Batch) else lesson(step)).loss
        heard(loss.item())
        loss.backward()
        optimizer.step()
    drafter.eval().progress = 1.0
    return drafter


def saved(drafter: TrainableDrafter, path: Path, target: Any) -> Any:
    """Return a drafter that was written and is read for this target."""
    save_drafter(drafter, path, {"target": {"name": "tiny", "revision": "r"}})
    return load_drafter(read_drafter(path), target)
