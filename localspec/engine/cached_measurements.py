"""What was measured on this machine and kept: by what it is valid for, for the policy to read."""

from pathlib import Path
from typing import Any

from localspec import __version__
from localspec.checkpoint import revision
from localspec.errors import LocalspecError
from localspec.events import Statistics
from localspec.machine.hardware import versions
from localspec.models.registry import TargetCard
from localspec.policy.forward_costs import ForwardCosts
from localspec.policy.measurements import ModelMeasurements, ReplyStats
from localspec.policy.prediction import Rates
from localspec.store.store import Store

COSTS, REPLIES, RATES, BANDWIDTH = "costs", "replies", "rates by a wide and a slim model", "bandwidth"
BUSY = " of a busy moment"
FADING = 0.95  # of what earlier replies say, with each new one
LEAST_TOKENS = 100  # of replies, before their figures are believed


def subject(revision: str, device: str, dtype: str, quantize: str, exact: bool, context: int | None) -> str:
    """What a measurement of a model is valid for: its weights and form, this version, this machine."""
    form, longest = "exact" if exact else "fastest", "own context" if context is None else str(context)
    return " · ".join((revision, dtype, quantize, form, longest, f"localspec {__version__}", versions(device)))


def place(device: str, dtype: str, quantize: str) -> str:
    """What a measurement of a device in one precision is valid for."""
    return " · ".join((dtype, quantize, f"localspec {__version__}", versions(device)))


class Measurements:
    """A store's, as the policy asks for them. Without a store nothing is known.

    `exact` and `context` say how models are to be loaded; where one was not measured so, its usual form serves.
    """

    def __init__(self, store: Store | None, exact: bool = False, context: int | None = None) -> None:
        self.store = store
        self._forms = dict.fromkeys(((exact, context), (exact, None), (False, None)))
        self._revisions: dict[Path, str] = {}  # every precision asks for it, and it reads all over the files

    def recall(self, name: str, about: str) -> Any:
        """What was kept; None where nothing was."""
        return None if self.store is None else self.store.recall(name, about)

    def either(self, name: str, about: str) -> Any:
        """What was kept of a quiet moment, else of a busy one."""
        found = self.recall(name, about)
        return self.recall(name + BUSY, about) if found is None else found

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        """What replies of this model cost and gave here."""
        if self.store is None or not card.here:
            return ModelMeasurements()
        try:
            if card.path not in self._revisions:
                self._revisions[card.path] = revision(card.path)
        except LocalspecError:  # damaged; told when it is loaded
            return ModelMeasurements()
        every = (self._about(subject(self._revisions[card.path], device, dtype, quantize, *one)) for one in self._forms)
        return next((one for one in every if one != ModelMeasurements()), ModelMeasurements())

    def _about(self, about: str) -> ModelMeasurements:
        kept = self.recall(REPLIES, about)
        found = {name: replies(sums) for name, sums in (kept if isinstance(kept, dict) else {}).items()}
        known = {name: said for name, said in found.items() if said is not None}
        return ModelMeasurements(ForwardCosts.from_list(self.either(COSTS, about)), known)

    def rates(self, device: str, dtype: str, quantize: str) -> Rates | None:
        """Those that were measured."""
        found = self.either(RATES, place(device, dtype, quantize))
        return Rates.from_list(found)

    def bandwidth(self, device: str) -> float | None:
        """Bytes a second, if that was measured."""
        found = self.either(BANDWIDTH, versions(device))
        return float(found) if isinstance(found, int | float) and found > 0 else None


def replies(sums: object) -> ReplyStats | None:
    """What kept sums say; None where they are of too few tokens, or something else."""
    if (found := _sums(sums)) is None or found[0] < LEAST_TOKENS or not found[1] or not found[4]:
        return None
    tokens, steps, nodes, drafting, verifying = found
    return ReplyStats(tokens / steps, nodes / steps, drafting / verifying)


def with_reply(kept: object, drafter: str, said: Statistics) -> dict[str, object]:
    """The sums by drafter, with those of one more reply; earlier ones fade."""
    # the first token belongs to prefill
    new = (len(said.token_ids) - 1, said.steps, said.drafted, said.draft_seconds, said.verify_seconds)
    sums: dict[str, object] = dict(kept) if isinstance(kept, dict) else {}
    former = _sums(sums.get(drafter)) or [0.0] * len(new)
    sums[drafter] = [FADING * old + one for old, one in zip(former, new, strict=True)]
    return sums


def _sums(value: object) -> list[float] | None:
    """Tokens, steps, nodes, seconds of drafting and of verification."""
    if isinstance(value, list) and len(value) == 5 and all(type(one) in (int, float) and one >= 0 for one in value):
        return [float(one) for one in value]
    return None
