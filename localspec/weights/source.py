"""A model as input for packing: the tensors of each parameter, which are read and packed a piece at a time."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig, in_features
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.machine.library import FORMATS, Packing, address, check, library
from localspec.weights.checkpoint import Checkpoint, inspect, read_texts
from localspec.weights.gguf_model import GgufTensor
from localspec.weights.matrices import BlockMatrix
from localspec.weights.packed_file import BLOCK_PANEL, BLOCKS, PANEL, Header, Origin, Section, Tensor
from localspec.weights.recipe import Recipe, head_tokens, part_rows
from localspec.weights.stored import RowsOf, StoredTensor, read_config, rows_in_file, stored_parts, stored_sizes

_SOURCES = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}  # types that the library packs without a conversion
_HALF = PANEL // 2  # channels of gate in a panel of gate_up_proj; those of up follow
Importance = Mapping[str, npt.NDArray[np.float32]]  # by parameter: a weight for each input channel


@dataclass(frozen=True)
class PackingSource:
    """The input for packing a model: its sizes, its texts, and for each parameter the stored tensors to stack."""

    checkpoint: Checkpoint
    config: ModelConfig
    sizes: TransformerConfig
    made_of: Mapping[str, list[StoredTensor]]
    texts: Mapping[str, bytes]
    ahead: Mapping[str, list[GgufTensor]] = field(default_factory=dict)  # like `made_of`, of an MTP layer

    @classmethod
    def open(cls, path: Path) -> "PackingSource":
        """Open a directory in the Hugging Face layout. Weights are read only to compare a head with the embedding.

        Raises NotHere and LocalspecError for files that are missing, damaged, or unsupported.
        """
        checkpoint = inspect(path)
        config = read_config(checkpoint)
        sizes = stored_sizes(checkpoint, config)
        Rope.of(config, config.contexts[0])
        made_of = stored_parts(checkpoint, sizes)
        made_of.setdefault("lm_head.weight", made_of["embed_tokens"])
        return cls(checkpoint, config, sizes, made_of, read_texts(path))

    def header(self, origin: Origin, recipe: Recipe) -> Header:
        """Return the header for a packed file of this model. An embedding that is also the head appears only once."""
        tensors: dict[str, Tensor] = {}
        for name, parts in self.made_of.items():
            if name == "lm_head.weight" and self.head_rows(recipe):
                continue
            if name != "embed_tokens" or not self.sizes.tied:
                table = name == "lm_head.weight" and self.sizes.tied
                rows, ends = self._part_rows(name), [*accumulate(part.shape[0] for part in parts)]
                firsts = accumulate(rows[:-1], initial=0)
                stored = [
                    (count, _type(parts[bisect_right(ends, row)])) for row, count in zip(firsts, rows, strict=True)
                ]
                as_held = replace(recipe, drafts=False) if table else recipe
                tensors |= as_held.sections(name, stored, in_features(name, self.sizes), self.sizes.num_layers)
        texts = {name: len(text) for name, text in self.texts.items()}
        return Header.plan(origin, recipe.packing, self.checkpoint.parameters, tensors, texts)

    def head_rows(self, recipe: Recipe) -> RowsOf | None:
        """Return a function that reads rows of the head from the model's file; None if the head is packed.

        The head stays unpacked in the file for a draft model in blocks that computes the logits of only some tokens.
        """
        if not recipe.drafts or recipe.packing != BLOCKS or self.sizes.tied or not head_tokens(self.sizes.vocab_size):
            return None
        return rows_in_file(self.made_of["lm_head.weight"][0])

    def _part_rows(self, name: str) -> list[int]:
        return part_rows(name, [part.shape[0] for part in self.made_of[name]], self.sizes)

    def filler(self, importance: Importance) -> Callable[[str, Section, int, memoryview], None]:
        """Return a function that packs a piece of a section into given memory. Several threads may call it.

        `importance` has for each parameter how much the error of each input counts in rounding.
        """

        def fill(name: str, section: Section, first: int, into: memoryview) -> None:
            if section.tensor is None:
                into[:] = self.texts[name][first : first + len(into)]
                return
            parameter, _, number = name.partition(" ")
            parts, counts = self.made_of[parameter], importance.get(parameter)
            if section.tensor.layout == "rows":
                finite = _fill_rows(parts, section.tensor, first, into)
            elif section.tensor.layout == BLOCKS:
                above = sum(self._part_rows(parameter)[: int(number)])
                finite = _fill_blocks(parts, above, section.tensor, first, into, counts)
            else:
                fill_panels(parts, section.tensor, first, into, parameter.endswith("gate_up_proj.weight"))
                finite = is_finite(into, section.tensor)
            if not finite:
                raise LocalspecError(
                    f"{parameter} of {self.checkpoint.path} has NaN or inf, so the model cannot write text; fetch it "
                    "again, or choose another."
                )

        return fill


def _type(part: StoredTensor) -> str | None:
    return part.block.name if isinstance(part, GgufTensor) else None


def _fill_rows(parts: list[StoredTensor], tensor: Tensor, first: int, into: memoryview) -> bool:
    """Fill rows of an embedding or of a vector, which may be stacked. Return whether all numbers are finite."""
    if len(parts) == 1:
        item = 2 if tensor.format == "bf16" else 4
        if parts[0].dtype == "BF16" and tensor.format == "bf16":
            parts[0].read(into, first)
            return is_finite(into, tensor)
        numbers = parts[0].floats(first // item, len(into) // item)
    else:
        whole = np.concatenate([part.floats(0, part.shape[0]) for part in parts])
        numbers = whole[first // 4 : (first + len(into)) // 4]
    into[:] = (_bf16(numbers) if tensor.format == "bf16" else numbers).tobytes()
    return is_finite(into, tensor)


def _fill_blocks(
    parts: Sequence[StoredTensor],
    above: int,
    tensor: Tensor,
    first: int,
    into: memoryview,
    importance: npt.NDArray[np.float32] | None,
) -> bool:
    """Pack a piece of one part (some rows) of a matrix in blocks. Return whether all weights are finite.

    `first` is the first byte of the piece, and `above` the number of rows in the matrix before this part. If a stored
    tensor has the part's rows in the same block type, blocks are copied. Otherwise the weights are rounded.
    """
    row = BLOCK_PANEL * (first // tensor.panel_bytes)
    count = min(tensor.out - row, BLOCK_PANEL * (len(into) // tensor.panel_bytes))
    target = BlockMatrix(np.frombuffer(into, np.uint8), count, tensor.inputs, tensor.format)
    fill: Callable[..., None]
    arguments: tuple[Any, ...]
    starts = accumulate((part.shape[0] for part in parts), initial=0)
    start, stored = [pair for pair in zip(starts, parts, strict=False) if pair[0] <= above][-1]
    if _type(stored) == tensor.format and above + tensor.out <= start + stored.shape[0]:
        fill, arguments = target.fill, (_blocks(stored, above - start + row, count),)
    else:
        weights, source = _rows(parts, [(above + row, above + row + count)], tensor.inputs)
        fill, arguments = target.fill_rounded, (weights, importance, source)
    try:
        fill(*arguments)
    except LocalspecError:
        return False
    return True


def _blocks(part: StoredTensor, row: int, count: int) -> npt.NDArray[np.uint8]:
    """Return `count` rows of a tensor from `row` on, as blocks [count, bytes], with each head's rows in localspec's
    order."""
    assert isinstance(part, GgufTensor)
    head, row_bytes = part.head_rows or 1, part.bytes // part.shape[0]
    skipped = row % head  # whole heads are read
    rows = np.empty((-(-(skipped + count) // head) * head, row_bytes), np.uint8)
    part.read(rows.data.cast("B"), (row - skipped) * row_bytes)
    ordered = rows.reshape(-1, head // 2, 2, row_bytes).swapaxes(1, 2).reshape(rows.shape) if part.head_rows else rows
    return np.ascontiguousarray(ordered[skipped : skipped + count])


def _bf16(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round numbers to bf16, ties to even, and return their bits as uint16. NaN stays NaN."""
    bits = numbers.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(numbers), bits >> 16 | 0x40, rounded).astype(np.uint16)


def fill_panels(
    parts: list[StoredTensor],
    tensor: Tensor,
    first: int,
    into: memoryview,
    interleave: bool,
) -> None:
    """Pack the panels of a piece, from its byte `first` on. With `interleave` a panel has 16 gate and 16 up rows."""
    panel, count = first // tensor.panel_bytes, len(into) // tensor.panel_bytes
    if interleave:
        half = tensor.out // 2
        ranges = [(offset + _HALF * panel, offset + min(half, _HALF * (panel + count))) for offset in (0, half)]
    else:
        ranges = [(PANEL * panel, min(tensor.out, PANEL * (panel + count)))]
    rows, source = _rows(parts, ranges, tensor.inputs)
    target = np.frombuffer(into, np.uint8)
    packing = Packing(
        address(rows), FORMATS[source], len(rows), tensor.inputs, FORMATS[tensor.format], tensor.group, interleave,
        None,
    )  # fmt: skip
    check(library().ls_pack(packing, address(target), 0, count))


def is_finite(piece: memoryview, tensor: Tensor) -> bool:
    """Return whether a piece of a packed tensor has no NaN or inf. Panels in bf16, which no file has, are not
    checked."""
    if tensor.layout == "rows" and tensor.format == "bf16":
        return bool(((np.frombuffer(piece, np.uint16) & 0x7F80) != 0x7F80).all())
    if tensor.format == "fp32":
        return bool(np.isfinite(np.frombuffer(piece, np.float32)).all())
    if not tensor.group:
        return True
    records = np.frombuffer(piece, np.uint8).reshape(-1, tensor.panel_bytes // -(-tensor.inputs // tensor.group))
    # If a weight is NaN or inf, so is its scale.
    return bool(np.isfinite(records[:, : 2 * PANEL].copy().view(np.float16)).all())


def _rows(parts: Sequence[StoredTensor], ranges: list[tuple[int, int]], inputs: int) -> tuple[npt.NDArray[Any], str]:
    """Return the rows in `ranges` of [from, to) of a stack of tensors, and the format of these rows."""
    same = len({part.dtype for part in parts}) == 1 and parts[0].dtype in _SOURCES
    source = _SOURCES[parts[0].dtype] if same else "fp32"
    rows = np.empty((sum(end - start for start, end in ranges), inputs), np.float32 if source == "fp32" else np.uint16)
    filled = 0
    for start, end in ranges:
        above = 0
        for part in parts:
            low, high = max(start, above) - above, min(end, above + part.shape[0]) - above
            if low < high:
                slot = rows[filled : filled + high - low]
                if same:
                    part.read(slot.reshape(-1).view(np.uint8).data, low * slot.strides[0])
                else:
                    slot[:] = part.floats(low * inputs, slot.size).reshape(slot.shape)
                filled += high - low
            above += part.shape[0]
    return rows, source
