"""The drafter `layers` of a loaded target. A probe after the first reply finds the layers that draft best."""

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.choosing.choice import Choice
from localspec.choosing.cost import CONTEXT, ForwardCostModel
from localspec.choosing.drafters import Acceptance, speed
from localspec.choosing.measure import LAYERS
from localspec.decoding.measuring import Measuring
from localspec.drafters.layer_probe import probing_layers
from localspec.drafters.layers import Layers
from localspec.engine.assemble import replying
from localspec.engine.backends import Target
from localspec.engine.loading import calibration_of
from localspec.engine.model_profile import ModelProfile
from localspec.errors import UsageMistake
from localspec.models.drafter_kinds import drafting_kinds
from localspec.models.s3d_prediction import KeptLayers, share, symmetric
from localspec.models.shape import Shape

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a short letter to a friend about a rainy day.",
    "Explain in a few sentences why the sky is blue.",
    "List the planets of the solar system in order.",
    "Write a Python function that returns the longest word of a sentence.",
)
LONGEST = 8  # draft forwards of a step
MOST_READS = 600  # reads with some of the layers, in one probe
GUESSED = (0.5, 0.1, 0.05, 0.03)  # acceptance rate of candidates before a probe, by rank


@dataclass(frozen=True)
class _Flat:
    """Forwards that cost the same whatever their rows: trees of a fixed size are not weighed."""

    def at(self, rows: int, context: int) -> float:
        return 1.0


def probing(target: Target, profile: ModelProfile) -> Measuring[list[KeptLayers]]:
    """Find the layers that draft best in replies of the target, with at most `MOST_READS` reads, and save the result.

    Yield after each read. The result is empty if the context is too short for a reply.
    """
    replies = yield from replying(target, PROMPTS)
    found = (yield from probing_layers(target, replies, MOST_READS)) if replies else []
    if found:
        profile.remember(LAYERS, found)
    return found


def load_layers(choice: Choice, target: Target, profile: ModelProfile, costs: ForwardCostModel | None) -> Layers | None:
    """Return the drafter if the choice includes it, with the layers that a probe found, else with outer layers.

    Raises UsageMistake for a model of one layer, and for one whose layers cannot draft without the others.
    """
    if all(kind.takes != "probe" for kind in drafting_kinds(choice.drafter)):
        return None
    target.compute.target.sizes.need_layers_alone("layers")
    count = target.compute.target.sizes.num_layers
    if count < 2:
        raise UsageMistake("--drafter layers needs a model of several layers; use another.")
    drafter = Layers(target, outer_layers(count), choice.fixed)
    if found := profile.recall(LAYERS):
        take_best(drafter, target, found, choice, costs)
    drafter.calibration = profile.recall(calibration_of(None)) or drafter.calibration
    return drafter


def take_best(
    drafter: Layers, target: Target, found: Sequence[KeptLayers], choice: Choice, costs: ForwardCostModel | None
) -> None:
    """Give the drafter the best of the layers `found` by a probe, by the costs of forwards on this machine."""
    shape = Shape.of(target.config.content)
    assert shape is not None
    drafter.take(best_layers(found, shape, costs or _Flat(), choice.nodes))


def best_layers(found: Sequence[KeptLayers], shape: Shape, costs: ForwardCostModel, most: int) -> KeptLayers:
    """Return the layers that promise the most tokens/s of a model of this shape with trees of up to `most` nodes.

    A draft of γ forwards by the share β of the model takes γβ plain steps (S3D, eq. 12, with γ passes in place of one).
    """
    head, plain = shape.embedding / shape.layer, costs.at(1, CONTEXT)

    def promised(kept: KeptLayers, forwards: int) -> float:
        each = share(shape.num_layers, len(kept.layers), head) * plain
        acceptance = Acceptance(kept.gains(forwards), "")
        return speed(costs, acceptance, lambda nodes: min(nodes, forwards) * each, most)[0]

    return max(found, key=lambda kept: max(promised(kept, forwards) for forwards in range(1, LONGEST + 1)))


def outer_layers(count: int) -> KeptLayers:
    """Return the layers to draft with before a probe: three quarters of all, without those in the middle.

    Their acceptance rate is a guess, which the drafter corrects as it drafts.
    """
    return KeptLayers(symmetric(count, max(1, count - -(-count // 4))), GUESSED)
