"""Which form of its steps a model has on a GPU, found once and kept; a trial that ended the program is not repeated."""

from dataclasses import asdict, dataclass
from typing import Any, get_args

from localspec.engine.backends import Target, find_step_form, step_trouble, use_step_form
from localspec.engine.measurement_cache import Quantity
from localspec.engine.model_profile import ModelProfile
from localspec.policy.choice import LoadSpec, StepForm


@dataclass(frozen=True)
class FoundForm:
    """A form, and why no quicker one serves."""

    form: StepForm
    why: str | None = None

    @classmethod
    def from_json(cls, value: Any) -> "FoundForm | None":
        """Reads what was kept; returns None for anything else."""
        found = cls(**value)
        return found if found.form in get_args(StepForm) and isinstance(found.why, str | None) else None


STEP_FORM = Quantity("form of steps", FoundForm.from_json, asdict)
# What is kept while a trial runs: an error of the driver may end the program, and then this is what the next one finds.
ENDED = FoundForm("eager", "the program ended while it was tried")


def settle_step_form(choice: LoadSpec, target: Target, profile: ModelProfile) -> None:
    """Lets a model on a GPU play recordings of its steps, where a self-check finds that their bits are right."""
    if not choice.device.startswith("cuda"):
        return
    found = profile.recall(STEP_FORM)
    if found is None:
        profile.reporter.progress("looking whether steps can be recorded on this GPU, once")
        profile.remember(STEP_FORM, ENDED)
        found = FoundForm(*find_step_form(target))
        profile.remember(STEP_FORM, found)
    if found.why is not None:
        profile.reporter.notice(f"steps are not recorded on this GPU, and slower for it: {found.why}.")
    use_step_form(target, found.form)


class RecordingWatch:
    """Says once where a model's steps could not be recorded any more, and keeps that for later sessions."""

    def __init__(self, choice: LoadSpec, target: Target, profile: ModelProfile) -> None:
        self._target, self._profile = target, profile
        self._watches = choice.device.startswith("cuda")

    def look(self) -> None:
        """Looks after a reply, whose text is the same in any form."""
        if self._watches and (why := step_trouble(self._target)) is not None:
            self._watches = False
            self._profile.remember(STEP_FORM, FoundForm("static", why))
            self._profile.reporter.notice(f"steps are not recorded any more, and slower for it: {why}.")
