"""The drafters that a model could have on a machine, and what each should bring and cost. Pure arithmetic on cards."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from localspec.models.drafter_cards import DrafterCard
from localspec.models.entries import Published
from localspec.models.registry import TargetCard
from localspec.models.s3d_prediction import Constants, acceptance_at, propose, share
from localspec.models.shape import Shape
from localspec.policy.forward_costs import ForwardCostModel
from localspec.policy.measurements import ReplyStats
from localspec.policy.prediction import CONTEXT, ITEM, Acceptance, Rates, cache

WITH_PHRASES = "+phrases"
PAIRED = ("draft_model", "ouroboros")  # those that take a small model

# Prompt lookup, Vicuna 7B, Spec-Bench on an RTX 3090, greedy (published). Ours also knows what replies said before.
PHRASES = Acceptance.of_length(1.73, 10, "from 1.73 as published for prompt lookup, Spec-Bench")
A_PASS = 1.4  # tokens that a draft model accelerated by phrases drafts in one forward, as measured on the demo pair
DEPTH = 5  # tokens a draft of a small model


@dataclass(frozen=True)
class DrafterCandidate:
    """A drafter by what `--drafter` would say. `bytes` is all it holds, its cache too.

    `drafting(nodes)` is seconds a draft. Without an acceptance nobody knows what it brings. `trained` and `small` are
    here; `published` may be fetched.
    """

    name: str
    bytes: int
    acceptance: Acceptance | None
    drafting: Callable[[int], float]
    trained: DrafterCard | None = None
    small: TargetCard | None = None
    published: Published | None = None

    @property
    def here(self) -> bool:
        """Whether it could be loaded now."""
        return self.published is None

    @property
    def obtainable(self) -> bool:
        """Whether somebody publishes what is missing of it."""
        if self.small is not None:
            return self.small.here or (self.small.entry is not None and self.small.entry.source is not None)
        return self.published is None or self.published.source is not None

    @property
    def key(self) -> str:
        """What replies with it are kept by."""
        return reply_key(self.name.partition(":")[0], self.trained, self.small)


def reply_key(drafter: str, trained: DrafterCard | None, small: TargetCard | None) -> str:
    """What replies are kept by: the drafter, and which weights or which small model it had."""
    if trained is not None:
        weights = trained.path / "drafter.safetensors"
        written = weights.stat().st_mtime_ns if weights.is_file() else 0
        return f"{drafter} of {trained.path}, {trained.bytes} bytes, {written}"
    return drafter if small is None else f"{drafter} of {small.path}"


@dataclass(frozen=True)
class DraftModelEstimate:
    """A draft model: its card, its bytes as it would be loaded, and what its forwards cost."""

    card: TargetCard
    bytes: int
    costs: ForwardCostModel


@dataclass(frozen=True)
class CostInputs:
    """What drafting depends on: the target's shape and costs, the rates of its device unpacked, its numbers."""

    shape: Shape
    costs: ForwardCostModel
    rates: Rates
    dtype: str
    computing: int  # bytes of a number that its drafters compute with
    planned: int  # tokens of context
    replies: Mapping[str, ReplyStats]


def plain() -> DrafterCandidate:
    """No drafter at all."""
    return DrafterCandidate("none", 0, Acceptance((), ""), _free)


def candidates(
    card: TargetCard, at: CostInputs, trained: list[DrafterCard], small: DraftModelEstimate | None, small_here: bool
) -> Iterator[DrafterCandidate]:
    """Those that need no training, then those that are here, then those that could be fetched or made."""
    phrases = _told(DrafterCandidate("phrases", 0, PHRASES, _free), at)
    yield phrases
    published = card.entry.drafters if card.entry else ()
    said = {one.kind: one for one in published}
    for drafter in trained:
        yield from _both(_trained(drafter, said.get(drafter.kind), at), phrases, at)
    if small is not None:
        for one in (one for one in published if one.kind in PAIRED):
            yield _told(_paired(one, small, at, small_here), at)
        if small_here and not any(one.kind == "ouroboros" for one in published):
            yield _told(_paired(Published("ouroboros"), small, at, True), at)
    kinds = {drafter.kind for drafter in trained}
    for one in (one for one in published if one.kind not in kinds and one.kind not in PAIRED):
        yield from _both(_fetched(one, at), phrases, at)


def _free(nodes: int) -> float:
    """Looking at phrases takes a hundredth of a step."""
    return 0.0


def _told(candidate: DrafterCandidate, at: CostInputs) -> DrafterCandidate:
    """With the acceptance that replies had here, where there were enough."""
    found = at.replies.get(candidate.key)
    if found is None:
        return candidate
    depth = max(DEPTH, round(found.nodes), math.ceil(found.length))
    return replace(candidate, acceptance=Acceptance.of_length(found.length, depth, "as measured here"))


def _both(alone: DrafterCandidate, phrases: DrafterCandidate, at: CostInputs) -> Iterator[DrafterCandidate]:
    """A trained drafter alone, and lengthened with phrases."""
    alone = _told(alone, at)
    yield alone
    assert phrases.acceptance is not None
    both = alone.acceptance.beside(phrases.acceptance) if alone.acceptance else None
    yield _told(replace(alone, name=alone.name + WITH_PHRASES, acceptance=both), at)


def _trained(drafter: DrafterCard, said: Published | None, at: CostInputs) -> DrafterCandidate:
    rates = [level[0] for level in drafter.about.get("accuracy_by_depth", [])]
    own = Acceptance.chain(rates, "by what it foresaw of held-out text") if rates else _published(said)
    size = held(drafter, at.shape, at.dtype, at.computing, at.planned)
    drafting = _drafting(drafter.kind, drafter.parameters, len(rates) or DEPTH, at)
    return DrafterCandidate(drafter.kind, size, own, drafting, trained=drafter)


def held(drafter: DrafterCard, shape: Shape, dtype: str, computing: int, planned: int) -> int:
    """Bytes of a drafter that is here, its cache for so many tokens included, beside a target of this shape."""
    return _size(drafter.kind, drafter.parameters, shape, dtype, computing, planned)


def _published(one: Published | None) -> Acceptance | None:
    if one is None or one.accepted is None:
        return None
    said = one.accepted
    return Acceptance.of_length(said.length, said.depth, f"from {said.length:.3g} as published, {said.source}")


def _fetched(one: Published, at: CostInputs) -> DrafterCandidate:
    own = _published(one)
    if one.kind == "s3d" and own is None:
        own = _s3d(at.shape)
    parameters = one.parameters or (at.shape.layer if one.kind == "parallelspec" else at.shape.matrices // 20)
    depth = one.accepted.depth if one.accepted else DEPTH
    return DrafterCandidate(
        one.kind,
        _size(one.kind, parameters, at.shape, at.dtype, at.computing, at.planned),
        own,
        _drafting(one.kind, parameters, depth, at),
        published=one,
    )


def _paired(one: Published, small: DraftModelEstimate, at: CostInputs, here: bool) -> DrafterCandidate:
    accelerated, own = one.kind == "ouroboros", _published(one)
    name = f"{one.kind}:{small.card.name}"
    found = own.beside(PHRASES) if own and accelerated else own

    def drafting(nodes: int) -> float:
        passes = min(nodes, DEPTH)
        return passes / A_PASS * small.costs.at(4, CONTEXT) if accelerated else passes * small.costs.at(1, CONTEXT)

    return DrafterCandidate(name, small.bytes, found, drafting, small=small.card, published=None if here else one)


def _s3d(shape: Shape) -> Acceptance:
    """By the paper's own predictor (eq. 10 and 14), for the layers that it proposes."""
    beta, gamma = _proposed(shape)
    chances = [acceptance_at(place, beta, Constants()) for place in range(1, gamma + 1)]
    return Acceptance.chain(chances, "by the formula of the S3D paper")


@lru_cache
def _proposed(shape: Shape) -> tuple[float, int]:
    """(β, γ) that the paper's predictor proposes for a model of this shape (§5.3)."""
    head = shape.embedding / shape.layer
    proposal = propose(shape.num_layers, head, Constants())
    return share(shape.num_layers, len(proposal.kept), head), proposal.gamma


def _size(kind: str, parameters: int, shape: Shape, dtype: str, computing: int, planned: int) -> int:
    """Bytes of weights. A small model has a cache too, no larger than the target's; others keep nothing of the text."""
    if kind == "parallelspec" and parameters > 2 * shape.layer:
        return parameters * ITEM[dtype] + cache(shape, planned, dtype)
    return parameters * computing


def _drafting(kind: str, parameters: int, depth: int, at: CostInputs) -> Callable[[int], float]:
    """Seconds of one draft: the weights it reads, and what a layer takes beside them."""
    beside = at.rates.layer[0]
    if kind == "s3d":
        seconds = _proposed(at.shape)[0] * at.costs.at(DEPTH, CONTEXT)
    elif kind == "parallelspec":  # a small model has layers of its own; one layer borrows the target's head
        whole = parameters > at.shape.layer
        head = 0 if whole else at.shape.embedding
        seconds = at.rates.product(parameters + head, 2 * DEPTH) + (at.shape.num_layers if whole else 1) * beside
    elif kind == "semi":  # depth by depth, each with the target's head
        seconds = depth * (at.rates.product(parameters + at.shape.embedding, 1) + 2 * beside)
    else:  # heads, which share the target's vocabulary matrix or have one each
        shared = 0.0 if parameters > at.shape.embedding else at.rates.product(at.shape.embedding, depth)
        seconds = at.rates.product(parameters, 1) + shared + beside
    return lambda nodes: seconds
