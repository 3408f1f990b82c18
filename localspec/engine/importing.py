"""GGUF files become models that are kept here: packed once, and then as quick to load as any."""

import hashlib
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.config import Settings
from localspec.environment import home
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.events import Reporter
from localspec.machine import compiled
from localspec.machine.machine import this_machine
from localspec.models import registry
from localspec.models.imported import import_of, imports, is_gguf, new_name
from localspec.models.names import full_name
from localspec.models.only_copies import move_only_copies
from localspec.models.other_programs import ollama_name
from localspec.models.packed_files import FILED
from localspec.models.registry import TargetCard
from localspec.models.shape import Shape
from localspec.packed_file import Origin, PackedFile, read
from localspec.paths import Paths
from localspec.policy.kept_packing import LOSSLESS, kept_packing
from localspec.policy.measurements import NoMeasurements
from localspec.quantities import size

if TYPE_CHECKING:
    from localspec.gguf.model import GgufModel


@dataclass(frozen=True)
class Imported:
    """A GGUF file is a model of this name now; `new` says whether it had to be packed for that, in `seconds`."""

    name: str
    path: Path
    packing: str
    parameters: int
    bytes: int
    license: str | None
    file_bytes: int
    types: tuple[str, ...]  # of the file's weights
    new: bool
    seconds: float


def import_gguf(
    file: Path,
    settings: Settings,
    reporter: Reporter,
    origin: Origin | None = None,
    texts: Mapping[str, bytes] | None = None,
) -> Imported:
    """Packs a model in GGUF, unless it was done before, in the packing that is asked for or suits this machine.

    `origin` names the repository that it was fetched from; without one it is named by its file. `texts` are the model's
    own, in place of those in the file. Raises UsageMistake for what cannot be had, NotHere, DoesNotFit and
    LocalspecError for a file that cannot be read or computed, or whose tokenizer or chat template cannot be used.
    """
    began, paths, file = time.perf_counter(), Paths(home()), Path(os.path.abspath(file))
    move_only_copies(paths, reporter)
    asked = asked_packing(settings)
    if file.exists() and not file.is_file():
        what = "a directory" if file.is_dir() else "no regular file"
        raise UsageMistake(f"{str(file)!r} is {what}; give a GGUF file.")
    if not file.is_file():
        raise NotHere(f"There is no file {str(file)!r}; give a GGUF file that is on this machine.")
    if re.search("[\ud800-\udfff]", str(file)):
        raise LocalspecError(f"The name of {str(file)!r} is not UTF-8, and so cannot be kept; rename it.")
    from localspec.gguf.model import GgufModel  # numpy

    reporter.progress(f"reading {file.name}")

    def show(done: int, total: int) -> None:
        reporter.progress(f"reading {file.name}: {done / max(total, 1):.0%}")

    former = import_of(file, paths, asked, show) if origin is None else None
    model, threads = GgufModel.open(file, texts), this_machine().cores
    if former and all(_holds(former, name, content) for name, content in model.texts.items()):
        return _imported(former, model, False, time.perf_counter() - began)
    from localspec.native.gguf_pack import pack_gguf

    model.chat.require_template()
    if former:
        reporter.notice(f"{file} was imported by a version that read its metadata in another way; it is packed again.")
    files = [part.path for part in model.parts]
    shape = Shape.of(model.config.content)  # before the files are read
    digests = registry.file_digests(files, paths, show)
    same = import_of(file, paths) if origin is None else None  # in another packing, perhaps of where the file lay then
    places = {part.path.name if origin else str(part.path): part for part in model.parts}
    if origin is None:
        taken = registry.cards(paths).keys() - imports(paths).keys()
        listed = registry.listed_as(digests.values(), paths)
        names = (old for old, now in registry.renamed(paths).items() if now == listed)  # phrases have the former name
        name = next(names, listed) or new_name(file, digests[files[0].name], taken, paths, ollama_name(file))
        origin = same.header.origin if same else Origin(name, "")
    if origin.files:  # an earlier version may have recognised the same file otherwise
        digests = {file.name: digest for file, digest in zip(files, _digests_of(origin), strict=True)}
    revision = hashlib.sha256("".join(digests[file.name] for file in files).encode())
    for name, content in sorted(model.texts.items()):
        revision.update(f"{name} {len(content)}\n".encode() + content)
    origin = replace(
        origin,
        revision=revision.hexdigest()[:40],
        license=model.license() or origin.license,
        files=origin.files or {place: (part.bytes, digests[part.path.name]) for place, part in places.items()},
        weights=model.weights,
    )
    before = [name for name, one in imports(paths).items() if _is_older(one.header.origin, origin)]
    if before:
        former_names, remove = ", ".join(before), before[0] if len(before) == 1 else "NAME"
        reporter.notice(
            f"{file} has changed since it was imported as {former_names}, which stays until `localspec rm {remove}`."
        )
    for sentence in model.notices():
        reporter.notice(sentence)
    packing = asked or _suitable(origin, shape, settings)
    packed = pack_gguf(model, packing, origin, threads, reporter, paths)
    if former and former.header.packing == packing and former.path != packed:
        with suppress(OSError):
            former.path.unlink(missing_ok=True)
    return _imported(read(packed), model, True, time.perf_counter() - began)


def _digests_of(origin: Origin) -> list[str]:
    """Return the digests of an import's files, in the order of its parts."""
    return [digest for _, (_, digest) in sorted(origin.files.items())]


def _is_older(held: Origin, origin: Origin) -> bool:
    """Return whether a model was imported from the same files with another content."""
    return held.files.keys() == origin.files.keys() and held.files != origin.files


def _holds(packed: PackedFile, name: str, content: bytes) -> bool:
    """Return whether a packed file has this text of its model."""
    return name in packed.header.texts and packed.text(name) == content


def ready(name: str, settings: Settings, reporter: Reporter) -> TargetCard:
    """The model that a name means; a GGUF file is imported if it never was, or has changed.

    Raises what `resolve` and `import_gguf` raise.
    """
    name = full_name(name)
    file = Path(os.path.expanduser(name)) if name and "\0" not in name else None
    if file is None or name in registry.cards() or not is_gguf(file):
        return registry.resolve(name)
    if import_of(file, Paths(home()), asked_packing(settings)) is None:
        done = import_gguf(file, settings, reporter)
        reporter.notice(f"{name} was imported as {done.name}; {size(done.bytes)} are kept in {done.packing}.")
    return registry.resolve(name)


def asked_packing(settings: Settings) -> str | None:
    """The packing that the settings name; None leaves it open.

    Raises UsageMistake for what a GGUF file cannot have, LocalspecError where the CPU engine is missing.
    """
    if missing := compiled.missing():
        raise LocalspecError(f"A GGUF file serves the CPU engine alone, and {missing}.")
    if settings.device not in ("auto", "cpu"):
        raise UsageMistake(
            f"A GGUF file serves the CPU engine alone, and {settings.shown('device')} is asked for; leave it out, or "
            "fetch the model's own weights with `localspec pull`."
        )
    asked: str = settings.dtype if settings.quantize == "auto" else settings.quantize  # as `run` understands them
    if asked not in ("auto", *FILED):
        raise UsageMistake(
            f"A GGUF file is kept in {' or '.join(FILED)}, and weights in {asked} are asked for; give --quantize with "
            "one of these, or leave it out."
        )
    return None if asked == "auto" else asked


def _suitable(origin: Origin, shape: Shape | None, settings: Settings) -> str:
    found = None
    if shape is not None:
        found = kept_packing(origin.name, origin.license, shape, settings, this_machine(), NoMeasurements())
    return found or LOSSLESS


def _imported(packed: PackedFile, model: "GgufModel", new: bool, seconds: float) -> Imported:
    header = packed.header
    card = registry.find(header.origin.name)
    name = card.name if card else header.origin.name
    return Imported(
        name, packed.path, header.packing, header.parameters, packed.path.stat().st_size,
        header.origin.license, model.size, model.types, new, seconds,
    )  # fmt: skip
