"""The inputs of the `build` functions, which make the drafters that need no training."""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from localspec.choosing.cost import ForwardCostModel
from localspec.decoding.forward import ForwardModel
from localspec.drafters.pool import PhrasePool

MOST = 20  # of each hyperparameter


@dataclass(frozen=True)
class Hyperparameters:
    """The settings of a small model's drafts. In Ouroboros `draft` is γ, `window` W, `phrase` β and `phrases` K.

    If the window is 0, only phrases of the pool speed up the small model. The defaults are the paper's for two models
    that mostly agree (table 11), except for the window, whose best width depends on the machine.
    """

    draft: int = 14  # most tokens that the small model drafts
    window: int = 0  # columns of its Jacobi window
    phrase: int = 7  # tokens of a phrase, including the first, by which it is found
    phrases: int = 3  # candidates after a draft, and in each forward of the small model

    def as_json(self) -> dict[str, int]:
        """Return the values for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Any) -> Self | None:
        """Return the stored values; None for invalid values, because a new search can replace them."""
        least = {"draft": 1, "window": 0, "phrase": 2, "phrases": 1}
        names = {field.name for field in fields(cls)}
        if not isinstance(stored, dict) or stored.keys() != names:
            return None
        if not all(type(value) is int and least[name] <= value <= MOST for name, value in stored.items()):
            return None
        return cls(**stored)


@dataclass(frozen=True)
class Ingredients:
    """The inputs for making a drafter. `with_phrases` says that its drafts will be lengthened by phrases of the `pool`.

    If the drafter needs a small model, `small` is this model, with its hyperparameters, and `parts` names the parts of
    the method to use. `costs` are the costs of the small model's forwards; without costs all its drafts have the same
    length. If `fixed`, drafts always fill the tree, even if this costs time.
    """

    target: ForwardModel[Any]
    pool: PhrasePool
    with_phrases: bool = False
    small: ForwardModel[Any] | None = None
    costs: ForwardCostModel | None = None
    hyperparameters: Hyperparameters = field(default_factory=Hyperparameters)
    parts: Collection[str] = ()
    fixed: bool = False
