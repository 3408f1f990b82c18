"""Trained drafters: names and directories -> DrafterCard. Reads headers, never weights."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.config import home
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.paths import Paths
from localspec.registry import TargetCard, inspect, read_config, read_json, reference, revision, tensor_headers

TRAINED = ("medusa", "parallelspec", "s3d", "semi")  # the kinds that have weights


@dataclass(frozen=True)
class DrafterCard:
    """A trained drafter, as its drafter.json describes it."""

    kind: str
    path: Path
    options: Mapping[str, Any]
    revision: str  # of the target it was made for; empty where that is any with its tokenizer
    target: str  # and the name of that
    parameters: int
    bytes: int
    about: Mapping[str, Any]  # the rest of drafter.json


def find_drafter(name: str, card: TargetCard, paths: Paths | None = None) -> DrafterCard:
    """The trained drafter that `name`, a kind or a directory, means for a model.

    Of one kind the user's own comes before the one that came with the model, and the newest first. Raises NotHere where
    there is none, UsageMistake where it was made for another model, LocalspecError where it is damaged.
    """
    if name in TRAINED:
        for path in _drafter_places(card, paths):
            found = _read_if_there(path)
            if found is not None and found.kind == name and found.revision == revision(card.path):
                return found
        raise NotHere(
            f"There is no drafter '{name}' for {card.name} here; "
            f"make one with `localspec train {name} -m {reference(card, paths)} --data FILE`."
        )
    found = read_drafter(Path(os.path.abspath(os.path.expanduser(name))))
    if found.revision and found.revision != (own := revision(card.path)):
        raise UsageMistake(
            f"The drafter in {found.path} was made for {found.target} ({found.revision[:12]}), and {card.name} is "
            f"{own[:12]}; name the model it was made for, or train one for this."
        )
    return found


def drafters(card: TargetCard, paths: Paths | None = None) -> list[DrafterCard]:
    """The trained drafters for a model that can be read: one a kind, the one that `find_drafter` finds."""
    found: dict[str, DrafterCard] = {}
    for path in _drafter_places(card, paths):
        try:
            drafter = _read_if_there(path)
        except LocalspecError:
            continue  # whoever names it is told
        if drafter is not None and drafter.revision == revision(card.path):
            found.setdefault(drafter.kind, drafter)
    return [found[kind] for kind in sorted(found)]


def _drafter_places(card: TargetCard, paths: Paths | None) -> list[Path]:
    """Where drafters for a model may lie: below the user's data directory, and beside the model's weights."""
    own = (paths or Paths(home())).drafters
    trained = [file.parent for file in own.glob("*/drafter/drafter.json")] if own.is_dir() else []
    trained.sort(key=lambda path: (path / "drafter.json").stat().st_mtime, reverse=True)
    return [*trained, *(card.path / "drafters" / kind for kind in TRAINED)]


def _read_if_there(path: Path) -> DrafterCard | None:
    return read_drafter(path) if (path / "drafter.json").is_file() else None


def read_drafter(path: Path) -> DrafterCard:
    """What a directory that `train` wrote says of itself; the directory of its drafter alone will do.

    A small language model whose config.json names a `pard_token` is a drafter too (PARD). Raises NotHere where there is
    none, LocalspecError where it is damaged.
    """
    if not (path / "drafter.json").is_file() and (path / "config.json").is_file():
        config = read_config(path)
        if isinstance(config.get("pard_token"), int):
            found = inspect(path)
            published = {"form": "model", "model": str(path)}
            return DrafterCard("parallelspec", path, published, "", "", found.parameters, found.bytes, config)
    if not (path / "drafter.json").is_file() and (path / "drafter" / "drafter.json").is_file():
        path = path / "drafter"
    file = path / "drafter.json"
    if not file.is_file():
        raise NotHere(
            f"{path} holds no drafter.json, so it is no trained drafter; give a directory that `localspec train` "
            f"wrote, or a kind: {', '.join(TRAINED)}."
        )
    content = read_json(file)
    content = content if isinstance(content, dict) else {}
    kind, options, target = content.get("kind"), content.get("options"), content.get("target")
    if kind not in TRAINED or not isinstance(options, dict) or not isinstance(target, dict):
        raise LocalspecError(f"{file} does not say what the drafter is; train it again.")
    if content.get("format") != 1:
        raise LocalspecError(
            f"{file} is of format {content.get('format')!r}, and this version reads 1; use the version that wrote it."
        )
    weights = path / "drafter.safetensors"
    if not weights.is_file():
        raise NotHere(f"{path} lacks drafter.safetensors; train the drafter again.")
    parameters = sum(math.prod(entry["shape"]) for entry in tensor_headers(weights).values())
    made_for, name = str(target.get("revision", "")), str(target.get("name", "another model"))
    return DrafterCard(kind, path, options, made_for, name, parameters, weights.stat().st_size, content)
