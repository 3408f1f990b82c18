"""The decode step, through which all decoding goes: draft a tree, verify it, and commit the accepted tokens."""

import time
from collections.abc import Sequence
from dataclasses import replace

from localspec.decoding.acceptance import walk, walk_by_rejection, walk_by_typicality
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.forward import CacheT, ForwardModel, ForwardOutput, nan_words
from localspec.decoding.logits import Logits, Picks
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.errors import LocalspecError


def prefill_step(
    target: ForwardModel[CacheT], cache: CacheT, drafter: Drafter, tokens: Sequence[int], sampling: Sampling, last: bool
) -> Step:
    """Read one chunk of the prompt. After the `last` chunk commit the target's first pick, which becomes the root.

    Raises LocalspecError if the logits are NaN or inf.
    """
    output = _forward(target, DraftTree.chain(tokens), cache, drafter, last=True)
    cache.keep(range(len(tokens)))
    if last and not output.logits.finite():
        raise LocalspecError(nan_words("The model", target))
    first_pick = [output.logits.picks([cache.length], sampling)[0]] if last else []
    step = Step([*tokens, *first_pick], output.hidden, logits=output.logits, inner=output.inner)
    drafter.observe(step)
    return step


def decode_step(
    target: ForwardModel[CacheT],
    cache: CacheT,
    drafter: Drafter,
    committed: Sequence[int],
    budget: Budget,
    sampling: Sampling,
) -> Step:
    """Draft a tree of next tokens, verify it, and commit the accepted path and the bonus token after it.

    1. draft: the drafter proposes a tree below the root, which is the last committed token;
    2. prune: the budget removes nodes that cost more time than they save;
    3. verify: one forward of the target computes all nodes, each of which sees only its ancestors;
    4. walk: follow the target's picks down from the root, until a pick is not in the tree;
    5. keep: keep the rows of the accepted path in the cache;
    6. observe: let drafter and budget learn from the target's picks.

    The returned step has the seconds of drafting (with pruning), of verification and of learning.
    """
    start, began = cache.length, time.perf_counter()
    worth, prices = budget.token_seconds(start), budget.verify_seconds(start)
    draft = drafter.draft(Context(committed, cache, budget.nodes, sampling, worth, verify_seconds=prices))
    # The rule `rejection` keeps the distribution only if no sampled node is cut for what it is.
    cut = budget.take_whole if sampling.rule == "rejection" else budget.prune
    tree = target.aligned(cut(draft, start), start)
    pruned = time.perf_counter()
    output = _forward(target, tree, cache, drafter)
    picks = _picks(tree, output.logits, start, sampling)
    greedy_picks = output.logits.argmax()  # waits for the device
    verified = time.perf_counter()
    path, bonus = _walk(tree, output.logits, greedy_picks if picks is None else picks, start, sampling)
    cache.keep(path)
    accepted, hidden = [tree.tokens[node] for node in path[1:]], output.hidden.take(path)
    inner = None if output.inner is None else output.inner.take(path)
    times = pruned - began, max(0.0, verified - pruned - output.once_seconds)
    step = Step([*accepted, bonus], hidden, tree, path, greedy_picks, *times, output.logits, inner=inner)
    walked = time.perf_counter()
    drafter.observe(step)
    budget.observe(step, time.perf_counter() - verified)
    return replace(step, learn_seconds=time.perf_counter() - walked)


def _forward(
    target: ForwardModel[CacheT], tree: DraftTree, cache: CacheT, drafter: Drafter, last: bool = False
) -> ForwardOutput:
    """Return the target's output for a tree, with states of inner layers only if the drafter reads them."""
    if inner := drafter.target_layers:
        return target.forward(tree, cache, last=last, inner=inner)
    return target.forward(tree, cache, last=True) if last else target.forward(tree, cache)


def _picks(tree: DraftTree, logits: Logits, start: int, sampling: Sampling) -> Picks | None:
    """Return the target's sampled picks at all nodes; None in greedy decoding and under rules without such picks.

    The root is at position `start`. Call this before waiting for the device, so that all results arrive together.
    """
    if sampling.greedy or sampling.rule == "typical" or _rejects(tree, sampling):
        return None
    return logits.picks([start + depth + 1 for depth in tree.depth], sampling)  # one place after the node


def _rejects(tree: DraftTree, sampling: Sampling) -> bool:
    return sampling.rule == "rejection" and tree.draft_logits is not None


def _walk(tree: DraftTree, logits: Logits, picks: Picks, start: int, sampling: Sampling) -> tuple[list[int], int]:
    """Return the accepted path and the bonus token by the rule of `sampling`; the root is at position `start`."""
    if _rejects(tree, sampling):
        return walk_by_rejection(tree, logits, sampling, start)
    if sampling.rule == "typical":
        return walk_by_typicality(tree, logits, sampling)
    return walk(tree, picks)
