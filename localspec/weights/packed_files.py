"""Finds packed models on this machine, models imported from GGUF files, and GGUF files of other programs.

Packed files that can be made again from weights on this machine are in the cache directory. The others are in the data
directory.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from localspec import environment
from localspec.errors import LocalspecError
from localspec.events import Reporter
from localspec.outside_files import parse_json, read_bytes
from localspec.paths import Paths
from localspec.weights.checkpoint import revision
from localspec.weights.fingerprint import recognised
from localspec.weights.packed_file import BLOCKS, FORMAT, PARTIAL, SUFFIX, Origin, PackedFile, Progress, read

LOOK = 0.5  # seconds after which a wait for another process is reported
STALLED = 30.0  # seconds after which a process that writes nothing is no longer waited for

GPU_SUFFIX = ".safetensors"  # of files packed for a GPU, which another library reads
# Packings that are saved on disk. Dense weights are read about as fast from the model's own files.
FILED = ("int8", "int4")
ROUNDED = (
    "rounded"  # in the name of the second file of a registration: rounded blocks, or those of a model with experts
)


_BEGIN = 2**16  # bytes of a packed file in which the name of its model is


class Stalled(OSError):
    """An error: another process holds a lock and makes no progress."""


def in_all_formats(origin: Origin, packing: str, paths: Paths, *, only_copy: bool = False) -> list[Path]:
    """Return the paths that a packed file can have, in the file formats of all versions. The first is for a new file.

    `only_copy` says that the user may delete the original weights, so the data directory comes first. File names
    include a digest of all weight files, because a revision only covers samples of the weights.
    """
    weights = hashlib.sha256(json.dumps(sorted(origin.files.items())).encode()).hexdigest()[:16]
    stem = f"{origin.revision}-{packing}-{weights}"
    places = (paths.imports, paths.packed) if only_copy else (paths.packed, paths.imports)
    formats = [FORMAT] if packing == BLOCKS else range(FORMAT, 0, -1)
    return [place / f"{stem}-{version}{SUFFIX}" for place in places for version in formats]


def packed_for_gpus(paths: Paths) -> list[tuple[str, str, Path]]:
    """Return the files packed for GPUs, as (revision of the model, packing with precision, path), such as nf4-bf16."""
    files = []
    for file in _files(paths.packed, f"*{GPU_SUFFIX}"):
        revision, _, rest = file.stem.partition("-")
        files.append((revision, rest.rsplit("-", 2)[0], file))
    return files


def former_forms(origin: Origin, packing: str, paths: Paths) -> list[Path]:
    """Return the packed files that were made from earlier weights in a model's directory.

    The result is empty for a pulled model, and for a name that is not an absolute path, since it may mean several
    models.
    """
    if origin.repo or not os.path.isabs(origin.name):
        return []
    same = [
        packed
        for packed in packed_files(paths)
        if (packed.header.origin.name, packed.header.packing) == (origin.name, packing)
    ]
    return [
        packed.path for packed in same if not packed.header.origin.repo and packed.header.origin.files != origin.files
    ]


def ranked(files: Iterable[PackedFile]) -> list[PackedFile]:
    """Return a model's packed files, the oldest first, but at the end the registration, which names its GGUF files.

    A file is left out if another process has deleted it since its header was read.
    """
    keys = {}
    for file in files:
        with suppress(OSError):
            keys[file.path] = (file.header.registered, file.path.stat().st_mtime), file
    return [file for _, file in sorted(keys.values(), key=lambda item: item[0])]


def files_in_use(paths: Paths, excluding: Collection[Path] = ()) -> dict[str, str]:
    """Return the real paths of GGUF files from which registered models are read, each with the name of such a model.

    Models whose packed files are in `excluding` do not count.
    """
    registered = [packed for packed in packed_files(paths) if packed.header.registered and packed.path not in excluding]
    return {
        os.path.realpath(file): packed.header.origin.name
        for packed in registered
        for file in packed.header.origin.files
    }


def packed_files(paths: Paths) -> list[PackedFile]:
    """Return every packed model that can be read, sorted by name and packing."""
    by_name = {packed.path.name: packed for place in _places(paths) for packed in packed_in(place)}
    return sorted(by_name.values(), key=lambda packed: (packed.header.origin.name, packed.header.packing, packed.path))


def packed_in(directory: Path) -> list[PackedFile]:
    """Return every packed model in one directory that can be read."""
    packed = []
    for file in _files(directory, f"*{SUFFIX}"):
        with suppress(LocalspecError):
            packed.append(read(file))
    return packed


def unreadable(paths: Paths) -> dict[Path, str]:
    """Return the packed files that cannot be read, each with the reason."""
    reasons = {}
    for file in (file for place in _places(paths) for file in _files(place, f"*{SUFFIX}")):
        try:
            read(file)
        except LocalspecError as error:
            reasons[file] = str(error)
    return reasons


def _places(paths: Paths) -> tuple[Path, Path]:
    """Return the cache directory and the data directory of packed files.

    The cache comes first, because files move from there to the data directory, and must not be missed meanwhile.
    """
    return paths.packed, paths.imports


def damaged_of(name: str, paths: Paths) -> Path | None:
    """Return an unreadable packed file that may belong to the model of this name; None if there is none.

    The readable beginning of the file has this name, or no name at all.
    """
    quoted = json.dumps(name, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for file in unreadable(paths):
        with suppress(OSError), file.open("rb") as stream:
            begin = stream.read(_BEGIN)
            if quoted in begin or b'"name":' not in begin:
                return file
    return None


def packed_of(path: Path, source: str, paths: Paths) -> list[Path]:
    """Return all packed files of the model in directory `path` or from `source`, also unreadable and unfinished ones.

    `source` is org/repo[@revision], or empty. The directory need not exist.
    """
    files = [packed.path for packed in packed_files(paths) if source and packed.header.origin.repo == source]
    with suppress(LocalspecError):
        pattern = f"{revision(path)}-*"
        files += [file for place in _places(paths) for file in _files(place, pattern) if file.suffix != ".lock"]
    return sorted(set(files))


def other_source(file: Path, sources: Collection[str]) -> str:
    """Return the repository that a packed file was pulled from; empty without one, or if it is one of `sources`."""
    with suppress(LocalspecError):
        repo = read(file).header.origin.repo
        return "" if repo in sources else repo
    return ""


@contextmanager
def locked(file: Path, reporter: Reporter, task: str) -> Iterator[None]:
    """Hold the lock of a file during the `with` block. While waiting for another process, report what it does (`task`).

    The lock file is deleted when the lock is released. A waiting process then makes a new lock file. Raises Stalled if
    the other process writes nothing for a while, and OSError.
    """
    from filelock import FileLock, Timeout

    lock, partial, last_change, since = FileLock(lock_of(file), mode=0o600), partial_of(file), 0, monotonic()
    while not lock.is_locked:
        try:
            lock.acquire(timeout=LOOK)
        except Timeout:
            with suppress(OSError):
                if (change := partial.stat().st_mtime_ns) != last_change:
                    last_change, since = change, monotonic()
            if monotonic() - since > STALLED:
                who = _writer(partial)
                raise Stalled(
                    errno.ETIMEDOUT,
                    f"{who}, which {task}, has written nothing for {STALLED:.0f} s; wait longer, or end that process",
                ) from None
            reporter.progress(f"waiting for {_writer(partial)}, which {task}")
    try:
        yield
    finally:
        with suppress(OSError):  # Windows deletes no open file, so it stays there
            lock_of(file).unlink()
        lock.release()


def partial_of(file: Path) -> Path:
    """Return the temporary path of a file while it is being written."""
    return file.with_name(file.name + PARTIAL)


def _writer(partial: Path) -> str:
    """Return who writes a file, for a message: 'process 123' if its first line is 123, otherwise 'another process'."""
    with suppress(OSError), partial.open("rb") as stream:
        if number := re.match(rb"(\d{1,10})\n", stream.read(16)):
            return f"process {number[1].decode()}"
    return "another process"


def lock_of(file: Path) -> Path:
    """Return the path of the lock file for a packed file."""
    return file.with_suffix(".lock")


def remove_abandoned(*directories: Path) -> int:
    """Delete unfinished files and lock files that killed processes left. Return the number of freed bytes."""
    from filelock import FileLock, Timeout

    freed = 0
    files = (file for directory in directories for file in _files(directory, "*"))
    for file in {path.with_suffix("").with_suffix(SUFFIX) for path in files if path.suffix in (PARTIAL, ".lock")}:
        lock, partial = lock_of(file), partial_of(file)
        with suppress(OSError, Timeout), FileLock(lock, timeout=0, mode=0o600):  # otherwise a process is writing it
            if partial.is_file():
                count = partial.stat().st_size
                partial.unlink()
                freed += count
            lock.unlink()  # a waiting process sees that it is gone, and makes another
    return freed


def packed_bytes(paths: Paths) -> int:
    """Return the bytes of all files in the directories of packed models."""
    total = 0
    for file in (file for place in _places(paths) for file in _files(place, "*")):
        with suppress(OSError):  # another process has deleted it
            total += file.stat().st_size
    return total


def _files(directory: Path, pattern: str) -> list[Path]:
    """Return the files in a directory that match a pattern; none if the directory cannot be read."""
    try:
        return [file for file in sorted(directory.glob(pattern)) if file.is_file()]
    except OSError:
        return []


_SUFFIX = ".gguf"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_MOST_PARTS = 1000


def is_gguf(path: Path) -> bool:
    """Return whether a path is a file whose name ends in .gguf."""
    return path.suffix.lower() == _SUFFIX and path.is_file()


def begins_as_gguf(path: Path) -> bool:
    """Return whether a file begins like a GGUF file, whatever its name."""
    try:
        if path.is_file():  # opening a pipe would wait for a writer
            with path.open("rb") as stream:
                return stream.read(4) == b"GGUF"
    except OSError:
        pass
    return False


def parts_of(path: Path) -> list[Path]:
    """Return all files NAME-00001-of-00003.gguf, … of a model, given one of them. For another file, return only it."""
    numbered = _PART.fullmatch(path.name)
    if not numbered or not 1 <= int(numbered[2]) <= int(numbered[3]) <= _MOST_PARTS:
        return [path]
    count = int(numbered[3])
    return [path.with_name(f"{numbered[1]}-{part:05}-of-{count:05}{path.suffix}") for part in range(1, count + 1)]


def made_from_gguf(files: Collection[str]) -> bool:
    """Return whether a packed model was made from GGUF files. An imported model's `files` are absolute paths."""
    return bool(files) and all(name.lower().endswith(_SUFFIX) or os.path.isabs(name) for name in files)


def imports(paths: Paths) -> dict[str, PackedFile]:
    """Return each imported model's packed file, by the model's name: the registration, or else the newest."""
    return {packed.header.origin.name: packed for packed in ranked(_imported(paths))}


def import_of(path: Path, paths: Paths, progress: Progress = lambda done, total: None) -> PackedFile | None:
    """Return the model that was imported from a file with the same content, under any path; None if there is none.

    A registration is preferred to other packed files. Raises LocalspecError for a file that cannot be read.
    """
    files = parts_of(path)
    if not all(file.is_file() for file in files):
        return None
    imported = _imported(paths)
    # Packings of one import share an origin's files.
    origins = {tuple(sorted(packed.header.origin.files.items())) for packed in imported}
    matching = {origin for origin in origins if recognised(files, dict(origin), paths, progress)}
    same = [packed for packed in imported if tuple(sorted(packed.header.origin.files.items())) in matching]
    return next(reversed(ranked(same)), None)


def new_name(path: Path, digest: str, reserved: Collection[str], paths: Paths, name: str | None = None) -> str:
    """Return a name for a model that is imported from the file `path`: the name of the file, or `name`.

    If another model has this name, a part of the digest is added. `reserved` are the names of models that were not
    imported. A file that has changed since its import counts as another model, because a packed file may be the only
    copy of the earlier one.
    """
    numbered = _PART.fullmatch(path.name)
    stem = numbered[1] if numbered else name or path.stem
    plain = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "model"
    return plain if plain not in {*reserved, *imports(paths)} else f"{plain}-{digest[:8]}"


def _imported(paths: Paths) -> list[PackedFile]:
    pairs = ((packed, packed.header.origin) for packed in packed_files(paths))
    return [packed for packed, origin in pairs if not origin.repo and made_from_gguf(origin.files)]


MOST_FILES = 10_000  # examined in one folder
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_MANIFEST_BYTES = 2**20


@dataclass(frozen=True)
class FoundModel:
    """A model in GGUF files of another program, which calls it `name`. `path` is its file, or the first of several."""

    path: Path
    name: str
    program: str  # empty if the folder belongs to no known program
    bytes: int


def models_of_others() -> list[FoundModel]:
    """Return the models of LM Studio and Ollama that are in the usual folders, sorted by name."""
    home = Path(os.path.expanduser("~"))
    lm_studio = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    ollama = [home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
    if folder := environment.ollama_models():
        ollama.insert(0, folder)
    places = [("LM Studio", place) for place in lm_studio] + [("Ollama", place) for place in ollama]
    models = {model.path: model for program, place in places for model in models_below(place, program)}
    return sorted(models.values(), key=lambda model: model.name)


def models_below(folder: Path, program: str = "") -> list[FoundModel]:
    """Return the models in GGUF files in a folder and below it, sorted by name.

    Image projectors (`mmproj-…`), which are not models, and models with missing parts are left out. In Ollama's folder,
    files are named by digests, and manifests give the models' names.
    """
    models = {model.path: model for model in _ollama(folder, program or "Ollama")}
    for path in _files_below(folder):
        first = parts_of(path)
        if first[0] == path and is_gguf(path) and not path.name.lower().startswith("mmproj"):
            with suppress(OSError):
                models[path] = FoundModel(path, path.stem, program, sum(part.stat().st_size for part in first))
    return sorted(models.values(), key=lambda model: model.name)


def incomplete_below(folder: Path) -> dict[Path, str]:
    """Return the GGUF files below a folder that `models_below` leaves out as incomplete, each with what is missing.

    For a model in several files, return the first file that is there.
    """
    problems: dict[Path, str] = {}
    for path in _files_below(folder):
        if path.suffix.lower() != _SUFFIX:
            continue
        parts = parts_of(path)
        here, lacking = ([part for part in parts if part.is_file() is exists] for exists in (True, False))
        if not path.exists():
            problems[path] = (
                f"the file is a link to {os.readlink(path)}, which is not there; restore that file, or delete the link."
            )
        elif lacking and path == here[0]:
            problems[path] = f"{lacking[0].name} is missing; put it into the same folder."
    return problems


def ollama_name(file: Path) -> str | None:
    """Return Ollama's name for the model in a file, as NAME-TAG; None for any other file."""
    if not file.name.startswith("sha256-") or file.parent.name != "blobs":
        return None
    names = (model.name for model in _ollama(file.parent.parent, "Ollama") if model.path == file)
    return next((name.replace(":", "-") for name in names), None)


def _ollama(folder: Path, program: str) -> Iterator[FoundModel]:
    """Yield the models in Ollama's folder, where `manifests/HOST/OWNER/NAME/TAG` names a file in `blobs/`."""
    manifests = folder / "manifests"
    for manifest in sorted(_files_below(manifests)) if manifests.is_dir() else ():
        with suppress(OSError, ValueError):
            blob = _weights(folder / "blobs", parse_json(read_bytes(manifest, _MANIFEST_BYTES)))
            if blob is not None and begins_as_gguf(blob):
                *owner, name, tag = manifest.relative_to(manifests).parts[1:]
                publisher = "/".join(part for part in owner if part != "library")
                label = f"{publisher}/{name}:{tag}" if publisher else f"{name}:{tag}"
                yield FoundModel(blob, label, program, blob.stat().st_size)


def _weights(blobs: Path, manifest: Any) -> Path | None:
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    for layer in layers if isinstance(layers, list) else ():
        digest = layer.get("digest") if isinstance(layer, dict) and layer.get("mediaType") == _OLLAMA_MODEL else None
        if isinstance(digest, str) and digest.startswith("sha256:") and digest[7:].isalnum():
            return blobs / digest.replace(":", "-")
    return None


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below, at most MOST_FILES, without following links to folders."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > MOST_FILES:
                return
            yield Path(place, name)
