"""The drafters that a model could have: their costs, and the expected or measured tokens per step of each."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

from localspec.choosing import cost, fit
from localspec.choosing.cost import CONTEXT, ForwardCostModel, Rates, step_seconds
from localspec.choosing.measure import ReplyStats
from localspec.models.drafter_cards import DrafterCard
from localspec.models.drafter_kinds import (
    DRAFT_TOKENS,
    WEIGHTS,
    WITH_PHRASES,
    DraftCost,
    DrafterKind,
    DrafterSize,
    draft_tokens,
    kind_of,
    kinds,
)
from localspec.models.entries import PublishedDrafter
from localspec.models.registry import TargetCard
from localspec.models.shape import Shape

MOST_NODES = 64  # of a tree

# -- expectations ------------------------------------------------------------------------------------------------------

# By kind: tokens a step, tokens of a draft, and the source. The figures are conservative medians over kinds of text,
# greedy and sampled. After 100 tokens, replies here count too. docs/figures/prediction.md compares the predictions.
# phrases: greedy 1.27 and sampled 1.29 for Qwen2.5-Coder-1.5B. Spec-Bench has 1.55 to 1.74, mostly for replies that
# repeat a given text.
# medusa: Spec-Bench has 2.32, 2.39 and 2.33 for Vicuna 7B, 13B and 33B, whose heads were trained on similar chats.
# mtp: 2.74 for Qwen3.5-0.8B (LightLLM, pull request 1402) and 3.2 for Qwen3.6-27B (llama.cpp, 24340), 3 tokens a draft.
# assistant: 1.7 for Gemma 4 12B, three tokens a draft (koboldcpp, 2262), and 2.3 for 31B, two (llama.cpp, 23398).
# dspark: the paper has 3.64 and 3.72 tokens a step for Qwen3 4B and 8B on MT-Bench.
# eagle3: docs.sglang.io, 373 for 158 tokens/s on an H100. parallelspec: PARD's repository, 2.5 to 2.7 on an A100.
PUBLISHED = {
    "phrases": (1.27, 10, "as measured on ten prompts to a 1.5B model"),
    "medusa": (2.0, 4, "a little below Spec-Bench's figures for a 7B model"),
    "assistant": (1.9, 3, "between the figures reported for models of 12B and 31B parameters"),
    "dspark": (3.0, 7, "below DeepSpec's figures for 4B and 8B models"),
    "eagle3": (2.36, 5, "at least the speedup published for an 8B model in SGLang"),
    "mtp": (2.7, 3, "as measured for a 0.8B model in LightLLM"),
    "parallelspec": (2.5, 12, "at least the speedups published for an 8B model in vLLM"),
}
# The chance that a small model's token is accepted if the one before it was. It depends on the small model's bytes as a
# share of the target's. Sources: the median of 68 M for Vicuna (Spec-Bench, 2.28, 2.18 and 2.01 tokens a step) and for
# Llama 2 (ParallelSpec, 1.67 and 1.66), and 0.5B for 1.5B (Qwen2.5-Coder, 3.8 in chats). Other points are guesses. All
# are lower than the 0.82 to 0.93 of Yi 6B for 34B (Ouroboros, table 1), whose texts repeat themselves more.
PAIRS = ((0.005, 0.5), (0.1, 0.65), (0.2, 0.72), (0.35, 0.76), (0.5, 0.8))
LONGEST_CHAIN = 16  # tokens in a small model's draft
# Replies reach this share of the gain that held-out accuracies predict. It is the median of six drafters of SmolLM2 and
# Qwen2.5-Coder with 8 nodes (research/train_growth.py): 0.73 to 0.80 for heads and mask tokens, 0.87 for s3d.
HELD_OUT = 0.78


@dataclass(frozen=True)
class Acceptance:
    """The tokens per step that each node of a draft is expected to add (`gains`), the largest first.

    `origin` says in words where these numbers come from.
    """

    gains: tuple[float, ...]
    origin: str

    @classmethod
    def chain(cls, chances: Sequence[float], origin: str) -> "Acceptance":
        """Return the acceptance of a chain.

        `chances` [depth] is the probability that a token is accepted, given that the token before was accepted.
        """
        return cls(tuple(accumulate(chances, lambda reached, chance: reached * chance)), origin)

    @classmethod
    def tree(cls, levels: Sequence[Sequence[float]], nodes: int, origin: str) -> "Acceptance":
        """Return the acceptance of the best tree of at most `nodes` nodes, given each candidate's chance.

        `levels` [depth][rank] are the chances. The gain of a node is the product of the chances on its path. The node
        with the largest gain is always added next (Medusa, §3.3.3).
        """
        ranked = [sorted(level, reverse=True) for level in levels]
        gains: list[float] = []
        # -gain, the gain of the node above, depth, rank
        waiting = [(-chance, 1.0, 0, 0) for chance in ranked[0][:1]] if ranked else []
        while waiting and len(gains) < nodes:
            worth, above, depth, rank = heapq.heappop(waiting)
            gains.append(-worth)
            if rank + 1 < len(ranked[depth]):
                heapq.heappush(waiting, (-above * ranked[depth][rank + 1], above, depth, rank + 1))
            if depth + 1 < len(ranked) and ranked[depth + 1]:
                heapq.heappush(waiting, (worth * ranked[depth + 1][0], -worth, depth + 1, 0))
        return cls(tuple(gains), origin)

    @classmethod
    @cache
    def of_length(cls, length: float, depth: int, origin: str) -> "Acceptance":
        """Return the acceptance of a chain of `depth` tokens with this acceptance length and the same chance at each
        depth."""
        low, high = 0.0, 1.0
        for _ in range(40):
            chance = (low + high) / 2
            low, high = (chance, high) if cls.chain([chance] * depth, "").length(depth) < length else (low, chance)
        return cls.chain([low] * depth, origin)

    def scaled(self, share: float) -> "Acceptance":
        """Return this acceptance with all gains multiplied by `share`."""
        return replace(self, gains=tuple(share * gain for gain in self.gains))

    def length(self, nodes: int) -> float:
        """Return the tokens per step with this number of nodes, including the bonus token."""
        return 1 + sum(self.gains[:nodes])

    def merged(self, other: "Acceptance") -> "Acceptance":
        """Return the acceptance of two drafters in one tree: their gains add up (docs/figures/drafters.md)."""
        return Acceptance(tuple(sorted(self.gains + other.gains, reverse=True)), f"{self.origin}, with phrases")


def expected(kind: str) -> Acceptance | None:
    """Return the published acceptance of a kind of drafter, or None if nothing is published."""
    if kind not in PUBLISHED:
        return None
    length, depth, source = PUBLISHED[kind]
    return Acceptance.of_length(length, depth, source)


def expected_of_pair(share: float) -> Acceptance:
    """Return the expected acceptance of a small model whose step reads `share` times the bytes of the target's step."""
    shares, chances = zip(*PAIRS, strict=True)
    chance = cost.linear(shares, chances, min(share, shares[-1]))
    return Acceptance.chain(
        [chance] * LONGEST_CHAIN, "as published for pairs of models whose sizes have about this ratio"
    )


def speed(
    costs: ForwardCostModel, acceptance: Acceptance, drafting: Callable[[int], float], most: int
) -> tuple[float, int]:
    """Return the highest tokens/s, and the number of nodes, at most `most`, that reaches it; 0 nodes is plain decoding.

    `drafting(nodes)` is the seconds of a draft.
    """

    def at(nodes: int) -> float:
        return acceptance.length(nodes) / step_seconds(drafting(nodes), costs.at(nodes + 1, CONTEXT), nodes)

    return max((at(nodes), nodes) for nodes in range(min(most, len(acceptance.gains)) + 1))


# -- candidates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrafterCandidate:
    """A drafter that could be used, with what is known about its memory, speed and acceptance.

    `name` is its name for `--drafter`. `bytes` is all the memory it takes, with its cache. `draft_seconds(nodes)` is
    the time of a draft of that many nodes. `acceptance` is None if it is unknown. `replies` are the figures of this
    drafter's replies on this machine, if there are any. `trained` are its weights, `small` is its small model.
    `published` is set if the drafter must be fetched or trained first.
    """

    name: str
    bytes: int
    acceptance: Acceptance | None
    draft_seconds: Callable[[int], float]
    trained: tuple[DrafterCard, ...] = ()
    small: TargetCard | None = None
    published: PublishedDrafter | None = None
    replies: ReplyStats | None = None

    @property
    def drafter(self) -> str:
        """The drafter's name, without the name of its small model."""
        kind, small, _ = self.name.partition(":")
        return kind + WITH_PHRASES if small and self.name.endswith(WITH_PHRASES) else kind

    @property
    def with_phrases(self) -> bool:
        """Whether the drafts contain phrases, or are lengthened by them."""
        return kind_of(self.drafter).has_phrases or self.drafter.endswith(WITH_PHRASES)

    @property
    def here(self) -> bool:
        """Whether the drafter can be loaded now, without fetching or training anything."""
        return self.published is None

    @property
    def obtainable(self) -> bool:
        """Whether everything that is missing can be fetched."""
        if self.small is not None:
            return self.small.here or (self.small.entry is not None and self.small.entry.source is not None)
        return self.published is None or self.published.source is not None


def reply_key(drafter: str, trained: Sequence[DrafterCard], small: TargetCard | None) -> str:
    """Return the key under which the store keeps figures of replies with a drafter.

    The key has the drafter's name, and the path, size and time of its weights, or the path of its small model.
    """
    if not trained:
        return drafter if small is None else f"{drafter} of {small.path}"
    described = []
    for card in trained:
        weights = card.path / "drafter.safetensors"
        saved = weights.stat().st_mtime_ns if weights.is_file() else 0
        described.append(f"{card.path}, {card.bytes} bytes, {saved}")
    return f"{drafter} of {' and '.join(described)}"


@dataclass(frozen=True)
class DraftModelEstimate:
    """A draft model: its card, its bytes as loaded, and the costs of its forwards.

    `share` is the bytes that its step reads, divided by those that a step of the target reads. `named` says whether
    models.toml lists it as the target's draft model, so that the file's published figures apply.
    """

    card: TargetCard
    bytes: int
    costs: ForwardCostModel
    share: float
    named: bool = True


@dataclass(frozen=True)
class CostInputs:
    """The inputs to the cost of drafters: the target's shape and costs, the device's rates, and earlier replies."""

    shape: Shape
    costs: ForwardCostModel
    rates: Rates
    dtype: str
    numbers: tuple[float, int]  # bytes of a drafter's numbers: `fit.drafter_numbers`
    context: int  # tokens
    replies: Mapping[str, ReplyStats]


def candidates(
    card: TargetCard, at: CostInputs, trained: Sequence[DrafterCard], small: DraftModelEstimate | None, small_here: bool
) -> Iterator[DrafterCandidate]:
    """Yield plain decoding and phrases, then the drafters that are here, then drafters to fetch or to train."""
    plain = DrafterCandidate("none", 0, Acceptance((), ""), lambda nodes: 0.0)
    for candidate in (plain, *_unmeasured(card, at, trained, small, small_here)):
        yield replace(
            candidate, replies=at.replies.get(reply_key(candidate.drafter, candidate.trained, candidate.small))
        )


def _unmeasured(
    card: TargetCard, at: CostInputs, trained: Sequence[DrafterCard], small: DraftModelEstimate | None, small_here: bool
) -> Iterator[DrafterCandidate]:
    loadable = {drafter.kind: _trained(drafter, at) for drafter in trained}
    published = {drafter.kind: drafter for drafter in card.entry.drafters} if card.entry else {}
    free = {name: _free(name, at) for name in kinds("nothing", "probe") if name not in ("none", "phrases")}
    phrases = _free("phrases", at)
    yield phrases
    chains = at.shape.recurrent
    for candidate in (*free.values(), *loadable.values(), *_merged({**free, **loadable}, at)):
        yield from _with_phrases(candidate, chains)
    if small is not None:
        for name in kinds("draft model"):
            pair = _pair(published.get(name) or PublishedDrafter(name), small, at, small_here)
            yield from (pair,) if kind_of(name).has_phrases else _with_phrases(pair, chains)
    for kind, drafter in published.items():
        if kind not in loadable and kind_of(kind).takes in WEIGHTS and kind_of(kind).drafts_for(at.shape):
            yield from _with_phrases(_fetched(drafter, at), chains)


def _merged(loadable: Mapping[str, DrafterCandidate], at: CostInputs) -> Iterator[DrafterCandidate]:
    """Yield the combinations of drafters that earlier replies used; for others it is unknown what they gain."""
    for name in sorted({key.partition(" of ")[0].removesuffix(WITH_PHRASES) for key in at.replies if "+" in key}):
        parts = [loadable[piece] for piece in name.split("+") if piece in loadable]
        if 1 < len(parts) == len(name.split("+")):
            cards = tuple(card for part in parts for card in part.trained)
            yield DrafterCandidate(name, sum(part.bytes for part in parts), None, lambda nodes: 0.0, cards)


def _with_phrases(bare: DrafterCandidate, chains: bool) -> Iterator[DrafterCandidate]:
    """Yield a drafter without phrases, then with phrases, which are expected to raise its acceptance.

    There are two exceptions. A small model itself predicts most tokens of a phrase. If drafts are `chains`, a phrase
    only replaces other tokens.
    """
    yield bare
    acceptance, phrases = bare.acceptance, expected("phrases")
    if acceptance is not None and phrases is not None and bare.small is None and not chains:
        acceptance = acceptance.merged(phrases)

    def seconds(nodes: int) -> float:
        return bare.draft_seconds(nodes) + (cost.PHRASES if nodes else 0.0)

    yield replace(bare, name=bare.name + WITH_PHRASES, acceptance=acceptance, draft_seconds=seconds)


def _free(name: str, at: CostInputs) -> DrafterCandidate:
    return DrafterCandidate(name, 0, expected(name), _draft_seconds(kind_of(name), 0, DRAFT_TOKENS, at))


def _trained(drafter: DrafterCard, at: CostInputs) -> DrafterCandidate:
    """Return the candidate for a drafter that is here: its bytes, its acceptance, and the seconds of its drafts.

    The acceptance was measured on held-out text in training, or else is the published one.
    """
    levels = drafter.about.get("accuracy_by_depth", [])
    acceptance = expected(drafter.kind)
    if levels:
        if at.shape.recurrent:
            levels = [[max(level)] for level in levels]  # a recurrent target reads only one path of a tree
        acceptance = Acceptance.tree(levels, MOST_NODES, "as measured after its training")
        generated, share = drafter.generated, HELD_OUT
        if generated is not None and acceptance.length(generated[1]) > 1:
            share = (generated[0] - 1) / (acceptance.length(generated[1]) - 1)
        acceptance = acceptance.scaled(share)
    size = drafter_bytes(drafter, at.shape, at.dtype, at.numbers, at.context)
    depth, tokens = len(levels) or DRAFT_TOKENS, draft_tokens(drafter.options, at.shape)
    seconds = _draft_seconds(kind_of(drafter.kind), drafter.parameters, depth, at, tokens=tokens)
    return DrafterCandidate(drafter.kind, size, acceptance, seconds, trained=(drafter,))


def drafter_bytes(drafter: DrafterCard, shape: Shape, dtype: str, numbers: tuple[float, int], planned: int) -> int:
    """Return the bytes that a drafter takes with a target of this shape.

    The bytes include a cache for `planned` tokens, and the target's states that the drafter reads, for one forward.
    `numbers` is (bytes per weight of a matrix, bytes of any other number), from `fit.drafter_numbers`.
    """
    cache = fit.cache(shape, planned, dtype) - fit.states(shape, dtype)
    size = DrafterSize(drafter.parameters, drafter.others, shape, *numbers, cache, planned, drafter.options)
    return kind_of(drafter.kind).size(size) + fit.CHUNK * drafter.inner * numbers[1]


def _fetched(drafter: PublishedDrafter, at: CostInputs) -> DrafterCandidate:
    kind, predicted = kind_of(drafter.kind), kind_of(drafter.kind).predicted(at.shape)
    acceptance = _as_published(drafter) or (Acceptance.chain(*predicted) if predicted else expected(drafter.kind))
    parameters = drafter.parameters or kind.parameters(at.shape)
    depth = drafter.accepted.depth if drafter.accepted else DRAFT_TOKENS
    cache = fit.cache(at.shape, at.context, at.dtype) - fit.states(at.shape, at.dtype)
    size = kind.size(DrafterSize(parameters, 0, at.shape, *at.numbers, cache, at.context))
    return DrafterCandidate(
        drafter.kind, size, acceptance, _draft_seconds(kind, parameters, depth, at), published=drafter
    )


def _pair(drafter: PublishedDrafter, small: DraftModelEstimate, at: CostInputs, here: bool) -> DrafterCandidate:
    acceptance = _as_published(drafter) if small.named else None
    return DrafterCandidate(
        f"{drafter.kind}:{small.card.name}",
        small.bytes,
        acceptance or expected_of_pair(small.share),
        _draft_seconds(kind_of(drafter.kind), 0, DRAFT_TOKENS, at, small),
        small=small.card,
        published=None if here else drafter,
    )


def _as_published(drafter: PublishedDrafter) -> Acceptance | None:
    if (accepted := drafter.accepted) is None:
        return None
    return Acceptance.of_length(
        accepted.length, accepted.depth, f"from {accepted.length:.3g} as published, {accepted.source}"
    )


def _draft_seconds(
    kind: DrafterKind,
    parameters: int,
    depth: int,
    at: CostInputs,
    small: DraftModelEstimate | None = None,
    tokens: int = 0,
) -> Callable[[int], float]:
    """Return a function from a draft's nodes to its seconds. `tokens` is the draft vocabulary's size (0: all)."""
    costs = cost.StepCosts(small.costs) if small else at.costs  # a draft model's forwards are whole steps
    tokens = tokens or at.shape.vocab_size
    inputs = DraftCost(
        parameters, depth, at.shape, at.rates.product, at.rates.layer, lambda rows: costs.at(rows, CONTEXT), tokens
    )
    host = cost.PHRASES if kind.has_phrases else cost.DRAFT  # seconds of Python
    return lambda nodes: kind.seconds(inputs, nodes) + (host if nodes else 0.0)
