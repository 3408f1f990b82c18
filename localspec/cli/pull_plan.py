"""The plan of a pull as a person reads it and as `--json` prints it: as the hub has it, or as the registry has it."""

from collections.abc import Iterator
from typing import Any

from localspec import environment
from localspec.cli.show import form_in_words
from localspec.hub.plan import Part, Plan, free_disk_bytes
from localspec.models.entries import Form
from localspec.pulling.announced import Announced, Download
from localspec.pulling.pull import NothingToFetch, Planned
from localspec.pulling.smaller import Instead
from localspec.quantities import counted, size


def nothing_to_fetch(name: str, event: NothingToFetch) -> str:
    return f"{name} is here already; {event.why}"


# -- as text -----------------------------------------------------------------------------------------------------------


def planned_lines(planned: Planned) -> Iterator[str]:
    """What the hub says."""
    plan = planned.plan
    for part in plan.parts:
        gated = ", gated" if part.gated else ""
        yield f"{part.source} ({part.commit[:12]}), license {part.license or 'unknown'}{gated}"
        for file in part.files:
            here = "  cached" if file.name in part.here else ""
            yield f"  {file.name}  {size(file.bytes)}{here}"
        yield from (f"  {note}" for note in part.notes)
    files = sum(len(part.files) for part in plan.parts)
    yield (
        f"{counted(files, 'file')}, {size(plan.bytes)}; {size(plan.cached_bytes)} cached already, "
        f"{size(plan.fetch_bytes)} to fetch; {_free(plan.disk_free)}"
    )
    yield from _about(planned)


def announced_lines(name: str, announced: Announced) -> Iterator[str]:
    """What the registry says."""
    yield f"{name}, from the registry; the hub was not asked"
    for one in announced.downloads:
        gated = ", gated: its terms must be accepted at the hub first" if one.gated else ""
        here = "  here" if one.here else ""
        by = f"by {one.publisher or 'unknown'}, license {one.license or 'unknown'}"
        yield f"{one.source}, {by}{gated}, {_about_bytes(one.bytes)}{here}"
    yield from (f"  other form: {form_in_words(one)}" for one in announced.forms)
    yield f"{_about_bytes(announced.fetch_bytes)} to fetch; {_free(announced.disk_free)}"
    yield from _about(announced)
    if announced.to_make:
        yield (
            f"{announced.to_make}: nobody publishes one; until you make it, phrases draft. Once {name} is here, "
            f"`localspec train {announced.to_make} -m {name}` makes it; the pull says how many hours that takes here"
        )
    main = announced.downloads[0].source
    yield f"`localspec pull {main} --dry-run` asks the hub about {main}, `localspec pull {name}` about all of it."


def _about(one: Planned | Announced) -> Iterator[str]:
    if one.instead:
        yield f"form: {one.instead.why}"
    yield f"memory: {one.memory}"
    if one.drafter:
        yield f"drafter: {one.drafter}"


def _about_bytes(count: int | None) -> str:
    return "size unknown" if count is None else f"about {size(count)}" if count else "nothing"


def _free(count: int) -> str:
    return f"{size(count)} free on the disk of {environment.hub_places().cache}"


# -- as JSON -----------------------------------------------------------------------------------------------------------


def plan_json(name: str, event: Planned | Announced | NothingToFetch) -> dict[str, Any]:
    """The plan as `--json` prints it; sizes in bytes, those of the registry about right, null where it has none."""
    if isinstance(event, NothingToFetch):
        event = Planned(Plan((), free_disk_bytes()), None, nothing_to_fetch(name, event), "")
    plan = event if isinstance(event, Announced) else event.plan
    if isinstance(event, Announced):
        sources = [_download_json(one) for one in event.downloads]
    else:
        sources = [_part_json(part) for part in event.plan.parts]
    return {
        "name": name,
        "asked": "registry" if isinstance(event, Announced) else "hub",
        "sources": sources,
        "bytes": plan.bytes,
        "cached_bytes": plan.cached_bytes,
        "fetch_bytes": plan.fetch_bytes,
        "disk_free_bytes": plan.disk_free,
        "fits": event.fits if plan.fits_on_disk else False,
        "memory": event.memory,
        "instead_of": _instead_json(event.instead),
        "forms": [_form_json(one) for one in event.forms] if isinstance(event, Announced) else [],
    }


def _instead_json(instead: Instead | None) -> dict[str, Any] | None:
    if instead is None:
        return None
    of = instead.original
    return {"repo": of.repo, "revision": of.revision, "bytes": instead.bytes, "quantize": instead.packing}


def _form_json(one: Form) -> dict[str, Any]:
    return {
        "repo": one.source.repo, "revision": one.source.revision, "gguf": one.source.gguf or None,
        "publisher": one.publisher or None, "license": one.license, "bytes": one.bytes,
    }  # fmt: skip


def _part_json(part: Part) -> dict[str, Any]:
    files = [{"name": file.name, "bytes": file.bytes, "cached": file.name in part.here} for file in part.files]
    return {
        "repo": part.source.repo, "revision": part.source.revision, "gguf": part.source.gguf or None,
        "commit": part.commit, "files": files, "bytes": sum(file.bytes for file in part.files),
        "license": part.license, "gated": part.gated,
    }  # fmt: skip


def _download_json(one: Download) -> dict[str, Any]:
    return {
        "repo": one.source.repo, "revision": one.source.revision, "gguf": one.source.gguf or None,
        "commit": None, "files": [], "bytes": one.bytes, "license": one.license, "gated": one.gated,
    }  # fmt: skip
