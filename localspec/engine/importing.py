"""Imports GGUF files: registers a file as a model, whose weights are then read from that file."""

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
from localspec.models.names import full_name
from localspec.models.only_copies import move_only_copies
from localspec.models.registry import TargetCard
from localspec.models.tokenizer_trial import child_at_hand
from localspec.paths import Paths, free_disk
from localspec.quantities import counted, distinct, size
from localspec.weights.fingerprint import changed_since_read, fingerprints
from localspec.weights.packed_file import BLOCKS, Header, Origin, PackedFile, forms, of_same_weights, read
from localspec.weights.packed_files import (
    FILED,
    import_of,
    imports,
    is_gguf,
    new_name,
    ollama_name,
    packed_in,
    parts_of,
)

if TYPE_CHECKING:
    from localspec.models.chat_tokenizer import ChatTokenizer
    from localspec.weights.gguf_model import GgufModel


@dataclass(frozen=True)
class Imported:
    """The result of an import: the name of the model in a GGUF file. `new` says whether it was registered only now.

    `path` is the registration of the model, or its packed file if a packing was requested; `bytes` is the size of its
    weights. `read_from` is the GGUF file that the model is read from, or its first part.
    """

    name: str
    path: Path
    read_from: Path
    packing: str
    parameters: int
    stored_weights: int
    bytes: int
    license: str | None
    file_bytes: int
    types: tuple[str, ...]  # of the file's weights
    new: bool
    seconds: float

    @property
    def bits(self) -> float:
        """Average bits per weight."""
        return 8 * self.bytes / max(self.stored_weights, 1)


def import_gguf(
    file: Path,
    settings: Settings,
    reporter: Reporter,
    origin: Origin | None = None,
    texts: Mapping[str, bytes] | None = None,
) -> Imported:
    """Register a GGUF file as a model. Its weights are read from the file, or packed if a packing is requested.

    `origin` is the source of a fetched file, with the revision of the file's earlier import, if any. `texts` are the
    publisher's texts, which replace the texts in the file.

    Raises UsageMistake for an impossible packing, NotHere, DoesNotFit, and LocalspecError for a file that cannot be
    read or is not supported, or whose tokenizer or chat template cannot be used.
    """
    began, paths = time.perf_counter(), Paths(home())
    registered, model, new = _register(file, named_packing(settings) or BLOCKS, reporter, paths, origin, texts)
    path, packing, nbytes = registered.path, registered.header.default_packing, registered.header.weight_bytes
    origin = registered.header.origin
    if packing != BLOCKS:
        from localspec.weights.gguf_weights import gguf_source
        from localspec.weights.opening import pack_gguf

        packed = forms(path).get(packing)
        if packed and not _holds_all(read(packed), model):
            packed.unlink()
            packed = None
        path = packed or pack_gguf(gguf_source(model), packing, origin, this_machine().cores, reporter, paths)
        nbytes = path.stat().st_size
    card = registry.find(origin.name)
    read_from = file if os.path.abspath(file) in origin.files else Path(next(iter(origin.files)))
    return Imported(
        card.name if card else origin.name, path, read_from, packing, registered.header.parameters,
        registered.header.stored_weights, nbytes, origin.license, model.size, model.types, new,
        time.perf_counter() - began,
    )  # fmt: skip


@child_at_hand()
def _register(
    file: Path,
    packing: str,
    reporter: Reporter,
    paths: Paths,
    origin: Origin | None = None,
    texts: Mapping[str, bytes] | None = None,
) -> tuple[PackedFile, "GgufModel", bool]:
    """Register a file, unless that was done before. Return the registration, the model, and whether it is new.

    `packing` is the packing in which the model answers by default. Raises the errors of `import_gguf`.
    """
    from localspec.weights.gguf_model import GgufModel  # numpy
    from localspec.weights.gguf_weights import gguf_source, registration
    from localspec.weights.opening import register

    file = _checked(file)
    move_only_copies(paths, reporter)
    reporter.progress(f"reading {file.name}")

    def show(done: int, total: int) -> None:
        reporter.progress(f"reading {file.name}: {done / max(total, 1):.0%}")

    former, model = None if origin else import_of(file, paths, show), GgufModel.open(file, texts)
    files = [part.path for part in model.parts]
    chat = _chat_of(model)
    marks = fingerprints(files)
    marked = {str(part): marks[part.name] for part in files}
    digests = {} if origin else registry.file_digests(files, paths, show)
    if former:
        origin = former.header.origin
    elif origin is None:
        origin = Origin(_name(file, marked, digests, reporter, paths), "")
    origin = replace(
        origin, revision=origin.revision or _revision(marked, model.texts, origin.repo), files=marked,
        weights=model.weights, license=model.license() or origin.license,
    )  # fmt: skip
    header = registration(gguf_source(model), origin, packing)
    same, known = former is not None and _holds_all(former, model), former is not None and former.header.registered
    if former and not same:
        reporter.notice(f"{file} was imported by a version that read metadata differently; the file is read again.")
        _forget(former, paths)
    if former:
        for changed in changed_since_read(files, paths):
            reporter.notice(
                f"The date or size of {changed} has changed since it was read, but sampled parts of its content have "
                f"not; `localspec verify {former.header.origin.name}` checks the whole content."
            )
    if former and same and known and not former.missing and former.header.origin.files != marked:
        read_from = next(iter(former.header.origin.files))
        reporter.notice(f"{origin.name} is still read from {read_from}, because sampled parts of {file} are the same.")
        chat.tokenizer.hand_on()
        return former, model, False
    if not (same and known):
        for sentence in [*model.notices(chat.added_marks()), *_rounding(header, paths)]:
            reporter.notice(sentence)
    registered = read(register(header, model.texts, reporter, paths))
    if former and known and former.path != registered.path:
        former.path.unlink(missing_ok=True)
    chat.tokenizer.hand_on()
    return registered, model, not (same and known)


def _chat_of(model: "GgufModel") -> "ChatTokenizer":
    """Return the tokenizer and the chat template of a model. Raises LocalspecError if one of them cannot be used."""
    from localspec.models.chat_tokenizer import ChatTokenizer  # the tokenizers library
    from localspec.models.tokenizer import Tokenizer

    chat = ChatTokenizer(Tokenizer.decoded(model.texts, model.path))
    chat.require_template()
    return chat


def _rounding(header: Header, paths: Paths) -> list[str]:
    """Return notices that a registered model's weights are copied once to a packed file, with the reason; else []."""
    from localspec.weights.gguf_weights import is_filed, rounded

    types = rounded(header)
    if header.default_packing != BLOCKS or not is_filed(header):
        return []
    if not types:
        free = free_disk(paths.packed)
        needed, left = distinct(size, header.weight_bytes, free)
        notices = [
            f"{header.origin.name} has experts. Before the first reply its weights are copied once to a file of "
            f"{needed} in {paths.packed}. Only the used parts of that file must be in memory."
        ]
        if free < header.weight_bytes:
            notices.append(
                f"Only {left} are free on the disk of {paths.packed}; make room before the first reply, or set "
                "LOCALSPEC_HOME to another disk."
            )
        return notices
    stored, becomes = " and ".join(sorted(types)), " and ".join(sorted({*types.values()}))
    return [
        f"There is no kernel for {header.origin.name}'s weights in {stored}; localspec rounds them once to {becomes}, "
        f"saves the result in {paths.packed}, and the model takes {size(header.weight_bytes)} of memory."
    ]


def _forget(former: PackedFile, paths: Paths) -> None:
    """Delete the packed files that were made for `former`, an earlier registration. They can be made again."""
    for packed in packed_in(paths.packed):
        if packed.header.origin.revision == former.header.origin.revision:
            with suppress(OSError):
                packed.path.unlink(missing_ok=True)


def _checked(file: Path) -> Path:
    """Return the absolute path of a file. Raises UsageMistake, NotHere and LocalspecError for other paths."""
    path = os.path.abspath(file)
    file = Path(path)
    if file.exists() and not file.is_file():
        raise registry.not_regular(file)
    if not file.is_file():
        raise NotHere(f"There is no file {path!r}; give a GGUF file that is on this machine.")
    if re.search("[\ud800-\udfff]", path):
        raise LocalspecError(f"The name of {path!r} is not UTF-8, so it cannot be saved; rename it.")
    return file


def _name(
    file: Path, files: Mapping[str, tuple[int, str]], digests: Mapping[str, str], reporter: Reporter, paths: Paths
) -> str:
    """Return a name for a new model: its name in localspec's list of models, by `digests`, or else an unused name.

    If the same files were imported before with other content, a notice names these models. They stay registered, but
    packed copies of their weights are deleted, because the files no longer have that content.
    """
    imported = imports(paths)
    older = [
        name
        for name, model in imported.items()
        if [*model.header.origin.files] == [*files] and model.header.origin.files != files  # equal if imported just now
    ]
    if older:
        remove = older[0] if len(older) == 1 else "NAME"
        copies = [copy for name in older for copy in _copies_of(imported[name])]
        copied = size(sum(copy.path.stat().st_size for copy in copies))
        freed = f"; the copy of the earlier weights, {copied}, is deleted now" if copies else ""
        reporter.notice(
            f"{file} has changed since it was imported as {', '.join(older)}; `localspec rm {remove}` deletes the "
            f"earlier registration{freed}."
        )
        for copy in copies:
            copy.path.unlink(missing_ok=True)
    other_names = registry.cards(paths).keys() - imported.keys()
    listed = registry.listed_as(digests.values(), paths)
    # The store saves phrases under the former name.
    names = (old for old, now in registry.renamed(paths).items() if now == listed)
    return next(names, listed) or new_name(file, next(iter(digests.values())), other_names, paths, ollama_name(file))


def _copies_of(registered: PackedFile) -> list[PackedFile]:
    """Return the files to which the weights of a registered model were copied as GGUF blocks."""
    packed_files = map(read, of_same_weights(registered.path))
    return [copy for copy in packed_files if copy.header.packing == BLOCKS and not copy.header.registered]


def _revision(files: Mapping[str, tuple[int, str]], texts: Mapping[str, bytes], repo: str) -> str:
    revision = hashlib.sha256("".join(digest for _, digest in files.values()).encode())
    for name, content in sorted({**texts, **({repo: b""} if repo else {})}.items()):
        revision.update(f"{name} {len(content)}\n".encode() + content)
    return revision.hexdigest()[:40]


def _holds_all(packed: PackedFile, model: "GgufModel") -> bool:
    """Return whether a packed file or a registration holds the model's text files, such as the tokenizer, unchanged."""
    texts = packed.header.texts
    return all(name in texts and packed.text(name) == content for name, content in model.texts.items())


def must_stay(file: Path) -> str:
    """Return a phrase for the user: a file's name, and that it and other parts of its model must stay there."""
    others = len(parts_of(file)) - 1
    if not others:
        return f"{file}, which must stay there"
    return f"{file} and {counted(others, 'other part')} in the same folder, which must all stay there"


def ready(name: str, settings: Settings, reporter: Reporter) -> TargetCard:
    """Return the model that a name means. Register a GGUF file that is new, or has changed or moved.

    Raises the errors of `resolve` and `import_gguf`.
    """
    name = full_name(name)
    file = Path(os.path.expanduser(name)) if name and "\0" not in name else None
    if file is None or name in registry.cards() or not is_gguf(file):
        return registry.resolve(name)
    paths = Paths(home())
    former = import_of(file, paths)
    if former is None or not former.header.registered or former.missing:
        moved = former is not None and former.header.registered
        packing = former.header.default_packing if former else BLOCKS
        registered, _, _ = _register(file, packing, reporter, paths)
        header = registered.header
        if not moved:
            weights = (
                size(header.weight_bytes) if header.default_packing == BLOCKS else f"packed in {header.default_packing}"
            )
            reporter.notice(f"{name} was imported as {header.origin.name}: {weights}, read from {must_stay(file)}.")
    return registry.resolve(name)


def named_packing(settings: Settings) -> str | None:
    """Return the packing that the settings name, or None.

    Raises UsageMistake for a packing that GGUF files cannot have, and LocalspecError if the compiled library is
    missing.
    """
    packing: str = settings.dtype if settings.quantize == "auto" else settings.quantize  # as `run` interprets them
    if packing not in ("auto", *FILED):
        raise UsageMistake(
            f"A GGUF file is packed in {' or '.join(FILED)}, but you asked for {packing}; give --quantize with one of "
            "these, or leave it out."
        )
    if packing != "auto" and (missing := compiled.missing()):
        raise LocalspecError(f"A GGUF file is packed by the compiled library, and {missing}.")
    return None if packing == "auto" else packing
