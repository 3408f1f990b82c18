"""Plain decoding as a drafter: its tree is only the root, so plain and speculative decoding share one loop."""

from localspec.decoding.drafter import Context, Step, Textless
from localspec.decoding.tree import DraftTree
from localspec.drafters.ingredients import Ingredients


class Autoregressive(Textless):
    """A drafter that proposes nothing."""

    def observe(self, step: Step) -> None:
        """Do nothing: plain decoding learns nothing."""

    def draft(self, context: Context) -> DraftTree:
        """Return only the root."""
        return DraftTree((context.root,), (-1,))

    def rewind(self, length: int) -> None:
        """Do nothing: there is no text to discard."""


def build(ingredients: Ingredients) -> Autoregressive:
    """Build the drafter of plain decoding. It has the signature of other `build` functions, but uses no ingredients."""
    return Autoregressive()
