"""Measures a trained drafter, and decides whether it is kept.

It must be faster than plain decoding, and faster than the drafter that localspec would choose instead.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from localspec import config
from localspec.bench import figures
from localspec.bench.comparison import run_rows
from localspec.bench.prompts import BenchPrompt, message
from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.choosing.plans import CLEARLY
from localspec.config import Settings
from localspec.decoding.budget import Budget
from localspec.decoding.compute import DraftableModel
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.trained import CARD, TrainedDrafter
from localspec.engine.engine import Engine
from localspec.errors import UsageMistake
from localspec.events import Done, Reporter, Statistics
from localspec.models.drafter_kinds import WITH_PHRASES
from localspec.models.registry import TargetCard
from localspec.outside_files import parse_json, read_bytes
from localspec.repetition import until_it_goes_round
from localspec.store.store import Store
from localspec.training.corpus import Row
from localspec.training.examples import held_out_prompts

TOKENS = 96  # of a reply, at most
WARM_UP = 16  # of each row's first reply, which does not count
FEWEST, LEAST, MOST = 2, 6, 24  # prompts: of any bench, of one with enough time, and of the longest one
ROWS = 4  # plain decoding, what would be chosen, the drafter, and the drafter with phrases


@dataclass(frozen=True)
class Verdict:
    """The result of benchmarking a trained drafter, with or without drafting phrases, whichever is faster.

    `speedup` is relative to plain decoding. `without` is the drafter that localspec would choose if this one did not
    exist, and `against` is this drafter's speed relative to it. The drafter is `kept` if `speedup` and `against` are
    clearly above 1.
    """

    drafter: str
    speedup: float
    without: str
    against: float
    prompts: int
    max_tokens: int
    rows: Sequence[Mapping[str, Any]]
    kept: bool

    @classmethod
    def read(cls, card: Mapping[str, Any]) -> Self:
        """Return the verdict that a drafter.json contains."""
        names = ("drafter", "speedup", "without", "against", "prompts", "max_tokens", "rows")
        return cls(**{name: card["bench"][name] for name in names}, kept=card["kept"])

    def as_json(self) -> dict[str, Any]:
        """Return the verdict in the form of drafter.json and of `train --json`."""
        return {
            "drafter": self.drafter, "speedup": self.speedup, "without": self.without, "against": self.against,
            "prompts": self.prompts, "max_tokens": self.max_tokens, "rows": list(self.rows),
        }  # fmt: skip


def seconds_of(prompts: int, speed: float) -> float:
    """Return about how many seconds a bench of this many prompts takes, at `speed` tokens/s."""
    return prompts * ROWS * TOKENS / speed


def judge(
    card: TargetCard,
    directory: Path,
    settings: Settings,
    prompts: Sequence[BenchPrompt],
    seconds: float,
    store: Store | None,
    reporter: Reporter,
) -> Verdict:
    """Benchmark the drafter in a directory, and write into its drafter.json whether it is kept.

    At least `FEWEST` prompts are answered. After that, the benchmark ends before a prompt that would exceed `seconds`.
    If time is short, replies are shorter. Measured costs and replies are saved in `store`, to choose a drafter later.
    Raises the errors of loading, and UsageMistake if no prompt leaves room for a reply.
    """
    began = time.monotonic()
    greedy = replace(
        settings, temperature=0.0, top_p=None, top_k=None, min_p=None, seed=0, accept="exact", exact=False,
        draft_max="auto", context=None,
    )  # fmt: skip
    measured = Measurements(MeasurementCache(store, reporter))
    trained = str(directory / "drafter")

    def chosen(drafter: str) -> Choice:
        return choose(card, replace(greedy, drafter=drafter), measurements=measured)

    plain = chosen("none")
    greedy = config.narrowed(greedy, plain.device, plain.dtype, plain.quantize)
    choices = [plain, chosen("auto"), chosen(trained), chosen(trained + WITH_PHRASES)]
    if choices[1].drafter == "none":
        del choices[1]
    load = partial(Engine, store=store, phrases="off", reporter=reporter)
    first = load(plain)
    room = first.context - TOKENS
    texts = [prompt for prompt in prompts[:MOST] if len(first.target.encode(message(prompt.text))) <= room]
    if not texts:
        raise UsageMistake(
            f"No prompt leaves room for {TOKENS} tokens in a context of {first.context}; give shorter texts, or a "
            "model with a longer context."
        )
    firsts = [first, *(load(choice, share_with=first) for choice in choices[1:])]
    engines: list[Callable[[], Engine]] = [
        partial(load, choice, share_with=base) for choice, base in zip(choices, firsts, strict=True)
    ]
    questions, rules = [prompt.text for prompt in texts], [first.sampling(greedy)] * len(engines)
    max_tokens = _reply_tokens(first, questions[0], rules[0], seconds - (time.monotonic() - began))
    turning = time.monotonic()

    def over(turns: int) -> bool:
        now = time.monotonic()
        return turns >= FEWEST and now - began + (now - turning) / max(turns, 1) > seconds

    replies = run_rows(
        engines, questions, rules, Limits(max_tokens), 1, reporter.progress, before_turn=first.hold_threads, until=over,
        at_most=lambda: seconds - (time.monotonic() - began), warm_up=Limits(WARM_UP),
    )  # fmt: skip
    categories = [prompt.category for prompt, _ in zip(texts, replies[0], strict=False)]

    def compared(row: Sequence[Statistics], reference: Sequence[Statistics]) -> dict[str, Any]:
        return figures.of_row(row, reference, categories, 0, 1.0)  # its share of the bandwidth is not needed

    rows = [compared(row, replies[0]) for row in replies]
    best = max((len(rows) - 2, len(rows) - 1), key=lambda row: rows[row]["speedup"] or 0.0)
    without = len(rows) - 3
    speedup = rows[best]["speedup"] or 0.0
    against = compared(replies[best], replies[without])["speedup"] or 0.0
    is_kept = min(speedup, against) >= CLEARLY
    verdict = Verdict(
        choices[best].drafter, speedup, choices[without].drafter, against, len(categories), max_tokens,
        [{"drafter": choice.drafter, **_shown(row)} for choice, row in zip(choices, rows, strict=True)], is_kept,
    )  # fmt: skip
    _write(directory, {"kept": is_kept, "bench": verdict.as_json()})
    return verdict


def _reply_tokens(engine: Engine, question: str, sampling: Sampling, seconds: float) -> int:
    """Return how many tokens a reply may have if the shortest benchmark is to take at most `seconds`.

    The result is between `WARM_UP` and `TOKENS`, and computed from the time of a short reply.
    """
    began = time.monotonic()
    *_, done = engine.chat(message(question), sampling, Limits(WARM_UP))
    assert isinstance(done, Done)
    each = (time.monotonic() - began) / max(len(done.statistics.token_ids), 1)
    return round(min(max((seconds - ROWS * WARM_UP * each) / (FEWEST * ROWS * each), WARM_UP), TOKENS))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    names = ("tokens_per_second", "speedup", "speedup_quartiles", "acceptance_length", "identical", "off_reason")
    return {name: row[name] for name in names}


def _write(directory: Path, result: dict[str, Any]) -> None:
    """Add the result to drafter.json, atomically."""
    file = directory / "drafter" / CARD
    card = parse_json(read_bytes(file))
    (new := file.with_suffix(".new")).write_text(json.dumps(card | result, indent=2) + "\n", "utf-8")
    new.replace(file)


# -- text that the target generates ------------------------------------------------------------------------------------

NODES = 16  # of each tree
REPLIES, REPLY_TOKENS = 16, 48  # replies, and tokens of each, at most
ELSEWHERE = 32  # replies to prompts of all kinds, which are more diverse
SECONDS = 120.0  # for each of the two texts, after which no further reply begins, by default


def measure_generated(
    target: DraftableModel[Any],
    drafter: TrainedDrafter,
    prompts: Iterable[Sequence[int]],
    most: int = REPLIES,
    seconds: float = SECONDS,
    nodes: int = NODES,
) -> dict[str, Any]:
    """Measure acceptance: let the target answer at most `most` prompts, with draft trees of `nodes` tokens.

    Return an entry of drafter.json: `length` (the tokens per forward pass, including the bonus token after the accepted
    ones), `nodes`, `tokens` and `replies`; empty if no prompt leaves room for a reply. No reply begins after `seconds`
    seconds, and a reply ends where it repeats itself.
    """
    session, began = Session(target, drafter, Budget(nodes, branches=target.branches)), time.monotonic()
    tokens = steps = replies = 0  # committed tokens, and the forwards for them
    for prompt in prompts:
        if len(prompt) < 2 or len(prompt) + REPLY_TOKENS + nodes > target.context:
            continue
        reply = _answered(session, prompt, REPLY_TOKENS)
        if (end := max(until_it_goes_round(reply.token_ids), 2)) < len(reply.token_ids):  # at least one step
            reply = _answered(session, prompt, end)
        if reply.steps:
            tokens, steps = tokens + round(reply.acceptance_length * reply.steps), steps + reply.steps
            replies += 1
        if replies == most or time.monotonic() - began > seconds:
            break
    if not tokens:
        return {}
    return {"length": round(tokens / steps, 4), "nodes": nodes, "tokens": tokens, "replies": replies}


def _answered(session: Session, prompt: Sequence[int], most: int) -> Statistics:
    *_, done = session.generate(prompt, Sampling(), Limits(max_tokens=most))
    assert isinstance(done, Done)
    return done.statistics


def measured_text(
    target: DraftableModel[Any], drafter: TrainedDrafter, held_out: Sequence[Row], seconds: float = SECONDS
) -> dict[str, dict[str, Any]]:
    """Return two measurements of acceptance in text that the target generates, as entries of drafter.json.

    `acceptance` is measured on continuations of held-out training texts, `acceptance_elsewhere` on replies to
    localspec's own held-out prompts.
    """
    shipped = ([*target.encode([{"role": "user", "content": prompt.text}])] for prompt in held_out_prompts())
    results = {
        "acceptance": measure_generated(target, drafter, map(_prompt, held_out), seconds=seconds),
        "acceptance_elsewhere": measure_generated(target, drafter, shipped, ELSEWHERE, seconds),
    }
    return {name: text for name, text in results.items() if text}


def _prompt(row: Row) -> list[int]:
    """Return the prompt of a row: the tokens before its first reply, or the first half of a plain text."""
    first = next(index for index, counts in enumerate(row.loss_mask) if counts)
    return list(row.tokens[: first or len(row.tokens) // 2])
