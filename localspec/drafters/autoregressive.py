"""The empty draft: a tree of the root alone. Plain decoding is this drafter, not another loop."""

from collections.abc import Sequence

from localspec.decoding.drafter import Context, HeldText, Step
from localspec.decoding.tree import DraftTree
from localspec.drafters.ingredients import Ingredients


class Autoregressive:
    """Proposes nothing."""

    nbytes, target_layers = 0, ()

    def observe(self, step: Step) -> None:
        """Nothing to learn."""

    def draft(self, context: Context) -> DraftTree:
        """Return the root alone."""
        return DraftTree((context.root,), (-1,))

    def rewind(self, length: int) -> None:
        """Nothing to forget."""

    def hand_over(self) -> HeldText:
        """Return nothing: it holds no text."""
        return HeldText()

    def resume(self, held: HeldText, tokens: Sequence[int]) -> None:
        """Hold no text."""


def build(ingredients: Ingredients) -> Autoregressive:
    """Build the drafter of plain decoding, which takes nothing."""
    return Autoregressive()
