"""What the policy asks of measurements: what a model's forwards cost, what replies were like, what a device does."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from localspec.models.registry import TargetCard
from localspec.models.s3d_prediction import KeptLayers
from localspec.policy.forward_costs import ForwardCostModel
from localspec.policy.prediction import CONTEXT, Rates


@dataclass(frozen=True)
class ReplyStats:
    """What replies with one drafter were like here: tokens a step, nodes a step, drafting seconds per verifying second.

    None of the three depends on what else the machine did meanwhile, as tokens/s would. `beside` is what a step took
    beside draft and forward, per verifying second too. `tokens` is of how many tokens they were: what was foreseen
    still counts beside few of them.
    """

    length: float
    nodes: float
    drafting: float
    beside: float = 0.0
    tokens: float = math.inf

    def speed(self, costs: ForwardCostModel) -> float:
        """Tokens/s where forwards have these costs."""
        return self.length / (costs.at(round(1 + self.nodes), CONTEXT) * (1 + self.drafting + self.beside))


@dataclass(frozen=True)
class ModelMeasurements:
    """What was measured on this machine of one model in one precision: forwards, replies by drafter, its layers.

    `replays` are replies that were decoded again to find out how long drafts of a small model should be. `busy`: other
    programs computed while forwards were timed.
    """

    costs: ForwardCostModel | None = None
    replies: Mapping[str, ReplyStats] = field(default_factory=dict)
    layers: Sequence[KeptLayers] = ()  # that a probe found for each number of them
    replays: Mapping[str, ReplyStats] = field(default_factory=dict)
    busy: bool = False


class MeasurementSource(Protocol):
    """What was measured on a machine so far."""

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        """What is known of one model in one precision."""

    def rates(self, device: str, dtype: str, quantize: str) -> Rates | None:
        """The rates of a device in one precision; None where they were not measured."""

    def bandwidth(self, device: str) -> float | None:
        """Bytes a second that can be read from a device's memory, at its best; None where that was not measured."""


class NoMeasurements:
    """A machine on which nothing was measured."""

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        return ModelMeasurements()

    def rates(self, device: str, dtype: str, quantize: str) -> Rates | None:
        return None

    def bandwidth(self, device: str) -> float | None:
        return None
