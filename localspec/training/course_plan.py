"""The plan of a course, which makes a drafter from answers to prompts: its predicted needs, its progress in plan.json,
and the division of its time."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localspec.errors import DoesNotFit, LocalspecError, UsageMistake
from localspec.training.directory import NOTABLE, PLAN, has_unfinished
from localspec.training.verdict import FEWEST, MOST, SECONDS, seconds_of
from localspec.training.verdict import LEAST as LEAST_PROMPTS
from localspec.weights.checkpoint import read_json

HOURS = 6.0  # a night, by default
TOKENS = 1_000_000  # tokens of text to learn from, if no hours were given
PASSES = 3.0  # over that text: at most if no hours were given; at least when time is divided
REPLY = 256  # tokens of an answer, at most; a quarter of a small context
LEAST = 16  # answers from which anything can be learned
BENCH_SHARE, BENCH_SECONDS = 0.1, 600.0  # of the time
MOST_BENCH = 0.3  # of the time, if not even LEAST_PROMPTS fit in BENCH_SHARE of it
LOADING = 30.0  # seconds, and measuring what rows cost
MEASURING_SHARE = 0.05  # of the time, for each of the two measured texts
PROBE_SHARE = 0.2  # of the time, for a probe of layers
LEAST_TRAINING = 0.25  # of the time without bench and measuring, however long reading takes
LEAST_ANSWERING, MOST_ANSWERING = 0.15, 0.7  # of the time, because the time of training is only an estimate
STEPS, STEPS_OF_READINGS = 300, 1000  # of a training; small ones on saved readings cost little
BATCHES = (4096, 2048, 1024, 512, 256, 128)  # the largest that gives this many steps is taken
RATE, WIDTH, MOST_RATE = 1e-3, 1024, 3e-3  # narrow models learn at a higher rate (Yang et al. 2022, µP)
FITTED = 0.5  # of that rate, for a few steps of heads that start from least squares, which a higher rate spoils


@dataclass(frozen=True)
class CoursePlan:
    """The predicted needs of a course: tokens of text, hours of its parts, bytes."""

    conversations: int  # of the user
    prompts: int
    tokens: int
    answering: float
    training: float
    bench: float
    limit: float
    memory: int
    files: int

    def as_json(self) -> dict[str, Any]:
        """Return the plan in the form of `train --json`."""
        return {
            "conversations": self.conversations, "prompts": self.prompts, "tokens": self.tokens,
            "answer_hours": round(self.answering, 4), "train_hours": round(self.training, 4),
            "bench_hours": round(self.bench, 4), "limit_hours": self.limit, "memory_bytes": self.memory,
            "disk_bytes": self.files,
        }  # fmt: skip


@dataclass
class CourseState:
    """The content of plan.json: the course, its predicted needs, the seconds so far, and how it trains."""

    id: str
    asked: Mapping[str, Any]
    token_seconds: float  # of training, per token
    plan: Mapping[str, Any] = field(default_factory=dict)
    spent: float = 0.0
    training: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # proposed by the drafter's kind
    each: float = 0.0  # seconds per answered token, with several conversations at once
    slowdown: float = 1.0  # by other programs, when the course began and then during the answers

    def save(self, directory: Path) -> None:
        """Write plan.json atomically. Raises DoesNotFit."""
        content = json.dumps(vars(self), indent=2) + "\n"
        try:
            (new := directory / f"{PLAN}.new").write_text(content, "utf-8")
            new.replace(directory / PLAN)
        except OSError as error:
            raise DoesNotFit(
                f"{directory} cannot be written ({error.strerror}); make room, and give the same command again."
            ) from error


def read(directory: Path) -> CourseState | None:
    """Return the state of a course; None if there is none. Raises LocalspecError if it cannot be read."""
    if not has_unfinished(directory):
        return None
    content: Any = read_json(directory / PLAN, "give --force to start over")
    with suppress(TypeError):
        state = CourseState(**content)
        CoursePlan(**state.plan)
        if isinstance(state.asked, dict) and isinstance(state.training, dict) and isinstance(state.spent, int | float):
            return state
    raise LocalspecError(f"{directory / PLAN} is damaged; give --force to start over.")


@dataclass(frozen=True)
class TimeBudget:
    """The division of a course's time among its stages, from the user's settings and the expected speeds.

    If `hours`, `steps` or `batch` is None, localspec chooses the value. The argument `spent` of the methods is the time
    of the course so far in seconds, over all sessions.
    """

    hours: float | None  # for everything
    steps: int | None
    batch: int | None
    passes: float
    at_once: int  # answers
    idle_speed: float  # tokens/s of all answers that are generated at once, on an idle machine
    uses_readings: bool  # whether the target reads texts once before training
    state: CourseState

    @property
    def total(self) -> float:
        return 3600 * (self.hours or HOURS)

    @property
    def tail(self) -> float:
        """The seconds reserved for the stages after the training: measuring acceptance, and the benchmark."""
        few, enough = self._bench_seconds(FEWEST), self._bench_seconds(LEAST_PROMPTS)
        usual = min(BENCH_SHARE * self.total, BENCH_SECONDS, LOADING + seconds_of(MOST, self.speed / self.at_once))
        return max(few, min(enough, MOST_BENCH * self.total), usual) + 2 * self._measuring

    @property
    def body(self) -> float:
        """The seconds for everything up to the end of the training."""
        return self.total - self.tail

    @property
    def _measuring(self) -> float:
        """The seconds planned for each of the two measurements of acceptance."""
        return min(SECONDS, MEASURING_SHARE * self.total)

    def measuring(self, left: float) -> float | None:
        """Return how many seconds each of the two acceptance measurements may take, with `left` seconds left.

        Return None if not even the shortest benchmark would fit.
        """
        left -= self._bench_seconds(FEWEST)
        return min(self._measuring, left / 2) if left > 0 else None

    def _bench_seconds(self, prompts: int) -> float:
        return LOADING / 2 + seconds_of(prompts + 1, self.speed / self.at_once)

    @property
    def speed(self) -> float:
        """The expected tokens/s of all answers together. It comes from the answers so far, or before the first answer
        from the load of the machine."""
        return 1 / self.state.each if self.state.each else self.idle_speed / self.state.slowdown

    @property
    def _training_seconds(self) -> float:
        """The seconds of training per token, if the machine stays as busy as it was during the answers."""
        # Not by the answers' speed: it may differ from `idle_speed` because that is only an estimate.
        return self.state.token_seconds * self.state.slowdown

    def _token_seconds(self, answered: float) -> float:
        """Return the seconds that reading and training take per token. Generating a token took `answered` seconds.

        If the target reads the texts once before training, reading a token takes about as long as generating it.
        """
        return (answered if self.uses_readings else 0.0) + self.passes * self._training_seconds

    @property
    def wanted(self) -> float:
        """The number of tokens of text after which no more answers are needed, even if time is left."""
        if self.steps is not None:
            return self.steps * (self.batch or BATCHES[0])
        return float("inf") if self.hours else TOKENS

    def check(self, model: str) -> None:
        """Raise UsageMistake if the user gave too few hours for a course of this model."""
        # Reading an answer takes about as long as generating it.
        least = LEAST * REPLY / self.speed * (2 if self.uses_readings else 1)
        busy = " while other programs are running" if self.state.slowdown >= NOTABLE else ""
        if self.hours and least + self.tail > MOST_ANSWERING * self.total:
            raise UsageMistake(
                f"--hours {self.hours} is too short: {LEAST} answers of {model}, training and a "
                f"bench of {FEWEST} prompts take {self._least_hours(least):g} hours here{busy}; give at least as many."
            )

    def _least_hours(self, least: float) -> float:
        """Return the fewest hours for a course with `least` seconds of answering and reading, rounded up to two
        digits."""
        hours = math.inf
        for _ in range(16):  # the tail grows by at most 0.2 of the total, so this converges to the fewest hours
            hours = (least + replace(self, hours=hours).tail) / MOST_ANSWERING / 3600
        unit = 10.0 ** (math.floor(math.log10(hours)) - 1)
        return round(math.ceil(hours / unit) * unit, 12)

    def expected(self) -> tuple[float, float, float]:
        """Return the tokens of text, the seconds of answering and the seconds of training of a whole course."""
        each = self._token_seconds(1 / self.speed)
        balanced = self.body / (1 + each * self.speed)
        answering = min(max(balanced, LEAST_ANSWERING * self.total), MOST_ANSWERING * self.total)
        tokens = min(answering * self.speed, self.wanted)
        left = max(self.body - tokens / self.speed, 0.0)
        training = left if self.hours else min(left, tokens * each)
        if self.steps is not None:
            training = min(training, self.wanted * each)
        return tokens, tokens / self.speed, training

    def share(self, replies: int, tokens: int, each: float, spent: float) -> float:
        """Return which share of the needed text exists, from 0 to 1. The less time is left, the less text is needed.

        There are `replies` replies with `tokens` tokens, and each token took `each` seconds to generate.
        """
        needed = tokens * self._token_seconds(each)
        balanced = min((spent + needed) / self.body, spent / (LEAST_ANSWERING * self.total))
        shares = (tokens / self.wanted, balanced, spent / (MOST_ANSWERING * self.body))
        return min(max(shares), replies / LEAST, 1.0)

    def expected_tokens(self, replies: int, tokens: int, each: float, spent: float) -> int:
        """Return about how many tokens of text there will be in the end, if each further token takes `each` seconds."""
        each, training = max(each, 1e-9), self._token_seconds(each)
        balanced = (self.body - spent - tokens * training) / (each + training) * each
        least = LEAST_ANSWERING * self.total - spent
        most = MOST_ANSWERING * self.body - spent
        expected = min(tokens + min(max(balanced, least, 0.0), max(most, 0.0)) / each, max(self.wanted, tokens))
        return round(max(expected, tokens * LEAST / max(replies, 1)))

    def batch_and_rate(self, answers: int, spent: float, width: int, starts_fitted: bool) -> tuple[int, float]:
        """Return the batch size and the learning rate for a training on this many answers.

        The batch is small enough for many steps. The rate depends on the number of steps and on the `width` of the
        model. It is lower with `starts_fitted`, if the drafter's first weights come from a least-squares fit.
        """
        tokens = max(self.body - spent, LEAST_TRAINING * self.total) / self._training_seconds
        if not self.hours or self.uses_readings:
            tokens = min(tokens, self.passes * answers * REPLY)
        steps = STEPS_OF_READINGS if self.uses_readings else STEPS
        batch = self.batch or next((size for size in BATCHES if tokens / size >= steps), BATCHES[-1])
        few = tokens / batch < steps
        rate = RATE * WIDTH / width * (FITTED if starts_fitted and few else 1.0)
        return batch, round(min(max(RATE, rate), MOST_RATE), 6)
