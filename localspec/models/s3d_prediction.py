"""How fast S3D should be with so many layers and so many tokens a draft, by the paper's formulas (§4, appendix E).

Pure arithmetic. Its three constants are fitted to what was measured; the paper's own are the start.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

MOST = 5  # tokens a draft: the paper's discount is for five at most
LONGEST = 16  # where acceptance was measured
WORTH = 0.01  # a token more a draft must promise so much, or fewer are drafted


@dataclass(frozen=True)
class Constants:
    """Of one model on one machine. The defaults are the paper's (appendix E)."""

    u: float = 0.01  # how soon a small part of the model agrees with all of it (eq. 10)
    discount: float = 0.22  # what a draft's next token is accepted less than the one before it (eq. 14)
    delta: float = 0.04  # what an iteration costs beside its two forwards, in plain steps (eq. 12)


@dataclass(frozen=True)
class Acceptance:
    """Measured: a draft of the share `beta` of the model, and how often its tokens were right, each where all were
    before it, the first first."""

    beta: float
    by_depth: Sequence[float]


@dataclass(frozen=True)
class Timing:
    """Measured, in seconds: a draft by the share `beta` of the model, its verification, and a plain step."""

    beta: float
    draft: float
    verify: float
    plain: float


@dataclass(frozen=True)
class KeptLayers:
    """Measured without training: how often the candidate of each rank that some layers give is what all layers say."""

    layers: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """Read the result of `as_json`. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(tuple(map(int, stored["layers"])), tuple(map(float, stored["shares"])))

    def as_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {"layers": [*self.layers], "shares": [*self.shares]}

    @property
    def agreement(self) -> float:
        """How often the first guess was right."""
        return self.shares[0]

    def gains(self, depth: int) -> tuple[float, ...]:
        """Return the gain of each node, the largest first, of a draft that extends only its likeliest token."""
        reached = [self.agreement**level for level in range(depth)]
        return tuple(sorted((before * share for before in reached for share in self.shares), reverse=True))


@dataclass(frozen=True)
class Proposal:
    """Layers to keep and tokens a draft, the speedup they promise, and that of every choice there was."""

    kept: Sequence[int]
    gamma: int
    speedup: float
    table: dict[tuple[int, int], float]  # (layers kept, gamma) -> predicted speedup


def symmetric(layers: int, kept: int) -> tuple[int, ...]:
    """So many layers out of all, the first and the last: what lies in the middle is skipped (§5.3)."""
    late = kept // 2
    return (*range(kept - late), *range(layers - late, layers))


def share(layers: int, kept: int, head: float) -> float:
    """β: what part of the weights a draft reads. The head, of so many layers' weight, is read in any case."""
    return (kept + head) / (layers + head)


def acceptance(beta: float, u: float) -> float:
    """α(β; U): how often the first drafted token is accepted (eq. 10). At U = 1 its limit, β itself."""
    return beta if math.isclose(u, 1.0) else (1 - u**beta) / (1 - u)


def acceptance_at(place: int, beta: float, constants: Constants) -> float:
    """α_k(β): of the k-th drafted token, the ones before it accepted (eq. 14), never below 0 or above 1."""
    return min(1.0, max(0.0, 1 - constants.discount * (place - 1)) * acceptance(beta, constants.u))


def acceptance_length(gamma: int, beta: float, constants: Constants) -> float:
    """τ(γ, β): tokens an iteration is expected to give, the bonus token counted (eq. 11)."""
    tokens, reached = 0.0, 1.0
    for place in range(1, gamma + 1):
        chance = acceptance_at(place, beta, constants)
        tokens += place * reached * (1 - chance)
        reached *= chance
    return tokens + (gamma + 1) * reached


def improvement(gamma: int, beta: float, constants: Constants) -> float:
    """IF(γ, β): how many times as fast as plain decoding (eq. 12)."""
    return acceptance_length(gamma, beta, constants) / (constants.delta + beta + 1)


def fit(measured: Sequence[Acceptance], timings: Sequence[Timing], start: Constants | None = None) -> Constants:
    """Return the constants that are nearest to the measurements, by least squares, or those of `start` without any.

    δ takes up all that an iteration takes beyond the paper's (β + 1) plain steps: verification of many rows, too.
    """
    start = start or Constants()
    u, discount, delta = start.u, start.discount, start.delta
    places = [
        (one.beta, before, rate)
        for one in measured
        for before, rate in enumerate(one.by_depth[:MOST])
        if 0 < one.beta < 1
    ]
    if places:
        u = math.exp(_lowest(lambda log: _misfit(places, math.exp(log), discount)[0], -40.0, 12.0))
        discount = _misfit(places, u, discount)[1]
    if timings:
        delta = sum((one.draft + one.verify) / one.plain - 1 - one.beta for one in timings) / len(timings)
    return Constants(u, discount, delta)


def levels(gamma: int, measured: KeptLayers, constants: Constants) -> list[list[float]]:
    """[depth][rank]: the chances of candidates where α is measured and falls with the depth (eq. 14)."""
    falls = (max(0.0, 1 - constants.discount * before) for before in range(gamma))
    return [[fall * chance for chance in measured.shares] for fall in falls]


def propose(
    layers: int,
    head: float,
    constants: Constants,
    measured: Sequence[KeptLayers] = (),
    length: Callable[[list[list[float]]], float] | None = None,
    most: int | None = None,
) -> Proposal:
    """Return the options that promise to be fastest (§5.3): one more token a draft only if it is worth it.

    The middle is skipped, and α is that of eq. 10; or there are layers that were `measured`, and `length` returns the
    tokens an iteration of the tree that is verified, by the chances of its candidates [depth][rank]. Without
    measurements, this many layers at `most` are considered, or all.
    """
    own = {len(one.layers): one for one in measured}
    counts = sorted(own) or range(1, (most or layers) + 1)

    def factor(kept: int, gamma: int) -> float:
        beta = share(layers, kept, head)
        if length is None:
            return improvement(gamma, beta, constants)
        return length(levels(gamma, own[kept], constants)) / (constants.delta + beta + 1)

    gammas = range(1, (LONGEST if own else MOST) + 1)
    table = {(kept, gamma): factor(kept, gamma) for gamma in gammas for kept in counts}
    best: tuple[int, int] | None = None
    for gamma in gammas:
        kept = max(counts, key=lambda kept: table[kept, gamma])
        if best is None or table[kept, gamma] > (1 + WORTH) * table[best]:
            best = kept, gamma
    assert best is not None
    taken = own[best[0]].layers if own else symmetric(layers, best[0])
    return Proposal(taken, best[1], table[best], table)


def beside(constants: Constants, measured: Acceptance, timing: Timing, generated: float | None = None) -> str:
    """Prediction beside measurement, in a sentence: acceptance by depth, tokens an iteration and speedup.

    `generated` are the tokens an iteration of the tree that is verified, in replies of the model. The speedup is
    arithmetic in either case, and is called so.
    """
    gamma, beta = len(measured.by_depth), measured.beta
    predicted = [acceptance_at(place, beta, constants) for place in range(1, gamma + 1)]
    length, found = acceptance_length(gamma, beta, constants), _length(measured.by_depth)
    draft, verify = timing.draft / timing.plain, timing.verify / timing.plain
    parts = [
        f"Acceptance rates by depth: {_list(predicted)} by the paper's constants, {_list(measured.by_depth)} on "
        "held-out text",
        f"a chain of them makes {length:.2f} tokens an iteration, and {found:.2f}",
    ]
    if generated is not None:
        parts.append(f"the tree that is verified brought {generated:.2f} in replies of the model")
    parts.append(
        f"as a draft takes {draft:.2f} plain steps here and its verification {verify:.2f}, that should be "
        f"{(generated or found) / (draft + verify):.2f} times as fast as plain decoding, and "
        f"{improvement(gamma, beta, constants):.2f} by the paper's constants"
    )
    return "; ".join(parts) + "."


def _list(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)


def _length(by_depth: Sequence[float]) -> float:
    """Tokens an iteration, of chances that each hold given the one before."""
    tokens, reached = 1.0, 1.0
    for rate in by_depth:
        reached *= rate
        tokens += reached
    return tokens


def _misfit(places: Sequence[tuple[float, int, float]], u: float, otherwise: float) -> tuple[float, float]:
    """(squared error, discount) of the best discount for this U; with first tokens only there is none to be found.

    Of (β, tokens before it in the draft, rate): rate = α(β) - discount * (tokens before it * α(β)).
    """
    first = [acceptance(beta, u) for beta, _, _ in places]
    falls = [before * rate for (_, before, _), rate in zip(places, first, strict=True)]
    square = sum(fall * fall for fall in falls)
    missing = [rate - seen for (_, _, seen), rate in zip(places, first, strict=True)]
    discount = sum(fall * gap for fall, gap in zip(falls, missing, strict=True)) / square if square else otherwise
    return sum((gap - discount * fall) ** 2 for fall, gap in zip(falls, missing, strict=True)), discount


def _lowest(error: Callable[[float], float], low: float, high: float) -> float:
    """Where a function is lowest: a look at the whole range, then ever closer to the best place."""
    while high - low > 1e-9:
        step = (high - low) / 64
        best = min((low + index * step for index in range(65)), key=error)
        low, high = best - step, best + step
    return (low + high) / 2
