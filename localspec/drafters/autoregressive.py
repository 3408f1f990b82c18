"""Plain decoding as a drafter: its tree is only the root, so plain and speculative decoding share one loop."""

from collections.abc import Sequence

from localspec.decoding.drafter import Context, HeldText, Step
from localspec.decoding.tree import DraftTree
from localspec.drafters.ingredients import Ingredients


class Autoregressive:
    """A drafter that proposes nothing."""

    nbytes, target_layers = 0, ()

    def observe(self, step: Step) -> None:
        """Do nothing: plain decoding learns nothing."""

    def draft(self, context: Context) -> DraftTree:
        """Return only the root."""
        return DraftTree((context.root,), (-1,))

    def rewind(self, length: int) -> None:
        """Do nothing: there is no text to discard."""

    def hand_over(self) -> HeldText:
        """Return an empty state: the drafter holds no text."""
        return HeldText()

    def resume(self, held: HeldText, tokens: Sequence[int]) -> None:
        """Do nothing: the drafter holds no text."""


def build(ingredients: Ingredients) -> Autoregressive:
    """Build the drafter of plain decoding, which needs no ingredients."""
    return Autoregressive()
