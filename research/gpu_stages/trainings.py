"""Stage f: measures training steps of each kind of drafter for a 7 B model in NF4: seconds and peak memory."""

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from figures import figure, table

from gpu_stages.aims import Aim, failed, shares
from gpu_stages.invented import LLAMA2, PRECISIONS, SHAPES, SMALL_SHAPES, random_target
from gpu_stages.record import Record, failure
from gpu_stages.request import Request
from gpu_stages.timing import held_bytes, peak_bytes, watch_peak
from localspec.choosing import fit
from localspec.choosing.choice import Choice
from localspec.models.drafter_kinds import kinds
from localspec.models.registry import NOWHERE, TargetCard
from localspec.models.shape import Shape
from localspec.nn.target import Target
from localspec.training import estimate, processes
from localspec.training.corpus import Cursor, Row
from localspec.training.train import Training, TrainingPlan
from localspec.training.trainable import make_drafter

PRECISION = "nf4"
BATCH, LENGTH = 4096, 1024  # tokens of a step and of a row: the defaults of `localspec train`
SMALL_BATCH, SMALL_LENGTH = 64, 32
STEPS, SMALL_STEPS = 8, 2
OPTIONS: dict[str, dict[str, Any]] = {"s3d": {"kept": "0,1,2,3,4,27,28,29,30,31"}}  # the paper's: 5 to 26 are skipped
SMALL_OPTIONS: dict[str, dict[str, Any]] = {"s3d": {"kept": "0"}}
ALLOWED = 1.1  # times the estimate: a training that takes more would not fit where the estimate says so


class RandomRows:
    """A replacement for training texts, with random tokens."""

    def __init__(self, vocabulary: int, length: int, batch: int) -> None:
        self._vocabulary, self._length, self._batch = vocabulary, length, batch
        self._chance = torch.Generator().manual_seed(0)
        self.held_out = [self._row()]

    def _row(self) -> Row:
        tokens = torch.randint(self._vocabulary, (self._length,), generator=self._chance).tolist()
        return Row(tokens, [True] * len(tokens))

    def frequencies(self) -> torch.Tensor:
        """Return random frequencies of all tokens."""
        return torch.randint(1, 100, (self._vocabulary,), generator=self._chance)

    def batches(self, start: Cursor) -> Iterator[tuple[list[Row], Cursor, float]]:
        """Yield batches of random rows without end."""
        while True:
            yield [self._row() for _ in range(self._batch // self._length)], start, 0.0


def run(record: Record, request: Request) -> None:
    """Measure every kind of drafter that can be trained. All kinds share one loaded model."""
    shape = (SMALL_SHAPES if request.small else SHAPES)[LLAMA2]
    targets: list[Target] = []

    def target() -> Target:
        if not targets:
            targets.append(random_target(LLAMA2, request.small, request.device, PRECISION))
        return targets[0]

    for kind in kinds("weights"):
        record.measured(kind, partial(training, kind, target, shape, request), least=30)


def choice_of(shape: Shape, device: str) -> Choice:
    """Return the choice that describes the loaded model, for the estimate of memory."""
    dtype, quantize = PRECISIONS[PRECISION]
    loaded = fit.weights(shape, dtype, quantize, "cuda")
    return Choice(
        target=TargetCard(LLAMA2, NOWHERE, None, ""), device=device, dtype=dtype, quantize=quantize, engine="torch",
        loaded_bytes=loaded, bytes=loaded, drafter="none", nodes=0, fixed=False, reason="",
    )  # fmt: skip


def training(kind: str, target: Any, shape: Shape, request: Request) -> dict[str, Any]:
    """Run some training steps. Return the median seconds of a step, and the peak memory including the target."""
    model = target()
    length, batch = (SMALL_LENGTH, SMALL_BATCH) if request.small else (LENGTH, BATCH)
    options = (SMALL_OPTIONS if request.small else OPTIONS).get(kind, {})
    watch_peak(request.device)
    before = held_bytes(request.device)
    choice = choice_of(shape, request.device)
    AcceleratorState._reset_state(reset_partial_state=True)
    drafter = make_drafter(kind, model, options).to(model.device)
    needed = estimate.needs(drafter, choice, length)
    fit = estimate.fitting(needed, choice, batch, length)
    for transformer in drafter.transformers:
        transformer.recomputed = fit.recomputed
    plan = TrainingPlan(batch, fit.at_once, 1e-3, steps=SMALL_STEPS if request.small else STEPS, save_seconds=1e9)
    request.models.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="training-", dir=request.models))
    times: list[float] = []
    try:
        corpus: Any = RandomRows(model.vocab_size, length, batch)
        loop = Training(drafter, corpus, plan, directory, processes.begin(choice), {})
        loop.save = lambda: None  # type: ignore[method-assign]  # gigabytes that nobody reads
        times += [time.perf_counter() for _ in loop.run()]
    finally:
        shutil.rmtree(directory)
        for transformer in drafter.transformers:
            transformer.recomputed = False
    durations = [later - earlier for earlier, later in pairwise(times)]
    return {
        "seconds": sorted(durations)[len(durations) // 2], "at_once": fit.at_once, "recomputed": fit.recomputed, "batch": batch,
        "trainable": needed.trainable, "loss": loop.state.loss, "held_before": before,
        "peak": peak_bytes(request.device), "estimate": needed.memory(fit.at_once, fit.recomputed) - estimate.PROGRAM,
    }  # fmt: skip


# -- the page ----------------------------------------------------------------------------------------------------------


def section(figures: dict[str, Any]) -> str:
    good = {kind: result for kind, result in figures.items() if not failure(result)}
    lines = [
        [
            kind, f"{result['trainable'] / 1e6:.0f} M", figure(result["seconds"]), f"{result['batch'] / result['seconds']:.0f}",
            f"{result['at_once']}{', layers twice' if result['recomputed'] else ''}", gib(result["peak"]), gib(result["estimate"]),
            figure(result["peak"] / result["estimate"] if result["peak"] else None),
        ]
        for kind, result in good.items()
    ]  # fmt: skip
    heads = [
        "drafter",
        "trained parameters",
        "seconds per training step",
        "tokens/s",
        "tokens at once",
        "peak GiB",
        "estimated GiB",
        "peak ÷ estimate",
    ]
    caption = (
        "A line is a drafter with its default options, but `s3d` skips layers 5 to 26, as in its paper. "
        f"The model for which it drafts is {LLAMA2} in NF4 with random weights. "
        f"A training step reads {BATCH} tokens in sequences of {LENGTH}.\n\n"
        "- *Tokens at once* are those that the GPU computes together.\n"
        "- *Peak GiB* is the most memory used, and *estimated GiB* what localspec had estimated before. "
        "*Peak ÷ estimate* is best just below 1."
    )
    return "\n\n".join([caption, *([table(heads, lines)] if lines else []), *failed(figures)])


def gib(size: float) -> str:
    return f"{size / 2**30:.2f}" if size else ""


def aims(figures: dict[str, Any]) -> list[Aim]:
    known: Sequence[Any] = [result for result in figures.values() if not failure(result) and result["peak"]]
    within = shares(result["peak"] <= ALLOWED * result["estimate"] for result in known)
    near = shares(result["peak"] >= result["estimate"] / 2 for result in known)
    return [
        Aim(f"share of drafters that took at most {ALLOWED} times the estimated memory", within, 1.0),
        Aim("share of drafters that took at least half of the estimated memory", near, 1.0),
    ]
