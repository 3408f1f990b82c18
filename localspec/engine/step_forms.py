"""Which form of its steps a model has on a GPU, found once and kept; a trial that ended the program is not repeated."""

from typing import cast, get_args

from localspec.choosing.choice import StepForm
from localspec.choosing.measure import MeasurementCache
from localspec.engine.backends import Target, find_step_form, recording_troubles, use_step_form
from localspec.engine.trials import Verdict, tried, verdict_quantity, with_driver

STEP_FORM = verdict_quantity("form of steps", lambda found: found.outcome in get_args(StepForm))


def settle_step_form(device: str, target: Target, cache: MeasurementCache, subject: str) -> None:
    """Lets a model on a GPU play recordings of its steps, where a self-check finds that their bits are right.

    `subject` is what that is valid for, beside the driver.
    """
    if not device.startswith("cuda"):
        return
    found = tried(cache, STEP_FORM, with_driver(subject), "steps can be recorded", "eager", lambda: _find(target))
    if found.why is not None:
        cache.reporter.notice(f"steps are not recorded on this GPU, and slower for it: {found.why}.")
    use_step_form(target, cast(StepForm, found.outcome))


def _find(target: Target) -> Verdict:
    try:
        return Verdict(*find_step_form(target))
    except MemoryError:
        return Verdict("eager", "there is no memory for it now", passing=True)


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
            self._cache.remember(STEP_FORM, self._subject, Verdict("static", steps))
        if drafts is not None:
            self._tell("what the drafter computes is", drafts)

    def _tell(self, what: str, why: str) -> bool:
        """Says that something is recorded no more, unless that was said."""
        if what in self._told:
            return False
        self._told.add(what)
        self._cache.reporter.notice(f"{what} not recorded any more, and slower for it: {why}.")
        return True
