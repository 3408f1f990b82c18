"""A model as the policy sees it: its card, its sizes, and the drafters that are here."""

from contextlib import suppress
from dataclasses import dataclass, replace

from localspec.checkpoint import inspect
from localspec.errors import LocalspecError
from localspec.models.drafter_cards import DrafterCard, trained_drafters
from localspec.models.packed_files import forms
from localspec.models.registry import TargetCard, named_card
from localspec.models.shape import Shape


@dataclass(frozen=True)
class Model:
    """A target and what could draft for it. `parameters` is their true number. `small` is its draft model.

    `packed` are the packings that it is here in where that is all there is of it, without its own weights.
    """

    card: TargetCard
    shape: Shape
    parameters: int
    trained: tuple[DrafterCard, ...] = ()
    small: "Model | None" = None
    small_here: bool = False
    packed: tuple[str, ...] = ()

    def can_be(self, quantize: str, engine: str) -> bool:
        """Whether it can be loaded so: what was packed is for the CPU engine, in that packing alone."""
        return not self.packed or (engine == "native" and quantize in self.packed)


def model_of(card: TargetCard) -> Model:
    """Describes a model that is here, or a registered one whose entry gives its sizes.

    Raises what `inspect` raises, and LocalspecError where its sizes are not known.
    """
    packed: tuple[str, ...] = ()
    if card.here:
        checkpoint = inspect(card.path)
        packed = tuple(forms(card.path)) if checkpoint.packing else ()
        shape, parameters, trained = Shape.of(checkpoint.config), checkpoint.parameters, tuple(trained_drafters(card))
    else:
        shape, trained = card.entry.shape if card.entry else None, ()
        parameters = shape.parameters if shape else 0
    if shape is None:
        raise LocalspecError(
            f"How large the parts of {card.name} are, its config.json does not say; fetch the model again."
            if card.here
            else f"How large {card.name} is, models.toml does not say; add a shape to its entry."
        )
    small = None
    if card.draft:
        with suppress(LocalspecError):  # only who names a draft model gets its error
            own = named_card(card.draft)
            small = replace(model_of(replace(own, draft="")), card=own)
    return Model(card, shape, parameters, trained, small, small is not None and small.card.here, packed)
