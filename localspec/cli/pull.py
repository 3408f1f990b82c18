"""localspec pull NAME"""

from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from localspec.cli.console import at_a_terminal, print_json, seen
from localspec.cli.interrupt import cleared_up_when_ended
from localspec.cli.meanwhile import measure_new
from localspec.cli.options import takes_settings
from localspec.cli.progress import Download, Progress
from localspec.cli.pull_plan import announced_lines, nothing_to_fetch, plan_json, planned_lines
from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec.hub.fetch import Interrupted
from localspec.hub.sources import Source, is_address
from localspec.models.registry import cards
from localspec.pulling.announced import Announced, announced
from localspec.pulling.heads import Converted, NotConverted
from localspec.pulling.packing import Installed, Packed
from localspec.pulling.pull import (
    AboutToFetch,
    DrafterToTrain,
    Fetched,
    NothingToFetch,
    Planned,
    PullEvent,
    Wishes,
)
from localspec.pulling.pull import pull as pulled
from localspec.quantities import size
from localspec.text import one_line

app = typer.Typer()


@app.command()
@takes_settings("quantize", quantize="How the CPU engine packs it: int8, int4, or auto, as it would be loaded.")
def pull(
    *,
    name: Annotated[
        str, typer.Argument(help="A registered name, org/repo[@revision] of the hub, or org/repo-GGUF:TYPE.")
    ],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan and fetch nothing; of a registered name from the registry, without a network.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: one JSON value.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", metavar="KIND", help="The drafter to fetch too, or none; else the one that pays."),
    ] = None,
    packed_only: Annotated[
        bool, typer.Option("--packed-only", help="Keep the model as the CPU engine reads it, and no second copy.")
    ] = False,
    settings: Settings,
    original: Annotated[
        bool, typer.Option("--original", help="The publisher's own weights, also where a smaller download would serve.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Fetch what does not fit into memory or on the disk.")] = False,
) -> None:
    """Fetch a model and its drafter into the common Hugging Face cache, after a plan."""
    if as_json and not dry_run:
        raise UsageMistake("--json prints a plan as JSON and fetches nothing; give --dry-run with it.")
    if is_address(name):
        name = str(Source.parse(name))
    progress = Progress()
    download = Download(progress, name)
    fetched = False
    wishes = Wishes(drafter, force, packed_only, original, settings)
    try:
        if dry_run and (card := cards().get(name)):
            found = announced(card, wishes, progress.reporter)
            progress.clear()
            _print_plan(name, found, as_json)
            return
        with cleared_up_when_ended(), closing(pulled(name, wishes, progress.reporter, download.show)) as events:
            for event in events:
                progress.clear()
                if dry_run:
                    assert isinstance(event, Planned | NothingToFetch)  # which come first
                    _print_plan(name, event, as_json)
                    return
                _print(name, event, progress)
                fetched = fetched or isinstance(event, AboutToFetch)
                if isinstance(event, AboutToFetch) and not yes and not _may_fetch():
                    return
        chats = isinstance(event, Packed) or (isinstance(event, Installed) and bool(event.source.gguf))
        if seen() and (name in cards() or chats):
            typer.echo(one_line(f"Chat with it: localspec chat -m {name}"))
            if fetched:
                measure_new(name, settings, progress)
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


def _print_plan(name: str, event: Planned | Announced | NothingToFetch, as_json: bool) -> None:
    """The plan alone, as text or as one JSON value."""
    if as_json:
        print_json(plan_json(name, event))
        return
    match event:
        case NothingToFetch():
            typer.echo(one_line(f"{nothing_to_fetch(name, event)}."))
        case Planned():
            _print_lines(planned_lines(event))
        case Announced():
            _print_lines(announced_lines(name, event))


def _print_lines(lines: Iterator[str]) -> None:
    for line in lines:
        typer.echo(one_line(line) if not line.startswith(" ") else f"  {one_line(line)}")


def _print(name: str, event: PullEvent, progress: Progress) -> None:
    """An event as a person reads it."""
    match event:
        case NothingToFetch() | Planned():
            _print_plan(name, event, as_json=False)
        case Fetched(notices):
            for sentence in notices:
                progress.notice(sentence)
        case Converted(heads, model, kind):
            progress.notice(f"The heads of {heads} are a drafter of {model}: --drafter {kind}.")
        case NotConverted(heads, model):
            which = f"`localspec pull {model}`" if model else "fetch that"
            progress.notice(f"The heads of {heads} become a drafter beside their model: {which}, then this again.")
        case Installed(source, path, held):
            typer.echo(one_line(f"{source} is here{f', {held}' if held else ''}: {path}"))
        case Packed(source, path, length, deleted, stays):
            typer.echo(one_line(f"{source} is packed, {size(length)}: {path}"))
            if deleted:
                progress.notice(f"What was fetched for it, {size(deleted)}, is deleted: it is kept packed alone.")
            if stays:
                progress.notice(
                    f"The weights of {source} that were here before, {size(stays)}, stay beside it, for other programs "
                    f"may use them; without them: `localspec rm {name}`, then this again."
                )
        case DrafterToTrain(kind, tokens, hours, memory):
            sentence = (
                f"Nobody publishes a drafter '{kind}' for {name}; until there is one, the best that needs no training "
                f"serves. Make it with: localspec train {kind} -m {name} (about {hours:.0f} hours here for "
                f"{tokens / 1e6:.0f} million tokens, and {memory / 2**30:.0f} GiB of memory)"
            )
            typer.echo(one_line(sentence))
