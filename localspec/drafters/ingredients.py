"""What the file of every drafter that is not trained builds its drafter from, in the function `build`."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from localspec.choosing.cost import ForwardCostModel
from localspec.decoding.forward import ForwardModel
from localspec.drafters.pool import PhrasePool

MOST = 20  # of each hyper-parameter


@dataclass(frozen=True)
class Hyperparameters:
    """How a small model drafts: γ, W, β and K of Ouroboros.

    Without a window the draft is accelerated by the pool alone. The defaults are the paper's recipe for models that
    agree (table 11), but for the window: how wide one is worth its rows depends on the machine.
    """

    draft: int = 14  # tokens that the small model drafts at most
    window: int = 0  # columns of its Jacobi window
    phrase: int = 7  # tokens of a phrase, the first of which is the one it is found by
    phrases: int = 3  # candidates after a draft, and in each forward of the small model

    def as_json(self) -> dict[str, int]:
        """Return what `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Any) -> Self | None:
        """Return what was stored; None for anything else, for it can be searched again."""
        least = {"draft": 1, "window": 0, "phrase": 2, "phrases": 1}
        names = {field.name for field in fields(cls)}
        if not isinstance(stored, dict) or stored.keys() != names:
            return None
        if not all(type(value) is int and least[name] <= value <= MOST for name, value in stored.items()):
            return None
        return cls(**stored)


@dataclass(frozen=True)
class Ingredients:
    """What a drafter is built from. `with_phrases`: phrases of the pool will lengthen what is built.

    A kind that takes a draft model has `small`, the `costs` of its forwards (without them its own trees are never
    resized), its hyper-parameters and the `parts` of the kind that are used. A `fixed` draft is as long as the tree has
    room for, whatever it costs.
    """

    target: ForwardModel[Any]
    pool: PhrasePool
    with_phrases: bool = False
    small: ForwardModel[Any] | None = None
    costs: ForwardCostModel | None = None
    hyperparameters: Hyperparameters = field(default_factory=Hyperparameters)
    parts: Collection[str] = ()
    fixed: bool = False
