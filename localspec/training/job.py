"""One training from its request to its result: the checks, the estimate, the training loop and the written files."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.state import AcceleratorState

from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.decoding.compute import DraftableModel
from localspec.drafters.trained import drafter_class
from localspec.errors import DoesNotFit, LocalspecError, NotHere, UsageMistake
from localspec.events import Reporter
from localspec.machine.machine import Machine, this_machine
from localspec.models.drafter_cards import ACCEPTANCE, RIGHT_AFTER_RIGHT, trained_drafters
from localspec.models.registry import TargetCard
from localspec.nn.target import Target
from localspec.training import checkpoint, estimate, processes
from localspec.training.corpus import Corpus
from localspec.training.directory import READINGS, Lock, refuse_other, refuse_result
from localspec.training.examples import Example, digest_of
from localspec.training.readings import Readings, positions, reader_of
from localspec.training.result import NEW_TARGET, report_of, rounded, write_result, write_target
from localspec.training.target import decoding_target, load_target, perplexity, served_target
from localspec.training.train import StepReport, Training, TrainingPlan
from localspec.training.trainable import (
    PROBE_SECONDS,
    Proposed,
    TrainableDrafter,
    make_drafter,
    trainable_class,
)
from localspec.training.verdict import SECONDS, measured_text
from localspec.weights import packed_file
from localspec.weights.checkpoint import is_packed, originals, revision

CHANGING = ("joint", "first", "full")  # options of forms that change the target


@dataclass(frozen=True)
class TrainingRequest:
    """The settings of a training. None means that localspec chooses the value."""

    kind: str
    card: TargetCard
    name: str  # of the model, for the record
    options: Mapping[str, Any]
    examples: Sequence[Example]
    data: Sequence[str]  # names of the files, for the record
    directory: Path
    command: str
    length: int | None
    batch: int
    at_once: int | None
    rate: float
    seed: int
    distill: bool
    steps: int | None
    hours: float | None
    epochs: float | None
    save_seconds: float
    force: bool
    readings: Path | None = None  # the directory for the target's saved output, if it is not next to the result
    course: str = ""  # the name of the course that this is a part of, which decides whether the drafter is used

    def identity(self, choice: Choice, revision: str) -> dict[str, Any]:
        """Return the settings that must be the same to resume a stopped training."""
        return {
            "kind": self.kind, "model": revision, "options": dict(self.options),
            "data": digest_of(self.examples), "length": self.length, "batch": self.batch, "at_once": self.at_once,
            "lr": self.rate, "seed": self.seed, "labels": "soft" if self.distill else "text", "steps": self.steps,
            "hours": self.hours, "epochs": self.epochs, "dtype": choice.dtype, "quantize": choice.quantize,
        }  # fmt: skip


class Clock:
    """The time limits for the stages of a training. This base class sets none; `Course` does."""

    def note(self) -> None:
        """Record how long the training has taken. It is called after every step."""

    def reading_is_over(self) -> bool:
        """Return whether the target must stop reading training texts."""
        return False

    def training(self) -> float | None:
        """Return the hours that are left for training after reading text; None without a limit."""
        return None

    def measuring(self) -> float | None:
        """Return how many seconds each of the two acceptance measurements may last; no reply begins after that.

        Return None if there is no time for them.
        """
        return SECONDS


class Job:
    """A training, which first chooses device and precision and estimates its needs. Call `load`, `run` and `finish`.

    The constructor raises UsageMistake, DoesNotFit and LocalspecError before anything is written. `say` is called with
    facts for the user before the training starts, and `progress` with each activity.
    """

    def __init__(
        self,
        request: TrainingRequest,
        settings: Settings,
        say: Callable[[str], None],
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.request, self._settings, self._say, self._progress = request, settings, say, progress
        self.revision = revision(request.card.path)
        self.divided = processes.divides()
        self.choice, self.shadow = self._choose(settings)
        self.changes_target = self.shadow.changes_target
        self.length = self._length(self.shadow.target)
        new_bytes = originals(request.card.path).bytes if self.changes_target else 0
        self.needed = estimate.needs(self.shadow, self.choice, self.length, new_bytes)
        if self.divided:
            self.needed = estimate.divided(self.needed, self.shadow, processes.count())

    def fitting(self, begun: int | None = None) -> estimate.Fit:
        """Return how many tokens in a forward pass fit into memory. A stopped training has `begun` with this many.

        Raises DoesNotFit if memory or disk is too small.
        """
        request = self.request
        at_once = begun or request.at_once or max(request.batch, self.length)
        fit = estimate.fitting(self.needed, self.choice, at_once, begun or request.at_once or self.length)
        estimate.room(self.needed, request.directory)
        return fit

    def plan(self, fit: estimate.Fit | None = None) -> str:
        """Return a sentence about memory, disk and trainable parameters. Raises the errors of `fitting`."""
        fit, request = fit or self.fitting(), self.request
        memory = self.needed.memory(fit.at_once, fit.recomputed)
        return (
            f"{request.kind} for {request.name}: about {memory / 2**30:.1f} GiB of memory with "
            f"{fit.at_once} tokens at once, {self.needed.files / 2**20:.0f} MiB on disk, "
            f"{self.needed.trainable / 1e6:.2f} M trainable parameters"
            f"{'; to save memory, layers are computed twice' if fit.recomputed else ''}."
        )

    def load(self, lock: Lock, clock: "Clock | None" = None) -> None:
        """Load everything for a new or a resumed training. Take `lock`, the lock of its directory.

        If the target reads the texts once before training, it reads them here, within the limits of `clock`.
        """
        request, progress = self.request, self._progress
        AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier training
        self.processes = processes.begin(self.choice)
        self.main = bool(self.processes.is_main_process)
        if self.main:
            lock.take()
        fixed = request.identity(self.choice, self.revision)
        resumed = _resumed(request, fixed)
        processes.agree(self.processes, {**fixed, "step": resumed.get("step", 0)})
        fit = self.fitting(resumed.get("at_once"))
        at_once = fit.at_once
        if self.processes.num_processes > 1 and self.choice.device != "cpu":
            self.choice = replace(self.choice, device=str(self.processes.device))
        self._tell(self.plan(fit))
        if self.changes_target and self.choice.quantize != "none":
            self._tell(
                f"in this training {request.name} has weights rounded to {self.choice.quantize}; what it learns is "
                "added to its original weights at the end."
            )
        progress(f"loading {request.card.name}")
        torch.manual_seed(request.seed)
        reporter = Reporter(self._tell, progress)
        if self.divided:
            target = load_target(self.choice, reporter, processes.layer_divider(self.processes))
        else:
            target = load_target(self.choice, reporter)
        options = resumed.get("options") or self._options(target)
        torch.manual_seed(request.seed)
        self.drafter = make_drafter(request.kind, target, options).to(target.device)
        for transformer in self.drafter.transformers:
            transformer.recomputed = fit.recomputed
        progress("reading text")
        corpus = Corpus(target, request.examples, self.length, request.batch, request.seed)
        self.at_once, self.clock = at_once, clock or Clock()
        if self.main:
            _clear(request, lock)
        self.processes.wait_for_everyone()
        readings = None
        if self.drafter.uses_readings and not self.divided:
            readings = self._read_once(target, corpus, resumed.get("positions"))
        self.perplexity = [perplexity(target, corpus.held_out, at_once)] if self.changes_target else []
        plan = TrainingPlan(
            batch=request.batch, at_once=at_once, rate=request.rate, seed=request.seed, distill=request.distill,
            steps=request.steps, hours=request.hours, epochs=request.epochs, save_seconds=request.save_seconds,
        )  # fmt: skip
        # All of them, because an omitted option may have another default in a later version.
        every = asdict(drafter_class(request.kind).parse_options(options))
        identity: dict[str, Any] = {"asked": fixed, "options": every}
        if readings is not None:
            identity["positions"] = len(readings)
        self.training = Training(
            self.drafter, corpus, plan, request.directory, self.processes, identity, self.divided, readings
        )
        if clock is not None:  # less the time of what was computed before the first step
            self.training.plan = replace(plan, hours=clock.training())
        if corpus.refused:
            self._tell(
                f"{len(corpus.refused)} of the texts that were read are left out, because the model's template or "
                "tokenizer refuses them."
            )
        self.began = self.training.state.step
        if self.began:
            self._tell(f"continuing after step {self.began}, where this training was stopped.")

    def _read_once(self, target: Target, corpus: Corpus, begun_with: int | None) -> Readings:
        """Let the target read the training texts that it has not read yet, and save its outputs, until time is up.

        If there are several processes, only the first one reads. A resumed training uses only the first `begun_with`
        positions, because other trainings may have added outputs since it began.
        """
        directory = self.request.readings or self.request.directory / READINGS
        readings = Readings(directory, target.transformer.config.hidden_size)
        begun = checkpoint.state(self.request.directory / "checkpoint") is not None and not self.request.force
        if self.main and not begun:
            self._progress("reading text")
            rows = list(corpus.rows())
            reader = reader_of(served_target(self.request.card, self._settings, target))
            missing, stored = readings.lacking(rows), len(readings)
            worth = sum(map(len, map(positions, missing)))
            earlier = sum(len(positions(row)) for row in rows if row in readings)
            enough = 2 * sum(map(len, map(positions, corpus.held_out)))
            for count in readings.fill(missing, reader):
                done = count - stored
                self._progress(f"{100 * done / worth:.0f} %  read {done} of {worth} tokens")
                if self.clock.reading_is_over() and earlier + done >= enough:
                    break
        self.processes.wait_for_everyone()
        if not self.main or begun:
            directory = self.request.readings or self.request.directory / READINGS
        readings = Readings(directory, target.transformer.config.hidden_size)
        if begun and begun_with is not None:
            readings.leave_out_after(begun_with)
        corpus.held_out = [row for row in corpus.held_out if row in readings]
        corpus.usable = readings.__contains__
        return readings

    def _tell(self, sentence: str) -> None:
        if self.main:
            self._say(sentence)

    def _choose(self, settings: Settings) -> tuple[Choice, TrainableDrafter]:
        """Return the device and precision of the training, and the drafter as tensors without data.

        If training changes the target, packed weights learn through adapters, which are merged into the original
        weights at the end. Weights that are not packed are trained directly, in fp32 or bf16.
        """
        request, plain = self.request, replace(settings, drafter="none", draft_max="auto", accept="exact", exact=False)
        machine = this_machine().as_torch_has_it()
        if self.divided:
            plain, machine = processes.for_divided(plain, machine)
        choice = _densely(request.card, plain, machine)
        shadow = estimate.shadow(request.kind, request.card, request.options, choice)
        if shadow.changes_target and is_packed(request.card.path):
            kind = "blocks of a GGUF file" if packed_file.read(request.card.path).header.registered else "packed ones"
            changing = next(name for name in CHANGING if request.options.get(name))
            raise UsageMistake(
                f"`-O {changing}={str(request.options[changing]).lower()}` needs the original weights of "
                f"{request.card.name}, but only {kind} are here; leave it out, or name a model's directory in the "
                "Hugging Face layout. For a registered model `localspec pull NAME --original` fetches them."
            )
        # in the precision that answers, because the drafter will read its states
        if shadow.uses_readings and not self.divided:
            choice = choose(request.card, plain, machine)
        if self.divided:
            processes.check_divided(shadow)
        return self._choose_to_change(choice, settings, plain, machine) if shadow.changes_target else (choice, shadow)

    def _choose_to_change(
        self, choice: Choice, settings: Settings, plain: Settings, machine: Machine
    ) -> tuple[Choice, TrainableDrafter]:
        """Return the most accurate weights with which a training that changes the target fits into memory.

        A stopped training resumes with the weights that it began with. Raises DoesNotFit, and the errors of `choose`.
        """
        request, flags = self.request, (settings.quantize, settings.dtype)
        dense = estimate.shadow(request.kind, request.card, request.options, replace(choice, quantize="none"))
        directly = dense.adapters is None
        if directly and flags in (("auto", "fp16"), ("none", "fp16")):
            raise UsageMistake(
                f"This form of {request.kind} trains the target's own weights, for which fp16 is too coarse; give "
                "--dtype bf16 or fp32, --quantize int8 for adapters, or choose a form that leaves the target as it is."
            )
        ways: list[tuple[Any, Any]] = [
            ("none", dtype) for dtype in (("fp32", "bf16") if directly else (settings.dtype,))
        ]
        ways += [(quantize, settings.dtype) for quantize in ("int8", "nf4", "int4")]
        begun = None if request.force else checkpoint.state(request.directory / "checkpoint")
        if begun is not None:
            ways.insert(0, (begun["asked"]["asked"].get("quantize"), begun["asked"]["asked"].get("dtype")))
        refused: LocalspecError | None = None
        for way in (way for way in ways if all(flag in ("auto", name) for flag, name in zip(flags, way, strict=True))):
            try:
                choice = choose(request.card, replace(plain, quantize=way[0], dtype=way[1]), machine)
                shadow = estimate.shadow(request.kind, request.card, request.options, choice)
                length = self._length(shadow.target)
                least = request.at_once or length
                estimate.fitting(estimate.needs(shadow, choice, length), choice, least, least)
                return choice, shadow
            except (DoesNotFit, UsageMistake) as error:
                refused = error if isinstance(error, DoesNotFit) else refused or error
        assert refused is not None
        raise refused

    def _length(self, target: Target) -> int:
        length = self.request.length or min(estimate.LENGTH, target.context)
        if length > target.context:
            raise UsageMistake(
                f"--length {length} is more than the context of {target.context} tokens that "
                f"{self.request.card.name} has; give a smaller --length."
            )
        return length

    def _options(self, target: Target) -> Mapping[str, Any]:
        """Return the drafter's options: those that the user gave, or else options that suit this model and machine."""
        if self.request.options:
            return self.request.options
        proposed = self.proposed(target)
        if proposed is None:
            return {}
        self._tell(proposed.sentence)
        return proposed.options

    def proposed(self, target: Target | None = None, seconds: float = PROBE_SECONDS) -> Proposed | None:
        """Return drafter options that suit this model and machine; None if this kind of drafter proposes nothing.

        If no `target` is given, the model is loaded as for replies. Measurements take about `seconds`.
        """
        previous = [card for card in trained_drafters(self.request.card) if card.kind == self.request.kind]
        served = partial(served_target, self.request.card, self._settings, target)
        model = self.shadow.target if target is None else target
        return trainable_class(self.request.kind).propose(model, previous, served, seconds, self._progress)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[StepReport]:
        """Train, and yield a report after each step. If `stop` returns true, end early and set `training.stopped`."""

        def noted() -> bool:
            self.clock.note()
            return stop()

        return self.training.run(noted)

    def finish(self) -> dict[str, Any]:
        """Measure and write the result, and return the output of `train --json`. Raises DoesNotFit."""
        request, training = self.request, self.training
        accuracy = training.measure()
        if self.changes_target:
            self._change_target()
            self.perplexity.append(perplexity(self.drafter.target, training.corpus.held_out, self.at_once))
        self.drafter.eval()
        right_after_right = training.right_after_right
        figures = {
            "steps": training.state.step,
            "tokens": training.state.tokens,
            "loss": round(training.state.loss, 4),
            **({"perplexity": rounded(self.perplexity)} if self.changes_target else {}),
        }
        generated: dict[str, Any] = {}
        seconds = self.clock.measuring()
        # A single process cannot decode with a divided target.
        if self.main and not self.divided and seconds is not None:
            decoding = self._decoding()
            held_out = training.corpus.held_out
            generated = measured_text(decoding, self.drafter.drafter(decoding), held_out, seconds)
        if self.main:
            measured_length = next(
                (generated[name]["length"] for name in reversed(ACCEPTANCE) if name in generated), None
            )
            served = partial(served_target, request.card, self._settings, self.drafter.target)
            if outcome := self.drafter.outcome(right_after_right, measured_length, served):
                self._tell(outcome)
            if right_after_right:
                generated[RIGHT_AFTER_RIGHT] = right_after_right
            made_for, record = (
                {"name": request.name, "revision": self.revision},
                self._record(accuracy, figures) | generated,
            )
            write_result(self.drafter, request.card.path, made_for, self.changes_target, record, request.directory)
            checkpoint.remove(request.directory / "checkpoint")
            shutil.rmtree(request.directory / READINGS, ignore_errors=True)
        self.processes.wait_for_everyone()
        return report_of(request.directory) if self.main else {}

    def _decoding(self) -> DraftableModel[Any]:
        """Return the model that generates text to measure acceptance. An unchanged target is loaded as for replies."""
        if self.changes_target:
            return decoding_target(self.choice, self.drafter.target)
        return served_target(self.request.card, self._settings, self.drafter.target)

    def _change_target(self) -> None:
        """Write the changed target. If adapters changed it, load it again from the written files."""
        request = self.request
        if self.main:
            write_target(self.drafter, request.card.path, request.directory)
        self.processes.wait_for_everyone()
        if self.drafter.adapters is None:
            return
        self.drafter.target.free()
        self.choice = replace(self.choice, target=replace(request.card, path=request.directory / NEW_TARGET))
        target = load_target(self.choice, Reporter(self._tell))
        self.processes.wait_for_everyone()
        self.drafter = self.drafter.for_changed(target)

    def _record(self, accuracy: Sequence[Sequence[float]], figures: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of drafter.json that describes the training."""
        request, training = self.request, self.training
        return {
            **({"course": request.course, "kept": False} if request.course else {}),
            "features": {"dtype": self.choice.dtype, "quantize": self.choice.quantize},
            "data": list(request.data),
            "command": request.command,
            "accuracy_by_depth": accuracy,
            "trained": {
                **figures,
                "passes": round(training.state.epochs, 3),
                "hours": round(training.state.seconds / 3600, 6),
                "measured_tokens": sum(row.worth for row in training.corpus.held_out),
                "labels": "soft" if request.distill else "text",
                "batch": request.batch,
                "length": training.corpus.length,
                "lr": request.rate,
                "seed": request.seed,
                "processes": self.processes.num_processes,
                "device": self.choice.device,
                "held_out_tokens": sum(len(row.tokens) for row in training.corpus.held_out),
            },
        }


def _densely(card: TargetCard, settings: Settings, machine: Machine) -> Choice:
    """Return the device and precision of a training. On a CPU, unless the settings name a format, prefer the most
    accurate weights that fit.

    Fewer bits would only save memory, and make the text that the drafter learns from less accurate. Blocks of a GGUF
    file count as just as accurate as dense weights.
    """
    choice = choose(card, settings, machine)
    if choice.device == "cpu" and (settings.dtype, settings.quantize) == ("auto", "auto"):
        finer: tuple[Literal["none", "int8"], ...] = (
            ("none",) if choice.quantize == packed_file.BLOCKS else ("none", "int8")
        )
        for quantize in finer:
            with suppress(DoesNotFit, NotHere, UsageMistake):  # without our library, there are no packed weights
                return choose(card, replace(settings, device="cpu", quantize=quantize), machine)
    return choice


def _resumed(request: TrainingRequest, identity: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a stopped training in this directory had chosen; empty if there is none, or if --force replaces it.

    Raises UsageMistake if the directory has another training or a finished one.
    """
    path = request.directory
    if request.force:
        return {}
    state = checkpoint.state(path / "checkpoint")
    if state is not None:
        refuse_other(path, state["asked"]["asked"], identity)
        options = {**drafter_class(request.kind).BEFORE, **state["asked"]["options"]}
        positions_read = state["asked"].get("positions")
        return {"at_once": state["at_once"], "options": options, "step": state["step"], "positions": positions_read}
    try:
        refuse_result(path, "drafter", "target")
    except UsageMistake:
        checkpoint.remove(path / "checkpoint")  # a kill may have left it
        raise
    return {}


def _clear(request: TrainingRequest, lock: Lock) -> None:
    """Create the directory and take its lock. With --force, delete an old checkpoint and log, but no old result."""
    try:
        request.directory.mkdir(parents=True, exist_ok=True)
        lock.take()
        if request.force:
            checkpoint.remove(request.directory / "checkpoint")
            (request.directory / "losses.jsonl").unlink(missing_ok=True)
    except OSError as error:
        raise LocalspecError(f"{request.directory} cannot be written ({error.strerror}); give another -o.") from None
