"""Figures of saved replies, their confidence intervals, and tables of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DRAWS = 2000  # of a bootstrap

Reply = Mapping[str, Any]  # tokens, steps and rows of its drafts, seconds, acceptance by depth; ids
Replies = Sequence[Sequence[Reply]]  # by seed, by prompt


@dataclass(frozen=True)
class Figure:
    """A figure and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def _sums(replies: Replies) -> Any:
    """Return the tokens and the steps of each reply, as an array [seeds, prompts, 2]."""
    return np.array([[(reply["tokens"], reply["steps"]) for reply in run] for run in replies], float)


def _ratio(sums: Any) -> Any:
    return sums[..., 0].sum((-1, -2)) / np.maximum(sums[..., 1].sum((-1, -2)), 1)


def _drawn(sums: Any, chosen: Any, random: np.random.Generator) -> Any:
    """Return the tokens per step of bootstrap samples with the `chosen` prompts [draws, prompts] and random seeds."""
    seeds = random.integers(len(sums), size=(len(chosen), len(sums)))
    return _ratio(sums[seeds[:, :, None], chosen[:, None, :]])


def length(replies: Replies) -> Figure:
    """Return the tokens per step over all prompts and seeds. The interval is from bootstrap samples of both."""
    sums, random = _sums(replies), np.random.default_rng(0)
    samples = _drawn(sums, random.integers(sums.shape[1], size=(DRAWS, sums.shape[1])), random)
    return Figure(float(_ratio(sums)), *map(float, np.percentile(samples, (2.5, 97.5))))


def difference(replies: Replies, others: Replies) -> Figure:
    """Return how many more tokens per step `replies` have than `others`. It is significant if the interval excludes 0."""
    left, right, random = _sums(replies), _sums(others), np.random.default_rng(0)
    chosen = random.integers(left.shape[1], size=(DRAWS, left.shape[1]))
    samples = _drawn(left, chosen, random) - _drawn(right, chosen, random)
    return Figure(float(_ratio(left) - _ratio(right)), *map(float, np.percentile(samples, (2.5, 97.5))))


def by_depth(replies: Replies) -> list[float]:
    """Return the acceptance rates of drafted tokens at depth 1, 2, …, if the token before was accepted."""
    reached: list[float] = []
    accepted: list[float] = []
    for reply in (reply for run in replies for reply in run):
        count = float(reply["steps"])
        for depth, chance in enumerate(reply["depths"]):
            if depth == len(reached):
                reached.append(0.0)
                accepted.append(0.0)
            reached[depth] += count
            count *= chance
            accepted[depth] += count
    return [hits / tries for hits, tries in zip(accepted, reached, strict=True) if tries]


def rows_a_step(replies: Replies) -> float:
    """Return the mean number of drafted tokens that a step verifies."""
    flat = [reply for run in replies for reply in run]
    return float(sum(reply["rows"] for reply in flat) / max(sum(reply["steps"] for reply in flat), 1))


def with_interval(estimate: Figure) -> str:
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def figure(value: float | None, form: str = "{:.2f}") -> str:
    return "" if value is None else form.format(value)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. All columns but the first are aligned to the right, because they are figures."""
    lines = [" | ".join(cells) for cells in (heads, ["---", *["---:"] * (len(heads) - 1)], *rows)]
    return "\n".join(f"| {line} |" for line in lines)
