"""GGUF files that were imported: models without a repository, known by the files that they are made of."""

import os
import re
from collections.abc import Collection
from pathlib import Path

from localspec.models.fingerprint import recognised
from localspec.models.packed_files import packed_files, rank
from localspec.packed_file import PackedFile, Progress
from localspec.paths import Paths

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
    """What was imported from a file as it is now, wherever it lay then; None where nothing was.

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
