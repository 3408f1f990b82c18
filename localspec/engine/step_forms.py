"""Which form of its steps a model has on a GPU, found once and kept; a trial that ended the program is not repeated."""

import os
from dataclasses import asdict, dataclass
from typing import Any, get_args

import psutil

from localspec.engine.backends import Target, find_step_form, kernel_trouble, recording_troubles, use_step_form
from localspec.engine.measurement_cache import MeasurementCache, Quantity
from localspec.machine.nvidia import nvidia_driver
from localspec.policy.choice import StepForm


@dataclass(frozen=True)
class FoundForm:
    """A form, and why no quicker one serves; one that is `passing` is found anew by the next session.

    `tried_by` is the process that has begun to look, and has not come to an end: an error of the driver may end the
    program, and then this is what the next one finds.
    """

    form: StepForm
    why: str | None = None
    passing: bool = False
    tried_by: str = ""

    @classmethod
    def from_json(cls, value: Any) -> "FoundForm | None":
        """Reads what was kept; returns None for anything else."""
        found = cls(**value)
        sound = found.form in get_args(StepForm) and isinstance(found.why, str | None)
        return found if sound and isinstance(found.tried_by, str) and not found.passing else None


STEP_FORM = Quantity("form of steps", FoundForm.from_json, asdict)
ENDED = "the program ended while it was tried; another driver is tried anew"
PASSING = FoundForm("eager", passing=True)


def settle_step_form(device: str, target: Target, cache: MeasurementCache, subject: str) -> None:
    """Lets a model on a GPU play recordings of its steps, where a self-check finds that their bits are right.

    `subject` is what that is valid for, beside the driver.
    """
    if not device.startswith("cuda"):
        return
    subject = with_driver(subject)
    found = cache.recall(STEP_FORM, subject)
    if found is None:
        found = _find(target, cache, subject)
    elif found.tried_by and _alive(found.tried_by):
        found = FoundForm("eager", "another process is looking whether they can be")
    if found.why is not None:
        cache.reporter.notice(f"steps are not recorded on this GPU, and slower for it: {found.why}.")
    if (why := kernel_trouble(device)) is not None:
        cache.reporter.notice(f"localspec's own kernels are not used on this GPU, and steps are slower for it: {why}.")
    use_step_form(target, found.form)


def _find(target: Target, cache: MeasurementCache, subject: str) -> FoundForm:
    cache.reporter.progress("looking whether steps can be recorded on this GPU, once")
    cache.remember(STEP_FORM, subject, FoundForm("eager", ENDED, tried_by=_process(os.getpid())))
    found = PASSING
    try:
        found = FoundForm(*find_step_form(target))
    except MemoryError:
        found = FoundForm("eager", "there is no memory for it now", passing=True)
    finally:  # also where somebody pressed Ctrl+C
        cache.remember(STEP_FORM, subject, found)
    return found


def with_driver(subject: str) -> str:
    """What a form was found for: a newer driver is looked at again."""
    driver = nvidia_driver()
    return f"{subject} · driver {driver.version if driver else 'unknown'}"


def _process(number: int) -> str:
    """A process by its number and when it began, since numbers come again."""
    return f"{number} {psutil.Process(number).create_time()}"


def _alive(process: str) -> bool:
    try:
        return _process(int(process.split(maxsplit=1)[0])) == process
    except (psutil.Error, ValueError, IndexError):
        return False


class RecordingWatch:
    """Says once where a model's steps could not be recorded any more, and keeps that for later sessions.

    What a drafter computes beside them is said, too, and is tried again by the next session.
    """

    def __init__(self, device: str, target: Target, cache: MeasurementCache, subject: str) -> None:
        self._target, self._cache, self._told = target, cache, set[str]()
        self._watches = device.startswith("cuda")
        self._subject = with_driver(subject) if self._watches else subject

    def look(self) -> None:
        """Looks after a reply, whose text is the same in any form."""
        steps, drafts = recording_troubles(self._target) if self._watches else (None, None)
        if steps is not None and self._tell("steps are", steps):
            self._cache.remember(STEP_FORM, self._subject, FoundForm("static", steps))
        if drafts is not None:
            self._tell("what the drafter computes is", drafts)

    def _tell(self, what: str, why: str) -> bool:
        """Says that something is recorded no more, unless that was said."""
        if what in self._told:
            return False
        self._told.add(what)
        self._cache.reporter.notice(f"{what} not recorded any more, and slower for it: {why}.")
        return True
