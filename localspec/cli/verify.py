"""localspec verify NAME"""

from typing import Annotated

import typer

from localspec.checkpoint import inspect
from localspec.cli.console import size
from localspec.cli.progress import Progress
from localspec.errors import LocalspecError, NotHere
from localspec.hub.cache import Verified, verify
from localspec.hub.sources import Source
from localspec.models.registry import resolve
from localspec.pulling.repositories import own_source, sources_of
from localspec.text import one_line

app = typer.Typer()


@app.command("verify")
def verify_model(
    name: Annotated[str, typer.Argument(help="A registered name, or org/repo[@revision] of the hub.")],
) -> None:
    """Compare every file of a model with its digest; needs no network."""
    sources = sources_of(name)
    if own_source(name) is None:
        found = inspect(resolve(name).path)
        typer.echo(one_line(f"{name}: weights of {size(found.bytes)} are whole, as far as their own headers tell."))
    problems: list[str] = []
    for source in sources:
        try:
            checked = _checked(source)
        except NotHere:
            if source == own_source(name):  # its drafters may be another one's too
                raise
            continue
        for problem in checked.problems:
            typer.echo(one_line(f"{source}: {problem}"))
        problems += checked.problems
        if not checked.problems:
            by = "what was recorded when it was pulled" if checked.recorded else "their names in the cache"
            typer.echo(one_line(f"{source} ({checked.commit[:12]}): {checked.files} files agree with {by}."))
    if problems:
        raise LocalspecError(f"{problems[0]}; fetch what is damaged or missing again with `localspec pull {name}`.")


def _checked(source: Source) -> Verified:
    progress = Progress()
    try:
        return verify(
            source, progress=lambda done, total: progress.show(f"reading {source}: {size(done)} of {size(total)}")
        )
    finally:
        progress.clear()
