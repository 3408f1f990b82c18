"""A model in GGUF files: registered, and then opened in the blocks of its files, or packed like any other."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import gcd, prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.checkpoint import Checkpoint, again, moved
from localspec.environment import home
from localspec.errors import DoesNotFit, LocalspecError, NotHere, first_line
from localspec.gguf.blocks import BLOCKS, floats
from localspec.gguf.file import damaged
from localspec.gguf.model import GgufModel, GgufTensor
from localspec.gguf.stand_ins import requantised
from localspec.models.architecture import TABLES, TransformerConfig, in_features, weight_map
from localspec.models.draft_role import draft_blocks, head_tokens
from localspec.models.fingerprint import recognised
from localspec.models.model_config import ModelConfig, least_parameters
from localspec.models.packed_files import FILED
from localspec.models.rope import Rope
from localspec.models.stored_weights import StoredTensor
from localspec.models.weight_digests import stamps
from localspec.native.blocks import PANEL, BlockMatrix, BlockStack, empty_matrices, packed_bytes
from localspec.native.library import BLOCK_TYPES
from localspec.native.pack import Recipe, Source
from localspec.native.short_head import RowsOf, rows_in_file
from localspec.outside_files import MIB, parse_json
from localspec.packed_file import BLOCKS as IN_BLOCKS
from localspec.packed_file import BlockPart, Header, Origin, PackedFile
from localspec.paths import Paths
from localspec.quantities import size

Floats = npt.NDArray[np.float32]
_USUAL = "Q8_0"  # the blocks that weights are rounded to at each start where no kernel reads those of their own type
_MOST_ROUNDED = 2**26  # weights: more of them take seconds, so such a model is packed once, in int8
_PIECE = 2**21  # bytes of a file that a thread reads at a time
_ROOM = 320 * MIB  # address space that threads and the tokenizer take at most; without it they end the process, or hang
_TYPES = {block.name: block for block in BLOCKS.values()}


def computed_as(stored: str) -> str:
    """Return the type of blocks that a type of GGUF is computed in: itself, if there are kernels for it."""
    return stored if stored in BLOCK_TYPES else _USUAL


def gguf_source(model: GgufModel) -> Source:
    """Look at headers, and try the tokenizer. Raises LocalspecError for what cannot be computed."""
    config = model.config
    if least_parameters(config) > model.parameters:
        raise damaged(model.path, f"it promises {config.num_hidden_layers} layers and has {model.parameters} weights")
    sizes = TransformerConfig.of(config)
    Rope.of(config, config.contexts[0])
    stored = model.tensors(sizes)
    made_of = {name: [stored[part] for part, _ in parts] for name, parts in weight_map(sizes).items()}
    assert model.chat
    return _source(config, sizes, made_of, [part.path for part in model.parts], model.texts, model.parameters)


def _source(
    config: ModelConfig,
    sizes: TransformerConfig,
    made_of: Mapping[str, Sequence[StoredTensor]],
    files: Sequence[Path],
    texts: Mapping[str, bytes],
    parameters: int,
) -> Source:
    every = {name: [*parts] for name, parts in made_of.items()}
    every.setdefault("lm_head.weight", every["embed_tokens"])
    architecture, held = str(config.content["architectures"][0]), sum(file.stat().st_size for file in files)
    checkpoint = Checkpoint(files[0], config.content, architecture, (*files,), parameters, held)
    return Source(checkpoint, config, sizes, every, texts)


def registration(source: Source, origin: Origin, answers: str = IN_BLOCKS) -> Header:
    """Return what is kept of a model that is read from its files: texts, and where each weight lies.

    `answers` is the packing that was asked for.
    """
    numbers = {file: number for number, file in enumerate(source.checkpoint.weight_files)}
    names = weight_map(source.sizes)  # without a head that is the embedding
    blocks = {name: tuple(_part(one, numbers) for one in source.made_of[name]) for name in names}
    every = [part for name in names for part in _as_computed(name, source.made_of[name])]
    held = [_held(part) for part in every]
    rounded = sum(prod(part.shape) for part in every if len(part.shape) > 1 and part.block.name not in BLOCK_TYPES)
    quick = all(held) and rounded <= _MOST_ROUNDED
    texts = {name: len(text) for name, text in source.texts.items()}
    return replace(
        Header.plan(origin, IN_BLOCKS, source.checkpoint.parameters, {}, texts), blocks=blocks,
        weight_bytes=sum(held) if all(held) else 0,
        answers=answers if quick or answers != IN_BLOCKS else FILED[0],
    )  # fmt: skip


def _part(tensor: StoredTensor, numbers: Mapping[Path, int]) -> BlockPart:
    assert isinstance(tensor, GgufTensor)
    number = numbers[tensor.file]
    return BlockPart(number, tensor.start, tensor.bytes, tensor.block.name, tensor.shape, tensor.head_rows)


def _as_computed(name: str, parts: Sequence[StoredTensor]) -> list[GgufTensor]:
    """Return the parts of a parameter as they are computed: gate and up are two, also if the file has one tensor."""
    found = [part for part in parts if isinstance(part, GgufTensor)]
    if len(found) > 1 or not name.endswith(".gate_up_proj.weight"):
        return found
    half = replace(found[0], shape=(found[0].shape[0] // 2, found[0].shape[1]), bytes=found[0].bytes // 2)
    return [half, replace(half, start=half.start + half.bytes)]


def _held(part: GgufTensor) -> int:
    """Return the bytes of a part in memory; 0 if its rows are no whole number of blocks."""
    rows, *columns = part.shape
    if not columns:
        return 4 * rows
    try:
        return packed_bytes(rows, columns[0], computed_as(part.block.name))
    except LocalspecError:
        return 0


def files_of(found: PackedFile) -> list[Path]:
    """Return the GGUF files of a registration.

    Raises NotHere for one that is missing, and LocalspecError for one that changed.
    """
    header, files = found.header, [Path(name) for name in found.header.origin.files]
    if missing := header.missing:
        raise NotHere(moved(header, missing))
    if not recognised(files, header.origin.files, Paths(home())):
        raise LocalspecError(
            f"{files[0]} has changed since it was imported as {header.origin.name}; {again(header.origin)}."
        )
    return files


def registered_source(header: Header, texts: Mapping[str, bytes], files: Sequence[Path]) -> Source:
    """Return a registered model as the packer reads it. Raises LocalspecError for a header that cannot be meant."""
    name = header.origin.name
    try:
        config = ModelConfig.of(parse_json(texts["config.json"]))
        sizes = TransformerConfig.of(config)
        made_of = {ours: [_tensor(part, files) for part in parts] for ours, parts in header.blocks.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LocalspecError(
            f"The registration of {name} cannot be used ({first_line(error)}); {again(header.origin)}."
        ) from None
    wanted = {
        ours: [(rows,) if (columns := in_features(ours, sizes)) is None else (rows, columns) for _, rows in parts]
        for ours, parts in weight_map(sizes).items()
    }
    if wanted != {ours: [part.shape for part in parts] for ours, parts in made_of.items()}:
        raise LocalspecError(
            f"The registration of {name} has other weights than its config.json; {again(header.origin)}."
        )
    return _source(config, sizes, made_of, files, texts, header.parameters)


def _tensor(part: BlockPart, files: Sequence[Path]) -> GgufTensor:
    """Return a tensor of a file. Raises ValueError for one whose bytes do not fit its type and shape."""
    block, rows = _TYPES[part.type], part.shape[0]
    whole = part.shape[-1] % block.weights == 0 and (len(part.shape) == 2 or block.weights == 1)
    heads = not part.head_rows or (rows % part.head_rows == 0 and part.head_rows % 2 == 0)
    if not whole or not heads or prod(part.shape) // block.weights * block.bytes != part.bytes:
        raise ValueError(f"a tensor of {part.type} has {part.bytes} bytes")
    return GgufTensor(files[part.file], part.offset, part.shape, "", part.bytes, block, part.head_rows)


def gguf_recipe(source: Source, packing: str) -> Recipe:
    """As any model is packed, but that the groups of 32 of Q8_0 stay: packing finds their scales again, bit for bit."""
    kept = (name for name, parts in source.made_of.items() if all(_is_q8_0(part) for part in parts))
    return Recipe(packing, frozenset(kept))


def _is_q8_0(part: object) -> bool:
    return isinstance(part, GgufTensor) and part.block.name == "Q8_0"


# -- in blocks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockModel:
    """A model in the blocks of its GGUF files, in private memory. A head that is the embedding is stored once."""

    header: Header
    config: ModelConfig
    texts: Mapping[str, bytes]
    tensors: Mapping[str, BlockStack | Floats]  # by the names of `weight_map`
    head_rows: RowsOf | None = None  # of a head that was left in the file

    @cached_property
    def sizes(self) -> TransformerConfig:
        """Its sizes; the head is always there."""
        return replace(TransformerConfig.of(self.config), tied=False)


def open_blocks(found: PackedFile, threads: int, drafts: bool = False) -> BlockModel:
    """Open a registered model. Raises NotHere and LocalspecError for files that are missing, changed or damaged.

    One that `drafts` has coarser layers, and a head that is no embedding stays in the file if it is to be short.

    Each thread reads a piece of a file into a buffer and transposes it into panels; nothing is mapped, because a mapped
    file that is cut short ends the process.
    """
    texts = {name: found.text(name) for name in found.header.texts}
    files = files_of(found)
    before, source = stamps(files), registered_source(found.header, texts, files)
    made_of = {name: _as_computed(name, parts) for name, parts in source.made_of.items()}
    vectors = {name: parts for name, parts in made_of.items() if in_features(name, source.sizes) is None}
    stored = {name: parts for name, parts in made_of.items() if name not in vectors}
    head = stored["lm_head.weight"][0]
    in_file = drafts and not source.sizes.tied and head_tokens(source.sizes.vocab_size) > 0
    if source.sizes.tied or in_file:
        del stored["lm_head.weight"]
    every = [(part, drafts and name not in TABLES) for name, parts in stored.items() for part in parts]
    sizes = [(part.shape[0], part.shape[1], _held_as(part, coarser)) for part, coarser in every]
    try:
        matrices = iter(empty_matrices(sizes))
        np.empty(_ROOM, np.uint8)  # given back at once: it is there for what follows, which would end the process
    except (OSError, MemoryError) as error:
        needed = size(found.header.weight_bytes)
        raise DoesNotFit(
            f"{found.header.origin.name} takes {needed} of memory, which are not free; choose a smaller model."
        ) from error
    stacks = {name: BlockStack((*islice(matrices, len(parts)),)) for name, parts in stored.items()}
    pieces = [
        (name, part, matrix, start, end)
        for name, parts in stored.items()
        for part, matrix in zip(parts, stacks[name].parts, strict=True)
        for start, end in _ranges(part)
    ]
    held = threading.local()
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(_fill, held, *piece) for piece in pieces]
        try:
            for job in jobs:
                job.result()
        finally:
            for job in jobs:
                job.cancel()
    if stamps(files) != before:
        raise LocalspecError(f"{files[0]} changed while it was read; try again.")
    if source.sizes.tied:
        stacks["lm_head.weight"] = stacks["embed_tokens"]
    tensors: dict[str, BlockStack | Floats] = {
        **stacks,
        **{name: _vector(name, parts) for name, parts in vectors.items()},
    }
    return BlockModel(found.header, source.config, texts, tensors, rows_in_file(head) if in_file else None)


def _held_as(part: GgufTensor, coarser: bool) -> str:
    held = computed_as(part.block.name)
    return draft_blocks(held) if coarser and held == part.block.name else held


def _vector(name: str, parts: Sequence[GgufTensor]) -> Floats:
    """Return a vector as the file has it. Raises LocalspecError for one with other than numbers."""
    vector = np.concatenate([part.floats(0, part.shape[0]) for part in parts])
    if not np.isfinite(vector).all():
        raise not_finite(name, parts[0].file)
    return vector


def _ranges(part: GgufTensor) -> list[tuple[int, int]]:
    """Return the rows of each piece of a tensor: whole panels, and whole heads where their rows are in pairs."""
    together = PANEL if not part.head_rows else PANEL * part.head_rows // gcd(PANEL, part.head_rows)
    step = max(1, _PIECE * part.shape[0] // part.bytes // together) * together
    return [(start, min(start + step, part.shape[0])) for start in range(0, part.shape[0], step)]


def _fill(held: Any, name: str, part: GgufTensor, matrix: BlockMatrix, start: int, end: int) -> None:
    """Read rows of a file into the panels where they belong."""
    count, of_row = end - start, part.bytes // part.shape[0]
    if len(getattr(held, "buffer", ())) < count * of_row:
        held.buffer = np.empty(count * of_row, np.uint8)
    rows = held.buffer[: count * of_row]
    part.read(rows.data, start * of_row)
    coarser = matrix.type != part.block.name and part.block.name in BLOCK_TYPES
    if matrix.type != part.block.name and not coarser:
        rows = requantised(floats(part.block, rows.data), matrix.type)
    of_panel = len(matrix.data) // -(-matrix.out // PANEL)
    panels = matrix.data[start // PANEL * of_panel : -(-end // PANEL) * of_panel]
    target, rows = BlockMatrix(panels, count, matrix.inputs, matrix.type), rows.reshape(count, -1)
    try:
        if coarser:
            target.fill_rounded(BlockMatrix.pack(rows, part.shape[1], part.block.name, part.head_rows).numbers())
        else:
            target.fill(rows, head_rows=part.head_rows)
    except LocalspecError:
        raise not_finite(name, part.file) from None


def not_finite(name: str, file: Path) -> LocalspecError:
    """Return what to say of a tensor with a number that is NaN or inf."""
    return LocalspecError(
        f"{name} in {file} holds NaN or inf, which no text can come from; fetch the file again, or choose another."
    )
