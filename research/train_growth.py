"""Train one drafter of each kind for a model, and measure its acceptance length after some hours of training.

Each kind has one course, as `localspec train KIND -m MODEL --hours H` runs it: answers, training, bench. When training
has taken each of the `--at` hours, a copy of the drafter is written. After the courses, the acceptance length of each
copy is measured with trees of each number of `--nodes`, on greedy replies to the held-out prompts that come with
localspec. After Ctrl+C or a kill the same command continues.
"""

import argparse
import json
import os
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.drafters.trained import load_drafter
from localspec.engine.loading import load_target
from localspec.environment import home
from localspec.events import Reporter
from localspec.machine import hardware
from localspec.models import registry
from localspec.models.drafter_cards import read_drafter
from localspec.paths import Paths
from localspec.store.store import Store
from localspec.training.course import Course, CourseOptions
from localspec.training.directory import Lock, has_unfinished
from localspec.training.examples import held_out_prompts
from localspec.training.job import Job, TrainingRequest
from localspec.training.trainable import parse_options, save_drafter
from localspec.training.verdict import measure_generated
from localspec.weights.fingerprint import Identity

KINDS = ("medusa", "s3d", "semi", "parallelspec", "eagle3")
REPORT = Reporter(lambda text: print(text, flush=True), lambda text: None)


class _NoLoad(hardware.OthersLoad):
    def __call__(self) -> float:
        return 0.0


def main() -> None:
    """Train one drafter of each kind, measure the copies written during the training, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("-O", "--option", action="append", default=[], help="NAME=VALUE, for all kinds")
    parser.add_argument("--hours", type=float, default=1.5, help="of each course, answers and bench included")
    parser.add_argument("--at", nargs="+", type=float, default=[0.1, 0.25, 1.0], help="hours of training")
    parser.add_argument("--by-cpu", action="store_true", help="hours of the process's CPU time, for a busy machine")
    parser.add_argument("--nodes", nargs="+", type=int, default=[4, 8, 16])
    parser.add_argument("--replies", type=int, default=32)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.by_cpu:
        vars(time)["monotonic"] = time.process_time  # the clock of courses and trainings
        vars(hardware).update(slowdown=lambda: 1.0, OthersLoad=_NoLoad)  # other programs take none of this time
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    settings = Settings(model=arguments.model)
    card = registry.resolve(arguments.model)
    for kind in arguments.kinds:
        train(kind, card, settings, arguments)
    rows = [row for kind in arguments.kinds for row in measured(kind, card, settings, arguments)]
    print("| kind | hours | " + " | ".join(f"τ, {nodes} nodes" for nodes in arguments.nodes) + " |")
    print("|---|---:|" + "---:|" * len(arguments.nodes))
    for kind, hours, lengths in rows:
        print(f"| {kind} | {hours} | " + " | ".join(f"{lengths[str(nodes)]:.2f}" for nodes in arguments.nodes) + " |")


def train(kind: str, card: registry.TargetCard, settings: Settings, arguments: argparse.Namespace) -> None:
    """Run the whole course of a kind, and write a copy of the drafter after each of the `--at` hours of training."""
    directory: Path = arguments.out / kind
    if (directory / "drafter" / "drafter.json").exists() and not has_unfinished(directory):
        return
    request = TrainingRequest(
        kind=kind, card=card, name=card.name, options=parse_options(kind, arguments.option), examples=[],
        data=["prompts"], directory=directory, command=shlex.join(["localspec", "train", kind, "-m", card.name]),
        length=None, batch=4096, at_once=None, rate=1e-3, seed=0, distill=True, steps=None, hours=None, epochs=None,
        save_seconds=60.0, force=False,
    )  # fmt: skip
    with Lock(directory) as lock, Store.open(Paths(home()).database, REPORT.notice) as store:
        course_options = CourseOptions("prompts", arguments.hours, None, None, False)
        course = Course(request, course_options, settings, lock, store, REPORT)
        course.propose()
        for answered in course.answer():
            REPORT.progress(f"{answered.replies} answers")
        if (job := course.train()) is not None:
            began, positions = time.process_time(), job.training.state.tokens
            for step in job.run():
                for hours in arguments.at:
                    if step.seconds >= 3600 * hours and not _copy(directory, hours).exists():
                        write_copy(job, card, _copy(directory, hours))
            pace = (job.training.state.tokens - positions) / max(time.process_time() - began, 1e-9)
            print(f"{kind}: {pace:.0f} tokens a CPU-second in training", flush=True)
            job.finish()
        _, verdict = course.judge()
        print(f"{kind}: {json.dumps(verdict.as_json())}", flush=True)


def _copy(directory: Path, hours: float) -> Path:
    return directory / f"at-{hours:g}"


def write_copy(job: Job, card: registry.TargetCard, path: Path) -> None:
    """Write the drafter as it is now, as a drafter for the model of `card`."""
    model = Identity(card.path)
    about = {
        "target": {"name": card.name, "revision": model.revision, "weights": model.weights},
        "accuracy_by_depth": job.training.measure(),
        "step": job.training.state.step,
    }
    save_drafter(job.drafter, path, about)
    job.drafter.train()


def measured(
    kind: str, card: registry.TargetCard, settings: Settings, arguments: argparse.Namespace
) -> list[tuple[str, float, dict[str, float]]]:
    """Return (kind, hours, acceptance length by nodes) of each copy, from an earlier run if it measured them."""
    choice, rows = choose(card, replace(settings, drafter="none")), []
    target: Any = None
    for hours in arguments.at:
        copy = _copy(arguments.out / kind, hours)
        if not copy.exists():
            continue
        file = copy / "lengths.json"
        lengths: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
        for nodes in arguments.nodes:
            if str(nodes) in lengths:
                continue
            target = target or load_target(choice, REPORT)
            prompts = ([*target.encode([{"role": "user", "content": prompt.text}])] for prompt in held_out_prompts())
            drafter = load_drafter(read_drafter(copy), target)
            result = measure_generated(target, drafter, prompts, arguments.replies, 1e9, nodes)
            lengths[str(nodes)] = result["length"] if result else 1.0
            file.write_text(json.dumps(lengths) + "\n")
        rows.append((kind, hours, lengths))
    return rows


if __name__ == "__main__":
    main()
