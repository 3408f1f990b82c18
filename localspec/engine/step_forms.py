"""Which form of its steps a model has on a GPU, found once and kept; a trial that ended the program is not repeated."""

from dataclasses import asdict, dataclass
from typing import Any, get_args

from localspec.engine.backends import Target, find_step_form, step_trouble, use_step_form
from localspec.engine.measurement_cache import MeasurementCache, Quantity
from localspec.policy.choice import StepForm


@dataclass(frozen=True)
class FoundForm:
    """A form, and why no quicker one serves; one that is `passing` is found anew by the next session."""

    form: StepForm
    why: str | None = None
    passing: bool = False

    @classmethod
    def from_json(cls, value: Any) -> "FoundForm | None":
        """Reads what was kept; returns None for anything else."""
        found = cls(**value)
        sound = found.form in get_args(StepForm) and isinstance(found.why, str | None)
        return found if sound and not found.passing else None


STEP_FORM = Quantity("form of steps", FoundForm.from_json, asdict)
# What is kept while a trial runs: an error of the driver may end the program, and then this is what the next one finds.
ENDED = FoundForm("eager", "the program ended while it was tried")


def settle_step_form(device: str, target: Target, cache: MeasurementCache, subject: str) -> None:
    """Lets a model on a GPU play recordings of its steps, where a self-check finds that their bits are right.

    `subject` is what that is valid for.
    """
    if not device.startswith("cuda"):
        return
    found = cache.recall(STEP_FORM, subject)
    if found is None:
        cache.reporter.progress("looking whether steps can be recorded on this GPU, once")
        cache.remember(STEP_FORM, subject, ENDED)
        try:
            found = FoundForm(*find_step_form(target))
        except MemoryError:
            found = FoundForm("eager", "there is no memory for it now", passing=True)
        cache.remember(STEP_FORM, subject, found)
    if found.why is not None:
        cache.reporter.notice(f"steps are not recorded on this GPU, and slower for it: {found.why}.")
    use_step_form(target, found.form)


class RecordingWatch:
    """Says once where a model's steps could not be recorded any more, and keeps that for later sessions."""

    def __init__(self, device: str, target: Target, cache: MeasurementCache, subject: str) -> None:
        self._target, self._cache, self._subject = target, cache, subject
        self._watches = device.startswith("cuda")

    def look(self) -> None:
        """Looks after a reply, whose text is the same in any form."""
        if self._watches and (why := step_trouble(self._target)) is not None:
            self._watches = False
            self._cache.remember(STEP_FORM, self._subject, FoundForm("static", why))
            self._cache.reporter.notice(f"steps are not recorded any more, and slower for it: {why}.")
