"""What a drafter brings on text that its target writes: the acceptance length of a few replies to held-out prompts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localspec.decoding.budget import Budget
from localspec.decoding.compute import DraftableModel
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.trained import TrainedDrafter
from localspec.events import Done
from localspec.training.corpus import Row

NODES = 16  # of each tree
REPLIES, TOKENS = 16, 48  # replies, and tokens of each, at most
SECONDS = 120.0  # after which no further reply is begun


@dataclass(frozen=True)
class GeneratedText:
    """What came of greedy replies: `tokens` in `steps` forwards of the target, with trees of `nodes` nodes."""

    tokens: int
    steps: int
    replies: int
    nodes: int = NODES

    @property
    def length(self) -> float:
        """Tokens a forward, the bonus token counted."""
        return self.tokens / self.steps

    def as_json(self) -> dict[str, Any]:
        """What drafter.json says of it."""
        return {
            "length": round(self.length, 4), "nodes": self.nodes, "tokens": self.tokens, "replies": self.replies,
        }  # fmt: skip


def measure_generated(
    target: DraftableModel[Any], drafter: TrainedDrafter, held_out: Sequence[Row]
) -> GeneratedText | None:
    """Lets the target answer the prompts of held-out rows; None where no row leaves room for a reply.

    The prompt of a row is what precedes its first reply; of a plain text it is the first half.
    """
    session, began = Session(target, drafter, Budget(NODES)), time.monotonic()
    tokens = steps = replies = 0  # committed ones, the forwards for them
    for row in held_out:
        prompt = _prompt(row)
        if len(prompt) < 2 or len(prompt) + TOKENS + NODES > target.context:
            continue
        *_, done = session.generate(prompt, Sampling(), Limits(max_tokens=TOKENS))
        assert isinstance(done, Done)
        said = done.statistics
        if said.steps:
            tokens, steps = tokens + round(said.acceptance_length * said.steps), steps + said.steps
            replies += 1
        if replies == REPLIES or time.monotonic() - began > SECONDS:
            break
    return GeneratedText(tokens, steps, replies) if tokens else None


def _prompt(row: Row) -> list[int]:
    first = next(place for place, counts in enumerate(row.loss_mask) if counts)
    return list(row.tokens[: first or len(row.tokens) // 2])
