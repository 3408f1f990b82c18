"""Trials of code that may crash the process, such as GPU kernels. Results are saved, and two crashes end the trials."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, cast, get_args

import psutil

from localspec import __version__
from localspec.choosing.choice import StepForm
from localspec.choosing.measure import LIBRARIES as LIBRARIES_COMPUTE
from localspec.choosing.measure import MeasurementCache, Quantity
from localspec.engine.backends import Target, find_step_form, recording_troubles, use_step_form
from localspec.machine.hardware import nvidia_driver, versions

PATIENCE = 60.0  # seconds to wait for another process that is trying
LOOK_SECONDS = 0.2
ENDS = 2  # crashes that settle a trial: one may only be a closed window
ENDED = "the program crashed each time this was tried; it is tried again after a driver update"


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial: its outcome, and `why` this is not the best outcome.

    A `passing` result holds only for this session: the next one tries again. While a trial runs, the saved result has
    its process as `tried_by`. If a later process still finds it there, the trial has crashed. `ended` counts these
    crashes.
    """

    outcome: str
    why: str | None = None
    passing: bool = False
    tried_by: str = ""
    ended: int = 0


def result_quantity(name: str, sound: Callable[[TrialResult], bool]) -> Quantity[TrialResult]:
    """Return the name and JSON form for saving a trial's result. A saved result counts only if it is `sound`."""

    def read(value: Any) -> TrialResult | None:
        result = TrialResult(**value)
        types = (
            isinstance(result.why, str | None) and isinstance(result.tried_by, str) and isinstance(result.ended, int)
        )
        return result if types and result.passing is False and sound(result) else None

    return Quantity(name, read, asdict)


def tried(
    cache: MeasurementCache, quantity: Quantity[TrialResult], subject: str, claim: str, fallback: str,
    try_out: Callable[[], TrialResult],
) -> TrialResult:  # fmt: skip
    """Return the saved result of a trial on this `subject` (model, versions, driver), or run the trial `try_out` now.

    Return the outcome `fallback` if another process does not finish the trial in time, or if the trial crashed `ENDS`
    times. `claim` completes the progress text "checking once whether … on this GPU". Raises the errors of `try_out`.
    """
    ourselves, until = _process(os.getpid()), time.monotonic() + PATIENCE
    while (result := cache.recall(quantity, subject)) is not None and _alive(result.tried_by, ourselves):
        if time.monotonic() > until:
            return TrialResult(fallback, f"another process is checking whether {claim}", passing=True)
        cache.reporter.progress(f"waiting for another process, which checks whether {claim} on this GPU")
        time.sleep(LOOK_SECONDS)
    ended = 0 if result is None or result.tried_by in ("", ourselves) else result.ended + 1
    if result is not None and (not result.tried_by or ended >= ENDS):
        cache.remember(quantity, subject, result, silent=True)  # in use: must not be deleted as an old measurement
        return result
    cache.reporter.progress(f"checking once whether {claim} on this GPU")
    cache.remember(quantity, subject, TrialResult(fallback, ENDED, tried_by=ourselves, ended=ended))
    result = TrialResult(fallback, passing=True)
    try:
        result = try_out()
    finally:  # also after Ctrl+C
        now = cache.recall(quantity, subject)
        if now is None or now.tried_by in ("", ourselves):  # otherwise another process began at the same moment
            cache.remember(quantity, subject, result)
    return result


def with_driver(subject: str) -> str:
    """Return `subject` with the GPU driver's version, as in `subject · driver 570.1`, because trials depend on it."""
    driver = nvidia_driver()
    return f"{subject} · driver {driver.version if driver else 'unknown'}"


def _process(number: int) -> str:
    """Return the number of a process with its start time, because numbers are reused."""
    return f"{number} {psutil.Process(number).create_time()}"


def _alive(process: str, ourselves: str) -> bool:
    """Return whether this process runs and is not `ourselves`."""
    try:
        return process != ourselves and _process(int(process.split(maxsplit=1)[0])) == process
    except (psutil.Error, ValueError, IndexError):
        return False


OWN, LIBRARIES = "own", "libraries"
KERNELS = result_quantity("kernels", lambda result: result.outcome == (OWN if result.why is None else LIBRARIES))
_settled: dict[str, TrialResult] = {}  # by device


def settle_kernels(device: str, cache: MeasurementCache) -> None:
    """Decide whether a GPU computes with localspec's own kernels, by a trial. Call this before a model is loaded.

    If not, other libraries' kernels compute, and this is reported once per process.
    """
    if not device.startswith("cuda") or device in _settled:
        return
    import torch

    from localspec.nn import kernel_checks

    card = torch.device(device)

    def try_out() -> TrialResult:
        try:
            why = kernel_checks.tried(card)
        except MemoryError:
            return TrialResult(LIBRARIES, "there is no memory to try the kernels now", passing=True)
        return TrialResult(OWN) if why is None else TrialResult(LIBRARIES, why)

    if kernel_checks.not_for(card) is None:
        result = tried(cache, KERNELS, _subject(device), "localspec's own kernels are right", LIBRARIES, try_out)
        kernel_checks.settle(card, result.why)
        if result.why is not None:
            cache.reporter.notice(
                f"localspec's own kernels are not used on this GPU, so steps are slower: {result.why}."
            )
        _settled[device] = result
        cache.remember(LIBRARIES_COMPUTE, versions(device), result.outcome == LIBRARIES, silent=True)


def _subject(device: str) -> str:
    from localspec.nn.cuda_kernels import digest

    return with_driver(f"{digest()} · localspec {__version__} · {versions(device)}")


STEP_FORM = result_quantity("form of steps", lambda result: result.outcome in get_args(StepForm))


def settle_step_form(device: str, target: Target, cache: MeasurementCache, subject: str) -> None:
    """Decide whether a model on a GPU replays recorded steps (CUDA graphs): a trial checks that they change no bit.

    The result is saved for `subject`, which names the model and how it is loaded, and for the driver.
    """
    if not device.startswith("cuda"):
        return
    result = tried(cache, STEP_FORM, with_driver(subject), "steps can be recorded", "eager", lambda: _find(target))
    if result.why is not None:
        cache.reporter.notice(f"steps are not recorded as a CUDA graph on this GPU, so they are slower: {result.why}.")
    use_step_form(target, cast("StepForm", result.outcome))


def _find(target: Target) -> TrialResult:
    try:
        return TrialResult(*find_step_form(target))
    except MemoryError:
        return TrialResult("eager", "there is no memory to record steps now", passing=True)


class RecordingWatch:
    """A watch that reports once if a model's steps can no longer be recorded, and saves this result for later sessions.

    Failures of a drafter's recordings are reported too; the next session tries again.
    """

    def __init__(self, device: str, target: Target, cache: MeasurementCache, subject: str) -> None:
        self._target, self._cache, self._reported = target, cache, set[str]()
        self._watches = device.startswith("cuda")
        self._subject = with_driver(subject) if self._watches else subject

    def look(self) -> None:
        """Check the recordings after a reply. The text of the reply does not depend on them."""
        steps, drafts = recording_troubles(self._target) if self._watches else (None, None)
        if steps is not None and self._report_once("steps", steps):
            self._cache.remember(STEP_FORM, self._subject, TrialResult("static", steps))
        if drafts is not None:
            self._report_once("the drafter's computations", drafts)

    def _report_once(self, name: str, why: str) -> bool:
        if name in self._reported:
            return False
        self._reported.add(name)
        self._cache.reporter.notice(f"{name} are no longer recorded as a CUDA graph, so they are slower: {why}.")
        return True
