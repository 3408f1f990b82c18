"""The drafter `layers` of a loaded target: which of its layers draft is found once, by a probe, and kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.drafters.layer_probe import probe
from localspec.drafters.layers import Layers
from localspec.engine.assemble import ASKED, own_replies
from localspec.engine.backends import Target
from localspec.engine.loading import calibration_of
from localspec.engine.model_profile import ModelProfile
from localspec.engine.recalled_measurements import LAYERS
from localspec.errors import UsageMistake
from localspec.models.drafter_kinds import drafting_kinds
from localspec.models.s3d_prediction import KeptLayers
from localspec.models.shape import Shape
from localspec.policy.choice import Choice
from localspec.policy.forward_costs import ForwardCostModel
from localspec.policy.own_layers import best_layers

MORE = (
    "What is the capital of France, and what is it known for?",
    "Write a short letter to a friend about a rainy day.",
    "Explain in a few sentences why the sky is blue.",
    "List the planets of the solar system in order.",
)


@dataclass(frozen=True)
class _Flat:
    """Forwards that cost the same whatever their rows: trees of a fixed size are not weighed."""

    def at(self, rows: int, context: int) -> float:
        return 1.0


def measured_layers(target: Target, profile: ModelProfile) -> Sequence[KeptLayers]:
    """Returns what was found before for this model; else what a probe of its own replies finds, which is kept.

    Raises UsageMistake for a model of one layer, and for a context in which it can say nothing.
    """
    found = profile.recall(LAYERS)
    if found is None:
        profile.reporter.progress("finding out which of its layers foresee this model best, once")
        said = own_replies(target, (*ASKED, *MORE))
        if target.compute.target.sizes.num_layers < 2 or not said:
            raise UsageMistake(
                "--drafter layers needs a model of several layers and room for a reply in its context; use another."
            )
        found = probe(
            target,
            said,
            lambda done: profile.reporter.progress(
                f"finding out which of its layers foresee this model best, once: {100 * done:.0f} %"
            ),
        )
        profile.remember(LAYERS, found)
    return found


def load_layers(choice: Choice, target: Target, profile: ModelProfile, costs: ForwardCostModel | None) -> Layers | None:
    """Returns the drafter where the choice takes it, with the layers that are best at what forwards cost here.

    Raises what `measured_layers` does, and UsageMistake for a model whose layers cannot draft without the others.
    """
    if all(kind.takes != "probe" for kind in drafting_kinds(choice.drafter)):
        return None
    target.compute.target.sizes.need_layers_alone("layers")
    shape = Shape.of(target.config.content)
    assert shape is not None
    best = best_layers(measured_layers(target, profile), shape, costs or _Flat(), choice.nodes)
    drafter = Layers(target, best.measured, choice.fixed)
    drafter.calibration = profile.recall(calibration_of(None)) or drafter.calibration
    return drafter
