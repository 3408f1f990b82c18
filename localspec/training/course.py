"""Makes a drafter when no training text is given: the target model answers prompts, the drafter is trained on the
answers, and a benchmark decides whether it is kept.

All of this together is a course. It saves its progress in its directory, so it can continue after an interruption:

- plan.json identifies the course and divides its time.
- answers.jsonl grows reply by reply.
- checkpoint/ is the state of the training.
- drafter.json names the course and, at the end, the result of the benchmark.
"""

import gc
import hashlib
import json
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
from localspec.training import checkpoint, course_plan, estimate
from localspec.training.answering import BatchAnswerer, GenerationSettings, answerer, answering_choice, at_once
from localspec.training.course_plan import CoursePlan, CourseState, TimeBudget, read
from localspec.training.directory import ANSWERS, PLAN, Lock, drafter_json, has_unfinished, refuse_other, refuse_result
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
from localspec.training.verdict import Verdict, judge

Source = Literal["prompts", "history"]
HISTORY: Source = "history"

NO_PAST = Past((), (), ())
CHUNK = 64  # prompts of all kinds that are answered together, if that is possible
DRAWN = 0.7  # the temperature of second and further answers to the same prompts
NOTED = 5.0  # seconds between two records of a course's time


@dataclass(frozen=True)
class CourseOptions:
    """The user's settings of a course, in addition to the settings of the training.

    `hours` is the time limit for the whole course. For a value of None, localspec chooses.
    """

    source: Source
    hours: float | None
    batch: int | None
    rate: float | None
    keep_answers: bool


@dataclass(frozen=True)
class Answered:
    """The progress of answering prompts: the number of answers and of their tokens, and the share `done`, from 0 to 1.

    At the present speed, there will be about `expected` tokens of answers at the end.
    """

    replies: int
    tokens: int
    done: float
    expected: int

    @property
    def more(self) -> int:
        """The estimated number of answers still to come."""
        return round((self.expected / max(self.tokens, 1) - 1) * self.replies)


class Course(Clock):
    """A course in a directory: call `answer`, `train` and `judge`, in this order. It takes the directory's `lock`.

    Each call continues where an earlier process stopped. `request` has the settings of the training, but no text. The
    time limit counts from `began`, a value of `time.monotonic`. The constructor raises UsageMistake for impossible
    settings and for a directory with a finished training, DoesNotFit, and the errors of choosing a model.
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
        self._job = Job(replace(request, batch=1), settings, reporter.notice, reporter.progress)
        if not request.force and not has_unfinished(self.directory):
            _refuse_finished(self.directory)
        self._choice = answering_choice(request.card, settings, None, store, reporter)
        self._past = self._read_past()
        self._lock.take()  # if the directory is there
        state = None if request.force else read(self.directory)
        self._began, self._noted, self._prepared = time.monotonic() if began is None else began, 0.0, False
        self.resumed = state is not None
        if state is not None:
            refuse_other(self.directory, state.asked, self._identity())
        self._state = state or self._new_state()
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
        choice, recomputed = self._job.choice, self._job.fitting().recomputed
        product_seconds = estimate.product_seconds(choice.device, DTYPES[choice.dtype])
        seconds = estimate.hours(self._job.shadow, product_seconds, 1, recomputed) * 3600
        self._state = CourseState(secrets.token_hex(8), self._identity(), seconds, slowdown=hardware.slowdown())
        self._state.plan = asdict(self._planned())
        return self._state

    @property
    def plan(self) -> CoursePlan:
        """The tokens of text, hours and bytes that the course was expected to need when it began."""
        return CoursePlan(**self._state.plan)

    @property
    def slowdown(self) -> float:
        """The factor by which other programs slow everything down, according to the plan."""
        return self._state.slowdown

    @property
    def left(self) -> float:
        """The seconds left until the time limit."""
        return max(self._budget.total - self.spent, 0.0)

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

    def _planned(self) -> CoursePlan:
        """Return estimates of the text, the time and the memory that this course needs.

        Raises DoesNotFit if memory or disk is too small, and UsageMistake if the hours are too few.
        """
        budget, job = self._budget, self._job
        budget.check(self.request.name)
        tokens, answering, training = budget.expected()
        prompts = min(max(round(tokens / course_plan.REPLY), course_plan.LEAST), len(self._questions))
        readings = Readings.bytes_of(self._width, round(tokens)) if job.shadow.uses_readings else 0
        fit = job.fitting()
        return CoursePlan(
            len(self._past.conversations), prompts, round(tokens), answering / 3600, training / 3600,
            budget.tail / 3600, budget.total / 3600, job.needed.memory(fit.at_once, fit.recomputed),
            job.needed.files + 8 * round(tokens) + readings,
        )  # fmt: skip

    @property
    def _budget(self) -> TimeBudget:
        """The division of the course's time, computed from the speeds measured so far."""
        request, options, together = self.request, self.options, at_once(self._choice)
        return TimeBudget(
            options.hours, request.steps, options.batch, request.epochs or course_plan.PASSES, together,
            (self._choice.tokens_per_second or 1.0) * together, self._job.shadow.uses_readings, self._state,
        )  # fmt: skip

    @property
    def _questions(self) -> list[Question]:
        return [*self._past.questions, *shipped_questions()]

    @property
    def _held_out(self) -> list[BenchPrompt]:
        return [*self._past.held_out, *held_out_prompts()]

    @property
    def _width(self) -> int:
        return self._job.shadow.target.transformer.config.hidden_size

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
        """Return whether the target must stop reading training texts, so that time is left for the training."""
        self.note()
        return self.spent >= (1 - course_plan.LEAST_TRAINING) * self._budget.body

    def training(self) -> float | None:
        """Return the time limit of the training in hours, over all sessions. It was set when the training first began,
        but shrinks if less time is left."""
        trained, left = checkpoint.spent(self.directory / "checkpoint"), max(self._budget.body - self.spent, 1.0)
        decided: float = self._state.training.get("hours", left / 3600)
        self._state.training = {**self._state.training, "hours": decided}
        self.note(now=True)
        return round(min(decided, (trained + left) / 3600), 6)

    def measuring(self) -> float | None:
        """Return how many seconds each of the two acceptance measurements may last; no reply begins after that.

        The time is shortened to leave room for the shortest benchmark. Return None if not even that has room.
        """
        return self._budget.measuring(self.left)

    # -- what should pay ----------------------------------------------------------------------------------------------

    def propose(self) -> bool:
        """Measure which drafter options are fastest on this machine, if the kind of drafter can, and save them.

        Return whether the drafter should be faster than plain decoding, or True if nothing was measured.
        """
        probes = trainable_class(self.request.kind).PROBES and not self.request.options
        if not probes or self._state.options or self._trained:
            return True
        self._prepare()
        proposed = self._job.proposed(seconds=min(PROBE_SECONDS, course_plan.PROBE_SHARE * self._budget.total))
        if proposed is None:
            return True
        self._reporter.notice(proposed.sentence)
        self._state.options = proposed.options
        self.note(now=True)
        return proposed.pays

    def _prepare(self) -> None:
        """Create the directory, and remove what an earlier course left in it. Raises LocalspecError."""
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
        """Let the target answer prompts until there is enough text or time is up. Yield the progress after each batch.

        An interruption loses at most the current batch.
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
        began, tokens_before, each = self.spent, tokens, 1 / self._budget.speed
        others = hardware.OthersLoad()
        for questions, generation in self._chunks(model):
            if self._budget.share(replies, tokens, each, self.spent) >= 1:
                break
            for batch in Distiller(questions, file, model, generation).run():
                replies, tokens = replies + len(batch.new), tokens + sum(map(len, map(model.encode, batch.new)))
                each = self._state.each = (self.spent - began) / max(tokens - tokens_before, 1)
                self._state.slowdown = others.slowdown()
                self.note(now=True)
                so_far = replies, tokens, each, self.spent
                yield Answered(replies, tokens, self._budget.share(*so_far), self._budget.expected_tokens(*so_far))
                if self._budget.share(replies, tokens, each, self.spent) >= 1:
                    break
        del model
        _free_memory()

    def _chunks(self, model: BatchAnswerer) -> Iterator[tuple[list[Question], GenerationSettings]]:
        """Yield groups of prompts with generation settings, endlessly. In the first round replies are greedy. In later
        rounds they are sampled at a temperature."""
        room = min(model.context, self._job.length)
        longest = min(course_plan.REPLY, room // 4)
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

    @property
    def _answers(self) -> Path:
        """The file of answers. All courses of a model share the answers to localspec's own prompts, but the answers to
        a user's prompts stay in the course's directory."""
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
            self.request, batch=chosen["batch"], options=self._state.options or self.request.options,
            rate=chosen["rate"], examples=examples,
            readings=None if self.options.source == HISTORY else self._answers.parent / "readings",
            epochs=self.request.epochs or (None if self.options.hours or self.request.steps else course_plan.PASSES),
            force=checkpoint.state(self.directory / "checkpoint") is None, course=self._state.id,
        )  # fmt: skip
        job = Job(request, self._settings, self._reporter.notice, self._reporter.progress)
        with Lock((request.readings or self.directory).parent) as lock:
            if request.readings:
                lock.take()
            job.load(self._lock, self)
        return job

    def _decided(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the training settings that depend on the answers: batch size, learning rate, number and digest of
        answers."""
        fitted = self._job.shadow.starts_fitted
        batch, rate = self._budget.batch_and_rate(len(examples), self.spent, self._width, fitted)
        rate = self.options.rate or rate
        return {"batch": batch, "rate": rate, "answers": len(examples), "data": digest_of(examples)}

    @property
    def _trained(self) -> bool:
        """Whether this course has written its drafter, which is the last part of its training."""
        return drafter_json(self.directory).get("course") == self._state.id

    # -- bench --------------------------------------------------------------------------------------------------------

    def judge(self) -> tuple[dict[str, Any], Verdict]:
        """Benchmark the drafter, unless its drafter.json already has a result, and remove files no longer needed.

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
        again = "Give --force" if verdict.kept else "Give --force and more --hours"
        result = "kept" if verdict.kept else "not kept"
        raise UsageMistake(
            f"{directory} has a finished training, whose drafter was {result} ({verdict.drafter} against plain "
            f"decoding: {speedup(verdict.speedup)}). {again} to train it again, or another -o."
        )
    refuse_result(directory, "checkpoint", "drafter", "target", ANSWERS)


def _as_line(name: str, messages: Sequence[Message]) -> dict[str, Any]:
    """Return a user's saved conversation as a line of the file of answers; `name` becomes its id."""
    return {"asked": "history", "id": name, "messages": list(messages), "finish_reason": "stop"}


def _free_memory() -> None:
    gc.collect()
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
