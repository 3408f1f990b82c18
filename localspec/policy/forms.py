"""Which form of a model a pull takes: the smallest download that loses nothing against what would be kept of it."""

from localspec.models.drafter_kinds import WEIGHTS, kind_of, kinds
from localspec.models.entries import Entry, Form
from localspec.weights.packed_files import FILED

# Types of GGUF files from which these packings come out as near to the publisher's weights as from those weights
# themselves: docs/figures/q8-0-table.md. Types of fewer bits do not.
SUITED = {"Q8_0": FILED}
_BLOCK = (34, 32)  # bytes of a block of Q8_0, and its weights


def suited_form(entry: Entry, packing: str | None) -> Form | None:
    """The smallest form by the model's own publisher that serves where the model is kept in this packing alone.

    None is the original: where anything else is kept, terms must be accepted for it, or a drafter of the entry has to
    be made beside the model's own weights.
    """
    converted = [one for one in entry.drafters if one.kind in kinds(*WEIGHTS) and not kind_of(one.kind).mask_key]
    beside = converted or any(one.kind in kinds("weights") and one.source is None for one in entry.drafters)
    if packing is None or entry.gated or beside:
        return None
    suited = [
        one
        for one in entry.forms
        if one.publisher and one.publisher == entry.publisher and packing in SUITED.get(one.source.gguf, ())
    ]
    return min(suited, key=lambda one: form_bytes(one, entry) or 0, default=None)


def form_bytes(form: Form, entry: Entry) -> int | None:
    """About how many bytes a form is to download; None where the registry does not tell."""
    if form.bytes is not None or entry.shape is None:
        return form.bytes
    size, weights = _BLOCK if form.source.gguf == "Q8_0" else (2, 1)
    return entry.shape.parameters * size // weights if form.source.gguf in ("", "Q8_0") else None


def original_bytes(entry: Entry) -> int | None:
    """The same of the publisher's own weights, which are in 16 bits."""
    return 2 * entry.shape.parameters if entry.shape else None
