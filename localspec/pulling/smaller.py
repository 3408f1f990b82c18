"""A smaller download in place of a publisher's own weights, where what would be kept of them is the same."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from localspec.choosing.fetching import LOSSLESS
from localspec.choosing.survey import suited_form
from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.hub.plan import CONFIG, Plan, plan
from localspec.hub.sources import Source
from localspec.models.entries import Entry, Form
from localspec.models.registry import source_here
from localspec.pulling import gguf
from localspec.quantities import size


@dataclass(frozen=True)
class Instead:
    """What is fetched in place of the `original` of so many `bytes` (None: nobody says), which would be packed so."""

    form: Form
    original: Source
    bytes: int | None
    packing: str

    @property
    def why(self) -> str:
        """Why nothing is lost by it, and what needs the original, in a sentence without its stop."""
        about = "" if self.bytes is None else f" ({size(self.bytes)})"
        return (
            f"in place of {self.original}{about}: {self.packing} is what would be kept of that, and Q8_0 is at least "
            "about as near to the publisher's weights (finer scales, an embedding of 8 bits); a GPU, training and "
            "other precisions need the original, which --original fetches"
        )


def replaced(packing: str | None, packed_only: bool, settings: Settings) -> str | None:
    """Return the packing of the original that a smaller form may replace; None if it may not.

    If only a packing that is asked for is to stay, the file of the form would be a second copy.
    """
    if not packed_only:
        return packing
    return packing or LOSSLESS if (settings.quantize, settings.dtype) == ("auto", "auto") else None


def with_smaller_form(
    found: Plan, entry: Entry, packing: str | None, settings: Settings, notice: Callable[[str], None]
) -> tuple[Plan, Instead | None]:
    """The plan with the smallest form of its model that serves; as it is, where none does or is smaller.

    Configuration and tokenizer come from the original: a GGUF file lacks how its model samples, and writes its
    tokenizer in another way. What the hub does not have after all is told, and the original taken.
    """
    from localspec.weights.checkpoint import TOKENIZER_FILES  # the tokenizers library

    original, *others = found.parts
    form = suited_form(entry, packing)
    if form is None or packing is None or entry.source is None or original.heads or original.whole:
        return found, None
    if source_here(entry) == entry.source:  # which is brought up to date
        return found, None
    try:
        (smaller,) = plan((form.source,)).parts
        gguf.check(smaller, False, settings)
    except LocalspecError as error:
        notice(f"{str(error).rstrip('.')}; so {entry.source} is fetched, which is larger.")
        return found, None
    names = {CONFIG, "generation_config.json", *TOKENIZER_FILES}
    texts = replace(original, files=tuple(file for file in original.files if file.name in names), beside=True)
    taken = replace(found, parts=(smaller, gguf.as_held(smaller, texts), *others))
    if smaller.gated:
        notice(
            f"{form.source} is gated now, which the registry did not know; so {entry.source} is fetched, and larger."
        )
    if smaller.gated or taken.fetch_bytes >= found.fetch_bytes:
        return found, None
    return taken, Instead(form, entry.source, sum(file.bytes for file in original.files), packing)
