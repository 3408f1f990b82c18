"""Models in GGUF that other programs keep on this machine: LM Studio and Ollama."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import environment
from localspec.models.imported import begins_as_gguf, is_gguf, parts_of
from localspec.outside_files import parse_json, read_bytes

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
    for path in _files(folder):
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
    for manifest in sorted(_files(manifests)) if manifests.is_dir() else ():
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


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below, without following links to folders, at most MOST_FILES."""
    seen = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            seen += 1
            if seen > MOST_FILES:
                return
            yield Path(place, name)
