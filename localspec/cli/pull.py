"""localspec pull NAME"""

from contextlib import closing
from typing import Annotated, Any

import typer

from localspec import config
from localspec.cli.console import at_a_terminal, print_json, size
from localspec.cli.progress import Download, Progress
from localspec.errors import UsageMistake
from localspec.hub.fetch import Interrupted
from localspec.hub.plan import Part, Plan, free_disk_bytes
from localspec.pulling.heads import Converted, NotConverted
from localspec.pulling.packing import Packed
from localspec.pulling.pull import (
    AboutToFetch,
    DrafterToTrain,
    Fetched,
    Installed,
    NothingToFetch,
    Planned,
    PullEvent,
    Wishes,
)
from localspec.pulling.pull import pull as pulled
from localspec.text import one_line

app = typer.Typer()


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A registered name, or org/repo[@revision] of the hub.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and fetch nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: one JSON value.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", metavar="KIND", help="The drafter to fetch too, or none; else the one that pays."),
    ] = None,
    packed_only: Annotated[
        bool, typer.Option("--packed-only", help="Keep the model as the CPU engine reads it, and no second copy.")
    ] = False,
    quantize: Annotated[
        str | None,
        typer.Option("--quantize", help="How the CPU engine packs it: int8, int4, or auto, as it would be loaded."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch what does not fit into memory or on the disk.")] = False,
) -> None:
    """Fetch a model and its drafter into the common Hugging Face cache, after a plan."""
    if as_json and not dry_run:
        raise UsageMistake("--json prints a plan as JSON and fetches nothing; give --dry-run with it.")
    progress = Progress()
    download = Download(progress, name)
    wishes = Wishes(drafter, force, packed_only, config.load(flags={"quantize": quantize}))
    try:
        with closing(pulled(name, wishes, progress.reporter, download.show)) as events:
            for event in events:
                progress.clear()
                if as_json:
                    print_json(_plan_json(name, event))
                else:
                    _print(name, event, progress)
                if dry_run:
                    return
                if isinstance(event, AboutToFetch) and not yes and not _may_fetch():
                    return
    except Interrupted as stopped:
        if str(stopped):
            progress.notice(str(stopped))
        raise
    finally:
        progress.clear()


def _may_fetch() -> bool:
    """Asks, where somebody can be asked."""
    if not at_a_terminal() or typer.confirm("Fetch?", default=True):
        return True
    typer.echo("Nothing was fetched.")
    return False


def _print(name: str, event: PullEvent, progress: Progress) -> None:
    """An event as a person reads it."""
    match event:
        case NothingToFetch():
            typer.echo(one_line(f"{_nothing_to_fetch(name, event)}."))
        case Planned():
            for line in _plan_lines(event):
                typer.echo(one_line(line) if not line.startswith(" ") else f"  {one_line(line)}")
        case Fetched(notices):
            for sentence in notices:
                progress.notice(sentence)
        case Converted(heads, model):
            progress.notice(f"The heads of {heads} are a drafter of {model}: --drafter medusa.")
        case NotConverted(heads, model):
            which = f"`localspec pull {model}`" if model else "fetch that"
            progress.notice(f"The heads of {heads} become a drafter beside their model: {which}, then this again.")
        case Installed(source, path):
            typer.echo(one_line(f"{source} is here: {path}"))
        case Packed(source, path, length, deleted):
            typer.echo(one_line(f"{source} is packed, {size(length)}: {path}"))
            if deleted:
                progress.notice(f"What was fetched for it, {size(deleted)}, is deleted: it is kept packed alone.")
        case DrafterToTrain(kind, tokens, hours, memory):
            sentence = (
                f"Nobody publishes a drafter '{kind}' for {name}; until there is one, the best that needs no training "
                f"serves. Make it with: localspec train {kind} -m {name} (about {hours:.0f} hours here for "
                f"{tokens / 1e6:.0f} million tokens, and {memory / 2**30:.0f} GiB of memory)"
            )
            typer.echo(one_line(sentence))


def _nothing_to_fetch(name: str, event: NothingToFetch) -> str:
    return f"{name} is here already; {event.why}"


def _plan_lines(planned: Planned) -> list[str]:
    """The plan as a person reads it."""
    lines, plan = [], planned.plan
    for part in plan.parts:
        gated = ", gated" if part.gated else ""
        lines.append(f"{part.source} ({part.commit[:12]}), license {part.license or 'unknown'}{gated}")
        for file in part.files:
            here = "  cached" if file.name in part.here else ""
            lines.append(f"  {file.name}  {size(file.bytes)}{here}")
        lines += [f"  {note}" for note in part.notes]
    files = sum(len(part.files) for part in plan.parts)
    lines.append(
        f"{files} files, {size(plan.bytes)}; {size(plan.cached_bytes)} cached already, "
        f"{size(plan.fetch_bytes)} to fetch; {size(plan.disk_free)} free on the disk of {config.hub_places().cache}"
    )
    return [*lines, f"memory: {planned.memory}", *([f"drafter: {planned.drafter}"] if planned.drafter else [])]


def _plan_json(name: str, event: PullEvent) -> dict[str, Any]:
    """The plan, which is the first event, as `--json` prints it; sizes in bytes."""
    if isinstance(event, NothingToFetch):
        event = Planned(Plan((), free_disk_bytes()), None, _nothing_to_fetch(name, event), "")
    assert isinstance(event, Planned)
    plan = event.plan
    return {
        "name": name,
        "sources": [_part_json(part) for part in plan.parts],
        "bytes": plan.bytes,
        "cached_bytes": plan.cached_bytes,
        "fetch_bytes": plan.fetch_bytes,
        "disk_free_bytes": plan.disk_free,
        "fits": event.fits if plan.fits_on_disk else False,
        "memory": event.memory,
    }


def _part_json(part: Part) -> dict[str, Any]:
    files = [{"name": file.name, "bytes": file.bytes, "cached": file.name in part.here} for file in part.files]
    source = part.source
    return {
        "repo": source.repo, "revision": source.revision, "commit": part.commit, "files": files,
        "license": part.license, "gated": part.gated,
    }  # fmt: skip
