"""Makes a drafter without given text: the target answers prompts, the drafter learns from the answers, a bench judges
it.

A course saves its progress in its directory, so it can continue after any interruption. plan.json identifies the course
and divides its time. answers.jsonl grows reply by reply. The training has its checkpoint. drafter.json names the course
and, at the end, the result of the bench.
"""

import gc
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from localspec.bench.prompts import BenchPrompt
from localspec.config import Settings
from localspec.environment import home
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.machine import hardware
from localspec.models import registry
from localspec.models.messages import Message
from localspec.nn.packing import DTYPES
from localspec.paths import Paths, file_stem, private_directory
from localspec.quantities import speedup
from localspec.store.store import Store
from localspec.training import checkpoint, estimate
from localspec.training.answering import BatchAnswerer, GenerationSettings, answerer, answering_choice, at_once
from localspec.training.directory import (
    ANSWERS,
    NOTABLE,
    PLAN,
    CoursePlan,
    CourseState,
    Lock,
    drafter_json,
    has_unfinished,
    read,
    refuse_other,
    refuse_result,
)
from localspec.training.distill import Distiller, append, saved_replies
from localspec.training.examples import (
    Example,
    Past,
    Question,
    digest_of,
    held_out_prompts,
    read_answers,
    read_past,
    shipped_questions,
)
from localspec.training.job import Clock, Job, TrainingRequest
from localspec.training.readings import Readings
from localspec.training.result import report_of
from localspec.training.trainable import PROBE_SECONDS, trainable_class
from localspec.training.verdict import FEWEST, MOST, SECONDS, Verdict, judge, seconds_of
from localspec.training.verdict import LEAST as LEAST_PROMPTS

Source = Literal["prompts", "history"]
HISTORY: Source = "history"

NO_PAST = Past((), (), ())
HOURS = 6.0  # a night, by default
TOKENS = 1_000_000  # tokens of text to learn from, if no hours were given
PASSES = 3.0  # over that text: at most if no hours were given; at least when time is divided
REPLY = 256  # tokens of an answer, at most; a quarter of a small context
LEAST = 16  # answers from which anything can be learned
CHUNK = 64  # prompts of all kinds that are answered together, if that is possible
DRAWN = 0.7  # the temperature of second and further answers to the same prompts
BENCH_SHARE, BENCH_SECONDS = 0.1, 600.0  # of the time
MOST_BENCH = 0.3  # of the time, if not even LEAST_PROMPTS fit in BENCH_SHARE of it
LOADING = 30.0  # seconds, and measuring what rows cost
MEASURING_SHARE = 0.05  # of the time, for each of the two measured texts
PROBE_SHARE = 0.2  # of the time, for a probe of layers
LEAST_TRAINING = 0.25  # of the time without bench and measuring, however long reading takes
NOTED = 5.0  # seconds between two records of a course's time
LEAST_ANSWERING, MOST_ANSWERING = 0.15, 0.7  # of the time, because the time of training is only an estimate
STEPS, STEPS_OF_READINGS = 300, 1000  # of a training; small ones on saved readings cost little
BATCHES = (4096, 2048, 1024, 512, 256, 128)  # the largest that gives this many steps is taken
RATE, WIDTH, MOST_RATE = 1e-3, 1024, 3e-3  # narrow models learn at a higher rate (Yang et al. 2022, µP)
FITTED = 0.5  # of that rate, for a few steps of heads that start from least squares, which a higher rate spoils


@dataclass(frozen=True)
class CourseOptions:
    """The user's settings of a course, in addition to the settings of the training.

    `hours` is the time for everything. None means that localspec chooses.
    """

    source: Source
    hours: float | None
    batch: int | None
    rate: float | None
    keep_answers: bool


@dataclass(frozen=True)
class Answered:
    """The number of answers so far, and the number of tokens in them. `done` is the share of the needed text, 0 to 1.

    At the present speed the answers will have about `expected` tokens in the end.
    """

    replies: int
    tokens: int
    done: float
    expected: int

    @property
    def more(self) -> int:
        """About how many further answers there will be."""
        return round((self.expected / max(self.tokens, 1) - 1) * self.replies)


def _measuring(total: float) -> float:
    """Return how many of the `total` seconds acceptance is measured on each of two kinds of prompts."""
    return min(SECONDS, MEASURING_SHARE * total)


class Course(Clock):
    """A course in a directory, whose `lock` it takes. Call `answer`, `train` and `judge` in this order.

    Each of the three continues where an earlier session stopped. `request` has the training's settings, without text.
    Time counts from `began`, by `time.monotonic`. Before anything is computed, UsageMistake is raised for impossible
    settings and for a directory with a finished training, and also DoesNotFit and the errors of choosing a model.
    """

    def __init__(
        self,
        request: TrainingRequest,
        options: CourseOptions,
        settings: Settings,
        lock: Lock,
        store: Store | None,
        reporter: Reporter,
        began: float | None = None,
    ) -> None:
        self.request, self.options = request, options
        self._settings, self._lock, self._store, self._reporter = settings, lock, store, reporter
        self.directory = request.directory
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageMistake("Several processes need training text; give --data FILE, or start only one process.")
        self._job = Job(self._sized(1), settings, reporter.notice, reporter.progress)
        if not request.force and not has_unfinished(self.directory):
            _refuse_finished(self.directory)
        self._choice = answering_choice(request.card, settings, None, store, reporter)
        self._past = self._read_past()
        self._lock.take()  # if the directory is there
        state = None if request.force else read(self.directory)
        self._began, self._noted, self._prepared = time.monotonic() if began is None else began, 0.0, False
        self.resumed = state is not None
        self._state = self._new_state() if state is None else self._resumed(state)
        self._before = self._state.spent

    # -- before anything is computed ----------------------------------------------------------------------------------

    def _read_past(self) -> Past:
        if self.options.source == "prompts":
            return NO_PAST
        past = read_past(self._store.history, registry.reference(self.request.card)) if self._store else NO_PAST
        if not past.conversations and not past.questions:
            raise UsageMistake(
                "There are no saved conversations to learn from; chat first, or leave --data out to use the prompts "
                "that come with localspec."
            )
        return past

    def _new_state(self) -> CourseState:
        recomputed = self._job.fitting().recomputed
        seconds = estimate.hours(self._job.shadow, self._product_seconds(), 1, recomputed) * 3600
        self._before = 0.0
        self._state = CourseState(secrets.token_hex(8), self._identity(), seconds, slowdown=hardware.slowdown())
        self._state.plan = asdict(self._planned())
        return self._state

    def _resumed(self, state: CourseState) -> CourseState:
        """Return the state of the stopped course. Raises UsageMistake if it is a course with other settings."""
        refuse_other(self.directory, state.asked, self._identity())
        return state

    @property
    def plan(self) -> CoursePlan:
        """The tokens of text, hours and bytes that the course was expected to need when it began."""
        return CoursePlan(**self._state.plan)

    @property
    def slowdown(self) -> float:
        """The factor by which, in the plan, everything takes longer than on an idle machine."""
        return self._state.slowdown

    @property
    def left(self) -> float:
        """The seconds that are left until the time limit."""
        return max(self._total - self.spent, 0.0)

    def _identity(self) -> dict[str, Any]:
        request, settings = self.request, self._settings
        return {
            "kind": request.kind, "model": self._job.revision, "data": self.options.source,
            "options": dict(request.options), "hours": self.options.hours, "steps": request.steps,
            "epochs": request.epochs, "length": request.length, "batch": self.options.batch,
            "at_once": request.at_once, "lr": self.options.rate, "seed": request.seed,
            "labels": "soft" if request.distill else "text", "device": settings.device, "dtype": settings.dtype,
            "quantize": settings.quantize,
        }  # fmt: skip

    def _product_seconds(self) -> float:
        return estimate.product_seconds(self._job.choice.device, DTYPES[self._job.choice.dtype])

    def _planned(self) -> CoursePlan:
        """Estimate text, times and bytes.

        Raises DoesNotFit if there is no room, and UsageMistake if the hours are too few.
        """
        speed = self._speed * at_once(self._choice)
        each, tail = self._token_seconds(1 / speed), self._tail
        # Reading an answer takes about as long as generating it.
        least = LEAST * REPLY / speed * (2 if self._job.shadow.uses_readings else 1)
        busy = " while other programs are running" if self.slowdown >= NOTABLE else ""
        if self.options.hours and least + tail > MOST_ANSWERING * self._total:
            raise UsageMistake(
                f"--hours {self.options.hours} is too short: {LEAST} answers of {self.request.name}, training and a "
                f"bench of {FEWEST} prompts take {self._least_hours(least):g} hours here{busy}; give at least that."
            )
        balanced = (self._total - tail) / (1 + each * speed)
        answering = min(max(balanced, LEAST_ANSWERING * self._total), MOST_ANSWERING * self._total)
        tokens = min(answering * speed, self._wanted)
        left = max(self._total - tail - tokens / speed, 0.0)
        training = left if self.options.hours else min(left, tokens * each)
        if self.request.steps is not None:
            training = min(training, self.request.steps * (self.options.batch or BATCHES[0]) * each)
        prompts = min(max(round(tokens / REPLY), LEAST), len(self._questions))
        readings = Readings.bytes_of(self._width, round(tokens)) if self._job.shadow.uses_readings else 0
        fit = self._job.fitting()
        return CoursePlan(
            len(self._past.conversations), prompts, round(tokens), tokens / speed / 3600, training / 3600,
            tail / 3600, self._total / 3600, self._job.needed.memory(fit.at_once, fit.recomputed),
            self._job.needed.files + 8 * round(tokens) + readings,
        )  # fmt: skip

    @property
    def _total(self) -> float:
        return 3600 * (self.options.hours or HOURS)

    @property
    def _passes(self) -> float:
        return self.request.epochs or PASSES

    @property
    def _wanted(self) -> float:
        """The number of tokens of text after which no more answers are needed, even if time is left."""
        if self.request.steps is not None:
            return self.request.steps * (self.options.batch or BATCHES[0])
        return float("inf") if self.options.hours else TOKENS

    @property
    def _questions(self) -> list[Question]:
        return [*self._past.questions, *shipped_questions()]

    @property
    def _held_out(self) -> list[BenchPrompt]:
        return [*self._past.held_out, *held_out_prompts()]

    @property
    def _speed(self) -> float:
        """The expected tokens/s of one answer: by earlier answers, or else by the machine's load at the beginning."""
        if self._state.each:
            return min(self._idle_speed, 1 / (self._state.each * at_once(self._choice)))
        return self._idle_speed / self._state.slowdown

    @property
    def _idle_speed(self) -> float:
        return self._choice.tokens_per_second or 1.0

    @property
    def _training_seconds(self) -> float:
        """The seconds of training per token, if the machine stays as busy as during the answers."""
        return self._state.token_seconds * self._idle_speed / self._speed

    @property
    def _width(self) -> int:
        return self._job.shadow.target.transformer.config.hidden_size

    def _token_seconds(self, answered: float) -> float:
        """Return the seconds of training per token, if a token takes `answered` seconds to generate.

        If the target reads texts once before training, reading a token takes about as long as generating it.
        """
        once = answered if self._job.shadow.uses_readings else 0.0
        return once + self._passes * self._training_seconds

    @property
    def _tail(self) -> float:
        """The seconds for everything after the training."""
        return self._tail_of(self._total)

    def _tail_of(self, total: float) -> float:
        """Return the seconds for everything after the training, if the course takes `total` seconds in all."""
        few, enough = self._bench_seconds(FEWEST), self._bench_seconds(LEAST_PROMPTS)
        usual = min(BENCH_SHARE * total, BENCH_SECONDS, LOADING + seconds_of(MOST, self._speed))
        return max(few, min(enough, MOST_BENCH * total), usual) + 2 * _measuring(total)

    def _bench_seconds(self, prompts: int) -> float:
        return LOADING / 2 + seconds_of(prompts + 1, self._speed)

    def _least_hours(self, least: float) -> float:
        """Return the fewest hours in which `least` seconds of answers and reading fit, rounded up to two digits."""
        total = math.inf
        for _ in range(16):  # the tail grows by at most 0.2 of the total, so this converges to the fewest hours
            total = (least + self._tail_of(total)) / MOST_ANSWERING
        unit = 10.0 ** (math.floor(math.log10(total / 3600)) - 1)
        return round(math.ceil(total / 3600 / unit) * unit, 12)

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def spent(self) -> float:
        """Seconds of this course so far, in all sessions."""
        return self._before + time.monotonic() - self._began

    def note(self, now: bool = False) -> None:
        """Save the seconds that the course has taken, unless they were saved a moment ago and `now` is False."""
        if now or time.monotonic() - self._noted >= NOTED:
            self._noted, self._state.spent = time.monotonic(), self.spent
            self._state.save(self.directory)

    def close(self) -> None:
        """Save the seconds so far for the next session, if the course has begun."""
        if self._prepared or self.resumed:
            self.note(now=True)

    def reading_is_over(self) -> bool:
        """Return whether reading text must end because training needs the time."""
        self.note()
        return self.spent >= (1 - LEAST_TRAINING) * (self._total - self._tail)

    def training(self) -> float | None:
        """Return the hours for training in all sessions together: as decided when training first began, or fewer if
        less time is left."""
        trained, left = checkpoint.spent(self.directory / "checkpoint"), max(self._total - self.spent - self._tail, 1.0)
        decided: float = self._state.training.get("hours", left / 3600)
        self._state.training = {**self._state.training, "hours": decided}
        self.note(now=True)
        return round(min(decided, (trained + left) / 3600), 6)

    def measuring(self) -> float | None:
        """Return the seconds for measuring acceptance on each of two kinds of prompts; no reply begins after them.
        They are fewer than planned if the shortest bench would otherwise have no time; None if it has none already."""
        left = self.left - self._bench_seconds(FEWEST)
        return min(_measuring(self._total), left / 2) if left > 0 else None

    # -- what should pay ----------------------------------------------------------------------------------------------

    def propose(self) -> bool:
        """Measure which options of the drafter suit this machine, if its kind can, and save the options.

        Return whether the drafter should be faster than plain decoding; True if nothing is measured.
        """
        probes = trainable_class(self.request.kind).PROBES and not self.request.options
        if not probes or self._state.options or self._trained:
            return True
        self._prepare()
        proposed = self._job.proposed(seconds=min(PROBE_SECONDS, PROBE_SHARE * self._total))
        if proposed is None:
            return True
        self._reporter.notice(proposed.sentence)
        self._state.options = proposed.options
        self.note(now=True)
        return proposed.pays

    def _prepare(self) -> None:
        """Make the directory, and remove what an earlier course left there. Raises LocalspecError."""
        try:
            private_directory(self.directory)
        except OSError as error:
            raise LocalspecError(f"{self.directory} cannot be written ({error.strerror}); give another -o.") from None
        self._lock.take()
        if not has_unfinished(self.directory) or (
            self.request.force and not self._prepared
        ):  # it belongs to another course
            if self.options.source == HISTORY:
                self._answers.unlink(missing_ok=True)
            checkpoint.remove(self.directory / "checkpoint")
        self._prepared = True
        self.note(now=True)

    # -- answers ------------------------------------------------------------------------------------------------------

    def answer(self) -> Iterator[Answered]:
        """Let the target answer until there is enough text or time is up. Yield the number of answers after each batch.

        An interruption loses at most the batch in progress.
        """
        if self._state.training or self._trained:
            return
        self._prepare()
        with Lock(self._answers.parent) as lock:
            private_directory(self._answers.parent)
            if self._answers.parent != self.directory:
                lock.take()
            yield from self._answer()

    def _answer(self) -> Iterator[Answered]:
        file = self._answers
        self._reporter.progress(f"loading {self.request.card.name}")
        model = answerer(self.request.card, self._settings, None, self._store, self._reporter)
        lines = saved_replies(file)
        replies, tokens = len(lines), sum(len(model.encode(line["messages"])) for line in lines)
        saved_ids = {line["id"] for line in lines}
        saved = [chat for chat in self._past.conversations if chat.id not in saved_ids]
        append(file, [_as_line(chat.id, chat.messages) for chat in saved])
        replies, tokens = replies + len(saved), tokens + sum(len(model.encode(chat.messages)) for chat in saved)
        began, tokens_before, each = self.spent, tokens, 1 / (self._speed * at_once(self._choice))
        for questions, generation in self._chunks(model):
            if self._enough(replies, tokens, each):
                break
            for batch in Distiller(questions, file, model, generation).run():
                replies, tokens = replies + len(batch.new), tokens + sum(map(len, map(model.encode, batch.new)))
                each = self._state.each = (self.spent - began) / max(tokens - tokens_before, 1)
                self.note(now=True)
                yield Answered(
                    replies, tokens, self._share(replies, tokens, each), self._expected_tokens(replies, tokens, each)
                )
                if self._enough(replies, tokens, each):
                    break
        del model
        _free_memory()

    def _chunks(self, model: BatchAnswerer) -> Iterator[tuple[list[Question], GenerationSettings]]:
        """Yield groups of prompts with settings, without end: all prompts greedily, then all of them again at a
        temperature."""
        room = min(model.context, self._job.length)
        longest = min(REPLY, room // 4)
        every = [question for question in self._questions if len(model.encode(question.messages)) + longest <= room]
        if not every:
            raise UsageMistake(f"No prompt leaves room for an answer in {room} tokens; give a larger --length.")
        turn = 0
        while True:
            questions = [replace(question, id=f"{question.id} {turn}") for question in every] if turn else every
            generation = GenerationSettings(longest, DRAWN if turn else 0.0, self.request.seed + turn, cut=True)
            for start in range(0, len(questions), CHUNK):
                yield questions[start : start + CHUNK], generation
            turn += 1

    def _enough(self, replies: int, tokens: int, each: float) -> bool:
        return replies >= LEAST and self._share(replies, tokens, each) >= 1

    def _share(self, replies: int, tokens: int, each: float) -> float:
        """Return the share of the needed text that exists, from 0 to 1. Less text is needed if little time is left.

        The `replies` replies have `tokens` tokens so far, and generating a token took `each` seconds.
        """
        spent, total = self.spent, self._total
        needed = tokens * self._token_seconds(each)
        balanced = min((spent + needed) / (total - self._tail), spent / (LEAST_ANSWERING * total))
        shares = (tokens / self._wanted, balanced, spent / (MOST_ANSWERING * (total - self._tail)))
        return min(max(shares), replies / LEAST, 1.0)

    def _expected_tokens(self, replies: int, tokens: int, each: float) -> int:
        """Return about how many tokens of text there will be if each further token takes `each` seconds."""
        each, training = max(each, 1e-9), self._token_seconds(each)
        balanced = (self._total - self._tail - self.spent - tokens * training) / (each + training) * each
        least = LEAST_ANSWERING * self._total - self.spent
        most = MOST_ANSWERING * (self._total - self._tail) - self.spent
        expected = min(tokens + min(max(balanced, least, 0.0), max(most, 0.0)) / each, max(self._wanted, tokens))
        return round(max(expected, tokens * LEAST / max(replies, 1)))

    @property
    def _answers(self) -> Path:
        """The file of answers. Answers to localspec's prompts are in a file that courses of this model share; answers
        to the user's prompts are in the course's directory."""
        if self.options.source == HISTORY:
            return self.directory / ANSWERS
        parts = [self._job.revision, str(self._choice.precision), self._job.length, self.request.seed]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
        return Paths(home()).answers / f"{file_stem(self.request.name)}-{digest}" / ANSWERS

    # -- training -----------------------------------------------------------------------------------------------------

    def train(self) -> Job | None:
        """Return the training, ready to start or to continue; None if it is finished."""
        if self._trained:
            return None
        chosen = self._state.training
        examples = read_answers(self._answers, chosen.get("answers"))  # other kinds of drafters may have added some
        if not chosen:
            chosen = self._state.training = self._decided(examples)
            self.note(now=True)
        elif chosen.get("data", digest_of(examples)) != digest_of(examples):
            raise LocalspecError(
                f"{self._answers} no longer has the {chosen['answers']} answers that the stopped training in "
                f"{self.directory} learns from; give --force to start over."
            )
        request = replace(
            self._sized(chosen["batch"]), options=self._state.options or self.request.options,
            rate=chosen["rate"], examples=examples,
            readings=None if self.options.source == HISTORY else self._answers.parent / "readings",
            epochs=self.request.epochs or (None if self.options.hours or self.request.steps else PASSES),
            force=checkpoint.state(self.directory / "checkpoint") is None, course=self._state.id,
        )  # fmt: skip
        job = Job(request, self._settings, self._reporter.notice, self._reporter.progress)
        with Lock((request.readings or self.directory).parent) as lock:
            if request.readings:
                lock.take()
            job.load(self._lock, self)
        return job

    def _decided(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the settings of training that depend on the answers: the batch size, small enough for many steps; the
        learning rate, by the number of steps; the number of answers and their digest."""
        left = max(self._total - self.spent - self._tail, LEAST_TRAINING * self._total)
        tokens = left / self._training_seconds
        if not self.options.hours or self._job.shadow.uses_readings:
            tokens = min(tokens, self._passes * len(examples) * REPLY)
        steps = STEPS_OF_READINGS if self._job.shadow.uses_readings else STEPS
        batch = next((size for size in BATCHES if tokens / size >= steps), BATCHES[-1])
        few = tokens / (self.options.batch or batch) < steps
        rate = RATE * WIDTH / self._width * (FITTED if self._job.shadow.starts_fitted and few else 1.0)
        return {
            "batch": self.options.batch or batch,
            "rate": self.options.rate or round(min(max(RATE, rate), MOST_RATE), 6),
            "answers": len(examples),
            "data": digest_of(examples),
        }

    def _sized(self, batch: int) -> TrainingRequest:
        return replace(self.request, batch=batch)

    @property
    def _trained(self) -> bool:
        """Whether this course has written its drafter, which is the last part of its training."""
        return drafter_json(self.directory).get("course") == self._state.id

    # -- bench --------------------------------------------------------------------------------------------------------

    def judge(self) -> tuple[dict[str, Any], Verdict]:
        """Bench the drafter, unless drafter.json has a bench, and remove files that are no longer needed.

        Return the report and the verdict.
        """
        _free_memory()
        report, card = report_of(self.directory), drafter_json(self.directory)
        if "bench" in card:
            verdict = Verdict.read(card)
        else:
            target_card = registry.resolve(str(self.directory)) if report["changes_target"] else self.request.card
            reporter, store = self._reporter, self._store
            verdict = judge(target_card, self.directory, self._settings, self._held_out, self.left, store, reporter)
        checkpoint.remove(self.directory / "checkpoint")  # a kill may have left it
        kept_answers = self.options.source == "prompts" or self.options.keep_answers
        if not kept_answers:
            self._answers.unlink(missing_ok=True)
        (self.directory / PLAN).unlink(missing_ok=True)
        answers = str(self._answers) if kept_answers else None
        return {
            **report, "answers": answers, "spent_seconds": round(self.spent, 2), "plan": self.plan.as_json(),
            "kept": verdict.kept, "bench": verdict.as_json(),
        }, verdict  # fmt: skip


def _refuse_finished(directory: Path) -> None:
    """Raise UsageMistake if the directory has a finished training with its result, or files of another training."""
    card = drafter_json(directory)
    if card.get("course") and "bench" in card:
        verdict = Verdict.read(card)
        again, result = ("", "kept") if verdict.kept else (" (with more --hours)", "not kept")
        raise UsageMistake(
            f"{directory} has a finished training, whose drafter is {result} ({verdict.drafter} against plain "
            f"decoding: {speedup(verdict.speedup)}). Give --force to train it again{again}, or another -o."
        )
    refuse_result(directory, "checkpoint", "drafter", "target", ANSWERS)


def _as_line(name: str, messages: Sequence[Message]) -> dict[str, Any]:
    """Return a user's conversation as a line of the file of answers, under this name."""
    return {"asked": "history", "id": name, "messages": list(messages), "finish_reason": "stop"}


def _free_memory() -> None:
    gc.collect()
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
