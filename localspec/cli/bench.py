"""`localspec bench`: compares the speed of plain and speculative decoding."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from localspec import config
from localspec.bench import plot, prompts, server_table, table
from localspec.chat.start import chosen_model
from localspec.choosing.choice import Choice, LoadSpec
from localspec.choosing.choose import choose
from localspec.choosing.drafters import MOST_NODES
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.cli.console import Progress, tell, window
from localspec.cli.options import no_effect, takes_settings, whole_number
from localspec.cli.texts import file_named
from localspec.config import LOADED_BY, Settings
from localspec.errors import UsageMistake
from localspec.marks import drawable
from localspec.models.drafter_kinds import kinds
from localspec.store.store import user_store

if TYPE_CHECKING:
    from localspec.serving.server_engine import ServerEngine

Size = int | Literal["auto"]

app = typer.Typer()


@app.command()
@takes_settings(
    "model", "temperature", "seed", "drafter_rule", "accept", "exact", "context", "device", "dtype", "quantize",
    temperature="0, the default, is greedy.",
    seed="The same seed gives the same texts.",
    accept="How drafts are accepted.",
    exact="Make all texts the same, bit for bit. They may be written more slowly.",
)  # fmt: skip
def bench(
    *,
    settings: Settings,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", metavar="A,B", help="Drafters to compare with plain decoding.  [default: auto]"),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes", metavar="N,N", help="Drafted tokens per step (nodes), to compare, or auto.  [default: auto]"
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            parser=file_named,
            metavar="FILE",
            help='JSONL with {"turns": ["…"]} or {"prompt": "…"}, or one prompt per line.',
        ),
    ] = None,
    limit: Annotated[int | None, whole_number(help="Use this many prompts, from all categories.")] = None,
    max_tokens: Annotated[int, whole_number("--max-tokens", "-n", help="The longest reply, in tokens.")] = 128,
    repeat: Annotated[int, whole_number(help="Ask all prompts this many times.")] = 1,
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            metavar="URL|off",
            help="Measure this OpenAI-compatible server instead; repeatable; off for none.",
        ),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search for the best length of a draft model's drafts; takes minutes.")
    ] = False,
    plotted: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw the chart into a file: .svg or .png.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also print quartiles, costs, memory and acceptance by depth.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON line on standard output, and the table on standard error.")
    ] = False,
) -> None:
    """Compare the speed of plain and speculative decoding, or of servers with --server."""
    if not settings.by_flag("temperature"):
        settings = replace(settings, temperature=0.0)
    if server:
        settings = replace(settings, server=server[0], origins={**settings.origins, "server": "--server"})
    if plotted:
        plot.check(plotted)
    urls = addresses(server or [], settings)
    if urls:
        local = {"--drafter": drafter, "--nodes": nodes, "--tune": tune, "--details": details}
        flags = [flag for flag, value in local.items() if value]
        for flag in [*flags, *(settings.origins[name] for name in LOADED_BY if settings.by_flag(name))]:
            raise no_effect(flag, settings)
    questions = prompts.spread(prompts.read(prompt_file) if prompt_file else prompts.BUILT_IN, limit)
    progress = Progress()
    progress.show("preparing the benchmark")
    if urls:
        from localspec.serving.measuring import measure  # opens connections

        with progress:
            engines = [_engine(url, settings, progress) for url in urls]
            report = measure(engines, questions, max_tokens, repeat, settings, progress.show)
        _tell(report, server_table.of(report, _width(as_json)), as_json)
        if plotted:
            _draw(plot.figure_of_servers(report), plotted)
        return
    nodes = "auto" if nodes is None else nodes
    combinations = _combinations("auto" if drafter is None else drafter, nodes)
    if settings.by_flag("drafter_rule") and all(name != "auto" for name, _ in combinations):
        raise UsageMistake(
            f"--drafter-rule {settings.drafter_rule} has no effect with --drafter {drafter}; add auto to --drafter, or "
            "leave --drafter-rule out."
        )
    choices: dict[tuple[str, LoadSpec | None, tuple[Path, ...], Size], Choice] = {}
    with user_store(progress.notice, create=False) as store:
        card = chosen_model(settings, store, progress.reporter)
        measurements = Measurements(MeasurementCache(store, progress.reporter), settings.exact, settings.context)
        for name, size in combinations:  # plain decoding first; all others have its precision and device
            rule = settings.accept if size else "exact"
            row_settings = replace(settings, drafter=name, draft_max=size or "auto", accept=rule)
            choice = choose(card, row_settings, measurements=measurements)
            settings = config.narrowed(settings, choice.device, choice.dtype, choice.quantize)
            trained = tuple(drafter.path for drafter in choice.trained)
            choices[choice.drafter, choice.draft, trained, size] = (
                choice  # "auto" and the drafter that it chose are one
            )
    if tune and not any(choice.draft for choice in choices.values()):
        paired = ", ".join(kinds("draft model"))
        raise UsageMistake(f"--tune has no effect without a draft model; name one of {paired}.")
    if tune and not any(choice.draft and not choice.fixed for choice in choices.values()):
        raise UsageMistake(
            f"--tune has no effect with --nodes {nodes}, which fixes the size of drafts; add auto to --nodes."
        )

    progress.show("loading the libraries")
    from localspec.bench import comparison  # needs torch, which takes a second to import

    rows = [
        comparison.ComparedRow(choice, size, settings.accept if size else "exact")
        for (*_, size), choice in choices.items()
    ]
    with progress, user_store(progress.notice, create=tune) as store:
        report = comparison.bench(rows, questions, max_tokens, repeat, settings, progress.show, store, tune)
    _tell(report, table.of(report, _width(as_json), details), as_json)
    if plotted:
        _draw(plot.figure(report), plotted)


def _width(as_json: bool) -> int:
    return min(table.WIDTH, window(sys.stderr if as_json else sys.stdout)[0] or table.WIDTH)


def _tell(report: dict[str, Any], page: str, as_json: bool) -> None:
    if as_json:
        tell(page)
        print(json.dumps(report), flush=True)
    else:
        print(drawable(page, sys.stdout))


def _draw(svg: str, file: Path) -> None:
    plot.write(svg, file)
    tell(f"localspec: the chart is in {file}.")


def _combinations(drafters: str, nodes: str) -> list[tuple[str, Size]]:
    """Return the pairs to compare: plain decoding, then each drafter with each size of draft tree (`--nodes`)."""
    sizes: list[Size] = []
    for word in _words("--nodes", nodes):
        if word != "auto" and not (word.isdecimal() and 1 <= int(word) <= MOST_NODES):
            raise UsageMistake(
                f"--nodes {word} is not possible: give numbers from 1 to {MOST_NODES} or auto, separated by commas; "
                "plain decoding is always measured."
            )
        sizes.append("auto" if word == "auto" else int(word))
    names = [word for word in _words("--drafter", drafters) if word != "none"]
    if not names and nodes != "auto":
        raise UsageMistake(f"--nodes {nodes} has no effect without a drafter; name a drafter, or leave --nodes out.")
    return [("none", 0), *((drafter, size) for drafter in names for size in sizes)]


def _words(flag: str, value: str) -> list[str]:
    words = [word.strip() for word in value.split(",")]
    if not all(words):
        raise UsageMistake(f"{flag} {value!r} has an empty entry; write a list such as A,B.")
    if duplicate := next((word for word in words if words.count(word) > 1), None):
        raise UsageMistake(f"{flag} {value} lists {duplicate} twice. Remove one.")
    return words


def addresses(values: Sequence[str], settings: Settings) -> list[str]:
    """Return the addresses of servers to measure, from `--server` or the settings; empty to measure on this machine.

    Raises UsageMistake for an invalid address, and for an address that is given twice.
    """
    servers = [config.load(flags={"server": value}).elsewhere for value in values] or [settings.elsewhere]
    if len(servers) > 1 and None in servers:
        raise UsageMistake("--server off cannot be combined with another --server; leave one of them out.")
    urls = [server for server in servers if server is not None]
    if duplicate := next((url for url in urls if urls.count(url) > 1), None):
        raise UsageMistake(f"--server {duplicate} is listed twice. Remove one.")
    return urls


def _engine(url: str, settings: Settings, progress: Progress) -> "ServerEngine":
    """Open a server to measure. Raises the errors of `Server.open`, and NotHere if the server lacks the model."""
    from localspec.serving.server import Server
    from localspec.serving.server_engine import ServerEngine

    progress.show(f"asking {url}")
    server = Server.open(url)
    if server.unencrypted_key:
        progress.notice(server.unencrypted_key)
    insist = settings.origins.get("model", "").startswith("--")
    return ServerEngine(server, server.model(settings.model, insist=insist), progress.reporter)
