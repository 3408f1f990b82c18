"""`localspec pull NAME`: fetches a model from the hub, after showing a plan."""

from collections.abc import Iterator
from contextlib import closing
from time import monotonic
from typing import Annotated, Any

import typer

from localspec import environment
from localspec.choosing.cost import TRAINING_TOKENS
from localspec.cli.console import Progress, at_a_terminal, output_is_terminal, print_json
from localspec.cli.interrupt import cleared_up_when_ended
from localspec.cli.meanwhile import measure_new
from localspec.cli.options import takes_settings
from localspec.cli.show import form_in_words
from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec.hub.fetch import Interrupted
from localspec.hub.plan import Part, Plan, free_disk_bytes
from localspec.hub.sources import Source, is_address
from localspec.models.registry import cards
from localspec.pulling.announced import Announced, announced
from localspec.pulling.heads import Converted, NotConverted
from localspec.pulling.packing import Installed, Packed
from localspec.pulling.pull import AboutToFetch, AlreadyHere, DrafterToTrain, Fetched, Planned, PullEvent, PullOptions
from localspec.pulling.pull import pull as pulled
from localspec.quantities import Arrival, counted, size
from localspec.text import one_line

app = typer.Typer()

PAUSE = 0.2  # seconds between two lines of progress


@app.command()
@takes_settings(
    "quantize", quantize="Packing for the CPU engine: int8, int4, or auto, which is what `chat` would load."
)
def pull(
    *,
    name: Annotated[
        str, typer.Argument(help="A registered name, org/repo[@revision] of the hub, or org/repo-GGUF:TYPE.")
    ],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan and fetch nothing. A registered name needs no network.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: one JSON value.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            metavar="KIND",
            help="The drafter to fetch with the model, or none; by default the one that pays best.",
        ),
    ] = None,
    packed_only: Annotated[
        bool, typer.Option("--packed-only", help="Keep only the packed copy that the CPU engine reads.")
    ] = False,
    settings: Settings,
    original: Annotated[
        bool, typer.Option("--original", help="The publisher's original weights, even if a smaller download would do.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Fetch the model even if it does not fit in memory or on the disk.")
    ] = False,
) -> None:
    """Fetch a model and its drafter into the common Hugging Face cache, after showing a plan."""
    if as_json and not dry_run:
        raise UsageMistake("--json works only with --dry-run; add --dry-run, or leave --json out.")
    if is_address(name):
        name = str(Source.parse(name))
    fetched, options = False, PullOptions(drafter, force, packed_only, original, settings)
    progress = Progress()
    arrival, shown_at = Arrival(), float("-inf")

    def received(done: int, total: int) -> None:
        nonlocal shown_at
        if (now := monotonic()) - shown_at >= PAUSE or done >= total:
            shown_at = now
            progress.show(f"fetching {name}: {', '.join(arrival.parts(done, total, now))}")

    try:
        if dry_run and (card := cards().get(name)):
            announcement = announced(card, options, progress.reporter)
            progress.clear()
            _print_plan(name, announcement, as_json)
            return
        with cleared_up_when_ended(), closing(pulled(name, options, progress.reporter, received)) as events:
            for event in events:
                progress.clear()
                if dry_run:
                    assert isinstance(event, Planned | AlreadyHere)  # these come first
                    _print_plan(name, event, as_json)
                    return
                _print(name, event, progress)
                about_to = isinstance(event, AboutToFetch)
                if about_to and not yes and at_a_terminal() and not typer.confirm("Fetch?", default=True):
                    typer.echo("Nothing was fetched.")
                    return
                fetched = fetched or about_to
        chats = isinstance(event, Packed) or (isinstance(event, Installed) and bool(event.source.gguf))
        if output_is_terminal() and (name in cards() or chats):
            typer.echo(one_line(f"Chat with it: localspec chat -m {name}"))
            if fetched:
                measure_new(name, settings, progress)
    except Interrupted as error:
        if str(error):
            progress.notice(str(error))
        raise
    finally:
        progress.clear()


def _print_plan(name: str, event: Planned | Announced | AlreadyHere, as_json: bool) -> None:
    if as_json:
        print_json(plan_json(name, event))
        return
    match event:
        case AlreadyHere():
            typer.echo(one_line(f"{already_here(name, event)}."))
        case Planned():
            _print_lines(planned_lines(event))
        case Announced():
            _print_lines(announced_lines(name, event))


def _print_lines(lines: Iterator[str]) -> None:
    for line in lines:
        typer.echo(one_line(line) if not line.startswith(" ") else f"  {one_line(line)}")


def _print(name: str, event: PullEvent, progress: Progress) -> None:
    match event:
        case AlreadyHere() | Planned():
            _print_plan(name, event, as_json=False)
        case Fetched(notices):
            for sentence in notices:
                progress.notice(sentence)
        case Converted(heads, model, kind):
            progress.notice(f"The heads of {heads} are now a drafter for {model}; use them with --drafter {kind}.")
        case NotConverted(heads, None):
            progress.notice(
                f"The drafter heads of {heads} do not name the model that they draft for; add them to that model's "
                "entry in models.toml, then run `localspec pull NAME --drafter KIND`."
            )
        case NotConverted(heads, model):
            progress.notice(
                f"The heads of {heads} are not a drafter until their model is here: fetch the model with "
                f"`localspec pull {model}`, then repeat this command."
            )
        case Installed(source, path, weights):
            typer.echo(one_line(f"{source} is here{f', {weights}' if weights else ''}: {path}"))
        case Packed(source, path, length, deleted, stays):
            typer.echo(one_line(f"{source} is packed, {size(length)}: {path}"))
            if deleted:
                progress.notice(f"The fetched files, {size(deleted)}, are deleted: only the packed model is kept.")
            if stays:
                progress.notice(
                    f"The weights of {source} that were here before ({size(stays)}) are kept, because other programs "
                    f"may use them. To delete them, run `localspec rm {name}`, then this command again."
                )
        case DrafterToTrain(kind, tokens, hours, memory):
            sentence = (
                f"Nobody publishes a drafter '{kind}' for {name}; until you make one, the best drafter without "
                f"training is used. Make one with: localspec train {kind} -m {name} (about {hours:.0f} hours here for "
                f"{tokens / 1e6:.0f} million tokens, and {memory / 2**30:.0f} GiB of memory)"
            )
            typer.echo(one_line(sentence))


def already_here(name: str, event: AlreadyHere) -> str:
    return f"{name} is here already; {event.why}"


# -- as text -----------------------------------------------------------------------------------------------------------


def planned_lines(planned: Planned) -> Iterator[str]:
    """Yield the lines of a plan that the hub confirmed."""
    plan = planned.plan
    for part in plan.parts:
        gated = ", gated" if part.gated else ""
        yield f"{part.source} ({part.commit[:12]}), license {part.license or 'unknown'}{gated}"
        for file in part.files:
            here = "  cached" if file.name in part.here else ""
            yield f"  {file.name}  {size(file.bytes)}{here}"
        yield from (f"  {note}" for note in part.notes)
    files = sum(len(part.files) for part in plan.parts)
    whole, cached, missing, free = *map(size, (plan.bytes, plan.cached_bytes, plan.fetch_bytes)), _free(plan.disk_free)
    yield f"{counted(files, 'file')}, {whole}; {cached} cached already, {missing} to fetch; {free}"
    yield from _about(planned)


def announced_lines(name: str, announced: Announced) -> Iterator[str]:
    """Yield the lines of a plan made from models.toml, without asking the hub."""
    if announced.imported:
        yield f"{name} is already here: {announced.imported}"
    yield f"{name}: a plan from localspec's registry, made without asking the hub"
    for download in announced.downloads:
        gated = ", gated: its terms must be accepted at the hub first" if download.gated else ""
        here = "  here" if download.here else ""
        credit = f"by {download.publisher or 'unknown'}, license {download.license or 'unknown'}"
        yield f"{download.source}, {credit}{gated}, {_about_bytes(download.bytes)}{here}"
    yield from (f"  also available: {form_in_words(form)}" for form in announced.forms)
    yield f"{_about_bytes(announced.fetch_bytes)} to fetch; {_free(announced.disk_free)}"
    yield from _about(announced)
    if announced.to_make:
        long = ""
        if announced.hours:
            long = (
                f"; training on {TRAINING_TOKENS / 1e6:.0f} million tokens, as in its paper, would take about "
                f"{announced.hours:.0f} hours here, estimated from this machine's memory speed; "
                "without --dry-run, the pull measures how fast this machine computes"
            )
        yield (
            f"The drafter {announced.to_make} is not published for {name}; until you train it, drafts come from "
            f"phrases. Once {name} is here, train it with `localspec train {announced.to_make} -m {name}`, by default "
            f"in six hours at most{long}"
        )
    main = announced.downloads[0].source
    yield f"`localspec pull {main} --dry-run` asks the hub about {main}, `localspec pull {name}` about every part."


def _about(plan: Planned | Announced) -> Iterator[str]:
    if plan.instead:
        yield f"form: {plan.instead.why}"
    yield f"memory: {plan.memory}"
    if plan.drafter:
        yield f"drafter: {plan.drafter}"


def _about_bytes(count: int | None) -> str:
    return "size unknown" if count is None else f"about {size(count)}" if count else "nothing"


def _free(count: int) -> str:
    return f"{size(count)} free on the disk of {environment.hub_places().cache}"


# -- as JSON -----------------------------------------------------------------------------------------------------------


def plan_json(name: str, event: Planned | Announced | AlreadyHere) -> dict[str, Any]:
    """Return the plan as `--json` prints it.

    Sizes are in bytes; the registry's sizes are approximate, null if unknown.
    """
    if isinstance(event, AlreadyHere):
        event = Planned(Plan((), free_disk_bytes()), None, already_here(name, event), "")
    plan = event if isinstance(event, Announced) else event.plan
    if isinstance(event, Announced):
        origin, forms = "registry", event.forms
        sources = [
            {
                **_source_json(download.source), "commit": None, "files": [], "bytes": download.bytes,
                "license": download.license, "gated": download.gated,
            }
            for download in event.downloads
        ]  # fmt: skip
    else:
        origin, forms = "hub", ()
        sources = [_part_json(part) for part in event.plan.parts]
    instead = event.instead
    return {
        "name": name,
        "asked": origin,
        "sources": sources,
        "bytes": plan.bytes,
        "cached_bytes": plan.cached_bytes,
        "fetch_bytes": plan.fetch_bytes,
        "disk_free_bytes": plan.disk_free,
        "fits": event.fits if plan.fits_on_disk else False,
        "memory": event.memory,
        "drafter": event.drafter or None,
        "instead_of": instead and {
            "repo": instead.original.repo, "revision": instead.original.revision, "bytes": instead.bytes,
            "quantize": instead.packing,
        },
        "forms": [
            {
                **_source_json(form.source), "publisher": form.publisher or None, "license": form.license,
                "bytes": form.bytes,
            }
            for form in forms
        ],
    }  # fmt: skip


def _part_json(part: Part) -> dict[str, Any]:
    files = [{"name": file.name, "bytes": file.bytes, "cached": file.name in part.here} for file in part.files]
    return {
        **_source_json(part.source), "commit": part.commit, "files": files,
        "bytes": sum(file.bytes for file in part.files), "license": part.license, "gated": part.gated,
    }  # fmt: skip


def _source_json(source: Source) -> dict[str, Any]:
    return {"repo": source.repo, "revision": source.revision, "gguf": source.gguf or None}
