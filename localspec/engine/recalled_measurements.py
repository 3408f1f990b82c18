"""The names under which measurements are kept, what each is valid for, and what the policy may read of them."""

from pathlib import Path
from typing import Any

from localspec import __version__
from localspec.engine.measurement_cache import MeasurementCache, Quantity
from localspec.engine.own_kernels import with_kernels
from localspec.errors import LocalspecError
from localspec.events import Statistics
from localspec.machine.hardware import versions
from localspec.models.registry import TargetCard
from localspec.models.s3d_prediction import KeptLayers
from localspec.policy.forward_costs import ForwardCosts
from localspec.policy.measurements import ModelMeasurements, ReplyStats
from localspec.policy.prediction import Rates

FADING = 0.95  # the weight of earlier replies, with each new one
LEAST_TOKENS = 100  # of replies, before their figures are believed


def _bandwidth(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _sums_by_drafter(value: Any) -> dict[str, list[float]] | None:
    if not isinstance(value, dict):
        return None
    return {drafter: list(map(float, sums)) for drafter, sums in value.items() if _are_sums(sums)}


def _are_sums(value: object) -> bool:
    return isinstance(value, list) and len(value) == 6 and all(type(one) in (int, float) and one >= 0 for one in value)


def _kept_layers(value: Any) -> list[KeptLayers] | None:
    try:
        return [KeptLayers.from_json(one) for one in value] or None
    except (KeyError, TypeError, ValueError):
        return None


COSTS = Quantity("costs", ForwardCosts.from_list, ForwardCosts.as_list)
RATES = Quantity("rates by a wide and a slim model", Rates.from_list, Rates.as_list)
BANDWIDTH = Quantity("bandwidth", _bandwidth, float)
LAYERS = Quantity("layers that draft", _kept_layers, lambda found: [one.as_json() for one in found])
# By `kept_as`, a drafter and how its replies were decoded: tokens, steps, nodes, and seconds of drafting, of
# verification, and of steps beside both.
REPLY_SUMS = Quantity("replies by their decoding", _sums_by_drafter, dict)
REPLAYS = Quantity("replays", _sums_by_drafter, dict)  # the same, of replies that a search decoded again


def model_subject(weights: str, device: str, dtype: str, quantize: str, exact: bool, context: int | None) -> str:
    """What a measurement of a model is valid for: its weights and form, this version, this machine."""
    form, longest = "exact" if exact else "fastest", "own context" if context is None else str(context)
    return " · ".join((weights, dtype, quantize, form, longest, f"localspec {__version__}", versions(device)))


def device_subject(device: str, dtype: str, quantize: str) -> str:
    """What a measurement of a device in one precision is valid for."""
    return " · ".join((dtype, quantize, f"localspec {__version__}", versions(device)))


class RecalledMeasurements:
    """What was measured here before, as the policy asks for it; nothing is measured.

    `exact` and `context` say how models are to be loaded; where one was not measured so, its usual form serves.
    """

    def __init__(self, cache: MeasurementCache, exact: bool = False, context: int | None = None) -> None:
        self.cache = cache
        self._forms = dict.fromkeys(((exact, context), (exact, None), (False, None)))
        self._weights: dict[Path, str] = {}  # every precision asks for it, and it reads all over the files

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        """What forwards of this model cost here, and what its replies were like."""
        if not card.here:
            return ModelMeasurements()
        try:
            if card.path not in self._weights:
                self._weights[card.path] = self.cache.identity(card.path).weights
        except LocalspecError:  # damaged, which is reported when it is loaded
            return ModelMeasurements()
        for exact, context in self._forms:
            subject = model_subject(self._weights[card.path], device, dtype, quantize, exact, context)
            subject = with_kernels(subject, device, self.cache)
            replies, replays = (
                {key: stats for key, of_it in sums.items() if (stats := reply_stats(of_it)) is not None}
                for sums in (self.cache.recall(quantity, subject) or {} for quantity in (REPLY_SUMS, REPLAYS))
            )
            layers = self.cache.recall(LAYERS, subject) or ()
            if (costs := self.cache.recall_either(COSTS, subject)) is not None or replies or replays or layers:
                busy = costs is not None and self.cache.recall(COSTS, subject) is None
                return ModelMeasurements(costs, replies, layers, replays, busy)
        return ModelMeasurements()

    def rates(self, device: str, dtype: str, quantize: str) -> Rates | None:
        """The rates of a device in one precision; None where they were not measured."""
        return self.cache.recall_either(RATES, self._rates_subject(device, dtype, quantize))

    def _rates_subject(self, device: str, dtype: str, quantize: str) -> str:
        return with_kernels(device_subject(device, dtype, quantize), device, self.cache)

    def bandwidth(self, device: str) -> float | None:
        """Bytes a second that can be read from a device's memory; None where that was not measured."""
        return self.cache.recall_either(BANDWIDTH, versions(device))


class IdleFigures(RecalledMeasurements):
    """What idle moments measured of this machine's devices, and nothing that depends on what ran meanwhile.

    Models are only predicted: their measurements would rank one that was used before one that was not.
    """

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        return ModelMeasurements()

    def rates(self, device: str, dtype: str, quantize: str) -> Rates | None:
        return self.cache.recall(RATES, self._rates_subject(device, dtype, quantize))

    def bandwidth(self, device: str) -> float | None:
        return self.cache.recall(BANDWIDTH, versions(device))


def reply_stats(sums: list[float]) -> ReplyStats | None:
    """What the sums of some replies say; None where they are of too few tokens."""
    tokens, steps, nodes, drafting, verifying, beside = sums
    if tokens < LEAST_TOKENS or not steps or not verifying:
        return None
    return ReplyStats(tokens / steps, nodes / steps, drafting / verifying, beside / verifying, tokens)


def with_reply(sums: dict[str, list[float]], drafter: str, statistics: Statistics) -> dict[str, list[float]]:
    """The sums by drafter, with those of one more reply; earlier ones fade."""
    new = (
        statistics.acceptance_length * statistics.steps,  # the token that ended the reply too: its step was paid for
        statistics.steps,
        statistics.drafted,
        statistics.draft_seconds,
        statistics.verify_seconds,
        max(0.0, statistics.step_seconds - statistics.draft_seconds - statistics.verify_seconds),
    )
    before = sums.get(drafter) or [0.0] * len(new)
    return {**sums, drafter: [FADING * old + one for old, one in zip(before, new, strict=True)]}
