"""The drafters that a model could have on a machine, and what each should bring and cost. Pure arithmetic on cards."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from localspec.models.drafter_cards import DrafterCard
from localspec.models.drafter_kinds import (
    DRAFT_TOKENS,
    WITH_PHRASES,
    DraftCost,
    DrafterKind,
    DrafterSize,
    kind_of,
    kinds,
)
from localspec.models.entries import Published
from localspec.models.registry import TargetCard
from localspec.models.shape import Shape
from localspec.policy.forward_costs import ForwardCostModel
from localspec.policy.measurements import ReplyStats
from localspec.policy.prediction import CONTEXT, ITEM, Acceptance, Rates, cache

# Prompt lookup, Vicuna 7B, Spec-Bench on an RTX 3090, greedy (published). Ours also knows what replies said before.
PHRASES = Acceptance.of_length(1.73, 10, "from 1.73 as published for prompt lookup, Spec-Bench")


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
    def drafter(self) -> str:
        """The name without that of its small model."""
        return self.name.partition(":")[0]

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
        return reply_key(self.drafter, self.trained, self.small)


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
    """Phrases, which need no training, then the drafters that are here, then those that could be fetched or made."""
    phrases = _as_measured(DrafterCandidate("phrases", 0, PHRASES, _free), at)
    yield phrases
    published = card.entry.drafters if card.entry else ()
    by_kind = {one.kind: one for one in published}
    for drafter in trained:
        yield from _alone_and_with_phrases(_trained(drafter, by_kind.get(drafter.kind), at), phrases, at)
    if small is not None:
        for one in (one for one in published if kind_of(one.kind).takes == "draft model"):
            yield _as_measured(_paired(one, small, at, small_here), at)
        # Whatever small model is here drafts best with phrases, published or not.
        for name in kinds("draft model") if small_here else ():
            if kind_of(name).has_phrases and name not in by_kind:
                yield _as_measured(_paired(Published(name), small, at, True), at)
    here = {drafter.kind for drafter in trained}
    for one in (one for one in published if one.kind not in here and kind_of(one.kind).takes == "weights"):
        yield from _alone_and_with_phrases(_fetched(one, at), phrases, at)


def _free(nodes: int) -> float:
    """Looking up phrases takes a hundredth of a step."""
    return 0.0


def _as_measured(candidate: DrafterCandidate, at: CostInputs) -> DrafterCandidate:
    """The candidate with the acceptance that replies with it had on this machine, where there were enough."""
    found = at.replies.get(candidate.key)
    if found is None:
        return candidate
    depth = max(DRAFT_TOKENS, round(found.nodes), math.ceil(found.length))
    return replace(candidate, acceptance=Acceptance.of_length(found.length, depth, "as measured here"))


def _alone_and_with_phrases(
    alone: DrafterCandidate, phrases: DrafterCandidate, at: CostInputs
) -> Iterator[DrafterCandidate]:
    """A trained drafter alone, and lengthened with phrases."""
    alone = _as_measured(alone, at)
    yield alone
    assert phrases.acceptance is not None
    both = alone.acceptance.beside(phrases.acceptance) if alone.acceptance else None
    yield _as_measured(replace(alone, name=alone.name + WITH_PHRASES, acceptance=both), at)


def _trained(drafter: DrafterCard, published: Published | None, at: CostInputs) -> DrafterCandidate:
    rates = [level[0] for level in drafter.about.get("accuracy_by_depth", [])]
    acceptance = (
        Acceptance.chain(rates, "by what it foresaw of held-out text") if rates else _published_acceptance(published)
    )
    size = drafter_bytes(drafter, at.shape, at.dtype, at.computing, at.planned)
    drafting = _drafting(kind_of(drafter.kind), drafter.parameters, len(rates) or DRAFT_TOKENS, at)
    return DrafterCandidate(drafter.kind, size, acceptance, drafting, trained=drafter)


def drafter_bytes(drafter: DrafterCard, shape: Shape, dtype: str, computing: int, planned: int) -> int:
    """Bytes of a drafter that is here, its cache for so many tokens included, beside a target of this shape."""
    return _size(kind_of(drafter.kind), drafter.parameters, shape, dtype, computing, planned)


def _published_acceptance(one: Published | None) -> Acceptance | None:
    if one is None or one.accepted is None:
        return None
    said = one.accepted
    return Acceptance.of_length(said.length, said.depth, f"from {said.length:.3g} as published, {said.source}")


def _fetched(one: Published, at: CostInputs) -> DrafterCandidate:
    kind, acceptance = kind_of(one.kind), _published_acceptance(one)
    if acceptance is None and (predicted := kind.predicted(at.shape)):
        acceptance = Acceptance.chain(*predicted)
    parameters = one.parameters or kind.parameters(at.shape)
    depth = one.accepted.depth if one.accepted else DRAFT_TOKENS
    size = _size(kind, parameters, at.shape, at.dtype, at.computing, at.planned)
    return DrafterCandidate(one.kind, size, acceptance, _drafting(kind, parameters, depth, at), published=one)


def _paired(one: Published, small: DraftModelEstimate, at: CostInputs, here: bool) -> DrafterCandidate:
    kind, acceptance = kind_of(one.kind), _published_acceptance(one)
    if acceptance and kind.has_phrases:
        acceptance = acceptance.beside(PHRASES)
    return DrafterCandidate(
        f"{one.kind}:{small.card.name}",
        small.bytes,
        acceptance,
        _drafting(kind, 0, DRAFT_TOKENS, at, small),
        small=small.card,
        published=None if here else one,
    )


def _size(kind: DrafterKind, parameters: int, shape: Shape, dtype: str, computing: int, planned: int) -> int:
    """Bytes of so many weights of a kind, and of what it keeps of the text."""
    return kind.size(DrafterSize(parameters, shape, ITEM[dtype], computing, cache(shape, planned, dtype)))


def _drafting(
    kind: DrafterKind, parameters: int, depth: int, at: CostInputs, small: DraftModelEstimate | None = None
) -> Callable[[int], float]:
    """Seconds of one draft, by its nodes."""
    costs = small.costs if small else at.costs
    cost = DraftCost(
        parameters, depth, at.shape, at.rates.product, at.rates.layer[0], lambda rows: costs.at(rows, CONTEXT)
    )
    return lambda nodes: kind.seconds(cost, nodes)
