"""The decode step: draft, prune, verify, walk, keep, observe. The one place where this happens."""

import time
from collections.abc import Sequence

import torch

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.forward import CacheT, ForwardModel
from localspec.decoding.sampling import Sampling, walk, walk_by_rejection, walk_by_typicality
from localspec.decoding.tree import DraftTree
from localspec.errors import LocalspecError


@torch.inference_mode()
def prefill_step(
    target: ForwardModel[CacheT], cache: CacheT, drafter: Drafter, tokens: Sequence[int], sampling: Sampling, last: bool
) -> Step:
    """Reads one chunk of the prompt. The last one ends in the first pick, which becomes the root."""
    positions = torch.arange(cache.length, cache.length + len(tokens), device=target.device)
    causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=target.device).tril_()
    output = target.forward(torch.tensor(tokens, device=target.device), positions, causal, cache, last=True)
    cache.keep(range(len(tokens)))
    if last and not output.logits.isfinite().all():
        raise LocalspecError(
            f"The model's answer is not a number ({target.dtype}); its weights are damaged, or too large for this "
            "format: try --dtype fp32, or fetch the model again."
        )
    first = [sampling.pick(output.logits[-1], cache.length)] if last else []
    step = Step([*tokens, *first], output.hidden)
    drafter.observe(step)
    return step


@torch.inference_mode()
def decode_step(
    target: ForwardModel[CacheT],
    cache: CacheT,
    drafter: Drafter,
    committed: Sequence[int],
    budget: Budget,
    sampling: Sampling,
) -> Step:
    """Commits the accepted path of one draft tree, and the bonus token behind it.

    The step says how long drafting and verification took; a step of prefill does not.
    """
    began = time.perf_counter()
    draft = drafter.draft(Context(committed, cache, budget.nodes, sampling))
    drafted = time.perf_counter()
    position = cache.length
    # What was drawn must not be cut by what it is: the rule `rejection` would no longer keep the distribution.
    tree = target.aligned(draft if sampling.rule == "rejection" else budget.prune(draft, position), position)
    pruned = time.perf_counter()
    depth = torch.tensor(tree.depth, device=target.device)
    output = target.forward(
        torch.tensor(tree.tokens, device=target.device), position + depth, tree.mask.to(target.device), cache
    )
    best: list[int] = output.logits.argmax(-1).tolist()
    verified = time.perf_counter()
    path, bonus = _walk(tree, output.logits, best, position, sampling)
    cache.keep(path)
    accepted = [tree.tokens[node] for node in path[1:]]
    step = Step([*accepted, bonus], output.hidden[path], tree, path, best, drafted - began, verified - pruned)
    drafter.observe(step)
    budget.observe(step)
    return step


def _walk(
    tree: DraftTree, logits: torch.Tensor, best: Sequence[int], position: int, sampling: Sampling
) -> tuple[list[int], int]:
    """The accepted path and the bonus token, by the rule that was asked for; the root stands at `position`."""
    if sampling.rule == "rejection" and tree.draft_logits is not None:
        return walk_by_rejection(tree, logits, sampling, position)
    if sampling.rule == "typical":
        return walk_by_typicality(tree, logits, sampling)
    # A pick at a node is the token that would stand one place behind it.
    return walk(
        tree,
        lambda node: best[node] if sampling.greedy else sampling.pick(logits[node], position + tree.depth[node] + 1),
    )
