"""Converts published drafters, such as Medusa heads, into localspec's form, in a separate directory."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.environment import home
from localspec.errors import LocalspecError, UsageMistake
from localspec.hub.cache import find_snapshot, snapshot
from localspec.hub.plan import Plan
from localspec.hub.records import folder, packed_sources
from localspec.hub.sources import Source
from localspec.models.drafter_kinds import kind_of
from localspec.models.registry import split_of
from localspec.paths import Paths, private_directory
from localspec.published_heads import base_model
from localspec.weights.checkpoint import HEAD_PREFIX, inspect, read_json, tensor_headers


@dataclass(frozen=True)
class Converted:
    """An event: a drafter was converted. It has this kind, and drafts for `model`; `heads` is its repository."""

    heads: Source
    model: Source
    kind: str = "medusa"


@dataclass(frozen=True)
class NotConverted:
    """An event: fetched heads cannot be converted yet, because their model is not on this machine.

    `model` is None if the heads do not name their model.
    """

    heads: Source
    model: Source | None


def convert_heads(
    plan: Plan, progress: Callable[[str], None], registered: Source | None = None
) -> Iterator[Converted | NotConverted]:
    """Convert a plan's fetched drafters, and Medusa heads inside a fetched model. A pickle is read as data, never run.

    `registered` is the plan's model if it is in GGUF files. Raises LocalspecError for heads that are damaged, belong to
    another model, or would run code. Raises DoesNotFit if the disk is full.
    """
    models = [part.source for part in plan.parts if not part.heads]
    for part in (part for part in plan.parts if not part.heads):
        directory, source = snapshot(part.source, part.commit), part.source
        if part.whole or _has_medusa_heads(directory):
            progress(f"making a drafter from {source}")
            from localspec.training.medusa_files import split  # torch: a second
            from localspec.training.published_files import convert

            private_directory(Paths(home()).drafters)
            about = {"name": str(source), "published": {"repo": source.repo, "commit": part.commit}}
            if part.whole:
                split(directory, split_of(source).parent, about)
            else:
                convert("medusa", directory, directory, _drafter_directory(source), about)
            yield Converted(source, source)
    for part in (part for part in plan.parts if part.heads):
        model = registered if registered and kind_of(part.heads).by_shapes else next(iter(models), None)
        if model is None:
            with suppress(UsageMistake):  # heads need not name their model
                model = Source.parse(str(base_model(part.config, part.source.repo)))
        path = find_snapshot(model) if model and not model.gguf else None
        if model and model.gguf and (packed := packed_sources(Paths(home())).get(str(model))):
            path = packed.path
        if model is None or path is None:
            yield NotConverted(part.source, model)
            continue
        progress(f"making a drafter from {part.source}")
        from localspec.training.published_files import convert  # torch: a second

        private_directory(Paths(home()).drafters)
        about = {"name": str(model), "published": {"repo": part.source.repo, "commit": part.commit}}
        convert(part.heads, snapshot(part.source, part.commit), path, _drafter_directory(part.source), about)
        yield Converted(part.source, model, part.heads)


def drafter_made_of(source: Source, commit: str) -> Path | None:
    """Return the directory of the drafter that was converted from this commit; None if there is none."""
    directory = _drafter_directory(source)
    with suppress(LocalspecError):
        content = read_json(directory / "drafter" / "drafter.json")
        published = content.get("published") if isinstance(content, dict) else None
        if isinstance(published, dict) and published.get("commit") == commit:
            return directory
    return None


def _has_medusa_heads(path: Path) -> bool:
    return any(name.startswith(HEAD_PREFIX) for file in inspect(path).weight_files for name in tensor_headers(file))


def _drafter_directory(source: Source) -> Path:
    return Paths(home()).drafters / folder(source)
