"""Describes a model, its sizes and its possible drafters, for the choice of a number format (packing) and a drafter."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError
from localspec.families.generation_config import (
    GENERATION,
    DefaultSampling,
    default_sampling,
    generation_config,
    read_generation_config,
)
from localspec.models.default_draft import default_draft
from localspec.models.drafter_cards import DrafterCard, damaged_drafters, trained_drafters
from localspec.models.entries import Entry
from localspec.models.registry import TargetCard
from localspec.models.shape import Shape
from localspec.quantities import precision_in_words
from localspec.weights.checkpoint import CAN_BE_PACKED, inspect, is_packed, packings
from localspec.weights.packed_file import BLOCKS, forms
from localspec.weights.packed_file import read as read_packed
from localspec.weights.recipe import draft_bytes, draft_in_words, head_tokens, read_bytes

# Bits per weight outside of the experts, by type of file: gpt-oss in MXFP4 has Q8_0 there.
_WITHOUT_EXPERTS = {"MXFP4": 8.5}


@dataclass(frozen=True)
class Model:
    """A target and its possible drafters. `small` is its draft model, if there is one.

    `parameters` is the target's exact number of parameters. `small_here` says whether the draft model is on this
    machine, and `small_named` whether models.toml names it. `passed_over` says which small model and which damaged
    drafters are not used, and why; it may be empty. `packed` are the packings of a target whose original weights are
    not here, the default first. `block_bytes` is the size of the target's GGUF blocks. `block_reads` is two sizes: the
    blocks that each step reads, and all experts, of which a token reads only some. `temperature` is the maker's
    recommendation. For a model that is not here it is 0, greedy, because published figures belong to greedy replies.
    """

    card: TargetCard
    shape: Shape
    parameters: int
    trained: tuple[DrafterCard, ...] = ()
    small: "Model | None" = None
    small_here: bool = False
    small_named: bool = True
    passed_over: str = ""
    packed: tuple[str, ...] = ()
    block_bytes: int = 0
    block_reads: tuple[float, float] | None = None
    temperature: float = 0.0

    def can_be(self, quantize: str, backend: str) -> bool:
        """Return whether a backend (`Device.backend`) can load the model in this packing.

        A model whose original weights are here can have any packing. Otherwise a CPU loads it in one of its `packed`
        forms. A GPU loads it only from GGUF files, as dense weights (without loss) or int8; NF4 and int4 would round
        weights of few bits a second time and lose too much.
        """
        if not self.packed or backend in ("native", "cpu"):
            return not self.packed or quantize in self.packed
        return self.from_gguf and quantize in ("none", "int8")

    @property
    def from_gguf(self) -> bool:
        """Whether the weights are in GGUF files."""
        return "none" in self.packed


def model_of(card: TargetCard, models: Mapping[str, TargetCard] | None = None) -> Model:
    """Describe a model and its drafters. The model must be here, or registered with its sizes.

    `models` is a recent result of `registry.known`, from a caller that describes many models. Raises the errors of
    `inspect`, and LocalspecError if the model's sizes are unknown.
    """
    model = small_model_of(card)
    trained = tuple(trained_drafters(card))
    draft, passed_over = default_draft(card, models)
    small = None
    if draft is not None:
        with suppress(LocalspecError):  # an entry to be fetched, with unknown sizes
            small = small_model_of(draft.card, drafts=True)
    return replace(
        model,
        temperature=default_sampling_of(card).temperature if card.here else 0.0,
        trained=trained,
        small=small,
        small_here=small is not None and small.card.here,
        small_named=draft is not None and draft.named,
        passed_over=" ".join(filter(None, [passed_over, *damaged_drafters(card)])),
    )


def default_sampling_of(card: TargetCard) -> DefaultSampling:
    """Return the default sampling of a model that is here, from its files. Raises LocalspecError for damaged files."""
    return default_sampling(recommended_sampling(card.path), card.names)


def recommended_sampling(path: Path) -> Mapping[str, Any]:
    """Return the sampling in a model's generation_config.json. Raises LocalspecError if the file is damaged."""
    if not is_packed(path):
        return read_generation_config(path)
    packed = read_packed(path)
    text = packed.text(GENERATION) if GENERATION in packed.header.texts else b"{}"
    return generation_config(text, path / GENERATION)


def small_model_of(card: TargetCard, *, drafts: bool = False) -> Model:
    """Describe a model as `model_of` does, without its drafters. With `drafts`, `block_bytes` is its size when it
    drafts for another model."""
    packed: tuple[str, ...] = ()
    header = None
    if card.here:
        checkpoint = inspect(card.path)
        packed = packings(card.path) if checkpoint.packing else ()
        header = read_packed(forms(card.path)[BLOCKS]).header if BLOCKS in packed else None
        shape, parameters = Shape.of(checkpoint.config), checkpoint.parameters
    else:
        shape = card.entry.shape if card.entry else None
        parameters = shape.parameters if shape else 0
    if shape is None:
        raise LocalspecError(
            f"The config.json of {card.name} does not give the sizes of the model; fetch the model again."
            if card.here
            else f"models.toml does not say how large {card.name} is; add a shape to its entry."
        )
    if not card.here and card.entry is not None and card.entry.bytes:  # as it is once its GGUF file is here
        reads = _expected_reads(card.entry, shape)
        return Model(
            card, shape, parameters, packed=(BLOCKS, *CAN_BE_PACKED), block_bytes=card.entry.bytes, block_reads=reads
        )
    blocks = 0 if header is None else draft_bytes(header, shape.vocab_size) if drafts else header.block_bytes
    reads = None if header is None or drafts else read_bytes(header)
    return Model(card, shape, parameters, packed=packed, block_bytes=blocks, block_reads=reads)


def _expected_reads(entry: Entry, shape: Shape) -> tuple[float, float] | None:
    """Return the expected `block_reads` of a model that is not here; None without experts, or if the bits per weight
    outside of the experts are unknown."""
    if shape.experts is None or entry.source is None or (bits := _WITHOUT_EXPERTS.get(entry.source.gguf)) is None:
        return None
    others = (shape.parameters - shape.in_experts) * bits / 8
    read = (shape.matrices - shape.in_experts) * bits / 8
    return read, max(0.0, (entry.bytes or 0) - others)


def draft_form(card: TargetCard) -> str | None:
    """Describe a draft model on a CPU, such as `4.0 bits per weight, 36,864 of 151,936 tokens`; None if it has neither
    GGUF blocks nor a head for a part of the tokens."""
    small = small_model_of(card, drafts=True)
    shape, few = small.shape, head_tokens(small.shape.vocab_size)
    head = few - shape.vocab_size * (not shape.tied) if few else 0  # additional rows of the short head
    numbers = precision_in_words("", "", 8 * small.block_bytes / (shape.parameters + head * shape.hidden_size))
    return draft_in_words(numbers, shape.vocab_size) or None
