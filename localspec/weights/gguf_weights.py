"""Registers a model in GGUF files, and reads its weights from there, to pack them or to use their blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from localspec.errors import LocalspecError, NotHere, first_line
from localspec.families.architecture import (
    TransformerConfig,
    ahead_features,
    ahead_gguf_map,
    gguf_map,
    in_features,
    weight_map,
)
from localspec.families.model_config import ModelConfig, least_parameters
from localspec.families.rope import Rope
from localspec.machine.library import BLOCK_TYPES
from localspec.outside_files import parse_json
from localspec.weights.checkpoint import Checkpoint, again, moved
from localspec.weights.file_fingerprint import file_fingerprint
from localspec.weights.gguf_file import BLOCKS, damaged
from localspec.weights.gguf_model import GgufModel, GgufTensor
from localspec.weights.packed_file import BLOCKS as IN_BLOCKS
from localspec.weights.packed_file import BlockPart, Header, Origin, PackedFile, read
from localspec.weights.packed_files import FILED
from localspec.weights.recipe import NEVER_PACKED, Recipe, stand_in
from localspec.weights.source import PackingSource
from localspec.weights.stored import StoredTensor

_TYPES = {block.name: block for block in BLOCKS.values()}


def rounded(header: Header) -> dict[str, str]:
    """Return the block types in a model's GGUF files that no kernel computes, each with the type to round it to."""
    packed = (parts for name, parts in header.blocks.items() if not name.endswith(NEVER_PACKED))
    wide = (part for parts in packed for part in parts if len(part.shape) > 1)
    return {part.type: stand_in(part.type, part.shape[1]) or FILED[0] for part in wide if part.type not in BLOCK_TYPES}


def is_filed(header: Header) -> bool:
    """Return whether a registered model's blocks are copied once to a packed file, which is then memory-mapped.

    That is so for models whose blocks must be rounded to other types, and for models with experts, because unused
    experts in a mapped file need no memory. Blocks of other models are copied into memory at each load.
    """
    return bool(rounded(header)) or any(".experts." in name for name in header.blocks)


def gguf_source(model: GgufModel) -> PackingSource:
    """Return a GGUF model as input for packing, from headers only. Raises LocalspecError for an unsupported model."""
    config = model.config
    if least_parameters(config) > model.parameters:
        experts = f" of {config.experts.count} experts" if config.experts else ""
        raise damaged(
            model.path,
            f"the file claims {config.num_hidden_layers} layers{experts} and a vocabulary of {config.vocab_size}, "
            f"which need more than its {model.parameters} weights",
        )
    sizes = TransformerConfig.of(config)
    Rope.of(config, config.contexts[0])
    files = [part.path for part in model.parts]
    source = _source(config, sizes, model.tensors(sizes), files, model.texts, model.parameters)
    return replace(source, ahead=model.ahead(sizes))


def _source(
    config: ModelConfig,
    sizes: TransformerConfig,
    made_of: Mapping[str, Sequence[StoredTensor]],
    files: Sequence[Path],
    texts: Mapping[str, bytes],
    parameters: int,
) -> PackingSource:
    tensors = {name: [*parts] for name, parts in made_of.items()}
    tensors.setdefault("lm_head.weight", tensors["embed_tokens"])
    architecture, size = str(config.content["architectures"][0]), sum(file.stat().st_size for file in files)
    checkpoint = Checkpoint(files[0], config.content, architecture, (*files,), parameters, size)
    return PackingSource(checkpoint, config, sizes, tensors, texts)


def registration(source: PackingSource, origin: Origin, default_packing: str = IN_BLOCKS) -> Header:
    """Return the header of a registration: a packed file with a model's texts, but only the places of its weights."""
    numbers = {file: number for number, file in enumerate(source.checkpoint.weight_files)}
    names = weight_map(source.sizes)  # without a head that repeats the embedding
    blocks = {name: tuple(_part(part, numbers) for part in source.made_of[name]) for name in names}
    in_memory = source.header(origin, gguf_recipe(source, IN_BLOCKS)).block_bytes
    texts = {name: len(text) for name, text in source.texts.items()}
    plan = Header.plan(origin, IN_BLOCKS, source.checkpoint.parameters, {}, texts)
    ahead = {name: tuple(_part(part, numbers) for part in parts) for name, parts in source.ahead.items()}
    return replace(plan, blocks=blocks, weight_bytes=in_memory, default_packing=default_packing, ahead=ahead)


def _part(tensor: StoredTensor, numbers: Mapping[Path, int]) -> BlockPart:
    assert isinstance(tensor, GgufTensor)
    form = tensor.head_rows, tensor.change, tensor.every
    return BlockPart(numbers[tensor.file], tensor.start, tensor.bytes, tensor.block.name, tensor.shape, *form)


def files_of(packed: PackedFile) -> list[Path]:
    """Return the GGUF files with a registered model's weights. Raises NotHere if one is missing or has changed."""
    header = packed.header
    marks = {Path(name): mark for name, (_, mark) in header.origin.files.items()}
    changed = packed.missing or next((file for file, mark in marks.items() if file_fingerprint(file) != mark), None)
    if changed:
        raise NotHere(moved(header, changed))
    return [*marks]


def registered_source(header: Header, texts: Mapping[str, bytes], files: Sequence[Path]) -> PackingSource:
    """Return a registered model as input for packing, without reading its weights.

    Raises LocalspecError if the header does not fit the model.
    """
    model = header.origin.name
    try:
        config = ModelConfig.of(parse_json(texts["config.json"]))
        sizes = TransformerConfig.of(config)
        made_of = {name: [_tensor(part, files) for part in parts] for name, parts in header.blocks.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LocalspecError(
            f"The registration of {model} cannot be used ({first_line(error)}); {again(header.origin)}."
        ) from None
    expected = {
        name: [(rows,) if (columns := in_features(name, sizes)) is None else (rows, columns) for _, rows in parts]
        for name, parts in gguf_map(sizes).items()
    }
    if expected != {name: [part.shape for part in parts] for name, parts in made_of.items()}:
        raise LocalspecError(
            f"The registration of {model} has weights that do not fit its config.json; {again(header.origin)}."
        )
    return _source(config, sizes, made_of, files, texts, header.parameters)


def _tensor(part: BlockPart, files: Sequence[Path]) -> GgufTensor:
    """Return the GGUF tensor at the place `part`. Raises ValueError if its bytes do not fit its shape."""
    block, rows = _TYPES[part.type], part.shape[0]
    whole_blocks = part.shape[-1] % block.weights == 0 and (len(part.shape) == 2 or block.weights == 1)
    whole_heads = not part.head_rows or (rows % part.head_rows == 0 and part.head_rows % 2 == 0)
    whole_pieces = not part.every or (rows % part.every == 0 and not part.head_rows)
    if (
        not (whole_blocks and whole_heads and whole_pieces)
        or prod(part.shape) // block.weights * block.bytes != part.bytes
    ):
        raise ValueError(f"a tensor of {part.type} has {part.bytes} bytes, which does not fit its shape")
    return GgufTensor(
        files[part.file], part.offset, part.shape, "", part.bytes, block, part.head_rows, part.change, part.every
    )


def registered_ahead(path: Path, sizes: TransformerConfig) -> dict[str, list[GgufTensor]]:
    """Return the tensors of a registered model's MTP layer (multi-token prediction). `sizes` are the model's.

    Raises NotHere if the model has no MTP layer or a file is missing, and LocalspecError for an impossible layer.
    """
    packed = read(path)
    header, files = packed.header, files_of(packed)
    expected = {
        name: [(rows,) if (columns := ahead_features(name, sizes)) is None else (rows, columns) for _, rows in parts]
        for name, parts in ahead_gguf_map(sizes).items()
    }
    if expected != {name: [part.shape for part in parts] for name, parts in header.ahead.items()}:
        raise LocalspecError(
            f"The registration of {header.origin.name} has an MTP layer of another model; {again(header.origin)}."
        )
    try:
        return {name: [_tensor(part, files) for part in parts] for name, parts in header.ahead.items()}
    except (ValueError, KeyError) as error:
        raise LocalspecError(
            f"The registration of {header.origin.name} cannot be used ({first_line(error)}); {again(header.origin)}."
        ) from None


def gguf_recipe(source: PackingSource, packing: str, drafts: bool = False) -> Recipe:
    """Return how to pack each tensor of a GGUF model. With `drafts`, it is to be used as a draft model.

    In int8, matrices in Q8_0 keep their groups of 32 inputs, so that their weights stay exactly the same.
    """

    def is_q8_0(part: StoredTensor) -> bool:
        return isinstance(part, GgufTensor) and part.block.name == "Q8_0"

    return Recipe(
        packing, frozenset(name for name, parts in source.made_of.items() if all(map(is_q8_0, parts))), drafts
    )
