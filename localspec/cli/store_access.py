"""What the commands about kept text have in common: the store if there is one, JSON, and asking before deleting."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from localspec import config
from localspec.errors import UsageMistake
from localspec.paths import Paths
from localspec.store.database import StoreTrouble
from localspec.store.store import Store
from localspec.text import one_line


@contextmanager
def store_if_any(what: str) -> Iterator[Store | None]:
    """The store of this user, for the sake of the phrases or the conversations: `what`.

    None where there is none yet, since looking must not make one. Raises StoreTrouble.
    """
    database = Paths(config.home()).database
    if not database.exists():
        yield None
        return
    with Store.open(database, lambda sentence: typer.echo(one_line(sentence), err=True)) as store:
        if store.path is None:
            raise StoreTrouble(f"{database} cannot be used, so its {what} can be neither shown nor deleted.")
        yield store


def tell_what_was_set_aside(what: str) -> None:
    """Names the files that are the user's to keep or not: we set them aside."""
    database = Paths(config.home()).database
    for file in sorted(database.parent.glob(f"{database.name}.*")):
        sentence = f"localspec: {file} was set aside and may hold {what} too; delete it to be rid of them."
        typer.echo(one_line(sentence), err=True)


def agreed(target: str, yes: bool) -> bool:
    """Whether to delete `target`: asks, unless `yes`. Raises UsageMistake where nobody can be asked."""
    if not yes and not at_a_terminal():
        raise UsageMistake(one_line(f"{target} would be deleted and nobody can be asked here: add --yes."))
    if yes or typer.confirm(one_line(f"Delete {target}?")):
        return True
    typer.echo("Nothing was deleted.")
    return False


def print_json(value: object) -> None:
    """One line of plain ASCII: escapes keep control characters from the terminal and every character in the data."""
    typer.echo(json.dumps(value))


def at_a_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()
