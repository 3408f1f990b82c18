"""Which of the layers that a probe measured draft best on a machine, and what that should bring. Pure arithmetic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.models.s3d_prediction import KeptLayers, share
from localspec.models.shape import Shape
from localspec.policy import host_time, prediction
from localspec.policy.forward_costs import ForwardCostModel
from localspec.policy.prediction import CONTEXT, Acceptance

LONGEST = 8  # draft forwards that are thought of


@dataclass(frozen=True)
class OwnLayers:
    """Layers that draft, the draft forwards a step that should be best, the share of a plain step that each takes."""

    measured: KeptLayers
    forwards: int
    share: float
    speed: float  # tokens/s

    @property
    def acceptance(self) -> Acceptance:
        """What the nodes of such a draft should bring."""
        return Acceptance(self.measured.gains(self.forwards), "by a probe of its layers")

    def draft_seconds(self, costs: ForwardCostModel) -> Callable[[int], float]:
        """Returns the function of nodes that gives the seconds of one draft."""
        return lambda nodes: min(nodes, self.forwards) * (self.share * costs.at(1, CONTEXT) + host_time.DRAFT)


def best_layers(measured: Sequence[KeptLayers], shape: Shape, costs: ForwardCostModel, most: int) -> OwnLayers:
    """Returns what promises the most tokens/s of a model of this shape with trees of up to `most` nodes.

    A draft of γ forwards by the share β of the model takes γβ plain steps (S3D, eq. 12, with γ passes in place of one).
    """
    head, found = shape.embedding / shape.layer, []
    for kept in measured:
        for forwards in range(1, LONGEST + 1):
            one = OwnLayers(kept, forwards, share(shape.num_layers, len(kept.layers), head), 0.0)
            speed, _ = prediction.speed(costs, one.acceptance, one.draft_seconds(costs), most)
            found.append(OwnLayers(kept, forwards, one.share, speed))
    return max(found, key=lambda one: one.speed)
