"""Opens a model in a packing (a form of weights such as int8): finds its packed file on this machine, or makes it."""

import errno
import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

import numpy as np

from localspec.environment import home
from localspec.errors import DoesNotFit, LocalspecError
from localspec.events import Reporter
from localspec.families.architecture import TransformerConfig
from localspec.machine.memory import free_memory, total_memory, usable
from localspec.outside_files import MIB
from localspec.paths import Paths, private_directory
from localspec.quantities import distinct, size
from localspec.weights.checkpoint import (
    damaged,
    inspect,
    is_packed,
    license_of,
    moved,
    only_packed,
    revision,
    weight_files,
)
from localspec.weights.fingerprint import identified, recognised, stamps, weights_fingerprint
from localspec.weights.gguf_weights import files_of, gguf_recipe, is_filed, registered_source
from localspec.weights.opened import Fill, PackedModel, write
from localspec.weights.packed_file import (
    BLOCKS,
    CannotRead,
    DamagedFile,
    Header,
    Origin,
    PackedFile,
    Progress,
    Section,
    Tensor,
    forms,
    joined,
    of_same_weights,
    read,
)
from localspec.weights.packed_files import (
    FILED,
    ROUNDED,
    Stalled,
    former_forms,
    in_all_formats,
    locked,
    packed_files,
    partial_of,
    remove_abandoned,
)
from localspec.weights.recipe import Recipe
from localspec.weights.source import PackingSource

PAUSE = 1.0  # seconds between two reports of packing progress
_ROOM = 320 * MIB  # most address space that threads and the tokenizer take; without it the process would end or hang
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def load(
    path: Path,
    packing: str,
    name: str,
    threads: int,
    reporter: Reporter,
    paths: Paths | None = None,
    drafts: bool = False,
) -> PackedModel:
    """Return a model in int8, int4, bf16 or fp32. `path` is its directory, or one of its packed files.

    A registered model can also be opened in the blocks of its GGUF files, or with `drafts` in coarser blocks. A packed
    file is made if it is missing or damaged; only `verify` notices damaged weights. If no file can be written, the
    model is packed in memory, with a notice. A model in bf16 or fp32 is always packed in memory. Raises LocalspecError
    for a model that cannot be packed, DoesNotFit if memory runs out, and NotHere if only other packings are here.
    """
    name = name or path.name
    if is_packed(path):
        return _without_originals(path, packing, threads, reporter, paths or Paths(home()), drafts)
    no_file: LocalspecError | None = None
    if packing in FILED:
        try:
            origin = Origin(name, revision(path))
            return _opened_or_again(lambda: make(path, packing, origin, threads, reporter, paths), reporter)
        except (CannotWrite, DoesNotFit) as error:
            no_file = error
    return _in_memory(PackingSource.open(path), Recipe(packing), Origin(name, ""), threads, reporter, no_file)


def _opened(file: Path) -> PackedModel:
    """Memory-map a packed file. Raises DamagedFile if a text in it is damaged."""
    model = PackedModel.open(file)
    model.texts  # noqa: B018 -- reading compares them with their digests
    return model


def _opened_or_again(get_file: Callable[[], Path], reporter: Reporter) -> PackedModel:
    """Map the packed file that `get_file` returns. If a text in it is damaged, delete the file, and try once more."""
    file = get_file()
    try:
        return _opened(file)
    except DamagedFile as error:
        reporter.notice(str(error))
        file.unlink(missing_ok=True)
    return _opened(get_file())


def _without_originals(
    path: Path, packing: str, threads: int, reporter: Reporter, paths: Paths, drafts: bool
) -> PackedModel:
    """Open a model that has no directory of original weights: only GGUF files, or only packed files.

    Raises NotHere if the packing is not on this machine and cannot be made.
    """
    files, registered = forms(path), _registration(path)
    missing = registered.missing if registered else None
    if registered and (not missing or missing.is_file()):
        files_of(registered)  # raises NotHere if another file is in the place of the GGUF file, whatever was packed
    if registered and missing and {*files.values()} != {registered.path}:
        reporter.notice(f"{moved(registered.header, missing)} Until then the earlier packed form is used.")
    file = files.get(packing)
    if registered and file == registered.path:
        file = None
    if file:
        try:
            return _opened(file)
        except DamagedFile as error:
            if not registered or missing:
                raise damaged(file, error) from None
            reporter.notice(str(error))
            file.unlink(missing_ok=True)
    if registered is None:
        raise only_packed(path)
    source = _source(registered)
    no_file: LocalspecError | None = None
    if packing in FILED or (packing == BLOCKS and is_filed(registered.header)):
        try:
            origin = registered.header.origin
            others = of_same_weights(path) if packing == BLOCKS else []  # made before the GGUF file was moved
            return _opened_or_again(
                lambda: pack_gguf(source, packing, origin, threads, reporter, paths, others), reporter
            )
        except (CannotWrite, DoesNotFit) as error:
            no_file = error
    recipe = gguf_recipe(source, packing, drafts)
    return _in_memory(source, recipe, registered.header.origin, threads, reporter, no_file)


def _registration(path: Path) -> PackedFile | None:
    """Return the packed file that says where a model's GGUF files are; None for a model not read from GGUF files."""
    return next((packed for packed in map(read, {path, *forms(path).values()}) if packed.header.registered), None)


def _source(registered: PackedFile) -> PackingSource:
    files, texts = files_of(registered), {name: registered.text(name) for name in registered.header.texts}
    return registered_source(registered.header, texts, files)


def source_of(path: Path) -> PackingSource:
    """Return a model's original weights as input for packing: its directory, or its GGUF files. Only headers are read.

    If only packed files are on this machine, the result has no tensors. Raises the errors of `PackingSource.open` and
    `registered_source`.
    """
    if not is_packed(path):
        return PackingSource.open(path)
    registered = _registration(path)
    if registered and not (
        registered.missing and not registered.replaced and {*forms(path).values()} != {registered.path}
    ):
        return _source(registered)
    try:
        packed = _opened(path)
    except DamagedFile as error:
        raise damaged(path, error) from None
    return PackingSource(inspect(path), packed.config, TransformerConfig.of(packed.config), {}, packed.texts)


def register(header: Header, texts: Mapping[str, bytes], reporter: Reporter, paths: Paths) -> Path:
    """Return a model's registration, a packed file that says where its GGUF files are. Write it if it is missing.

    Raises the errors of `once`.
    """

    def fill(name: str, section: Section, first: int, into: memoryview) -> None:
        into[:] = texts[name][first : first + len(into)]

    digests = {
        name: joined(hashlib.sha256(texts[name][start:end]).digest() for start, end in section.pieces)
        for name, section in header.texts.items()
    }

    def same(existing: Header) -> bool:  # another process may have registered the file under another name just now
        origin = replace(header.origin, name=existing.origin.name)
        return existing == replace(header.with_digests(digests), origin=origin)

    def make(file: Path) -> None:
        write_with_room(file, header, fill, 1, lambda done, total: None)

    return once(in_all_formats(header.origin, BLOCKS, paths, only_copy=True)[:1], make, reporter, same)


def pack_gguf(
    source: PackingSource,
    packing: str,
    origin: Origin,
    threads: int,
    reporter: Reporter,
    paths: Paths,
    others: Sequence[Path] = (),
) -> Path:
    """Return the packed file of a GGUF model in int8, int4 or blocks, or else a usable file in `others`. If there is
    none, make it.

    A file in blocks is not usable if this version of localspec would choose other types of blocks. Raises the errors of
    `once`, and LocalspecError if the GGUF files change meanwhile.
    """
    files = source.checkpoint.weight_files
    initial, header = stamps(files), source.header(origin, gguf_recipe(source, packing))

    def make(file: Path) -> None:
        write_with_room(file, header, source.filler({}), threads, report_packing(origin.name, packing, reporter))
        if stamps(files) != initial:
            file.unlink(missing_ok=True)
            raise LocalspecError(f"The weights of {origin.name} changed while they were read; try again.")

    def serves(existing: Header) -> bool:
        return packing != BLOCKS or _tensors(existing) == _tensors(header)

    candidates = in_all_formats(origin, ROUNDED if packing == BLOCKS else packing, paths)
    return once([*candidates, *others], make, reporter, serves)


def _tensors(header: Header) -> dict[str, Tensor | None]:
    return {name: section.tensor for name, section in header.tensors.items()}


class CannotWrite(LocalspecError):
    """An error: a packed file cannot be written into its directory, or cannot be read back."""


def make(
    path: Path,
    packing: str,
    origin: Origin,
    threads: int,
    reporter: Reporter,
    paths: Paths | None = None,
    *,
    only_copy: bool = False,
) -> Path:
    """Return a model's packed file. Make it if it is missing or damaged.

    If `origin` names a commit, only a file of that commit is used, since another commit may have other texts. If
    several processes need the file, only one makes it. It is made in the cache, or with `only_copy` in the data
    directory. Raises CannotWrite, DoesNotFit if the disk has no room, and LocalspecError for a model that cannot be
    packed.
    """

    paths, initial = paths or Paths(home()), stamps(weight_files(path))
    origin = with_files(origin, path, paths, reporter)

    def serves(header: Header) -> bool:
        made_of = header.origin
        of_the_commit = not origin.commit or (made_of.repo, made_of.commit) == (origin.repo, origin.commit)
        return of_the_commit and made_of.files == origin.files

    def make_it(file: Path) -> None:
        source = PackingSource.open(path)
        made_of = replace(origin, license=license_of(path), weights=weights_fingerprint(path))
        header = source.header(made_of, Recipe(packing))
        write_with_room(file, header, source.filler({}), threads, report_packing(origin.name, packing, reporter))
        if stamps(weight_files(path)) != initial:
            file.unlink(missing_ok=True)
            raise LocalspecError(f"The weights of {origin.name} in {path} changed while they were packed; try again.")
        with suppress(OSError):
            for former in former_forms(origin, packing, paths):  # no other code would find them again
                former.unlink(missing_ok=True)

    return once(in_all_formats(origin, packing, paths, only_copy=only_copy), make_it, reporter, serves)


def with_files(origin: Origin, path: Path, paths: Paths, reporter: Reporter | None = None) -> Origin:
    """Return `origin` with a list of the weight files in a directory. The name of a packed file depends on this list.

    If a packed file has the same weights, perhaps from another directory, the list is copied from its header.
    """
    files, show = weight_files(path), _shown(f"reading the weights of {origin.name}", reporter or Reporter())
    for packed in packed_files(paths):
        former = packed.header.origin
        if former.revision == origin.revision and recognised(files, former.files, paths, show):
            return replace(origin, files=former.files)
    return replace(origin, files=identified(files, paths))


def once(
    candidates: Sequence[Path],
    make_it: Callable[[Path], None],
    reporter: Reporter,
    serves: Callable[[Header], bool] = lambda header: True,
) -> Path:
    """Return the first of the files in `candidates` that is readable and for whose header `serves` returns true. If
    there is none, make the first one.

    Only one process makes the file; others wait. A notice says why a file is made again. Raises CannotWrite,
    DoesNotFit, and the errors of `make_it`.
    """
    file = candidates[0]
    try:
        if existing := _first_usable(candidates, reporter, serves):
            return existing
        private_directory(file.parent)
        remove_abandoned(file.parent)
        with locked(file, reporter, f"writes {file.name}"):
            if existing := _first_usable(candidates, Reporter(), serves):  # another process has made it meanwhile
                return existing
            make_it(file)
    except Stalled as error:
        raise CannotWrite(f"{str(error.strerror)[:1].upper()}{str(error.strerror)[1:]}.") from None
    except CannotRead as error:  # the file that was just written
        raise CannotWrite(f"{error}") from None
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DoesNotFit(
                f"The disk of {file.parent} is full; make room, or set LOCALSPEC_HOME to another disk."
            ) from None
        if error.errno == errno.EFBIG:
            raise DoesNotFit(
                f"{file} is larger than this shell's limit for files; raise the limit (`ulimit -f unlimited`), "
                "or set LOCALSPEC_HOME to another disk."
            ) from None
        raise CannotWrite(
            f"{file.parent}, where packed models are kept, cannot be written ({error.strerror}); check the permissions "
            "of this directory, then try again."
        ) from None
    return file


def _first_usable(candidates: Sequence[Path], reporter: Reporter, serves: Callable[[Header], bool]) -> Path | None:
    for file in candidates:
        try:
            if file.exists() and serves((packed := read(file)).header):
                return packed.path
        except LocalspecError as error:
            reporter.notice(str(error))
    return None


def write_with_room(file: Path, header: Header, fill: Fill, threads: int, progress: Progress) -> None:
    """Write a packed file. Raises OSError, or if the disk has no room, DoesNotFit before anything is written."""
    partial_of(file).unlink(missing_ok=True)  # left by a killed process; its bytes count as free
    needed, free = len(header.encoded()) + header.section_bytes, shutil.disk_usage(file.parent).free
    if needed > free:
        wanted, left = distinct(size, needed, free)
        raise DoesNotFit(
            f"The packed form of {header.origin.name} takes {wanted}, and {left} are free on the disk of "
            f"{file.parent}; make room, or set LOCALSPEC_HOME to another disk."
        )
    write(file, header, fill, threads, progress)


def _in_memory(
    source: PackingSource,
    recipe: Recipe,
    origin: Origin,
    threads: int,
    reporter: Reporter,
    no_file: LocalspecError | None = None,
) -> PackedModel:
    """Pack a model into memory. Raises DoesNotFit, and LocalspecError if the model's files change meanwhile.

    `no_file` is the error because of which there is no packed file. It is raised if the weights do not fit into memory,
    since a memory-mapped file might have fitted.
    """
    packing, header, files = recipe.packing, source.header(origin, recipe), source.checkpoint.weight_files
    if no_file and header.section_bytes > usable(free_memory(), total_memory()):
        raise no_file
    if no_file:
        reporter.notice(f"{no_file} Until then the model is packed again each time it is loaded.")
    initial = stamps(files)
    task = f"packing {origin.name} in {packing}" if packing in FILED else f"reading {origin.name}"
    progress = _shown(task, reporter)
    try:
        model = PackedModel.in_memory(header, source.filler({}), threads, progress)
        np.empty(_ROOM, np.uint8)  # a check, released at once: later failures would end the process
    except (OSError, MemoryError) as error:
        raise DoesNotFit(
            f"{origin.name} takes {size(header.section_bytes)} of memory in {packing}, which is more than is "
            "free; choose a smaller model."
        ) from error
    if stamps(files) != initial:
        raise LocalspecError(f"The weights of {origin.name} changed while they were read; try again.")
    return replace(model, head_rows=source.head_rows(recipe))


def report_packing(name: str, packing: str, reporter: Reporter) -> Progress:
    """Report that a model is being packed. Return a function to call with the progress."""
    task = f"packing {name} in {packing} (needed only once)"
    if packing == BLOCKS:
        task = f"writing the weights of {name} to a file (needed only once)"
    reporter.progress(task)
    return _shown(task, reporter)


def _shown(task: str, reporter: Reporter) -> Progress:
    """Return a function that reports progress in percent, with the words `task`, at most once in PAUSE seconds."""
    last = monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        if monotonic() - last >= PAUSE:
            last = monotonic()
            reporter.progress(f"{task}: {done / max(total, 1):.0%}")

    return show
