"""A model in GGUF files: its tensors, and the text files that an equivalent Hugging Face directory would have."""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError, NotHere
from localspec.families.architecture import (
    TransformerConfig,
    ahead_config,
    ahead_features,
    ahead_gguf_map,
    gguf_map,
    in_features,
    stored_shape,
    unread,
    weight_map,
)
from localspec.families.model_config import ModelConfig
from localspec.outside_files import parse_json
from localspec.text import LONGEST_LICENSE, one_line
from localspec.weights.fingerprint import sampled_weights
from localspec.weights.gguf_config import architecture, config, differences, generation_config, ignored_sampling
from localspec.weights.gguf_file import BlockType, GgufFile, TensorPlace, damaged, floats, read
from localspec.weights.gguf_metadata import Metadata, in_short
from localspec.weights.gguf_tokens import ends_at_words, impossible_roles, tokenizer_files
from localspec.weights.packed_files import parts_of
from localspec.weights.stored import StoredTensor

_PIECE = 2**20  # weights that are dequantized at a time
_FUSED = "ffn_gate_up_exps"  # gates and ups of each expert in one tensor, as newer converters write them
_TABLE, _HEAD = "token_embd.weight", "output.weight"
_SAMPLES = 64  # rows in which head and embedding are compared
_ALIKE = 0.9  # the least cosine of a head and an embedding that count as equal; rounding to two bits gives 0.95
_CONFIGURATION = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # configuration


@dataclass(frozen=True)
class GgufTensor(StoredTensor):
    """A tensor in a GGUF file, stored in quantized blocks, and how its form differs from Hugging Face's.

    `head_rows`, if not 0, is the number of rows of an attention head: its rows i and i + head_rows / 2 are stored next
    to each other. `change` (`family.Change`) is what was done to each number before it was stored. `every`, if not 0,
    says that the file alternates: `every` rows of this tensor, `every` rows of another, and so on. `dtype` is "", so
    the packer reads numbers by `floats`.
    """

    block: BlockType
    head_rows: int = 0
    change: str = ""
    every: int = 0

    def read(self, into: memoryview, first: int = 0) -> None:
        """Fill `into` with the tensor's bytes from `first` on. Raises LocalspecError if the file cannot be read."""
        if not self.every:
            return super().read(into, first)
        piece = self.every * (self.bytes // self.shape[0])
        while into:
            number, within = divmod(first, piece)
            count = min(len(into), piece - within)
            super().read(into[:count], 2 * piece * number + within)
            into, first = into[count:], first + count
        return None

    def floats(self, first: int, count: int) -> npt.NDArray[np.float32]:
        """Return `count` weights, which are whole rows, from index `first` on, in Hugging Face's order."""
        columns = prod(self.shape[1:])
        row, end = first // columns, (first + count) // columns
        numbers = np.empty((end - row, columns), np.float32)
        step, filled = self.head_rows or max(1, _PIECE // columns), 0
        while row < end:
            start = row // step * step if self.head_rows else row
            rows = self._rows(start, min(start + step, self.shape[0]), columns)
            if self.head_rows:
                rows = rows.reshape(-1, 2, columns).swapaxes(0, 1).reshape(-1, columns)
            piece = rows[row - start : end - start]
            numbers[filled : filled + len(piece)] = piece
            filled, row = filled + len(piece), row + len(piece)
        return numbers.reshape(-1)

    def samples(self, firsts: Sequence[int], count: int) -> bytes:
        """Return samples of `count` weights, one from each index in `firsts` on, as bytes of fp32 numbers.

        A sample must be within one row and one block. Raises LocalspecError for a changed or unreadable file.
        """
        if len(self.shape) < 2:
            whole = self.floats(0, prod(self.shape))
            return b"".join(whole[first : first + count].astype("<f4").tobytes() for first in firsts)
        columns, block = prod(self.shape[1:]), self.block
        stored = np.empty((len(firsts), -(-count // block.weights) * block.bytes), np.uint8)
        within = []
        for index, first in enumerate(firsts):
            row, column = divmod(first, columns)
            position = self._stored_row(row) * columns + column
            within.append(position % block.weights)
            self.read(stored[index].data, position // block.weights * block.bytes)
        unpacked = floats(block, stored.data).reshape(len(firsts), -1)
        samples = [weights[start : start + count] for weights, start in zip(unpacked, within, strict=True)]
        return np.concatenate(samples).astype("<f4", copy=False).tobytes()

    def _stored_row(self, row: int) -> int:
        """Return the number of the row in the file that is row `row` of Hugging Face's tensor."""
        if not self.head_rows:
            return row
        head, within = divmod(row, self.head_rows)
        half, pair = divmod(within, self.head_rows // 2)
        return head * self.head_rows + 2 * pair + half

    def _rows(self, start: int, end: int, columns: int) -> npt.NDArray[np.float32]:
        size = columns // self.block.weights * self.block.bytes
        stored = np.empty((end - start) * size, np.uint8)
        self.read(stored.data, start * size)
        numbers = floats(self.block, stored.data).reshape(-1, columns)
        if self.change == "plus one":
            return numbers - np.float32(1)
        if self.change == "-exp":
            with np.errstate(all="ignore"):  # a hostile file may have positive ones
                return np.log(-numbers)
        return numbers


def _samples(parts: Sequence[GgufTensor], firsts: Sequence[int], count: int) -> bytes:
    """Return samples like `GgufTensor.samples`, but from several tensors that form a stack.

    `firsts` are the indices of each sample's first weight in the whole stack, ascending.
    """
    ends = [*accumulate(prod(part.shape) for part in parts)]
    pieces = []
    for index, group in groupby(firsts, lambda first: bisect_right(ends, first)):
        start = ends[index] - prod(parts[index].shape)
        pieces.append(parts[index].samples([first - start for first in group], count))
    return b"".join(pieces)


@dataclass(frozen=True)
class GgufModel:
    """A model in one or more GGUF files, called its parts. The first part has the metadata.

    `publisher_texts` are the model's original configuration and tokenizer, which replace files made from the metadata.
    """

    parts: tuple[GgufFile, ...]
    publisher_texts: Mapping[str, bytes] | None = None

    @classmethod
    def open(cls, path: Path, publisher_texts: Mapping[str, bytes] | None = None) -> "GgufModel":
        """Read the headers of a GGUF file and the model's other parts. Raises LocalspecError, or NotHere for a missing
        part."""
        files = parts_of(path)
        if missing := next((file for file in files if not file.is_file()), None):
            raise NotHere(f"Part {missing} of this model is missing; put it into the directory of the other parts.")
        parts = tuple(read(file) for file in files)
        count = parts[0].metadata.get("split.count", 1)
        if type(count) is not int or count not in (0, len(parts)):
            wrong = f"the file is one of {in_short(count)} parts, but its name does not say which"
            if len(parts) > 1:
                wrong = (
                    f"the file has split.count = {in_short(count)}, but its name says that there are {len(parts)} parts"
                )
            raise damaged(path, wrong)
        model, tensors = cls(parts, publisher_texts), parts[0].metadata.get("split.tensors.count")
        if len(parts) > 1 and tensors is not None and in_short(tensors) != str(len(model.places)):
            raise damaged(path, f"the parts have {len(model.places)} tensors instead of {in_short(tensors)}")
        if len(model.places) != sum(len(part.tensors) for part in parts):
            raise damaged(path, "two parts of the model have the same tensor")
        return model

    @property
    def path(self) -> Path:
        return self.parts[0].path

    @cached_property
    def metadata(self) -> Metadata:
        return Metadata(self.parts[0].metadata, self.path.name)

    @cached_property
    def places(self) -> dict[str, tuple[Path, TensorPlace]]:
        return {name: (part.path, place) for part in self.parts for name, place in part.tensors.items()}

    @cached_property
    def parameters(self) -> int:
        """The number of weights. A head that repeats the embedding is not counted, even if it has another type."""
        left_out = (*_CONFIGURATION, *self._ahead, *([_HEAD] if self._repeats_embedding() else []))
        return sum(prod(place.shape) for name, (_, place) in self.places.items() if name not in left_out)

    @cached_property
    def _ahead(self) -> frozenset[str]:
        """The names of the tensors of MTP layers (multi-token prediction). These come after the model's own layers."""
        prefix = self.metadata.text("general.architecture")
        counts = (self.metadata.number(f"{prefix}.{key}") or 0 for key in ("block_count", "nextn_predict_layers"))
        first = next(counts) - next(counts)
        matches = ((name, re.match(r"blk\.(\d{1,9})\.", name)) for name in self.places)
        return frozenset(name for name, match in matches if match and int(match[1]) >= first)

    def _repeats_embedding(self) -> bool:
        """Return whether the head has the same numbers as the embedding, except for rounding. Only samples are
        compared."""
        shapes = [self.places[name][1].shape if name in self.places else () for name in (_TABLE, _HEAD)]
        if shapes[0] != shapes[1] or len(shapes[0]) != 2:
            return False
        rows, columns = shapes[0]
        firsts = [rows * sample // _SAMPLES * columns for sample in range(_SAMPLES)]
        stored = (self._tensor(name, shapes[0]).samples(firsts, min(32, columns)) for name in (_TABLE, _HEAD))
        table, head = (np.frombuffer(weights, np.float32) for weights in stored)
        return bool(table @ head > _ALIKE * np.linalg.norm(table) * np.linalg.norm(head))

    @property
    def size(self) -> int:
        """The bytes of all files together."""
        return sum(part.bytes for part in self.parts)

    @property
    def types(self) -> tuple[str, ...]:
        """The names of the block types of the model's matrices, each once."""
        return tuple(sorted({place.block.name for _, place in self.places.values() if len(place.shape) > 1}))

    @cached_property
    def texts(self) -> dict[str, bytes]:
        """The text files (configuration and tokenizer) that an equivalent Hugging Face directory would have, by name.

        Raises LocalspecError for an unsupported model, impossible metadata, and publisher's texts of another model.
        """
        shapes = {name: place.shape for name, (_, place) in self.places.items()}
        try:
            content = config(self.metadata, shapes, self._factors)
            if self.publisher_texts is not None:
                return self._adapted_texts(self.publisher_texts, content)
            tokenizer = tokenizer_files(self.metadata, content["vocab_size"])
            generation = generation_config(self.metadata)
            files = {"config.json": content, "generation_config.json": generation, **tokenizer}
        except ValueError as error:
            raise damaged(self.path, str(error)[:200]) from None
        return {
            name: (file if isinstance(file, str) else json.dumps(file, ensure_ascii=False)).encode()
            for name, file in files.items()
        }

    def _adapted_texts(self, texts: Mapping[str, bytes], from_metadata: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the publisher's text files, with facts about this GGUF file in config.json.

        `from_metadata` is the config made from the GGUF file. Raises ValueError if the texts belong to another model.
        """
        content, tied = parse_json(texts["config.json"]), from_metadata["tie_word_embeddings"]
        published = ModelConfig.of(content)
        if difference := differences(ModelConfig.of(from_metadata), published):
            raise ValueError(f"the file and the publisher's config.json belong to different models: {difference}")
        # Private entries describe how this file stores weights.
        stored = {name: value for name, value in from_metadata.items() if name.startswith("_")}
        if published.tie_word_embeddings == tied and not stored:
            return {**texts}
        return {**texts, "config.json": json.dumps({**content, "tie_word_embeddings": tied, **stored}).encode()}

    @cached_property
    def config(self) -> ModelConfig:
        """The model's configuration. Raises the errors of `texts`, and LocalspecError for impossible sizes."""
        try:
            return ModelConfig.of(json.loads(self.texts["config.json"]))
        except ValueError as error:
            raise damaged(self.path, str(error)[:200]) from None

    def notices(self, added: Sequence[tuple[str, bool]]) -> list[str]:
        """Return sentences for the user about ignored metadata, and about tokens that localspec adds to prompts.

        `added` has each added token, with True if it comes before the prompt, or False if after it. Raises the errors
        of `texts`.
        """
        if self.publisher_texts is not None:
            return []
        notices = ignored_sampling(self.metadata)
        notices += impossible_roles(self.metadata, len(self.metadata.texts("tokenizer.ggml.tokens") or []))
        notices += ends_at_words(self.metadata)
        notices += [
            f"{self.path.name} wants {mark} {'before' if first else 'after'} each prompt, but its chat template "
            "leaves it out; localspec adds it, as llama-server does."
            for mark, first in added
        ]
        return notices

    def license(self) -> str | None:
        name = self.metadata.label("general.license")
        return one_line(name)[:LONGEST_LICENSE] if name else None

    @cached_property
    def weights(self) -> str:
        """The fingerprint of the weights, the same as that of a Hugging Face directory with the same numbers.

        Raises the errors of `tensors`, and LocalspecError for files that change meanwhile.
        """
        sizes = TransformerConfig.of(self.config)
        stored, shapes = self.tensors(sizes), {}
        places: dict[str, tuple[str, int]] = {}  # our parameter and the first weight of each tensor
        for parameter, parts in weight_map(sizes).items():
            columns, row = in_features(parameter, sizes), 0
            for name, rows in parts:
                shapes[name] = stored_shape(parameter, rows, columns)
                places[name] = parameter, row * (columns or 1)
                row += rows

        def values(name: str, firsts: Sequence[int], count: int) -> bytes:
            parameter, start = places[name]
            return _samples(stored[parameter], [start + first for first in firsts], count)

        return sampled_weights(shapes, values)

    def tensors(self, sizes: TransformerConfig) -> dict[str, list[GgufTensor]]:
        """Return the GGUF tensors of each of localspec's parameters. If there are several, they are to be stacked.

        Raises LocalspecError for a tensor that is missing, has an unexpected shape, or is not supported.
        """
        parts = gguf_map(sizes)
        tensors = {name: self._parts(name, group, in_features(name, sizes), sizes) for name, group in parts.items()}
        expected = {*_CONFIGURATION, *self._ahead, *unread(sizes), *self._names(parts)}
        if unknown := sorted(self.places.keys() - expected):
            raise LocalspecError(
                f"{self.path} has a tensor {unknown[0]!r}, which localspec does not expect in a {sizes.family} model; "
                "choose another file."
            )
        return tensors

    def ahead(self, sizes: TransformerConfig) -> dict[str, list[GgufTensor]]:
        """Return the tensors of the MTP layer (multi-token prediction), by localspec's names; empty if there is none.

        Also return nothing for an unsupported layer, for example one with a separate embedding.
        """
        if not self._ahead:
            return {}
        parts, layer_sizes = ahead_gguf_map(sizes), ahead_config(sizes)
        if self._ahead != self._names(parts):
            return {}
        return {
            name: self._parts(name, group, ahead_features(name, sizes), layer_sizes) for name, group in parts.items()
        }

    def _name(self, part: str) -> str:
        """Return the name under which a tensor is stored. Gates and ups of experts may share a stored tensor."""
        fused = re.sub("ffn_(gate|up)_exps", _FUSED, part)
        return fused if part not in self.places and fused in self.places else part

    def _names(self, parts: Mapping[str, Sequence[tuple[str, int]]]) -> set[str]:
        return {self._name(part) for group in parts.values() for part, _ in group}

    def _parts(
        self, parameter: str, parts: Sequence[tuple[str, int]], columns: int | None, sizes: TransformerConfig
    ) -> list[GgufTensor]:
        """Return the GGUF tensors that form `parameter`. `parts` has the name and number of rows of each."""
        tensors = []
        for part, rows in parts:
            if (name := self._name(part)) != part:
                tensors.append(self._half(name, rows, columns, "ffn_up_exps" in part, sizes))
                continue
            shape = (rows,) if columns is None else (rows, columns)
            tensors.append(self._tensor(name, shape, sizes, *self._form(name, parameter, sizes)))
        return tensors

    def _form(self, name: str, parameter: str, sizes: TransformerConfig) -> tuple[int, str]:
        """Return how a tensor is stored: the values of `head_rows` and `change` in GgufTensor."""
        changes = architecture(self.metadata).changes
        change = changes.get(re.sub(r"^blk\.\d+\.|\.(weight|bias)$", "", name), "")
        if change == "pairs":
            return sizes.sizes_of(int(parameter.split(".")[1])).head_dim, ""
        return 0, change

    def _half(self, name: str, rows: int, columns: int | None, second: bool, sizes: TransformerConfig) -> GgufTensor:
        """Return the gate rows of all experts, or with `second` the up rows. One stored tensor has both in turn."""
        whole = self._tensor(name, (2 * rows,) if columns is None else (2 * rows, columns), sizes)
        every = rows // (sizes.experts.count if sizes.experts else 1)
        start = whole.start + (every * (whole.bytes // (2 * rows)) if second else 0)
        return replace(whole, start=start, shape=(rows, *whole.shape[1:]), bytes=whole.bytes // 2, every=every)

    def _tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        sizes: TransformerConfig | None = None,
        head_rows: int = 0,
        change: str = "",
    ) -> GgufTensor:
        """Return the stored tensor `name`. In `shape`, the rows of all experts are stacked."""
        if name not in self.places:
            raise damaged(self.path, f"the file lacks {name!r}")
        (file, place), stored = self.places[name], shape
        if "_exps." in name and sizes is not None and sizes.experts is not None:  # a number, vector or matrix of each
            count = sizes.experts.count
            stored = shape if shape == (count,) else (count, shape[0] // count, *shape[1:])
        if place.shape != stored:
            raise damaged(self.path, f"{name!r} has the shape {[*place.shape]} where {[*stored]} is expected")
        if len(shape) == 1 and place.block.weights > 1:
            raise damaged(self.path, f"the vector {name!r} is stored in {place.block.name}, which is for matrices")
        return GgufTensor(file, place.start, shape, "", place.bytes, place.block, head_rows, change)

    def _factors(self, name: str) -> list[float]:
        size = self.places[name][1].shape[0]
        numbers: list[float] = self._tensor(name, (size,)).floats(0, size).tolist()
        return numbers
