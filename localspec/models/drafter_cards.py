"""Finds trained drafters by name or directory, and describes each by a `DrafterCard`. No weights are loaded."""

import hashlib
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.environment import home
from localspec.errors import LocalspecError, NotHere, UsageMistake, cannot_read
from localspec.families.gemma4 import GEMMA4, UNIFIED
from localspec.families.table import FAMILIES, text_config
from localspec.hub.cache import find_snapshot
from localspec.models.drafter_kinds import TABLE, WEIGHTS, Takes, kind_of, kinds
from localspec.models.registry import TargetCard
from localspec.models.shape import Shape
from localspec.models.target_map import target_map
from localspec.paths import Paths
from localspec.weights.checkpoint import inspect, is_packed, read_config, read_json, tensor_headers, weight_files
from localspec.weights.fingerprint import Identity
from localspec.weights.packed_file import read

MTP = "mtp"  # the kind of drafter that it is
PREFIX = "mtp."  # of its tensors in safetensors


_OF_GEMMA4 = {*GEMMA4.classes, *UNIFIED.classes}


def comes_with_mtp(architecture: str | None) -> bool:
    """Return whether models of this architecture are published with an MTP layer."""
    return any(family.ahead and architecture in family.classes for family in FAMILIES.values())


def check_family(kind: str, architecture: str | None, model: str) -> None:
    """Raise UsageMistake for a kind of drafter that is made for another family. An architecture of None means
    unknown."""
    if architecture is None:
        return
    if kind == MTP and not comes_with_mtp(architecture):
        raise UsageMistake(
            f"'{kind}' works only with models that have an MTP layer (Qwen3.5), and {model} is {architecture}; use "
            "another drafter."
        )
    if kind == "assistant" and architecture not in _OF_GEMMA4:
        raise UsageMistake(f"'{kind}' drafts only for Gemma 4, and {model} is {architecture}; use another drafter.")


def accepted_kinds(card: TargetCard, *takes: Takes, shape: Shape | None = None) -> tuple[str, ...]:
    """Return the names of the kinds of drafters that suit a model's layers, family and files.

    With `takes`, such as "weights", return only kinds that need these. Unknown properties of a model exclude no kind.
    """
    architecture, published = (card.entry.architecture, card.entry.shape) if card.entry else (None, None)
    with suppress(LocalspecError):
        if card.here:
            checkpoint = inspect(card.path)
            architecture, published = checkpoint.architecture, Shape.of(checkpoint.config)
    shape = shape or published
    names = kinds(*takes) if shape is None else [name for name in kinds(*takes) if kind_of(name).drafts_for(shape)]
    return tuple(name for name in names if _suits(name, architecture, card))


def _suits(kind: str, architecture: str | None, card: TargetCard) -> bool:
    """Return whether a kind of drafter suits a model's family, and for `mtp` whether the files have an MTP layer."""
    try:
        check_family(kind, architecture, card.name)
        if kind == MTP and card.here and architecture is not None:
            mtp_layer(card.path)
    except LocalspecError:
        return False
    return True


FORMAT = 1  # of drafter.json
DIGEST = "sha256"  # of the weights' file, in drafter.json
RANKS = 10  # candidates by rank whose accuracy is stored
ACCEPTANCE = ("acceptance", "acceptance_elsewhere")  # on text like the training text, and on all kinds
RIGHT_AFTER_RIGHT = "right_after_right"  # on held-out text, by depth: the first guess, given all before it were right
BY_ROWS = ("masks", "embedding")  # embedding tensors, which are read by rows and not multiplied
PACKAGE = Path(__file__).parents[1]  # localspec, as it is installed
SHIPPED = PACKAGE / "trained"  # drafters for published models that come with localspec
# Matrices in int4 are stored as bytes of two numbers (type U8 of safetensors). GROUP numbers of a row share a factor,
# which is in a tensor whose name ends in FACTORS.
GROUP, FACTORS, INT4 = 64, ".factors", "U8"
TRAIN_AGAIN = "train the drafter again"  # a drafter from `train` cannot be fetched


@dataclass(frozen=True)
class DrafterCard:
    """A description of a trained drafter, read from its drafter.json."""

    kind: str
    path: Path
    options: Mapping[str, Any]
    revision: str  # of its target; empty if any target with its tokenizer will do
    target: str  # the name of that target
    parameters: int
    bytes: int
    about: Mapping[str, Any]  # the rest of drafter.json
    others: int = 0  # parameters outside of matrices
    weights: str = ""  # the fingerprint of that target's weights; empty in a drafter of an earlier version
    inner: int = 0  # channels of the target's inner states that it reads; a forward returns this many per row

    @property
    def shipped(self) -> bool:
        """Whether the drafter comes with localspec, for a published model."""
        return SHIPPED in self.path.parents

    @property
    def generated(self) -> tuple[float, int] | None:
        """The (acceptance length, nodes per tree) measured on text that the target generated; None if not measured.

        After training, two kinds of text are measured: text like the training text, and replies to prompts of all
        kinds. The smaller length is returned, because later prompts are unknown.
        """
        measurements = [measurement for name in ACCEPTANCE if (measurement := self.about.get(name)) is not None]
        lengths = [(float(measurement["length"]), int(measurement["nodes"])) for measurement in measurements]
        return min(lengths, default=None)

    @property
    def right_after_right(self) -> list[float]:
        """For each depth of a draft, how often the first guess was right if all earlier ones were; empty if unknown.

        In contrast, `accuracy_by_depth` also counts guesses that follow a wrong one.
        """
        rates = self.about.get(RIGHT_AFTER_RIGHT)
        return [float(rate) for rate in rates] if rates and _are_accuracies([rates]) else []


def remedy(file: Path) -> str:
    """Return a clause that says what to do about a damaged file of a drafter."""
    shipped = PACKAGE in file.parents
    return "the installation is damaged, so install localspec again" if shipped else TRAIN_AGAIN


def stored_shape(header: Mapping[str, Any]) -> tuple[int, ...]:
    """Return a tensor's shape from its `header` in a drafter. An int4 row has twice as many weights as stored bytes."""
    shape = tuple(header["shape"])
    return (*shape[:-1], 2 * shape[-1]) if header["dtype"] == INT4 and shape else shape


def find_drafter(name: str, card: TargetCard, paths: Paths | None = None) -> DrafterCard:
    """Return a model's trained drafter. `name` is a kind of drafters, such as eagle3, or a directory.

    For a kind, the user's own drafters come first, the newest before older ones, then a drafter that came with the
    model. Damaged drafters are skipped, and drafters without a gain in the benchmark after their training. Raises
    NotHere if there is no drafter, UsageMistake for a drafter of another model or family, and LocalspecError for a
    damaged drafter.
    """
    if name in kinds(*WEIGHTS):
        error = None
        for drafter in (drafter for kind, drafter in _drafters_here(card, paths) if kind in (name, None)):
            if isinstance(drafter, DrafterCard):
                return drafter
            error = error or drafter
        if card.here:
            check_family(name, inspect(card.path).architecture, card.name)
        if error:
            raise error
        if card.entry and any(published.kind == name and published.source for published in card.entry.drafters):
            raise NotHere(
                f"The drafter '{name}' of {card.name} is not here; fetch it with `localspec pull {card.name} --drafter "
                f"{name}`."
            )
        if name in kinds("published"):
            raise NotHere(
                f"There is no drafter '{name}' for {card.name} here, and localspec cannot train one; fetch a "
                "published one with `localspec pull ORG/REPOSITORY`, or use another."
            )
        raise NotHere(
            f"There is no drafter '{name}' for {card.name} here; train one with `localspec train {name} -m "
            f"{card.name if card.entry else shlex.quote(str(card.path))}`."
        )
    named = read_drafter(Path(os.path.abspath(os.path.expanduser(name))), card)
    if named.revision and not (identity := Identity(card.path)).owns(named.weights, named.revision):
        made_for, actual = (named.weights, identity.weights) if named.weights else (named.revision, identity.revision)
        raise UsageMistake(
            f"The drafter in {named.path} was made for {named.target} in version {made_for[:12]}, but {card.name} is "
            f"version {actual[:12]}; name the model it was made for, or train a drafter for this one."
        )
    return named


def trained_drafters(card: TargetCard, paths: Paths | None = None) -> list[DrafterCard]:
    """Return the trained drafters for a model: one of each kind, the same as `find_drafter` returns."""
    drafters: dict[str, DrafterCard] = {}
    for _, drafter in _drafters_here(card, paths):
        if isinstance(drafter, DrafterCard):
            drafters.setdefault(drafter.kind, drafter)
    return [drafters[kind] for kind in sorted(drafters)]


def damaged_drafters(card: TargetCard, paths: Paths | None = None) -> list[str]:
    """Return a sentence for each trained drafter of a model that is left out because it cannot be read."""
    sentences = []
    for path, content in drafter_directories(card, paths):
        if content.get("kept", True) is not False and isinstance(error := _read(path), LocalspecError):
            sentences.append(f"A drafter of {card.name} cannot be used. {error}")
    return sentences


def _read(path: Path) -> DrafterCard | LocalspecError:
    try:
        return read_drafter(path)
    except LocalspecError as error:
        return error


def _drafters_here(card: TargetCard, paths: Paths | None) -> Iterator[tuple[object, DrafterCard | LocalspecError]]:
    """Yield (kind, drafter) for each of a model's drafters, the preferred first; (kind, error) if it is unusable.

    The kind is None for a drafter that came with localspec and has a damaged drafter.json.
    """
    for path, content in drafter_directories(card, paths):
        if content.get("kept", True) is not False:
            yield content.get("kind"), _read(path)
            continue
        reason = "the bench after its training found it too slow"
        reason = reason if "bench" in content else "its speed has not been measured yet"
        yield (
            content.get("kind"),
            NotHere(
                f"The drafter in {path} is not used unless you name it, because {reason}; give --drafter "
                f"{shlex.quote(str(path))} to use it."
            ),
        )
    for published in card.entry.drafters if card.entry else ():
        # A small model drafts as published; other published drafters were converted when they were fetched.
        if (
            kind_of(published.kind).mask_key
            and published.source
            and (snapshot := find_snapshot(published.source, paths or Paths(home())))
        ):
            yield published.kind, _read(snapshot)
    if not card.here:
        return
    try:
        yield MTP, mtp_layer(card.path, card.name)
    except LocalspecError as error:  # in most models: there is none
        yield MTP, error


def drafter_directories(card: TargetCard, paths: Paths | None = None) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield (directory, content of drafter.json) for each drafter that was trained for a model, the preferred first.

    A drafter with a damaged drafter.json is left out, because its model is unknown. For a drafter that came with
    localspec, the directory names the model, so its content is yielded as {}.
    """
    folder = (paths or Paths(home())).drafters
    trained = [file.parent for file in folder.glob("*/drafter/drafter.json")] if folder.is_dir() else []
    trained.sort(key=lambda path: (path / "drafter.json").stat().st_mtime, reverse=True)
    next_to_model = [card.path / "drafters" / kind for kind in kinds("weights")]
    next_to_model = [path for path in next_to_model if (path / "drafter.json").is_file()]
    shipped = sorted({file.parent for file in SHIPPED.glob("*/drafter.*")})  # also with one of its two files
    identity = Identity(card.path) if card.here else None  # weights that are not here have no fingerprint
    for path in (*trained, *next_to_model, *shipped):
        try:
            content = _content(path / "drafter.json")
        except LocalspecError:
            if path.parent == SHIPPED and _is_shipped_for(path, {"name": path.name}, card):
                yield path, {}
            continue
        target = content.get("target")
        if isinstance(target, dict) and (
            (identity and identity.owns(target.get("weights"), target.get("revision")))
            or _is_shipped_for(path, target, card)
        ):
            yield path, content


def _is_shipped_for(path: Path, target: Mapping[str, Any], card: TargetCard) -> bool:
    """Return whether the drafter in `path` came with localspec, for the model that `card` has in models.toml.

    Only the model's name is compared. Published forms of a model round its weights differently, and the drafter's
    accuracy was not measured with all of them.
    """
    entry = card.entry
    return SHIPPED in path.parents and entry is not None and not entry.path and entry.name == target.get("name")


def read_drafter(path: Path, card: TargetCard | None = None) -> DrafterCard:
    """Describe the drafter in a directory that `train` wrote, or in its subdirectory `drafter`.

    A small language model whose config.json names a mask token is a drafter too (PARD). Raises NotHere, with the kinds
    that the model of `card` accepts, if there is no drafter, and LocalspecError if the drafter is damaged.
    """
    if not (path / "drafter.json").is_file() and (path / "config.json").is_file():
        config = read_config(path)
        for row in TABLE:
            if row.mask_key and isinstance(config.get(row.mask_key), int):
                checkpoint, map_ = inspect(path), target_map(config, path)
                if map_ is None:
                    return DrafterCard(row.name, path, {}, "", "", checkpoint.parameters, checkpoint.bytes, config)
                parameters, size = checkpoint.parameters + map_.parameters, checkpoint.bytes + map_.file.stat().st_size
                return DrafterCard(row.name, path, {}, "", "", parameters, size, config, inner=map_.states)
    if not (path / "drafter.json").is_file() and (path / "drafter" / "drafter.json").is_file():
        path = path / "drafter"
    file = path / "drafter.json"
    if not file.is_file() and SHIPPED in file.parents:
        raise LocalspecError(f"{file} is missing; {remedy(file)}.")
    if not file.is_file():
        possible = kinds("weights") if card is None else accepted_kinds(card, "weights")
        raise NotHere(
            f"{path} has no drafter.json, so it is not a trained drafter; give a directory that `localspec train` "
            f"wrote, a kind ({', '.join(possible)}), or draft_model:MODEL for a small model."
        )
    content = _content(file)
    kind, options, target = content.get("kind"), content.get("options"), content.get("target")
    if kind not in kinds(*WEIGHTS) or not isinstance(options, dict) or not isinstance(target, dict):
        raise LocalspecError(f"The keys kind, options and target in {file} are not all valid; {remedy(file)}.")
    version = content.get("format")
    if type(version) is not int or version != FORMAT:  # True is 1, too
        raise LocalspecError(
            f"{file} is of format {version!r}, but this version of localspec reads format {FORMAT}; use the version "
            "that wrote the file."
        )
    if not _are_accuracies(content.get("accuracy_by_depth", [])):
        raise LocalspecError(
            f"accuracy_by_depth in {file} does not list numbers from 0 to 1 for each depth; {remedy(file)}."
        )
    if wrong := [name for name in ACCEPTANCE if not _is_acceptance(content.get(name))]:
        raise LocalspecError(f"The table {wrong[0]} in {file} lacks a valid length or nodes; {remedy(file)}.")
    weights = path / "drafter.safetensors"
    if not weights.is_file():
        raise NotHere(f"{path} lacks drafter.safetensors; {remedy(file)}.")
    headers = {
        name: header for name, header in tensor_headers(weights, remedy(file)).items() if not name.endswith(FACTORS)
    }
    shapes = {name: stored_shape(header) for name, header in headers.items()}
    parameters = sum(map(math.prod, shapes.values()))
    others = sum(
        math.prod(shape)
        for name, shape in shapes.items()
        if len(shape) < 2 or name in BY_ROWS or name.endswith(".bias")
    )
    made_for, name = str(target.get("revision", "")), str(target.get("name", "another model"))
    inner = shapes.get(kind_of(kind).states_in, ())[-1:]
    size = weights.stat().st_size
    weights_of = str(target.get("weights") or "")
    return DrafterCard(kind, path, options, made_for, name, parameters, size, content, others, weights_of, *inner)


def mtp_layer(path: Path, target: str = "") -> DrafterCard:
    """Describe the layer for multi-token prediction (MTP) in a model's files. `target` is the model's name.

    Raises NotHere if the files have no such layer, and LocalspecError if the layer's arithmetic is unknown.
    """
    if is_packed(path):
        parts = [part for group in read(path).header.ahead.values() for part in group]
        shapes, stored_bytes = [part.shape for part in parts], sum(part.bytes for part in parts)
    else:
        config = text_config(read_config(path))
        family = FAMILIES.get(str(config.get("model_type")))
        entries: dict[str, Any] = {}
        for file in weight_files(path) if family and family.ahead else ():
            entries |= {name: header for name, header in tensor_headers(file).items() if name.startswith(PREFIX)}
        layers, separate = config.get("mtp_num_hidden_layers", 1), config.get("mtp_use_dedicated_embeddings")
        if entries and (layers != 1 or separate):
            feature = "a separate embedding" if layers == 1 else f"mtp_num_hidden_layers = {layers!r}"
            raise LocalspecError(
                f"{path / 'config.json'} describes an MTP layer with {feature}, but localspec computes only a single "
                "layer that uses the model's embedding; use another drafter."
            )
        shapes = [entry["shape"] for entry in entries.values()]
        stored_bytes = sum(last - first for first, last in (entry["data_offsets"] for entry in entries.values()))
    if not shapes:
        raise NotHere(
            f"The files in {path} have no MTP layer ({PREFIX}*), which Qwen3.5 is published with; fetch them from the "
            "publisher, or use another drafter."
        )
    others = sum(math.prod(shape) for shape in shapes if len(shape) < 2)
    return DrafterCard(MTP, path, {}, "", target, sum(map(math.prod, shapes)), stored_bytes, {}, others)


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file of weights. Raises LocalspecError if it cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise cannot_read(file, error) from error


def _content(file: Path) -> dict[str, Any]:
    """Return the content of a drafter.json; {} if the file holds no JSON object."""
    content = read_json(file, remedy(file))
    return content if isinstance(content, dict) else {}


def _are_accuracies(content: object) -> bool:
    """Return whether a value of drafter.json is a list [depth][rank] of rates from 0 to 1."""
    return isinstance(content, list) and all(
        isinstance(level, list) and level and all(type(rate) in (int, float) and 0 <= rate <= 1 for rate in level)
        for level in content
    )


def _is_acceptance(content: object) -> bool:
    """Return whether a value of drafter.json is None, or an acceptance `length` with the `nodes` of its trees."""
    if not isinstance(content, dict):
        return content is None
    length, nodes = content.get("length"), content.get("nodes")
    return type(nodes) is int and isinstance(length, int | float) and nodes >= 1 and 1 <= length <= nodes + 1
