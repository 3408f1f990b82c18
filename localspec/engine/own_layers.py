"""The drafter `layers` of a loaded target: which of its layers draft is found once, after the first reply."""

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.decoding.measuring import Measuring
from localspec.drafters.layer_probe import probing_layers
from localspec.drafters.layers import Layers
from localspec.engine.assemble import replying
from localspec.engine.backends import Target
from localspec.engine.loading import calibration_of
from localspec.engine.model_profile import ModelProfile
from localspec.engine.recalled_measurements import LAYERS
from localspec.errors import UsageMistake
from localspec.models.drafter_kinds import drafting_kinds
from localspec.models.s3d_prediction import KeptLayers, symmetric
from localspec.models.shape import Shape
from localspec.policy.choice import Choice
from localspec.policy.forward_costs import ForwardCostModel
from localspec.policy.own_layers import best_layers

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a short letter to a friend about a rainy day.",
    "Explain in a few sentences why the sky is blue.",
    "List the planets of the solar system in order.",
    "Write a Python function that returns the longest word of a sentence.",
)
MOST_READS = 600  # of some of its layers, by which a probe compares them
GUESSED = (0.5, 0.1, 0.05, 0.03)  # how often the candidates of layers that nobody compared are right, by rank


@dataclass(frozen=True)
class _Flat:
    """Forwards that cost the same whatever their rows: trees of a fixed size are not weighed."""

    def at(self, rows: int, context: int) -> float:
        return 1.0


def probing(target: Target, profile: ModelProfile) -> Measuring[list[KeptLayers]]:
    """Find the layers that draft best by replies of the target, in `MOST_READS` partial reads at most, and keep them.

    Yields after each read. Finds nothing for a context in which the target can say nothing.
    """
    replies = yield from replying(target, PROMPTS)
    found = (yield from probing_layers(target, replies, MOST_READS)) if replies else []
    if found:
        profile.remember(LAYERS, found)
    return found


def load_layers(choice: Choice, target: Target, profile: ModelProfile, costs: ForwardCostModel | None) -> Layers | None:
    """Return the drafter where the choice takes it: with the layers that a probe found, else with outer ones.

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
    """Let the drafter use those of the layers `found` by a probe that are best at what forwards cost here."""
    shape = Shape.of(target.config.content)
    assert shape is not None
    drafter.take(best_layers(found, shape, costs or _Flat(), choice.nodes).measured)


def outer_layers(count: int) -> KeptLayers:
    """Return the layers to draft with before a probe: three quarters of all, without those in the middle.

    How often they are right is a guess, which the drafter corrects as it drafts.
    """
    return KeptLayers(symmetric(count, max(1, count - -(-count // 4))), GUESSED)
