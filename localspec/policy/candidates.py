"""The drafters that a model could have on a machine, and what each should bring and cost. Pure arithmetic on cards."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from localspec.models.drafter_cards import DrafterCard
from localspec.models.drafter_kinds import (
    DRAFT_TOKENS,
    WEIGHTS,
    WITH_PHRASES,
    DraftCost,
    DrafterKind,
    DrafterSize,
    kind_of,
    kinds,
)
from localspec.models.entries import PublishedDrafter
from localspec.models.registry import TargetCard
from localspec.models.s3d_prediction import KeptLayers
from localspec.models.shape import Shape
from localspec.policy import host_time
from localspec.policy.decoding_kinds import DecodingKind, kept_as
from localspec.policy.forward_costs import ForwardCostModel
from localspec.policy.measurements import ReplyStats
from localspec.policy.own_layers import best_layers
from localspec.policy.prediction import CHUNK, CONTEXT, Acceptance, Rates, cache

FORESEEN = 0.85  # of what its accuracies promise a tree of a trained drafter brings: its four on the demo 0.79 to 0.92
# Where tokens are drawn at 0.7, of what drafts bring greedily: the demo's five drafters with 16 nodes 0.86 to 0.99, on
# texts that do not go round (docs/figures/drafter-table.md); phrases 0.90 there (docs/figures/prediction.md).
DRAWN_SHARE = 0.9
MOST_NODES = 64  # of a tree
REPLAYED = "with its own replies decoded again"

# Published for prompt lookup: Vicuna 7B, Spec-Bench on an RTX 3090, greedy. Ours also knows phrases of earlier replies.
PHRASES = Acceptance.of_length(1.73, 10, "from 1.73 as published for prompt lookup, Spec-Bench")
# Published for a model of 68 M that drafts for Vicuna 7B, Spec-Bench on an A100, greedy; 2.18 for 13B, 2.01 for 33B.
PAIR = Acceptance.of_length(2.28, DRAFT_TOKENS, "from 2.28 as published for a small model beside a 7B, Spec-Bench")


@dataclass(frozen=True)
class DrafterCandidate:
    """A drafter, by the name that `--drafter` takes. `bytes` is all it holds, its cache included.

    `draft_seconds(nodes)` is what a draft of so many nodes takes. Where `acceptance` is None, nobody knows what the
    drafter brings. `trained` and `small` are what it uses; `published` is set where something must be fetched or made.
    `foreseen` is what was thought of it before replies of this kind with it, where there are some.
    """

    name: str
    bytes: int
    acceptance: Acceptance | None
    draft_seconds: Callable[[int], float]
    trained: tuple[DrafterCard, ...] = ()
    small: TargetCard | None = None
    published: PublishedDrafter | None = None
    foreseen: "DrafterCandidate | None" = None

    @property
    def drafter(self) -> str:
        """The name without its small model's."""
        kind, small, _ = self.name.partition(":")
        return kind + WITH_PHRASES if small and self.name.endswith(WITH_PHRASES) else kind

    @property
    def with_phrases(self) -> bool:
        """Whether phrases are a part of its drafts, or lengthen them."""
        return kind_of(self.drafter).has_phrases or self.drafter.endswith(WITH_PHRASES)

    @property
    def here(self) -> bool:
        """Whether nothing has to be fetched or made before it is loaded."""
        return self.published is None

    @property
    def obtainable(self) -> bool:
        """Whether somebody publishes what is missing of it."""
        if self.small is not None:
            return self.small.here or (self.small.entry is not None and self.small.entry.source is not None)
        return self.published is None or self.published.source is not None

    @property
    def key(self) -> str:
        """The key under which the figures of replies with it are stored."""
        return reply_key(self.drafter, self.trained, self.small)


def reply_key(drafter: str, trained: Sequence[DrafterCard], small: TargetCard | None) -> str:
    """The key of a drafter's replies in the store: its name, and which weights or which small model it had."""
    if not trained:
        return drafter if small is None else f"{drafter} of {small.path}"
    described = []
    for one in trained:
        weights = one.path / "drafter.safetensors"
        written = weights.stat().st_mtime_ns if weights.is_file() else 0
        described.append(f"{one.path}, {one.bytes} bytes, {written}")
    return f"{drafter} of {' and '.join(described)}"


@dataclass(frozen=True)
class DraftModelEstimate:
    """A draft model: its card, its bytes as it would be loaded, and what its forwards cost.

    `named` by models.toml are the pairs that published figures are about.
    """

    card: TargetCard
    bytes: int
    costs: ForwardCostModel
    named: bool = True


@dataclass(frozen=True)
class CostInputs:
    """What drafting depends on: the target's shape and costs, its device's rates for drafters, its formats."""

    shape: Shape
    costs: ForwardCostModel
    rates: Rates
    dtype: str
    numbers: tuple[float, int]  # bytes of its drafters' numbers: `prediction.drafter_numbers`
    context: int  # tokens
    replies: Mapping[str, ReplyStats]
    layers: Sequence[KeptLayers] = ()  # that a probe measured
    replays: Mapping[str, ReplyStats] = field(default_factory=dict)
    decoding: DecodingKind = "greedy"

    @property
    def draws(self) -> bool:
        """Whether a token is accepted as what was drawn."""
        return self.decoding in ("sampled", "rejection")


def plain() -> DrafterCandidate:
    """Plain decoding."""
    return DrafterCandidate("none", 0, Acceptance((), ""), lambda nodes: 0.0)


def candidates(
    card: TargetCard, at: CostInputs, trained: list[DrafterCard], small: DraftModelEstimate | None, small_here: bool
) -> Iterator[DrafterCandidate]:
    """Phrases, which need no training, then the drafters that are here, then those that could be fetched or made."""
    phrases = _as_measured(_where_drawn(_untrained("phrases", PHRASES, at), at), at)
    yield phrases
    # How soon guesses of the target's own come right in a window, only replies with one tell.
    windows = _alone_and_with_phrases(_untrained("lookahead", None, at), phrases, at)
    yield from (one for one in windows if one.acceptance is not None)
    published = card.entry.drafters if card.entry else ()
    by_kind = {one.kind: one for one in published}
    own = {one.kind: _trained(one, by_kind.get(one.kind), at) for one in trained}
    if at.layers:
        best = best_layers(at.layers, at.shape, at.costs, MOST_NODES)
        layers = DrafterCandidate("layers", 0, best.acceptance, best.draft_seconds(at.costs))
        own = {layers.name: layers, **own}
    for alone in own.values():
        yield from _alone_and_with_phrases(alone, phrases, at)
    for several in _merged(own, at):
        yield from (one for one in _alone_and_with_phrases(several, phrases, at) if one.acceptance is not None)
    if small is not None:
        pairs = [one for one in published if kind_of(one.kind).takes == "draft model"] if small.named else []
        for one in pairs:
            yield from _of_pair(one, small, at, small_here, phrases)
        # A small model that is here can draft whether or not anybody published figures of that: replies will tell.
        for name in kinds("draft model") if small_here else ():
            if name not in (one.kind for one in pairs):
                yield from _of_pair(PublishedDrafter(name), small, at, True, phrases)
    here = {drafter.kind for drafter in trained}
    for one in (one for one in published if one.kind not in here and kind_of(one.kind).takes in WEIGHTS):
        yield from _alone_and_with_phrases(_fetched(one, at), phrases, at)


def _merged(own: Mapping[str, DrafterCandidate], at: CostInputs) -> Iterator[DrafterCandidate]:
    """Those that drafted together here: what several bring in one tree, only replies with them tell."""
    for name in sorted({key.partition(" of ")[0].removesuffix(WITH_PHRASES) for key in at.replies}):
        parts = [own[one] for one in name.split("+") if one in own]
        if 1 < len(parts) == len(name.split("+")):
            yield DrafterCandidate(
                name,
                sum(one.bytes for one in parts),
                None,
                _one_after_another(parts),
                tuple(card for one in parts for card in one.trained),
            )


def _one_after_another(parts: Sequence[DrafterCandidate]) -> Callable[[int], float]:
    return lambda nodes: sum(one.draft_seconds(nodes) for one in parts)


def _untrained(name: str, acceptance: Acceptance | None, at: CostInputs) -> DrafterCandidate:
    return DrafterCandidate(name, 0, acceptance, _draft_seconds(kind_of(name), 0, 0, at))


def _as_measured(candidate: DrafterCandidate, at: CostInputs) -> DrafterCandidate:
    """The candidate with what replies with it brought and cost on this machine, where there were enough."""
    known = _by_other_replies(candidate, at)
    if not (own := at.replies.get(kept_as(candidate.key, at.decoding))):
        return known
    return replace(_by_replies(candidate, own, "as measured here", at), foreseen=known)


def _by_other_replies(candidate: DrafterCandidate, at: CostInputs) -> DrafterCandidate:
    """The candidate by replies of another kind: what the search for its hyper-parameters decoded again is greedy."""
    again, drawn = at.replays.get(candidate.key), at.replies.get(kept_as(candidate.key, "sampled"))
    if at.decoding == "greedy" and again:
        return _by_replies(candidate, again, REPLAYED, at)
    # Phrases do not know the draw: by greedy or typical replies they are not to be blamed for it.
    if drawn and (at.decoding == "rejection" or (at.decoding != "sampled" and not candidate.with_phrases)):
        return _by_replies(candidate, drawn, "as measured here where tokens were drawn", at)
    greedily = at.replies.get(candidate.key) if at.decoding != "greedy" else None
    if (found := greedily or again) is None or (at.draws and candidate.drafter.endswith(WITH_PHRASES)):
        return candidate  # which is put together of what is known of its parts
    return _where_drawn(_by_replies(candidate, found, "as measured here greedily" if greedily else REPLAYED, at), at)


def _where_drawn(candidate: DrafterCandidate, at: CostInputs) -> DrafterCandidate:
    """A drafter by what it brings greedily."""
    if not at.draws or candidate.acceptance is None:
        return candidate
    return replace(candidate, acceptance=candidate.acceptance.scaled(DRAWN_SHARE))


def _by_replies(candidate: DrafterCandidate, found: ReplyStats, origin: str, at: CostInputs) -> DrafterCandidate:
    depth = max(DRAFT_TOKENS, round(found.nodes), math.ceil(found.length))
    acceptance = Acceptance.of_length(found.length, depth, origin)
    seconds = found.drafting * at.costs.at(round(1 + found.nodes), CONTEXT)
    return replace(candidate, acceptance=acceptance, draft_seconds=lambda nodes: seconds if nodes else 0.0)


def _alone_and_with_phrases(
    alone: DrafterCandidate, phrases: DrafterCandidate, at: CostInputs
) -> Iterator[DrafterCandidate]:
    """A drafter alone, and lengthened with phrases."""
    alone = _as_measured(_where_drawn(alone, at), at)
    yield alone
    assert phrases.acceptance is not None
    both = alone.acceptance.beside(phrases.acceptance) if alone.acceptance else None
    if both is not None and alone.acceptance is not None and at.shape.recurrent:  # it reads the path of either
        both = max(alone.acceptance, phrases.acceptance, key=lambda one: one.length(MOST_NODES))

    def seconds(nodes: int) -> float:
        return alone.draft_seconds(nodes) + (host_time.PHRASES if nodes else 0.0)

    together = replace(alone, name=alone.name + WITH_PHRASES, acceptance=both, draft_seconds=seconds, foreseen=None)
    yield _as_measured(together, at)


def _trained(drafter: DrafterCard, published: PublishedDrafter | None, at: CostInputs) -> DrafterCandidate:
    levels = drafter.about.get("accuracy_by_depth", [])
    if at.shape.recurrent:
        levels = [[max(level)] for level in levels]  # of a tree it reads one path
    acceptance = _foreseen(levels, drafter.generated) if levels else _published_acceptance(published)
    size = drafter_bytes(drafter, at.shape, at.dtype, at.numbers, at.context)
    seconds = _draft_seconds(kind_of(drafter.kind), drafter.parameters, len(levels) or DRAFT_TOKENS, at)
    return DrafterCandidate(drafter.kind, size, acceptance, seconds, trained=(drafter,))


def _foreseen(levels: Sequence[Sequence[float]], generated: tuple[float, int] | None) -> Acceptance:
    """What the best tree brings by how often the candidate of each rank was right on held-out text, [depth][rank].

    Where a tree of some size was measured on `generated` text, (length, nodes), it brings that.
    """
    tree = Acceptance.tree(levels, MOST_NODES, "by what it predicted of held-out text")
    if generated is None or tree.length(generated[1]) == 1:
        return tree.scaled(FORESEEN)
    length, nodes = generated
    share = (length - 1) / (tree.length(nodes) - 1)
    return replace(tree.scaled(share), origin="by the text that it was measured on when it was trained")


def drafter_bytes(drafter: DrafterCard, shape: Shape, dtype: str, numbers: tuple[float, int], planned: int) -> int:
    """Bytes of a drafter that is here, beside a target of this shape.

    Its cache for so many tokens is included, and what a forward makes of the target's states for it.
    """
    kind, kept = kind_of(drafter.kind), cache(shape, planned, dtype)
    held = kind.size(DrafterSize(drafter.parameters, drafter.others, shape, *numbers, kept, drafter.options))
    return held + CHUNK * drafter.inner * numbers[1]


def _published_acceptance(one: PublishedDrafter | None) -> Acceptance | None:
    if one is None or one.accepted is None:
        return None
    said = one.accepted
    return Acceptance.of_length(said.length, said.depth, f"from {said.length:.3g} as published, {said.source}")


def _fetched(one: PublishedDrafter, at: CostInputs) -> DrafterCandidate:
    kind, acceptance = kind_of(one.kind), _published_acceptance(one)
    if acceptance is None and (predicted := kind.predicted(at.shape)):
        acceptance = Acceptance.chain(*predicted)
    parameters = one.parameters or kind.parameters(at.shape)
    depth = one.accepted.depth if one.accepted else DRAFT_TOKENS
    size = kind.size(DrafterSize(parameters, 0, at.shape, *at.numbers, cache(at.shape, at.context, at.dtype)))
    return DrafterCandidate(one.kind, size, acceptance, _draft_seconds(kind, parameters, depth, at), published=one)


def _paired(one: PublishedDrafter, small: DraftModelEstimate, at: CostInputs, here: bool) -> DrafterCandidate:
    kind, acceptance = kind_of(one.kind), _published_acceptance(one) or (PAIR if here else None)
    if acceptance and kind.has_phrases:
        acceptance = acceptance.beside(PHRASES)
    return DrafterCandidate(
        f"{one.kind}:{small.card.name}",
        small.bytes,
        acceptance,
        _draft_seconds(kind, 0, DRAFT_TOKENS, at, small),
        small=small.card,
        published=None if here else one,
    )


def _of_pair(
    one: PublishedDrafter, small: DraftModelEstimate, at: CostInputs, here: bool, phrases: DrafterCandidate
) -> Iterator[DrafterCandidate]:
    """A draft model alone, and lengthened with phrases, unless they are a part of it."""
    alone = _paired(one, small, at, here)
    if kind_of(one.kind).has_phrases:
        yield _as_measured(_where_drawn(alone, at), at)
    else:
        yield from _alone_and_with_phrases(alone, phrases, at)


def _draft_seconds(
    kind: DrafterKind, parameters: int, depth: int, at: CostInputs, small: DraftModelEstimate | None = None
) -> Callable[[int], float]:
    """Returns the function of nodes that gives the seconds of one draft."""
    costs = host_time.StepCosts(small.costs) if small else at.costs  # a draft model's forwards are whole steps
    cost = DraftCost(
        parameters, depth, at.shape, at.rates.product, at.rates.layer[0], lambda rows: costs.at(rows, CONTEXT)
    )
    host = host_time.PHRASES if kind.has_phrases else host_time.DRAFT
    return lambda nodes: kind.seconds(cost, nodes) + (host if nodes else 0.0)
