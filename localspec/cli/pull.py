"""localspec pull NAME"""

from collections import deque
from contextlib import ExitStack
from time import monotonic
from typing import Annotated, Any

import typer

from localspec.cli.progress import Progress
from localspec.cli.store_access import at_a_terminal, print_json
from localspec.config import home, hub_places, nearest
from localspec.engine.device_profile import DeviceProfiler
from localspec.engine.measurements import Measurements
from localspec.errors import DoesNotFit, NotHere, UsageMistake
from localspec.hub.cache import located, repository
from localspec.hub.client import server
from localspec.hub.fetch import Interrupted, fetch, too_large
from localspec.hub.plan import Part, Plan, plan, room
from localspec.hub.records import folder
from localspec.hub.sources import Source
from localspec.machine.machine import Machine, this_machine
from localspec.models.registry import cards, named_card
from localspec.paths import Paths, private_directory
from localspec.policy.pull_set import PullSet, fit, pull_set, to_make
from localspec.store.store import Store
from localspec.text import one_line

app = typer.Typer()

TOKENS = 10_000_000  # of text to train a drafter on: about what the S3D paper took
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def sources_of(name: str) -> list[Source]:
    """All that may have been fetched for a name: the model, if it has a repository, and its published drafters."""
    known = cards()
    if name in known:
        entry = known[name].entry
        assert entry is not None
        every = (entry.source, *(one.source for one in entry.drafters))
        return list(dict.fromkeys(one for one in every if one is not None))
    if "/" not in name:
        raise NotHere(
            f"There is no model {name!r}{nearest(name, known)}; give a name out of: {', '.join(known)}; or org/repo."
        )
    return [Source.parse(name)]


def own_source(name: str) -> Source | None:
    """The repository of the model itself; none where it came with localspec, or is a directory of the user's."""
    card = cards().get(name)
    if card is None:
        return Source.parse(name)
    return card.entry.source if card.entry else None


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A registered name, or org/repo[@revision] of the hub.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and fetch nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: one JSON value.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", metavar="KIND", help="Which one comes along, or none; else what pays."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch what does not fit into memory or on the disk.")] = False,
) -> None:
    """Fetch a model and its drafter into the common Hugging Face cache, after a plan."""
    if as_json and not dry_run:
        raise UsageMistake("--json prints a plan as JSON and fetches nothing; give --dry-run with it.")
    found = sources_of(name)
    if not found:
        _nothing_to_fetch(name, "nothing is to be fetched for it", as_json)
        return
    card, progress = cards().get(name), Progress()
    if drafter is not None and card is None:
        raise UsageMistake(f"--drafter {drafter} has no effect with a repository; leave it out, or pull a name.")
    try:
        with ExitStack() as at_the_end:
            progress.show("looking at this machine")
            database = Paths(home()).database
            store = at_the_end.enter_context(Store.open(database, progress.notice)) if database.exists() else None
            # Between drafters it chooses as `doctor` does; that a model fits needs no measurement.
            several = drafter is None and card is not None and card.entry is not None and card.entry.drafters
            measurements = DeviceProfiler(store, progress.show, progress.notice) if several else Measurements(store)
            machine = this_machine()
            chosen = PullSet(tuple(found), "") if card is None else pull_set(card, drafter, machine, measurements)
            if not chosen.sources:
                progress.clear()
                _nothing_to_fetch(name, f"drafter: {chosen.why}", as_json)
                return
            progress.show(f"asking {server()} about {name}")
            planned = plan(chosen.sources)
            model, *others = planned.parts
            # One that was chosen for this machine fits beside it.
            beside = sum(part.weights for part in others) if drafter is not None else 0
            fits, memory = (
                (None, "not known for a drafter alone")
                if model.heads or own_source(name) is None
                else fit(name, model.config, model.weights, machine, measurements, beside)
            )
    finally:
        progress.clear()
    if as_json:
        print_json(_value(name, planned, fits, memory))
        return
    for line in _lines(planned, memory, chosen.why):
        typer.echo(one_line(line) if not line.startswith(" ") else f"  {one_line(line)}")
    if dry_run:
        return
    if not planned.fits_on_disk and not force:
        raise DoesNotFit(f"{too_large(planned)} --force tries all the same.")
    if fits is False and not force:
        raise DoesNotFit(f"{memory}; choose a smaller model, or give --force to fetch it all the same.")
    if planned.fetch_bytes and not yes and at_a_terminal() and not typer.confirm("Fetch?", default=True):
        typer.echo("Nothing was fetched.")
        return
    try:
        notices = fetch(planned, _Shown(progress, name).show, force=force)
    except Interrupted as stopped:
        if str(stopped):
            progress.notice(str(stopped))
        raise
    finally:
        progress.clear()
    for notice in notices:
        progress.notice(notice)
    _make_drafters(planned, progress)
    for part in planned.parts:
        typer.echo(one_line(f"{part.source} is here: {repository(part.source) / 'snapshots' / part.commit}"))
    if card is not None and (kind := to_make(named_card(name))) is not None:
        typer.echo(one_line(_making(kind, name, machine, progress)))


def _nothing_to_fetch(name: str, why: str, as_json: bool) -> None:
    told = f"{name} is here already; {why}"
    if as_json:
        print_json(_value(name, Plan((), room()), None, told))
    else:
        typer.echo(one_line(f"{told}."))


def _making(kind: str, name: str, machine: Machine, progress: Progress) -> str:
    """How to make the drafter that nobody publishes, and what that takes on this machine."""
    progress.show(f"estimating what training {kind} takes")
    try:
        from localspec.training.estimate import outlook  # torch and transformers

        hours, memory = outlook(kind, named_card(name), machine, Measurements(None), TOKENS)
    finally:
        progress.clear()
    return (
        f"Nobody publishes a drafter '{kind}' for {name}; until there is one, the best that needs no training serves. "
        f"Make it with: localspec train {kind} -m {name} --data FILE (about {hours:.0f} hours here for "
        f"{TOKENS / 1e6:.0f} million tokens, and {memory / 2**30:.0f} GiB of memory)"
    )


def _lines(planned: Plan, memory: str, why: str) -> list[str]:
    """The plan as a person reads it."""
    lines = []
    for part in planned.parts:
        gated = ", gated" if part.gated else ""
        lines.append(f"{part.source} ({part.commit[:12]}), license {part.license or 'unknown'}{gated}")
        for file in part.files:
            here = "  cached" if file.name in part.here else ""
            lines.append(f"  {file.name}  {size(file.bytes)}{here}")
        lines += [f"  {note}" for note in part.notes]
    files = sum(len(part.files) for part in planned.parts)
    lines.append(
        f"{files} files, {size(planned.bytes)}; {size(planned.cached_bytes)} cached already, "
        f"{size(planned.fetch_bytes)} to fetch; {size(planned.disk_free)} free on the disk of {hub_places().cache}"
    )
    return [*lines, f"memory: {memory}", *([f"drafter: {why}"] if why else [])]


def _value(name: str, planned: Plan, fits: bool | None, memory: str) -> dict[str, Any]:
    """The plan as `--json` prints it; sizes in bytes."""
    return {
        "name": name,
        "sources": [_part(part) for part in planned.parts],
        "bytes": planned.bytes,
        "cached_bytes": planned.cached_bytes,
        "fetch_bytes": planned.fetch_bytes,
        "disk_free_bytes": planned.disk_free,
        "fits": False if not planned.fits_on_disk else fits,
        "memory": memory,
    }


def _part(part: Part) -> dict[str, Any]:
    files = [{"name": file.name, "bytes": file.bytes, "cached": file.name in part.here} for file in part.files]
    source = part.source
    return {
        "repo": source.repo, "revision": source.revision, "commit": part.commit, "files": files,
        "license": part.license, "gated": part.gated,
    }  # fmt: skip


def size(count: float) -> str:
    """Bytes as a person reads them."""
    power = 0
    while count >= 1024 and power < len(UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:,.1f} {UNITS[power]}" if power else "1 byte" if count == 1 else f"{count:,.0f} bytes"


class _Shown:
    """The line of progress: how much, how fast over the last seconds, and how long it will still take."""

    PAUSE, WINDOW = 0.2, 10.0  # seconds between two looks; that the rate is taken over

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name
        self._seen: deque[tuple[float, int]] = deque()

    def show(self, done: int, total: int) -> None:
        now = monotonic()
        if self._seen and now - self._seen[-1][0] < self.PAUSE and done < total:
            return
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > self.WINDOW:
            self._seen.popleft()
        (then, before), line = self._seen[0], f"fetching {self._name}: {size(done)} of {size(total)}"
        if now > then and done > before:
            rate = (done - before) / (now - then)
            line += f", {size(rate)}/s, {_duration((total - done) / rate)} left"
        self._progress.show(line)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds / 60 + 0.5)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# -- Medusa heads ------------------------------------------------------------------------------------------------------


def _make_drafters(planned: Plan, progress: Progress) -> None:
    """Medusa heads as others publish them become a drafter of ours, once; a pickle is read as data and never run."""
    models = [part for part in planned.parts if not part.heads]
    for part in (part for part in planned.parts if part.heads):
        model = models[0].source if models else _named_by(part)
        path = located(model) if model else None
        if model is None or path is None:
            which = f"`localspec pull {model}`" if model else "fetch that"
            progress.notice(
                f"The heads of {part.source} become a drafter beside their model: {which}, then this again."
            )
            continue
        progress.show(f"making a drafter of {part.source}")
        from localspec.training.medusa_files import convert

        convert(
            repository(part.source) / "snapshots" / part.commit,
            path,
            private_directory(Paths(home()).drafters) / folder(part.source),
            {"name": str(model), "published": {"repo": part.source.repo, "commit": part.commit}},
        )
        progress.notice(f"The heads of {part.source} are a drafter of {model}: --drafter medusa.")


def _named_by(heads: Part) -> Source | None:
    """The model that heads say they are for."""
    try:
        return Source.parse(str(heads.config.get("base_model_name_or_path")))
    except UsageMistake:
        return None
