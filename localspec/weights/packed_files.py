"""The packed models on this machine, those imported from GGUF files, and GGUF files that other programs keep.

Packed files that can be made again from weights on this machine are in the cache directory. The others are in the
data directory.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
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

LOOK = 0.5  # seconds after which it is reported that another process has a lock
STALLED = 30.0  # seconds after which a process that writes nothing is waited for no more

GPU_SUFFIX = ".safetensors"  # of what was packed for a GPU, which another library reads
FILED = ("int8", "int4")  # packings that are kept on disk; dense ones are read about as fast from the model's own files
ROUNDED = "rounded"  # in the name of a file in blocks, for a registration whose types have not all kernels


_BEGIN = 2**16  # bytes of a packed file, in which the name of its model is


class Stalled(OSError):
    """Another process holds a lock and does nothing."""


def in_all_formats(origin: Origin, packing: str, paths: Paths, *, only_copy: bool = False) -> list[Path]:
    """Return the possible paths of a packed form, in the format of any version; a new file is written to the first.

    `only_copy` says that the user may delete the weights. The name has a digest of all files, because a revision
    samples the weights only.
    """
    weights = hashlib.sha256(json.dumps(sorted(origin.files.items())).encode()).hexdigest()[:16]
    stem = f"{origin.revision}-{packing}-{weights}"
    places = (paths.imports, paths.packed) if only_copy else (paths.packed, paths.imports)
    formats = [FORMAT] if packing == BLOCKS else range(FORMAT, 0, -1)
    return [place / f"{stem}-{written}{SUFFIX}" for place in places for written in formats]


def remove_outdated(file: Path) -> None:
    """Delete the file that an earlier version made in the place of this one, which is whole."""
    for former in range(1, FORMAT):
        stem = file.name.removesuffix(f"-{FORMAT}{SUFFIX}")
        with suppress(LocalspecError, OSError):
            if read(found := file.with_name(f"{stem}-{former}{SUFFIX}")).header.outdated:
                found.unlink()


def kept_for_gpus(paths: Paths) -> list[tuple[str, str, Path]]:
    """Return what was packed for GPUs: revision of the model, packing and precision as in nf4-bf16, file."""
    found = []
    for file in _files(paths.packed, f"*{GPU_SUFFIX}"):
        revision, _, rest = file.stem.partition("-")
        found.append((revision, rest.rsplit("-", 2)[0], file))
    return found


def former_forms(origin: Origin, packing: str, paths: Paths) -> list[Path]:
    """Return the packed forms of weights that lay in the same directory before these; its whole path is their name.

    A name that is no path may be that of several directories, and what was pulled belongs to its source.
    """
    if origin.repo or not os.path.isabs(origin.name):
        return []
    same = [
        one for one in packed_files(paths) if (one.header.origin.name, one.header.packing) == (origin.name, packing)
    ]
    return [one.path for one in same if not one.header.origin.repo and one.header.origin.files != origin.files]


def rank(one: PackedFile) -> tuple[bool, float]:
    """Return what sorts the packed files of a model: its registration comes last, after the latest of the others."""
    return one.header.registered, one.path.stat().st_mtime


def files_in_use(paths: Paths, but: Collection[Path] = ()) -> set[str]:
    """Return the real paths of the GGUF files that registrations read, except some registrations."""
    found = [one for one in packed_files(paths) if one.header.registered and one.path not in but]
    return {os.path.realpath(file) for one in found for file in one.header.origin.files}


def packed_files(paths: Paths) -> list[PackedFile]:
    """Every packed model that can be read, sorted by name and packing."""
    found = {one.path.name: one for place in _places(paths) for one in packed_in(place)}
    return sorted(found.values(), key=lambda one: (one.header.origin.name, one.header.packing, one.path))


def packed_in(directory: Path) -> list[PackedFile]:
    """Return every packed model in one directory that can be read."""
    found = []
    for file in _files(directory, f"*{SUFFIX}"):
        with suppress(LocalspecError):
            found.append(read(file))
    return found


def unreadable(paths: Paths) -> dict[Path, str]:
    """Return the packed files that cannot be read, and why not."""
    found = {}
    for file in (file for place in _places(paths) for file in _files(place, f"*{SUFFIX}")):
        try:
            read(file)
        except LocalspecError as error:
            found[file] = str(error)
    return found


def _places(paths: Paths) -> tuple[Path, Path]:
    """Return the directories of packed files. Files move from the first to the second, so read them in this order."""
    return paths.packed, paths.imports


def damaged_of(name: str, paths: Paths) -> Path | None:
    """Return a packed file that cannot be read and may be the model of this name; None without one.

    What is left of it has the name, or no name at all.
    """
    quoted = json.dumps(name, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for file in unreadable(paths):
        with suppress(OSError), file.open("rb") as stream:
            begin = stream.read(_BEGIN)
            if quoted in begin or b'"name":' not in begin:
                return file
    return None


def packed_of(path: Path, source: str, paths: Paths) -> list[Path]:
    """Every packed file of the model in this directory, readable or not, finished or not; and those of its source.

    `source` is org/repo[@revision], or empty; the directory need not be there.
    """
    found = [one.path for one in packed_files(paths) if source and one.header.origin.repo == source]
    with suppress(LocalspecError):
        pattern = f"{revision(path)}-*"
        found += [file for place in _places(paths) for file in _files(place, pattern) if file.suffix != ".lock"]
    return sorted(set(found))


def other_source(file: Path, sources: Collection[str]) -> str:
    """The source that a packed file was pulled for, where it is none of these; empty else. It is that one's alone."""
    with suppress(LocalspecError):
        repo = read(file).header.origin.repo
        return "" if repo in sources else repo
    return ""


@contextmanager
def locked(file: Path, reporter: Reporter, what: str) -> Iterator[None]:
    """Hold the lock of a file; report that another process does `what` while it is waited for.

    Its lock file goes with the lock: a process that waits notices that, and makes another one. Raises Stalled where the
    other process writes nothing for a while, and OSError.
    """
    from filelock import FileLock, Timeout

    lock, partial, before, since = FileLock(lock_of(file), mode=0o600), partial_of(file), 0, monotonic()
    while not lock.is_locked:
        try:
            lock.acquire(timeout=LOOK)
        except Timeout:
            with suppress(OSError):
                if (written := partial.stat().st_mtime_ns) != before:
                    before, since = written, monotonic()
            if monotonic() - since > STALLED:
                who = _writer(partial)
                raise Stalled(
                    errno.ETIMEDOUT,
                    f"{who}, which {what}, has written nothing for {STALLED:.0f} s; let it go on or end it",
                ) from None
            reporter.progress(f"waiting for {_writer(partial)}, which {what}")
    try:
        yield
    finally:
        with suppress(OSError):  # Windows deletes no open file, so it stays there
            lock_of(file).unlink()
        lock.release()


def partial_of(file: Path) -> Path:
    """Where a file lies while it is written."""
    return file.with_name(file.name + PARTIAL)


def _writer(partial: Path) -> str:
    """Return which process writes a file, if it says so at the beginning of the file."""
    with suppress(OSError), partial.open("rb") as stream:
        if number := re.match(rb"(\d{1,10})\n", stream.read(16)):
            return f"process {number[1].decode()}"
    return "another process"


def lock_of(file: Path) -> Path:
    """Return the file that is locked while a packed file is made."""
    return file.with_suffix(".lock")


def remove_abandoned(*directories: Path) -> int:
    """Delete what processes were writing that were killed, and their locks. Return the bytes of it."""
    from filelock import FileLock, Timeout

    freed = 0
    every = (file for directory in directories for file in _files(directory, "*"))
    for file in {one.with_suffix("").with_suffix(SUFFIX) for one in every if one.suffix in (PARTIAL, ".lock")}:
        lock, partial = lock_of(file), partial_of(file)
        with suppress(OSError, Timeout), FileLock(lock, timeout=0, mode=0o600):  # else somebody writes it
            if partial.is_file():
                count = partial.stat().st_size
                partial.unlink()
                freed += count
            lock.unlink()  # who waits for it sees that it is gone, and takes another
    return freed


def packed_bytes(paths: Paths) -> int:
    """Bytes of all files in the directories of packed models."""
    return sum(file.stat().st_size for place in _places(paths) for file in _files(place, "*"))


def _files(directory: Path, pattern: str) -> list[Path]:
    """Return what is there under such a name; nothing where the directory cannot be read."""
    try:
        return [file for file in sorted(directory.glob(pattern)) if file.is_file()]
    except OSError:
        return []


_SUFFIX = ".gguf"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_MOST_PARTS = 1000


def is_gguf(path: Path) -> bool:
    """Whether a file is called like a GGUF file."""
    return path.suffix.lower() == _SUFFIX and path.is_file()


def begins_as_gguf(path: Path) -> bool:
    """Whether a file, whatever it is called, begins as a GGUF file does."""
    try:
        if path.is_file():  # to open a pipe is to wait for a writer
            with path.open("rb") as stream:
                return stream.read(4) == b"GGUF"
    except OSError:
        pass
    return False


def parts_of(path: Path) -> list[Path]:
    """The files of a model, by the name of one of them: NAME-00001-of-00003.gguf; a file alone is all there is."""
    numbered = _PART.fullmatch(path.name)
    if not numbered or not 1 <= int(numbered[2]) <= int(numbered[3]) <= _MOST_PARTS:
        return [path]
    count = int(numbered[3])
    return [path.with_name(f"{numbered[1]}-{part:05}-of-{count:05}{path.suffix}") for part in range(1, count + 1)]


def came_from_gguf(files: Collection[str]) -> bool:
    """Return whether a packed model was made of these files of GGUF; one that was imported has absolute paths."""
    return bool(files) and all(name.lower().endswith(_SUFFIX) or os.path.isabs(name) for name in files)


def imports(paths: Paths) -> dict[str, PackedFile]:
    """The packed models that were imported, by name; of several the one that is read from its files, or made last."""
    return {one.header.origin.name: one for one in sorted(_imported(paths), key=rank)}


def import_of(path: Path, paths: Paths, progress: Progress = lambda done, total: None) -> PackedFile | None:
    """Return what was imported from a file as it is now, wherever it lay then; None where nothing was.

    A registration comes before packed files. Raises LocalspecError for a file that cannot be read.
    """
    files = parts_of(path)
    if not all(file.is_file() for file in files):
        return None
    every = _imported(paths)
    origins = {tuple(sorted(one.header.origin.files.items())) for one in every}  # packings of one import share it
    known = {origin for origin in origins if recognised(files, dict(origin), paths, progress)}
    same = [one for one in every if tuple(sorted(one.header.origin.files.items())) in known]
    return max(same, key=rank, default=None)


def new_name(path: Path, digest: str, taken: Collection[str], paths: Paths, called: str | None = None) -> str:
    """Return the name of a model that is imported from a file: that of the file, or `called`.

    If another model has this name, the digest is added. `taken` are the names of models that were not imported. A file
    that changed since an earlier version packed it is another model, because the weights of then may be nowhere else.
    """
    numbered = _PART.fullmatch(path.name)
    stem = numbered[1] if numbered else called or path.stem
    plain = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "model"
    return plain if plain not in {*taken, *imports(paths)} else f"{plain}-{digest[:8]}"


def _imported(paths: Paths) -> list[PackedFile]:
    every = ((one, one.header.origin) for one in packed_files(paths))
    return [one for one, origin in every if not origin.repo and came_from_gguf(origin.files)]


MOST_FILES = 10_000  # that are looked at in one folder
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_MANIFEST_BYTES = 2**20


@dataclass(frozen=True)
class FoundModel:
    """A model in GGUF. `path` is its file, or the first of its parts. `name` is what its program calls it."""

    path: Path
    name: str
    program: str  # empty if the folder belongs to no known program
    bytes: int


def kept_by_others() -> list[FoundModel]:
    """Return the models that LM Studio and Ollama keep in their usual places, by name."""
    home = Path(os.path.expanduser("~"))
    lm_studio = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    ollama = [home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
    if named := environment.ollama_models():
        ollama.insert(0, named)
    places = [("LM Studio", place) for place in lm_studio] + [("Ollama", place) for place in ollama]
    found = {one.path: one for program, place in places for one in models_below(place, program)}
    return sorted(found.values(), key=lambda one: one.name)


def models_below(folder: Path, program: str = "") -> list[FoundModel]:
    """Return the models in GGUF in a folder and the folders below it, by name.

    Projectors of images (`mmproj-…`), which are no models, are left out. So are models of which a part is missing.
    Ollama's folder of models has no file names: its manifests name them.
    """
    found = {one.path: one for one in _ollama(folder, program or "Ollama")}
    for path in _files_below(folder):
        first = parts_of(path)
        if first[0] == path and is_gguf(path) and not path.name.lower().startswith("mmproj"):
            with suppress(OSError):
                found[path] = FoundModel(path, path.stem, program, sum(part.stat().st_size for part in first))
    return sorted(found.values(), key=lambda one: one.name)


def ollama_name(file: Path) -> str | None:
    """Return the name of the model that Ollama keeps in a file, as NAME-TAG; None for any other file."""
    if not file.name.startswith("sha256-") or file.parent.name != "blobs":
        return None
    named = (one.name for one in _ollama(file.parent.parent, "Ollama") if one.path == file)
    return next((name.replace(":", "-") for name in named), None)


def _ollama(folder: Path, program: str) -> Iterator[FoundModel]:
    """Yield the models of Ollama's folder: `manifests/HOST/OWNER/NAME/TAG` names files in `blobs/`."""
    manifests = folder / "manifests"
    for manifest in sorted(_files_below(manifests)) if manifests.is_dir() else ():
        with suppress(OSError, ValueError):
            blob = _weights(folder / "blobs", parse_json(read_bytes(manifest, _MANIFEST_BYTES)))
            if blob is not None and begins_as_gguf(blob):
                *owner, name, tag = manifest.relative_to(manifests).parts[1:]
                own = "/".join(part for part in owner if part != "library")
                called = f"{own}/{name}:{tag}" if own else f"{name}:{tag}"
                yield FoundModel(blob, called, program, blob.stat().st_size)


def _weights(blobs: Path, manifest: Any) -> Path | None:
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    for layer in layers if isinstance(layers, list) else ():
        digest = layer.get("digest") if isinstance(layer, dict) and layer.get("mediaType") == _OLLAMA_MODEL else None
        if isinstance(digest, str) and digest.startswith("sha256:") and digest[7:].isalnum():
            return blobs / digest.replace(":", "-")
    return None


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below, without following links to folders, at most MOST_FILES."""
    seen = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            seen += 1
            if seen > MOST_FILES:
                return
            yield Path(place, name)
