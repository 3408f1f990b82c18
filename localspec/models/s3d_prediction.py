"""Predicts how fast S3D decodes with a given number of layers and of tokens per draft (S3D paper, §4, appendix E).

The three constants are fitted to measurements, starting from the paper's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

MOST = 5  # tokens per draft: the paper's discount holds for at most five
LONGEST = 16  # tokens of a draft for which acceptance was measured
WORTH = 0.01  # least gain of one more token per draft


@dataclass(frozen=True)
class Constants:
    """A set of constants of the prediction, for one model on one machine. The defaults are the paper's (appendix E)."""

    u: float = 0.01  # how soon a small part of the model agrees with the whole (eq. 10)
    discount: float = 0.22  # how much less a draft's next token is accepted than the one before it (eq. 14)
    delta: float = 0.04  # cost of an iteration in addition to its two forwards, in plain steps (eq. 12)


@dataclass(frozen=True)
class MeasuredAcceptance:
    """A measurement: how often each drafted token was accepted if the token before it was (`by_depth`), and the share
    `beta` of the model that drafted."""

    beta: float
    by_depth: Sequence[float]


@dataclass(frozen=True)
class Timing:
    """A measurement in seconds: a draft that reads the share `beta` of the model, its verification, a plain step."""

    beta: float
    draft: float
    verify: float
    plain: float


@dataclass(frozen=True)
class MeasuredLayers:
    """A subset of a model's layers, and how well it predicts the whole model's tokens without training.

    `shares` says how often its likeliest token, its second-likeliest token, … is the whole model's token.
    """

    layers: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """Return the layers that `as_json` wrote. Raises KeyError, TypeError or ValueError for invalid values."""
        return cls(tuple(map(int, stored["layers"])), tuple(map(float, stored["shares"])))

    def as_json(self) -> dict[str, Any]:
        """Return the layers and their shares as a JSON object, for `from_json`."""
        return {"layers": [*self.layers], "shares": [*self.shares]}

    @property
    def agreement(self) -> float:
        """How often the layers' first guess (their likeliest token) is the whole model's token."""
        return self.shares[0]

    def gains(self, depth: int) -> tuple[float, ...]:
        """Return the expected gain of each token in a draft tree, largest first. Only first guesses have children."""
        reached = [self.agreement**level for level in range(depth)]
        return tuple(sorted((chance * share for chance in reached for share in self.shares), reverse=True))


@dataclass(frozen=True)
class Proposal:
    """Layers to keep and tokens per draft, their predicted speedup, and the speedups of all alternatives."""

    layers: Sequence[int]
    gamma: int
    speedup: float
    table: dict[tuple[int, int], float]  # (layers kept, gamma) -> predicted speedup


def symmetric(layers: int, count: int) -> tuple[int, ...]:
    """Return `count` of the layers, half from the start and half from the end: the middle is skipped (§5.3)."""
    late = count // 2
    return (*range(count - late), *range(layers - late, layers))


def share(layers: int, count: int, head: float) -> float:
    """Return β, the share of the weights that a draft reads: `count` of the layers, and a head as large as `head`
    layers."""
    return (count + head) / (layers + head)


def acceptance(beta: float, u: float) -> float:
    """Return α(β; U): how often the first drafted token is accepted (eq. 10). At U = 1 its limit is β."""
    return beta if math.isclose(u, 1.0) else (1 - u**beta) / (1 - u)


def acceptance_at(position: int, beta: float, constants: Constants) -> float:
    """Return α_k(β): how often drafted token k = `position` is accepted if all before it were (eq. 14)."""
    return min(1.0, max(0.0, 1 - constants.discount * (position - 1)) * acceptance(beta, constants.u))


def acceptance_length(gamma: int, beta: float, constants: Constants) -> float:
    """Return τ(γ, β): the expected tokens per iteration, including the bonus token (eq. 11)."""
    return _length([acceptance_at(position, beta, constants) for position in range(1, gamma + 1)])


def improvement(gamma: int, beta: float, constants: Constants) -> float:
    """Return IF(γ, β): the speedup over plain decoding (eq. 12)."""
    return acceptance_length(gamma, beta, constants) / (constants.delta + beta + 1)


def fit(measured: Sequence[MeasuredAcceptance], timings: Sequence[Timing], start: Constants | None = None) -> Constants:
    """Return the constants nearest to the measurements, by least squares; without measurements, return `start`.

    The constant δ covers all costs of an iteration beyond the paper's β + 1 plain steps, such as verifying many rows.
    """
    start = start or Constants()
    u, discount, delta = start.u, start.discount, start.delta
    points = [
        (sample.beta, depth, rate)
        for sample in measured
        for depth, rate in enumerate(sample.by_depth[:MOST])
        if 0 < sample.beta < 1
    ]
    if points:
        u = math.exp(_lowest(lambda log: _misfit(points, math.exp(log), discount)[0], -40.0, 12.0))
        discount = _misfit(points, u, discount)[1]
    if timings:
        costs = [(timing.draft + timing.verify) / timing.plain - 1 - timing.beta for timing in timings]
        delta = sum(costs) / len(costs)
    return Constants(u, discount, delta)


def levels(gamma: int, measured: MeasuredLayers, constants: Constants) -> list[list[float]]:
    """Return each candidate's chance of acceptance [depth][rank]: the measured shares, lowered with depth (eq. 14)."""
    falls = (max(0.0, 1 - constants.discount * depth) for depth in range(gamma))
    return [[fall * chance for chance in measured.shares] for fall in falls]


def propose(
    layers: int,
    head: float,
    constants: Constants,
    measured: Sequence[MeasuredLayers] = (),
    length: Callable[[list[list[float]]], float] | None = None,
    limit: int | None = None,
) -> Proposal:
    """Return the layers and the number of tokens per draft with the highest predicted speedup (§5.3).

    A longer draft must gain at least WORTH. Without measurements the middle layers are skipped, α follows from eq. 10,
    and at most `limit` layers draft (None: no limit). Otherwise only the `measured` choices of layers are compared.
    `length(chances)` returns the tokens per iteration of a tree with these chances of candidates [depth][rank].
    """
    by_count = {len(choice.layers): choice for choice in measured}
    counts = sorted(by_count) or range(1, (limit or layers) + 1)

    def factor(count: int, gamma: int) -> float:
        beta = share(layers, count, head)
        if length is None:
            return improvement(gamma, beta, constants)
        return length(levels(gamma, by_count[count], constants)) / (constants.delta + beta + 1)

    gammas = range(1, (LONGEST if by_count else MOST) + 1)
    table = {(count, gamma): factor(count, gamma) for gamma in gammas for count in counts}
    best: tuple[int, int] | None = None
    for gamma in gammas:
        count = max(counts, key=lambda count: table[count, gamma])
        if best is None or table[count, gamma] > (1 + WORTH) * table[best]:
            best = count, gamma
    assert best is not None
    chosen = by_count[best[0]].layers if by_count else symmetric(layers, best[0])
    return Proposal(chosen, best[1], table[best], table)


def compared(constants: Constants, measured: MeasuredAcceptance, timing: Timing, generated: float | None = None) -> str:
    """Return a sentence that compares predicted and measured acceptance by depth, tokens per iteration and speedup.

    `generated` is the tokens per iteration in replies with trees. The sentence says that both speedups are calculated.
    """
    gamma, beta = len(measured.by_depth), measured.beta
    predicted = [acceptance_at(position, beta, constants) for position in range(1, gamma + 1)]
    length, measured_length = acceptance_length(gamma, beta, constants), _length(measured.by_depth)
    draft, verify = timing.draft / timing.plain, timing.verify / timing.plain
    by_paper, by_depth = _list(predicted), _list(measured.by_depth)
    parts = [
        f"Acceptance rates by depth: {by_paper} as the paper predicts, {by_depth} as measured on held-out text",
        f"a chain of drafts yields {length:.2f} tokens per step with the predicted rates, and "
        f"{measured_length:.2f} with the measured ones",
    ]
    if generated is not None:
        parts.append(f"when the model wrote replies, a tree of drafts yielded {generated:.2f} tokens per step")
    speed = (generated or measured_length) / (draft + verify)
    of_paper = improvement(gamma, beta, constants)
    parts.append(
        f"a draft takes {draft:.2f} times as long as a plain step here, and its verification {verify:.2f} times as "
        f"long, so drafting should be {speed:.2f} times as fast as plain decoding ({of_paper:.2f} with the paper's "
        "acceptance)"
    )
    return "; ".join(parts) + "."


def _list(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)


def _length(by_depth: Sequence[float]) -> float:
    """Return the expected tokens per iteration, from the acceptance rate of each token after an accepted one."""
    tokens, reached = 1.0, 1.0
    for rate in by_depth:
        reached *= rate
        tokens += reached
    return tokens


def _misfit(points: Sequence[tuple[float, int, float]], u: float, default: float) -> tuple[float, float]:
    """Return the smallest squared error of a fit of acceptance rates with this U, and the discount that gives it.

    A measured point is (β, number k of earlier tokens in the draft, rate). The fitted rate is α(β) - discount * k *
    α(β). If all points have k = 0, the discount is `default`.
    """
    first = [acceptance(beta, u) for beta, _, _ in points]
    falls = [depth * rate for (_, depth, _), rate in zip(points, first, strict=True)]
    square = sum(fall * fall for fall in falls)
    missing = [rate - measured for (_, _, measured), rate in zip(points, first, strict=True)]
    discount = sum(fall * gap for fall, gap in zip(falls, missing, strict=True)) / square if square else default
    return sum((gap - discount * fall) ** 2 for fall, gap in zip(falls, missing, strict=True)), discount


def _lowest(error: Callable[[float], float], low: float, high: float) -> float:
    """Return the argument with the lowest `error`: search 65 points from `low` to `high`, then closer to the best."""
    while high - low > 1e-9:
        step = (high - low) / 64
        best = min((low + index * step for index in range(65)), key=error)
        low, high = best - step, best + step
    return (low + high) / 2
