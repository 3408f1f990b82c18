"""GGUF files become models that are read from them: registered once, and then as quick to load as any."""

import hashlib
import os
import re
import time
from collections.abc import Mapping, Sequence
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
from localspec.models.fingerprint import fingerprints
from localspec.models.imported import import_of, imports, is_gguf, new_name, registrations
from localspec.models.names import full_name
from localspec.models.only_copies import move_only_copies
from localspec.models.other_programs import ollama_name
from localspec.models.packed_files import FILED, packed_in
from localspec.models.registry import TargetCard
from localspec.models.tokenizer_trial import child_at_hand
from localspec.packed_file import BLOCKS, Header, Origin, PackedFile, forms, read
from localspec.paths import Paths
from localspec.quantities import size

if TYPE_CHECKING:
    from localspec.gguf.model import GgufModel


@dataclass(frozen=True)
class Imported:
    """A GGUF file is a model of this name now; `new` says whether it was not yet, and `seconds` how long it took.

    `path` is its registration, or its packed file if a packing was asked for; `bytes` are those of its weights.
    """

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

    @property
    def bits(self) -> float:
        """Bits that a weight takes, on average."""
        return 8 * self.bytes / max(self.parameters, 1)


def import_gguf(file: Path, settings: Settings, reporter: Reporter) -> Imported:
    """Register a GGUF file as a model that is read from it, and pack it if a packing is asked for.

    Raises UsageMistake for what cannot be had, NotHere, DoesNotFit and LocalspecError for a file that cannot be read or
    computed, or whose tokenizer or chat template cannot be used.
    """
    began, paths = time.perf_counter(), Paths(home())
    asked = asked_packing(settings)
    found, model, new = _register(file, asked or BLOCKS, reporter, paths)
    return _imported(found, model, new, began, reporter, paths)


def _imported(
    found: PackedFile, model: "GgufModel", new: bool, began: float, reporter: Reporter, paths: Paths
) -> Imported:
    """Pack a registered model if a packing answers, and describe it."""
    path, packing, held = found.path, found.header.answers, found.header.weight_bytes
    if packing != BLOCKS:
        from localspec.native.gguf_pack import gguf_source
        from localspec.native.packed_cache import pack_gguf

        threads, known = this_machine().cores, forms(path).get(packing)
        if known and not _holds_all(read(known), model):
            known.unlink()
            known = None
        if known and read(known).header.outdated:
            known = None
        path = known or pack_gguf(gguf_source(model), packing, found.header.origin, threads, reporter, paths)
        held = path.stat().st_size
    origin = found.header.origin
    card = registry.find(origin.name)
    return Imported(
        card.name if card else origin.name, path, packing, found.header.parameters, held, origin.license, model.size,
        model.types, new, time.perf_counter() - began,
    )  # fmt: skip


@child_at_hand()
def _register(file: Path, answers: str, reporter: Reporter, paths: Paths) -> tuple[PackedFile, "GgufModel", bool]:
    """Register a file, unless that was done before. Returns its registration, and whether it is new.

    `answers` is the packing that answers by default. Raises what `import_gguf` raises.
    """
    from localspec.gguf.model import GgufModel  # numpy
    from localspec.native.gguf_pack import gguf_source, registration
    from localspec.native.packed_cache import register

    file = _checked(file)
    move_only_copies(paths, reporter)
    reporter.progress(f"reading {file.name}")

    def show(done: int, total: int) -> None:
        reporter.progress(f"reading {file.name}: {done / max(total, 1):.0%}")

    former, model = import_of(file, paths, progress=show), GgufModel.open(file)
    files = [part.path for part in model.parts]
    model.chat.require_template()
    same = former is not None and _holds_all(former, model)
    before = [one for one in registrations(paths) if [*one.header.origin.files] == [*map(str, files)]]
    changed = [one for one in before if former is None or one.path != former.path]
    if former and not same:
        reporter.notice(f"{file} was imported by a version that read its metadata in another way; it is read again.")
    digests, marks = registry.file_digests(files, paths, show), fingerprints(files)
    if former:
        origin = former.header.origin
    elif changed and not _has_copy(changed[0], paths):  # the weights that it had are nowhere any more
        origin = replace(changed[0].header.origin, license=None)
        reporter.notice(f"{file} has changed since it was imported; {origin.name} is now what the file holds.")
    else:
        origin = Origin(_name(file, files, digests, paths), "")
        _name_older(file, files, reporter, paths)
    held = {str(file): marks[file.name] for file in files}
    origin = replace(
        origin, revision=origin.revision if former else _revision(held, model.texts), files=held,
        weights=model.weights, license=model.license() or origin.license,
    )  # fmt: skip
    header, known = registration(gguf_source(model), origin, answers), former is not None and former.header.registered
    if not (same and known):
        for sentence in [*model.notices(), *_rounding(header)]:
            reporter.notice(sentence)
    _forget([*changed, *([former] if former and not same else [])], paths)
    written = read(register(header, model.texts, reporter, paths))
    for one in [*changed, *([former] if former and known else [])]:
        if one.path != written.path:
            one.path.unlink(missing_ok=True)
    return written, model, not (same and known)


def _rounding(header: Header) -> list[str]:
    """Return what to say of a registration with types that have no kernels."""
    from localspec.native.gguf_pack import rounded

    types = rounded(header)
    if not types or header.answers != BLOCKS:
        return []
    stored, becomes = " and ".join(sorted(types)), " and ".join(sorted({*types.values()}))
    return [
        f"There is no kernel for the weights of {header.origin.name} in {stored}; they are rounded to {becomes} once, "
        f"and the model takes {size(header.weight_bytes)} of memory."
    ]


def _has_copy(registered: PackedFile, paths: Paths) -> bool:
    """Return whether there is a packed file of a registered model that does not go with the cache."""
    others = (one.header for one in packed_in(paths.imports) if not one.header.registered)
    return any(other.origin.revision == registered.header.origin.revision for other in others)


def _forget(former: Sequence[PackedFile], paths: Paths) -> None:
    """Delete what was packed of the former contents of files, or with former texts, and can be made again."""
    revisions = {one.header.origin.revision for one in former}
    for one in packed_in(paths.packed):
        if one.header.origin.revision in revisions:
            with suppress(OSError):
                one.path.unlink(missing_ok=True)


def _checked(file: Path) -> Path:
    """Return the absolute path of a file. Raises UsageMistake, NotHere and LocalspecError for what cannot be one."""
    file = Path(os.path.abspath(file))
    if file.exists() and not file.is_file():
        what = "a directory" if file.is_dir() else "no regular file"
        raise UsageMistake(f"{str(file)!r} is {what}; give a GGUF file.")
    if not file.is_file():
        raise NotHere(f"There is no file {str(file)!r}; give a GGUF file that is on this machine.")
    if re.search("[\ud800-\udfff]", str(file)):
        raise LocalspecError(f"The name of {str(file)!r} is not UTF-8, and so cannot be kept; rename it.")
    return file


def _name(file: Path, files: Sequence[Path], digests: Mapping[str, str], paths: Paths) -> str:
    """Return the name of a model that is new: of the entry that lists its files, if there is one."""
    taken = registry.cards(paths).keys() - imports(paths).keys()
    listed = registry.listed_as(digests.values(), paths)
    names = (old for old, now in registry.renamed(paths).items() if now == listed)  # phrases have the former name
    return next(names, listed) or new_name(file, digests[files[0].name], taken, paths, ollama_name(file))


def _name_older(file: Path, files: Sequence[Path], reporter: Reporter, paths: Paths) -> None:
    """Say which models earlier versions packed from other contents of these files: they stay."""
    older = [name for name, one in imports(paths).items() if [*one.header.origin.files] == [*map(str, files)]]
    if older:
        former_names, remove = ", ".join(older), older[0] if len(older) == 1 else "NAME"
        reporter.notice(
            f"{file} has changed since it was imported as {former_names}, which stays until `localspec rm {remove}`."
        )


def _revision(files: Mapping[str, tuple[int, str]], texts: Mapping[str, bytes]) -> str:
    revision = hashlib.sha256("".join(digest for _, digest in files.values()).encode())
    for name, content in sorted(texts.items()):
        revision.update(f"{name} {len(content)}\n".encode() + content)
    return revision.hexdigest()[:40]


@child_at_hand()
def register_fetched(
    file: Path, settings: Settings, reporter: Reporter, origin: Origin, texts: Mapping[str, bytes] | None = None
) -> Imported:
    """Register a GGUF file that was fetched, and pack it if a packing is asked for.

    `texts` are the model's own, in place of those in the file. `origin` has the revision of what was made of the same
    file before, or none. Raises what `import_gguf` raises.
    """
    from localspec.gguf.model import GgufModel  # numpy
    from localspec.native.gguf_pack import gguf_source, registration
    from localspec.native.packed_cache import register

    began, paths, asked = time.perf_counter(), Paths(home()), asked_packing(settings)
    reporter.progress(f"reading {file.name}")
    model = GgufModel.open(file, texts)
    model.chat.require_template()
    files = [part.path for part in model.parts]
    marks = fingerprints(files)
    held = {str(part): marks[part.name] for part in files}
    origin = replace(
        origin, revision=origin.revision or _revision(held, {**model.texts, origin.repo: b""}), files=held,
        weights=model.weights, license=model.license() or origin.license,
    )  # fmt: skip
    header = registration(gguf_source(model), origin, asked or BLOCKS)
    for sentence in [*model.notices(), *_rounding(header)]:
        reporter.notice(sentence)
    found = read(register(header, model.texts, reporter, paths))
    return _imported(found, model, True, began, reporter, paths)


def _holds_all(packed: PackedFile, model: "GgufModel") -> bool:
    """Return whether a packed file or a registration has the texts of its model as they are read now."""
    texts = packed.header.texts
    return all(name in texts and packed.text(name) == content for name, content in model.texts.items())


def ready(name: str, settings: Settings, reporter: Reporter) -> TargetCard:
    """The model that a name means; a GGUF file is registered if it never was, or has changed or moved.

    Raises what `resolve` and `import_gguf` raise.
    """
    name = full_name(name)
    file = Path(os.path.expanduser(name)) if name and "\0" not in name else None
    if file is None or name in registry.cards() or not is_gguf(file):
        return registry.resolve(name)
    _need_cpu(settings)
    paths = Paths(home())
    known = import_of(file, paths)
    if known is None or not known.header.registered or known.header.missing:
        moved = known is not None and known.header.registered
        answers = known.header.answers if known else BLOCKS
        registered, model, _ = _register(file, answers, reporter, paths)
        model.chat.tokenizer.hand_on()
        header = registered.header
        if not moved:
            held = size(header.weight_bytes) if header.answers == BLOCKS else f"packed in {header.answers}"
            reporter.notice(
                f"{name} was imported as {header.origin.name}: {held}, read from {file}, which must stay there."
            )
    return registry.resolve(name)


def _need_cpu(settings: Settings) -> None:
    """Raise UsageMistake where another device is asked for, LocalspecError where the CPU engine is missing."""
    if missing := compiled.missing():
        raise LocalspecError(f"A GGUF file serves the CPU engine alone, and {missing}.")
    if settings.device not in ("auto", "cpu"):
        raise UsageMistake(
            f"A GGUF file serves the CPU engine alone, and {settings.shown('device')} is asked for; leave it out, or "
            "fetch the model's own weights with `localspec pull`."
        )


def asked_packing(settings: Settings) -> str | None:
    """The packing that the settings name; None leaves it open.

    Raises UsageMistake for what a GGUF file cannot be packed in, and what `_need_cpu` raises.
    """
    _need_cpu(settings)
    asked: str = settings.dtype if settings.quantize == "auto" else settings.quantize  # as `run` understands them
    if asked not in ("auto", *FILED):
        raise UsageMistake(
            f"A GGUF file is packed in {' or '.join(FILED)}, and weights in {asked} are asked for; give --quantize "
            "with one of these, or leave it out."
        )
    return None if asked == "auto" else asked
