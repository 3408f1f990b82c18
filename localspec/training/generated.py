"""Measures a drafter on text that its target generates: the acceptance length of a few replies to held-out prompts."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.decoding.budget import Budget
from localspec.decoding.compute import DraftableModel
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.trained import TrainedDrafter
from localspec.events import Done, Statistics
from localspec.repetition import until_it_goes_round
from localspec.training.corpus import Row
from localspec.training.prompts import held_out_prompts

NODES = 16  # of each tree
REPLIES, TOKENS = 16, 48  # replies, and tokens of each, at most
ELSEWHERE = 32  # replies to prompts of all kinds, which are more diverse
SECONDS = 120.0  # for each of the two texts, after which no further reply begins, by default


@dataclass(frozen=True)
class GeneratedText:
    """The result of greedy replies: the target committed `tokens` in `steps` forwards, with trees of `nodes` nodes."""

    tokens: int
    steps: int
    replies: int
    nodes: int = NODES

    @property
    def length(self) -> float:
        """Tokens per forward, including the bonus token."""
        return self.tokens / self.steps

    def as_json(self) -> dict[str, Any]:
        """Return the result as it is stored in drafter.json."""
        return {
            "length": round(self.length, 4), "nodes": self.nodes, "tokens": self.tokens, "replies": self.replies,
        }  # fmt: skip


def measure_generated(
    target: DraftableModel[Any],
    drafter: TrainedDrafter,
    prompts: Iterable[Sequence[int]],
    most: int = REPLIES,
    seconds: float = SECONDS,
    nodes: int = NODES,
) -> GeneratedText | None:
    """Let the target answer at most `most` prompts, with trees of this many nodes.

    No reply begins after `seconds` seconds, and replies end where they repeat themselves. Return None if no prompt
    leaves room for a reply.
    """
    session, began = Session(target, drafter, Budget(nodes, branches=target.branches)), time.monotonic()
    tokens = steps = replies = 0  # committed tokens, and the forwards for them
    for prompt in prompts:
        if len(prompt) < 2 or len(prompt) + TOKENS + nodes > target.context:
            continue
        said = _answered(session, prompt, TOKENS)
        if (end := max(until_it_goes_round(said.token_ids), 2)) < len(said.token_ids):  # at least one step
            said = _answered(session, prompt, end)
        if said.steps:
            tokens, steps = tokens + round(said.acceptance_length * said.steps), steps + said.steps
            replies += 1
        if replies == most or time.monotonic() - began > seconds:
            break
    return GeneratedText(tokens, steps, replies, nodes) if tokens else None


def _answered(session: Session, prompt: Sequence[int], most: int) -> Statistics:
    *_, done = session.generate(prompt, Sampling(), Limits(max_tokens=most))
    assert isinstance(done, Done)
    return done.statistics


def measured_text(
    target: DraftableModel[Any], drafter: TrainedDrafter, held_out: Sequence[Row], seconds: float = SECONDS
) -> dict[str, dict[str, Any]]:
    """Return acceptance measured in text that the target generated, for drafter.json.

    `acceptance` is measured in text like the training text, `acceptance_elsewhere` in replies to localspec's held-out
    prompts of all kinds.
    """
    shipped = ([*target.encode([{"role": "user", "content": one.text}])] for one in held_out_prompts())
    found = {
        "acceptance": measure_generated(target, drafter, map(_prompt, held_out), seconds=seconds),
        "acceptance_elsewhere": measure_generated(target, drafter, shipped, ELSEWHERE, seconds),
    }
    return {name: text.as_json() for name, text in found.items() if text is not None}


def _prompt(row: Row) -> list[int]:
    """Return the prompt of a row: the tokens before its first reply, or the first half of a plain text."""
    first = next(place for place, counts in enumerate(row.loss_mask) if counts)
    return list(row.tokens[: first or len(row.tokens) // 2])
