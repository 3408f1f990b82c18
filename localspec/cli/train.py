"""`localspec train KIND`: trains a drafter."""

import json
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import psutil
import typer

from localspec import environment, marks
from localspec.chat.start import chosen_model
from localspec.cli import console
from localspec.cli.console import Progress
from localspec.cli.interrupt import Interrupt
from localspec.cli.options import takes_settings, whole_number
from localspec.config import Settings, nearest
from localspec.environment import home
from localspec.errors import LocalspecError, UsageMistake
from localspec.marks import drawable
from localspec.models import registry
from localspec.models.drafter_cards import accepted_kinds, trained_drafters
from localspec.models.drafter_kinds import TABLE, kinds
from localspec.models.names import full_name
from localspec.paths import OWNER_READS, Paths, file_stem, without_rights
from localspec.quantities import counted, speedup
from localspec.store.store import user_store
from localspec.training.directory import NOTABLE, Lock, refuse_course, usable
from localspec.training.examples import read_examples
from localspec.weights.checkpoint import is_packed

if TYPE_CHECKING:
    from localspec.training.course import Course
    from localspec.training.job import Job
    from localspec.training.train import StepReport
    from localspec.training.verdict import Verdict

app = typer.Typer()

MOST = 10**9  # steps or tokens: a larger number is a slip, and floats are not exact there
LONGEST = 10**6  # hours or passes
KINDS = [f"{row.name}: {row.label}" for row in TABLE if row.takes == "weights"]
PRECISION = ("device", "dtype", "quantize")
BATCH, RATE = 4096, 1e-3  # if neither was given
HISTORY: Literal["history"] = "history"
SPARK = 16  # of the last losses, in the line of progress
STEADY, STEADY_SECONDS = 0.1, 5.0  # share or seconds of a training after its first step, from which its pace is known
LONGEST_START = 60.0  # seconds that the start of Python may take
FEW_STEPS = 5  # fewer are no training
FEW = 1000  # tokens below which a share is known only to about two percent


def _output_directory(text: str) -> Path:
    if not text:
        raise UsageMistake("-o '' names no directory; give one, or leave -o out.")
    return Path(text)


@app.command()
@takes_settings(
    "model", "device", "dtype", "quantize",
    model="The target: a name, a directory in the Hugging Face layout, or a GGUF file.",
)  # fmt: skip
def train(
    *,
    kind: Annotated[str, typer.Argument(help="; ".join(KINDS))],
    more: Annotated[list[Path] | None, typer.Argument(metavar="FILE", hidden=True)] = None,
    settings: Settings,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="FILE…",
            help='Plain text, or JSONL with "text" or "messages" per line; also .xz. history: your saved '
            "conversations. By default: the model's answers to prompts that ship with localspec.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            parser=_output_directory,
            metavar="DIR",
            help="The output directory; by default below the data directory.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-O",
            metavar="NAME=VALUE",
            help="An option of this kind of drafter; repeatable. docs/train.md lists them.",
        ),
    ] = None,
    steps: Annotated[int | None, whole_number(most=MOST, help="At most this many steps.")] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Time limit in hours. It includes the time for answers and the bench. By default 6 if answers are "
            "generated.",
        ),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(metavar="N", help="Passes over the training text; 1 if no limit is given.")
    ] = None,
    batch: Annotated[
        int | None, whole_number(metavar="TOKENS", most=MOST, help="Tokens per step; by default 4096.")
    ] = None,
    at_once: Annotated[
        int | None,
        whole_number(metavar="TOKENS", most=MOST, help="Tokens per forward pass; fewer take less memory."),
    ] = None,
    length: Annotated[
        int | None,
        whole_number(
            metavar="TOKENS",
            least=8,
            most=MOST,
            help="Longer texts are cut; by default at 1024 tokens, or at the model's context.",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--lr", metavar="N", help="The highest learning rate; by default 0.001.")
    ] = None,
    seed: Annotated[int, whole_number(least=0, most=2**63 - 1, help="The same seed gives the same drafter.")] = 0,
    labels: Annotated[
        Literal["soft", "text"],
        typer.Option(help="What to learn: the target's distribution, or the tokens of the text."),
    ] = "soft",
    save_every: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Seconds between checkpoints.")] = 300.0,
    keep_answers: Annotated[
        bool,
        typer.Option(
            "--keep-answers", help="With --data history: keep answers.jsonl, the file with the training text."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the plan and train nothing; only measurements of this machine are saved."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of an earlier training.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object at the end instead of lines.")] = False,
) -> int:
    """Train a drafter for a model. Repeat a stopped command to continue it.

    Without --data, or with --data history, the model answers prompts first, and the drafter is kept only if a
    bench shows that it makes replies faster.
    """
    began = _beginning()
    if kind not in kinds("weights"):
        trainable = kinds("weights")
        with suppress(LocalspecError):  # if it is not known which model this is for, all are listed
            if settings.model is not None:
                trainable = accepted_kinds(registry.resolve(full_name(settings.model)), "weights")
        raise UsageMistake(
            f"There is no kind {kind!r} to train{nearest(kind, trainable)}; give one of {', '.join(trainable)}."
        )
    for flag, value in {"--hours": hours, "--epochs": epochs, "--lr": rate}.items():
        if value is not None and not 0 < value <= LONGEST:
            raise UsageMistake(f"{flag} {value} is not possible; give a number above 0, {LONGEST} at most.")
    if at_once is not None and at_once > (batch or BATCH):
        raise UsageMistake(
            f"--at-once {at_once} is more than the {batch or BATCH} tokens of a step; lower it, or raise --batch."
        )
    files = [Path(name) for name in (*(data or ()), *(more or ()))]
    source = _prompt_source(data or [], more or [], keep_answers)
    progress = Progress()
    card = _model_to_train_for(settings, progress, saves=not dry_run)
    if any(drafter.kind == kind and drafter.shipped for drafter in trained_drafters(card)):
        progress.notice(
            f"a trained {kind} for {card.name} comes with localspec, and `auto` may choose it; another one is better "
            "only for text like your own, if it learns from that (--data history or --data FILE)."
        )
    directory = output or Paths(home()).drafters / f"{file_stem(_public_name(card))}-{kind}"
    usable(directory)
    values = locals() | {name: getattr(settings, name) for name in PRECISION if settings.by_flag(name)}
    waits = partial(progress.notice, "stopping after this step; Ctrl+C again stops at once.")
    with without_rights(OWNER_READS), Interrupt(ends_too=True, waits=waits) as interrupt, Lock(directory) as lock:
        if not dry_run:
            lock.take()  # now, because planning takes many seconds
        progress.show("planning" if source else "reading text")
        examples = [] if source else read_examples(files)

        # torch is needed from here on; importing it takes seconds.
        from localspec.training.job import Job, TrainingRequest
        from localspec.training.trainable import parse_options

        request = TrainingRequest(
            kind=kind, card=card, name=_public_name(card), options=parse_options(kind, option or []), examples=examples,
            data=[source] if source else [file.name for file in files], directory=directory,
            command=_command(kind, card, [source] if source == HISTORY else files, option or [], values),
            length=length, batch=batch or BATCH, at_once=at_once, rate=rate or RATE, seed=seed,
            distill=labels == "soft", steps=steps, hours=None if source else hours,
            epochs=epochs if source or steps or hours or epochs else 1.0, save_seconds=save_every, force=force,
        )  # fmt: skip
        reference = registry.reference(card)
        try:
            if source:
                from localspec.training.course import Course, CourseOptions

                course_options = CourseOptions(source, hours, batch, rate, keep_answers)
                with user_store(progress.notice, create=not dry_run) as store:
                    course = Course(request, course_options, settings, lock, store, progress.reporter, began)
                    if dry_run:
                        progress.clear()
                        print(json.dumps(course.plan.as_json()) if as_json else "\n".join(_plan(course)), flush=True)
                        return 0
                    outcome = _run_course(course, interrupt, progress)
                if outcome is None:
                    course.close()
                    return 130
                report, verdict = outcome
                if hours and not (steps or epochs) and report["steps"] < FEW_STEPS:
                    progress.notice(
                        f"--hours {hours} was too short for the training, which made only "
                        f"{counted(report['steps'], 'step')}; give more hours."
                    )
                used = f"\n{_used(report, reference)}" if verdict.kept else ""
                summary = f"{_drawn(report)}{_summary(report)}\n{_verdict(verdict, report['directory'])}{used}"
                print(json.dumps(report) if as_json else summary, flush=True)
                return 0
            if dry_run and as_json:
                raise UsageMistake("--json has no effect on --dry-run with --data FILE; leave --json out.")
            if not dry_run:
                refuse_course(directory, force)
            job = Job(request, settings, progress.notice, progress.show)
            if dry_run:
                progress.clear()
                print(job.plan(), flush=True)
                return 0
            job.load(lock)
            if not _run(job, interrupt, progress):
                return 130
            progress.show("measuring")
            report = job.finish()
        finally:
            progress.clear()
    if job.main:
        summary = f"{_drawn(report)}{_summary(report)}\n{_used(report, reference)}"
        print(json.dumps(report) if as_json else summary, flush=True)
    return 0


def _beginning() -> float:
    """Return when this command began (`time.monotonic`): at the start of the process, if it runs only this command."""
    age = time.time() - psutil.Process().create_time() if environment.one_command else 0.0
    return time.monotonic() - (age if 0 < age < LONGEST_START else 0.0)  # the system's clock may have been set


def _prompt_source(data: Sequence[str], more: Sequence[Path], keep_answers: bool) -> Literal["", "prompts", "history"]:
    """Return the source of the prompts: "history", the shipped "prompts", or "" if the user gave training text.

    Raises UsageMistake for flags that contradict each other.
    """
    if more and not data:
        raise UsageMistake(f"{more[0]} is given without --data; write --data {more[0]}.")
    if HISTORY in data and len(data) + len(more) > 1:
        raise UsageMistake(
            f"--data {HISTORY} cannot be combined with files; for a file of that name write ./{HISTORY}."
        )
    if keep_answers and data != [HISTORY]:
        raise UsageMistake(f"--keep-answers has no effect without --data {HISTORY}; leave it out.")
    return "prompts" if not data else HISTORY if data == [HISTORY] else ""


def _run_course(course: "Course", interrupt: Interrupt, progress: Progress) -> "tuple[dict[str, Any], Verdict] | None":
    """Run a course: answers, training, bench. Return its report and the verdict; None if the user stops the course."""
    for sentence in _plan(course):
        progress.notice(sentence)
    try:
        if not course.propose() and console.at_a_terminal() and not typer.confirm("Train it anyway?", default=False):
            return None
        expected = course.plan.tokens
        for state in course.answer():
            if interrupt.requested:  # a library may have swallowed the exception
                raise KeyboardInterrupt
            if state.done >= STEADY and not expected / NOTABLE <= state.expected <= expected * NOTABLE:
                expected = state.expected
                progress.notice(f"at the present speed there will be about {expected:,} tokens of answers.")
            answers, tokens = counted(state.replies, "answer"), counted(state.tokens, "token")
            progress.show(
                f"{100 * state.done:.0f} %  {answers} so far ({tokens})"
                + (f"; about {counted(state.more, 'more answer')} to come" if state.more else "")
            )
        if (job := course.train()) is not None:
            if not _run(job, interrupt, progress):
                return None
            progress.show("measuring")
            job.finish()
        progress.show("benching")
        report, verdict = course.judge()
    except KeyboardInterrupt:
        progress.notice("stopped; progress is saved; repeat the command to continue.")
        return None
    return report, verdict


def _plan(course: "Course") -> Iterator[str]:
    plan, request = course.plan, course.request
    yours = f"the drafter learns from {plan.conversations} of your conversations; " if plan.conversations else ""
    parts = (
        f"{yours}{request.name} answers prompts, with at most {plan.tokens:,} tokens in total (about "
        f"{_duration(3600 * plan.answering)}); then the drafter is trained (about "
        f"{_duration(3600 * plan.training)}); then a bench measures it on other prompts (about "
        f"{_duration(3600 * plan.bench)})"
    )
    if course.resumed:
        yield f"continuing a plan of {_duration(3600 * plan.limit)}, of which {_duration(course.left)} are left."
        return
    yield f"the plan, {_duration(3600 * plan.limit)} at most: {parts}."
    if course.slowdown >= NOTABLE:
        yield (
            f"the plan expects everything to take {course.slowdown:.1f} times as long as on an idle machine, because "
            "other programs are running."
        )
    yield (
        f"the training needs about {plan.memory / 2**30:.1f} GiB of memory, and {plan.files / 2**20:.0f} MiB of disk "
        f"space in {course.directory}; the drafter is kept only if it makes replies faster."
    )


def _verdict(verdict: "Verdict", directory: str) -> str:
    prompts, faster_than = counted(verdict.prompts, "new prompt"), _than(verdict.speedup)
    result = f"on {prompts} {verdict.drafter} was {faster_than} plain decoding"
    if verdict.without != "none":
        faster_than, other = _than(verdict.against), verdict.without
        result = f"{result} and {faster_than} {other}, which `auto` would use otherwise"
    if verdict.kept:
        return f"Kept: {result}. `auto` may use it from now on."
    return f"Not kept: {result}. To use it anyway: --drafter {shlex.quote(directory)}"


def _than(ratio: float) -> str:
    words = speedup(ratio)
    return f"{words} as" if words == "as fast" else f"{words} than"


def _run(job: "Job", interrupt: Interrupt, progress: Progress) -> bool:
    """Train and report each step. Return whether training finished; Ctrl+C stops it after a step."""
    interrupt.wait_for_step = True
    losses: deque[float] = deque(maxlen=SPARK)
    first = None
    estimated = False
    for report in job.run(lambda: interrupt.requested):
        if job.main:
            losses.append(report.loss)
            first = first or report
            steady = report.step > first.step and (
                report.done >= STEADY or report.seconds - first.seconds >= STEADY_SECONDS
            )
            if steady and not estimated and report.done < 1:
                estimated = True
                progress.notice(
                    f"at the present speed the training takes {_duration(report.left)} more, and about "
                    f"{counted(report.steps, 'step')} in total."
                )
            _show_step(progress, report, losses)
    interrupt.wait_for_step = False
    if job.training.stopped and job.main:
        progress.notice(f"stopped after step {job.training.state.step}; repeat the command to continue from there.")
    return not job.training.stopped


def _show_step(progress: Progress, report: "StepReport", losses: Sequence[float]) -> None:
    if report.accuracy is not None:
        progress.notice(
            f"step {report.step}, loss {report.loss:.3f}; on texts not used in training, {_right(report.accuracy)}."
        )
    pace, left = report.tokens / max(report.seconds, 1e-9), _duration(report.left)
    (spark,) = marks.curve(losses, 1)
    shown = f"loss {report.loss:.3f} {drawable(spark, sys.stderr)}"
    progress.show(f"{100 * report.done:.0f} %  step {report.step}  {shown}  {left} left  {pace:.0f} tokens/s")


def _drawn(report: dict[str, Any]) -> str:
    """Return the loss as a curve of characters if standard output is a terminal, otherwise an empty text."""
    if not console.output_is_terminal():
        return ""
    from localspec.training import curves

    lines = curves.in_characters(Path(report["directory"]) / "losses.jsonl", shutil.get_terminal_size().columns)
    return drawable("".join(f"{line}\n" for line in lines), sys.stdout)


def _summary(report: dict[str, Any]) -> str:
    measured = report["measured_tokens"]
    caution = f" (on {measured} tokens only)" if measured < FEW else ""
    kind, model, loss, duration = report["kind"], report["model"], report["loss"], _duration(report["seconds"])
    steps, tokens = counted(report["steps"], "step"), counted(report["tokens"], "token")
    lines = [
        f"{kind} for {model}: {steps}, {tokens}, {duration}, loss {loss:.3f}",
        f"on texts not used in training, {_right(report['accuracy_by_depth'])}{caution}",
    ]
    for name, subject in (
        ("acceptance", "on text that the model wrote"),
        ("acceptance_elsewhere", "on replies of all kinds"),
    ):
        if acceptance := report.get(name):
            length, nodes = acceptance["length"], acceptance["nodes"]
            replies, tokens = counted(acceptance["replies"], "reply", "replies"), counted(acceptance["tokens"], "token")
            lines.append(f"{subject}: {length:.2f} tokens per step with {counted(nodes, 'node')} ({replies}, {tokens})")
    if report["changes_target"]:
        before, after = report["perplexity"]
        lines.append(
            f"training changed the target, made from {model}: its perplexity on held-out text was "
            f"{before:.3f} before and is {after:.3f} now"
        )
    return "\n".join(lines)


def _used(report: dict[str, Any], model: str) -> str:
    directory = report["directory"]
    answering = directory if report["changes_target"] else model
    return f"use it: localspec run -m {shlex.quote(answering)} --drafter {shlex.quote(directory)}"


def _right(accuracy: Sequence[Sequence[float]]) -> str:
    shares = ", ".join(f"{100 * line[0]:.0f}" for line in accuracy)
    return f"the first{', second, …' if len(accuracy) > 1 else ''} drafted token was right in {shares} % of cases"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _model_to_train_for(settings: Settings, progress: Progress, saves: bool) -> registry.TargetCard:
    """Return the model to train for. Print its name if no flag names it. Without `saves`, nothing changes on disk."""
    with user_store(progress.notice, create=False) as store:
        card = chosen_model(settings, store, progress.reporter, saves)
    progress.clear()
    if not settings.origins["model"].startswith("--"):
        progress.notice(f"The drafter is trained for {card.name}; -m MODEL chooses another model.")
    return card


def _public_name(card: registry.TargetCard) -> str:
    """Return the model's name without its directories, which are private."""
    if card.name in registry.cards() or is_packed(card.path):
        return card.name
    path = card.path.resolve()
    return path.parent.name if path.name == "target" else path.name


def _command(
    kind: str, card: registry.TargetCard, data: Sequence[Path | str], options: Sequence[str], values: Mapping[str, Any]
) -> str:
    """Return the command to type again to continue. Directories are left out, because they are private."""
    words = ["localspec", "train", kind, "-m", _public_name(card)]
    words += ["--data", *(Path(file).name for file in data)] if data else []
    words += [word for option in options for word in ("-O", option)]
    for flag in ("steps", "hours", "epochs", "at_once", "length", *PRECISION):
        if values.get(flag) is not None:
            words += [f"--{flag.replace('_', '-')}", str(values[flag])]
    chosen = {} if values["source"] else {"batch": BATCH, "rate": RATE}
    for flag, name in (("--batch", "batch"), ("--lr", "rate"), ("--seed", "seed"), ("--labels", "labels")):
        if (value := values[name] or chosen.get(name, values[name])) is not None:
            words += [flag, str(value)]
    return shlex.join(words)
