"""Reads the headers of a model's files, in the Hugging Face layout or in a packed file, but never its weights."""

import hashlib
import json
import math
import os
import re
import shlex
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError, NotHere, cannot_read
from localspec.families.table import ARCHITECTURES, supported, text_config
from localspec.outside_files import JSON_LIMIT, TEXT_LIMIT, parse_json, read_bytes
from localspec.published_heads import kind_of_heads, why_not_read
from localspec.quantities import precision_in_words, size
from localspec.text import LONGEST_LICENSE
from localspec.weights import packed_file

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
AROUND = "_around_prompts"  # key in tokenizer_config.json, which localspec writes for a GGUF file


# Prefixes of a language model's tensors within a multimodal model, by two conventions.
_LANGUAGE_MODEL = {"language_model.": "", "model.language_model.": "model."}
_OTHER_SENSES = ("vision_tower.", "multi_modal_projector.", "audio_tower.", "embed_vision.", "embed_audio.")
# Parts that are not computed here: vision and audio, and the MTP layer of Qwen3.5.
_OTHERS = (*_OTHER_SENSES, *(f"model.{name}" for name in _OTHER_SENSES), "model.visual.", "mtp.")

CAN_BE_PACKED = ("int8", "int4", "none")  # packings for a model that is read from GGUF files

PICKLED_INDEX = "pytorch_model.bin.index.json"
HEAD_PREFIX = "medusa_head."  # of the tensors of Medusa heads inside a whole model
FETCH = "fetch it again"  # the remedy for a damaged model
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_SAMPLES, _SAMPLE_BYTES = 64, 256
_MOST_DIMENSIONS = 8
_HEADER_LIMIT = 100_000_000  # bytes; what the safetensors library itself accepts
_ITEM_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
              "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A model's directory or packed file, with the facts that are known without reading its weights."""

    path: Path
    config: Mapping[str, Any]
    architecture: str
    weight_files: tuple[Path, ...]
    parameters: int
    bytes: int  # of the weight files
    embedding: int = 0  # how many of the parameters are the input embedding
    packing: str = ""  # the default packing of a packed file or a registration; empty for a directory
    stored_weights: int = 0  # of a packed file; more than the parameters if its head repeats the embedding

    @property
    def size_in_words(self) -> str:
        """The size of the weights, for display. For a packed file it begins with the packing or the bits per weight."""
        if not self.packing:
            return size(self.bytes)
        bits = self.bits if self.packing == packed_file.BLOCKS else None
        return f"{precision_in_words('', self.packing, bits)}, {size(self.bytes)}"

    @property
    def bits(self) -> float:
        """The average bits per weight."""
        return 8 * self.bytes / max(self.stored_weights or self.parameters, 1)

    @property
    def context(self) -> int | None:
        """The longest text in tokens for which the model was made."""
        longest = text_config(self.config).get("max_position_embeddings")
        return longest if isinstance(longest, int) else None


def inspect(path: Path) -> Checkpoint:
    """Read the headers of a directory in the Hugging Face layout, or of a packed file.

    Raises NotHere if there is no model, and LocalspecError if the model is damaged or not supported.
    """
    if is_packed(path):
        try:
            return _inspect_packed(packed_file.read(path))
        except packed_file.DamagedFile as error:
            raise damaged(path, error) from None
    config = read_config(path)
    architecture = _architecture(config, path)
    files = weight_files(path)
    counts = {
        text_name(name): math.prod(entry["shape"])
        for file in files
        for name, entry in tensor_headers(file).items()
        if is_of_language(name)
    }
    size = sum(file.stat().st_size for file in files)
    embedding = counts.get("model.embed_tokens.weight", 0)
    return Checkpoint(path, config, architecture, files, sum(counts.values()), size, embedding)


def text_name(name: str) -> str:
    """Return a tensor's name without a multimodal model's prefix, as it would be in a text-only model."""
    for prefix, replacement in _LANGUAGE_MODEL.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def is_of_language(name: str) -> bool:
    """Return whether a tensor belongs to the language model, not to vision, audio or draft heads."""
    return not name.startswith((HEAD_PREFIX, *_OTHERS))


def is_packed(path: Path) -> bool:
    """Return whether `path` is a packed file, not a directory."""
    return path.suffix == packed_file.SUFFIX and path.is_file()


def originals(path: Path) -> Checkpoint:
    """Return the facts about a model, whose original weights the caller needs. Raises NotHere for a packed file.

    Also raises the errors of `inspect`.
    """
    if is_packed(path):
        raise only_packed(path)
    return inspect(path)


def only_packed(path: Path) -> NotHere:
    """Return the error for a command that needs original weights, or another packing than this packed file's."""
    packed, packings = packed_file.read(path), " and ".join(sorted(packed_file.forms(path)))
    header = packed.header
    if missing := packed.missing:
        return NotHere(moved(header, missing))
    if header.registered:
        return NotHere(
            f"This command needs original weights, but {header.origin.name} is read from a GGUF file; for a registered "
            "model `localspec pull NAME --original` fetches them."
        )
    if any(name.lower().endswith(".gguf") for name in header.origin.files):
        return NotHere(
            f"{header.origin.name} was imported from GGUF and packed in {packings}, which only the CPU engine can use. "
            "To get another packing, import the file again with --quantize. Everything else needs the original "
            "weights; for a registered model, `localspec pull NAME --original` fetches them."
        )
    return NotHere(
        f"This machine has {header.origin.name} only packed in {packings}, but this command needs its original "
        f"weights; fetch them with `localspec pull {header.origin.repo or header.origin.name}`."
    )


def packings(path: Path) -> tuple[str, ...]:
    """Return the packings (forms of weights, such as int8) in which a model can be loaded, the default first.

    `path` is one of the model's packed files. A model in GGUF files can be loaded in every packing. Raises NotHere if
    these files are missing and the model was never packed, or if other files have replaced them.
    """
    files, packed = packed_file.forms(path), packed_file.read(path)
    if replaced := packed.replaced:
        raise NotHere(moved(packed.header, replaced))
    if packed_file.BLOCKS not in files:
        return (*files,)
    registration = packed_file.read(files[packed_file.BLOCKS])
    header = registration.header
    if not header.registered:
        return (*files,)
    del files[packed_file.BLOCKS]
    if missing := registration.missing:
        if not files:
            raise NotHere(moved(header, missing))
        return (*files,)
    in_blocks = (packed_file.BLOCKS,) if header.weight_bytes else ()
    return (*dict.fromkeys((header.default_packing, *in_blocks, *CAN_BE_PACKED)),)


def damaged(path: Path, error: LocalspecError) -> LocalspecError:
    """Return the error for a damaged packed file. Its message says how to delete the file and get the model again."""
    problem = str(error).partition(";")[0]
    try:
        origin = packed_file.peek(path)[0].header.origin
    except LocalspecError:
        return LocalspecError(f"{problem}; delete it with `localspec rm {shlex.quote(str(path))}`.")
    if not origin.repo and not any(map(os.path.isabs, origin.files)):
        return error
    return LocalspecError(
        f"{problem}; delete it with `localspec rm {origin.repo or origin.name}`, and {again(origin)}."
    )


def again(origin: packed_file.Origin) -> str:
    """Return words for an error message that say how to pull or import a model again."""
    if origin.repo:
        return f"fetch it again with `localspec pull {origin.repo}`"
    file = shlex.quote(next(iter(origin.files), "FILE"))
    return f"import it again with `localspec import {file}`"


def moved(header: packed_file.Header, missing: Path) -> str:
    """Return the error message for a model whose GGUF file is missing or has changed since it was registered."""
    origin = header.origin
    if missing.is_file():
        state, remedy = "has changed since it was imported", again(origin)
        if not origin.repo:  # an import is a model by another name
            remedy = (
                f"restore the earlier file, or delete {origin.name} with `localspec rm {origin.name}`; "
                f"`localspec import {shlex.quote(str(missing))}` imports the file that is there now"
            )
    else:
        state, remedy = "is not there", "put the file back, or run `localspec import` with its new path"
        remedy = again(origin) if origin.repo else remedy
    return f"{origin.name} is read from {missing}, which {state}; {remedy}."


def _inspect_packed(packed: packed_file.PackedFile) -> Checkpoint:
    try:
        config = parse_json(packed.text("config.json"))
    except (KeyError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise LocalspecError(
            f"{packed.path} has no config.json that can be read; delete that packed file, and localspec makes it again."
        )
    path, header = packed.path, packed.header
    packing, weight_bytes = header.packing, path.stat().st_size
    if header.registered:
        packing = packings(path)[0]
        weight_bytes = header.weight_bytes or sum(count for count, _ in header.origin.files.values())
        if packing != packed_file.BLOCKS and (form := packed_file.forms(path).get(packing)):
            weight_bytes = form.stat().st_size
    table, parts = header.tensors.get("embed_tokens"), header.blocks.get("embed_tokens", ())
    table = table or header.tensors.get("embed_tokens 0")
    embedding = table.tensor.out * table.tensor.inputs if table and table.tensor else 0
    embedding += sum(math.prod(part.shape) for part in parts)
    architecture = _architecture(config, path)
    return Checkpoint(
        path, config, architecture, (), header.parameters, weight_bytes, embedding, packing, header.stored_weights
    )


def _architecture(config: Mapping[str, Any], path: Path) -> str:
    """Return the architecture that a config.json names. Raises LocalspecError for an unsupported one."""
    if reason := why_not_read(config):
        raise LocalspecError(f"The model in {path} cannot be used: it is {reason}.")
    if (kind := kind_of_heads(config)) in ("dflash", "dspark", "assistant"):
        raise LocalspecError(
            f"{path} has a drafter ({kind}), which is not a model by itself; fetch the drafter with `localspec pull`, "
            "and its model can use it."
        )
    names = config.get("architectures")
    architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    if architecture not in ARCHITECTURES:
        name = f"The architecture {architecture} in {path}" if architecture else f"The unnamed architecture in {path}"
        raise LocalspecError(f"{name} is not supported; {supported(architecture)}")
    if config.get("model_type") != ARCHITECTURES[architecture]:
        file, kind, expected = path / "config.json", config.get("model_type"), ARCHITECTURES[architecture]
        raise LocalspecError(
            f"{file} says model_type {kind!r}, but {architecture} has model_type {expected!r}; fetch the model again, "
            "or choose another."
        )
    return architecture


def revision(path: Path) -> str:
    """Return 40 hexadecimal digits that change with config.json, tokenizer.json, and names and samples of weight files.

    Of each weight file only some evenly spaced bytes are read. That is enough, because training changes all weights a
    little. A packed file has the revision of the directory from which it was made. Raises the errors of `inspect`.
    """
    if is_packed(path):
        return packed_file.read(path).header.origin.revision
    read_config(path)
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        content = _bytes(path / name) if os.path.isfile(path / name) else b""
        digest.update(f"{name} {len(content)}\n".encode() + content)
    for file in weight_files(path):
        header = _header(file)
        digest.update(f"{file.name} {file.stat().st_size} {len(header)}\n".encode())
        digest.update(header + _samples(file, 8 + len(header)))
    return digest.hexdigest()[:40]


def read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not os.path.isdir(path):
        raise NotHere(f"There is no directory {path}; give one in the Hugging Face layout.")
    if not os.path.isfile(file):
        raise NotHere(
            f"{path} has no config.json, so it is not a model in the Hugging Face layout; give another directory."
        )
    config = read_json(file)
    if not isinstance(config, dict):
        raise LocalspecError(f"{file} does not hold a JSON object; fetch it again.")
    return config


def weight_files(path: Path) -> tuple[Path, ...]:
    """Return a directory's weight files: model.safetensors, or the files that model.safetensors.index.json names."""
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.is_file():
        return (single,)
    if not index.is_file():
        pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
        if pickles:
            raise LocalspecError(
                f"{path} has its weights only as pickle ({pickles[0]}), which may run code when it is read; "
                "save the model as safetensors."
            )
        raise NotHere(
            f"{path} has no weights; it needs model.safetensors, or model.safetensors.index.json and its files."
        )
    content = read_json(index)
    table = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise LocalspecError(f"{index} has no weight_map; fetch it again.")
    names = sorted(set(table.values()))
    for name in names:
        if not re.fullmatch(r"[\w.-]{1,200}\.safetensors", name):  # only files in this directory, and no pickle
            raise LocalspecError(
                f"{index} names {name[:200]!r}, which is not a safetensors file in the same directory; fetch the "
                "model again."
            )
        if not (path / name).is_file():
            raise NotHere(f"{path} lacks {name}, which its index names; fetch the missing file.")
    return tuple(path / name for name in names)


def _bytes(file: Path, limit: int = TEXT_LIMIT) -> bytes:
    try:
        return read_bytes(file, limit)
    except OSError as error:
        raise cannot_read(file, error) from None


def read_json(file: Path, remedy: str = FETCH) -> object:
    """Read a JSON file. If it is damaged, raise LocalspecError; the message ends in `remedy`."""
    try:
        content: object = parse_json(_bytes(file, JSON_LIMIT).decode())
    except ValueError as error:
        reason = (
            error.msg
            if isinstance(error, json.JSONDecodeError)
            else "not UTF-8 text"
            if isinstance(error, UnicodeDecodeError)
            else str(error)
        )
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise LocalspecError(f"{file}{line}: this is not JSON ({reason}); {remedy}.") from None
    return content


def _header(file: Path, remedy: str = FETCH) -> bytes:
    """Read the JSON header of a safetensors file. The first eight bytes of the file are the header's length."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 2 <= length <= min(size - 8, _HEADER_LIMIT):
                raise LocalspecError(
                    f"{file} is not a whole safetensors file (its header does not fit in {size} bytes); {remedy}."
                )
            return stream.read(length)
    except OSError as error:
        raise LocalspecError(
            f"{file} cannot be read ({error.strerror}); check the file and its permissions, then try again."
        ) from None


def _samples(file: Path, start: int) -> bytes:
    """Read evenly spaced pieces of a file after `start`."""
    size = file.stat().st_size - start
    with file.open("rb") as stream:
        pieces = []
        for piece in range(_SAMPLES):
            stream.seek(start + size * piece // _SAMPLES)
            pieces.append(stream.read(_SAMPLE_BYTES))
    return b"".join(pieces)


def tensor_headers(file: Path, remedy: str = FETCH) -> dict[str, Any]:
    """Return dtype, shape and data_offsets of each tensor in a safetensors file, by its name. Only the header is read.

    If the file is damaged or incomplete, raise LocalspecError; the message ends in `remedy`.
    """
    header = _header(file, remedy)
    present = file.stat().st_size - 8 - len(header)
    try:
        entries = parse_json(header)
        entries.pop("__metadata__", None)
        end = 0
        for entry in entries.values():
            first, last = entry["data_offsets"]
            sound = len(entry["shape"]) <= _MOST_DIMENSIONS and first <= last
            sound = sound and all(type(n) is int and n >= 0 for n in (first, last, *entry["shape"]))
            bits = _ITEM_BITS.get(entry["dtype"])
            if not sound or (bits and math.prod(entry["shape"]) * bits != (last - first) * 8):
                raise ValueError
            end = max(end, last)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise LocalspecError(f"{file} is not a safetensors file (its header is damaged); {remedy}.") from None
    if end != present:
        raise LocalspecError(f"{file} is cut short or damaged: {present} bytes of tensors instead of {end}; {remedy}.")
    tensors: dict[str, Any] = entries
    return tensors


def tensor_start(file: Path) -> int:
    """Return the position in a safetensors file from which data_offsets count.

    Raises the errors of `tensor_headers`.
    """
    return 8 + len(_header(file))


def license_of(path: Path) -> str | None:
    """Return the license that the front matter of a model's README.md names, or else the name of a license file.

    For a packed file, return the license that is stored in it.
    """
    if is_packed(path):
        stored = packed_file.peek(path)[0].header.origin.license
        return stored[:LONGEST_LICENSE] if stored else None
    try:
        front = re.match(r"---\r?\n(.*?)\r?\n---", read_bytes(path / "README.md").decode("utf-8", "replace"), re.DOTALL)
    except OSError:
        front = None
    lines = re.findall(r"^(license|license_name):[ \t]*[\"']?([^\"'\r\n#]+)", front[1] if front else "", re.MULTILINE)
    fields: dict[str, str] = dict(lines)
    chosen = fields.get("license", "").strip()
    if chosen == "other":
        chosen = fields.get("license_name", chosen).strip()
    if chosen:
        return chosen[:LONGEST_LICENSE]
    try:
        files = sorted(entry.name for entry in path.iterdir() if re.match(r"(?i)licen[cs]e|copying", entry.name))
    except OSError:
        return None
    return f"see {files[0]}" if files else None


TEXTS = ("config.json", "generation_config.json", *TOKENIZER_FILES)


def read_texts(path: Path) -> dict[str, bytes]:
    """Return a model's text files (configuration, tokenizer, …) by name. Raises LocalspecError for an unreadable
    one."""
    return {name: _text(path / name) for name in TEXTS if (path / name).is_file()}


def _text(file: Path) -> bytes:
    try:
        return read_bytes(file)
    except OSError as error:
        raise LocalspecError(
            f"{file} cannot be read ({error.strerror}); check the file and its permissions, then try again."
        ) from None
