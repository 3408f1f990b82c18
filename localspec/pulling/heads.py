"""Medusa heads as others publish them become a drafter of ours, beside the model they are for."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.checkpoint import read_json
from localspec.config import home
from localspec.errors import LocalspecError, UsageMistake
from localspec.hub.cache import find_snapshot, snapshot
from localspec.hub.plan import Part, Plan
from localspec.hub.records import folder
from localspec.hub.sources import Source
from localspec.paths import Paths, private_directory


@dataclass(frozen=True)
class Converted:
    """The heads of a repository are a drafter of this model now."""

    heads: Source
    model: Source


@dataclass(frozen=True)
class NotConverted:
    """The heads of a repository wait for their model, which is not here; None where they do not name it."""

    heads: Source
    model: Source | None


def convert_heads(plan: Plan, progress: Callable[[str], None]) -> Iterator[Converted | NotConverted]:
    """Converts the heads among what was fetched, once; a pickle is read as data and never run.

    Raises LocalspecError for heads that are damaged, of another model, or that would run code; DoesNotFit where the
    disk is full.
    """
    models = [part.source for part in plan.parts if not part.heads]
    for part in (part for part in plan.parts if part.heads):
        model = models[0] if models else _base_model(part)
        path = find_snapshot(model) if model else None
        if model is None or path is None:
            yield NotConverted(part.source, model)
            continue
        progress(f"making a drafter of {part.source}")
        from localspec.training.medusa_files import convert  # torch: a second

        private_directory(Paths(home()).drafters)
        about = {"name": str(model), "published": {"repo": part.source.repo, "commit": part.commit}}
        convert(snapshot(part.source, part.commit), path, _drafter_directory(part.source), about)
        yield Converted(part.source, model)


def drafter_made_of(source: Source, commit: str) -> Path | None:
    """The directory of the drafter that was made of the heads in this revision, if there is one."""
    directory = _drafter_directory(source)
    with suppress(LocalspecError):
        content = read_json(directory / "drafter" / "drafter.json")
        published = content.get("published") if isinstance(content, dict) else None
        if isinstance(published, dict) and published.get("commit") == commit:
            return directory
    return None


def _drafter_directory(source: Source) -> Path:
    return Paths(home()).drafters / folder(source)


def _base_model(heads: Part) -> Source | None:
    """The model that heads say they are for."""
    try:
        return Source.parse(str(heads.config.get("base_model_name_or_path")))
    except UsageMistake:
        return None
