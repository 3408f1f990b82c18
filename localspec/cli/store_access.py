"""Access to the store for the commands about saved text, and reports of files that were set aside."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localspec import environment
from localspec.cli.console import say
from localspec.paths import Paths
from localspec.store.database import StoreTrouble
from localspec.store.opening import PARTS
from localspec.store.store import Store, user_store


@contextmanager
def store_if_any(contents: str, raise_damage: bool = True) -> Iterator[Store | None]:
    """Yield this user's database, to show or delete the `contents` of it: "phrases" or "conversations".

    Yield None if there is no database, because listing must not make a file. Raises StoreTrouble if it may exist but
    cannot be reached: an empty list would say that nothing is saved. With `raise_damage`, damage found after opening
    raises StoreTrouble, too.
    """
    if reason := _out_of_reach(database := Paths(environment.home()).database):
        raise StoreTrouble(
            f"{database} cannot be reached ({reason}), so its {contents} cannot be shown or deleted; check this path "
            "and its permissions, then try again."
        )
    with user_store(say, create=False) as store:
        if store is not None and store.path is None:
            raise StoreTrouble(f"{database} cannot be used, so its {contents} cannot be shown or deleted.")
        if store is not None and raise_damage:
            store.raise_damage()
        yield store


def _out_of_reach(database: Path) -> str:
    """Return the reason if it cannot be determined whether the database exists; otherwise an empty text."""
    for path in (database, *database.parents):
        if os.path.islink(path) and not os.path.exists(path):
            return f"{path} is a link to a missing file"
    try:
        os.stat(database)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return error.strerror or f"{error}"
    return ""


def report_files_set_aside(contents: str) -> None:
    """Report the damaged files that were set aside. The user decides whether to keep them."""
    database = Paths(environment.home()).database
    files = {file.name: file for file in sorted(database.parent.glob(f"{database.name}.*"))}
    for name, file in files.items():
        if any(name == f"{other}{part}" for other in files for part in PARTS):
            continue  # it is reported with its database
        parts = " and ".join(part for part in PARTS if f"{name}{part}" in files)
        which = f"this file and its {parts}" if parts else "this file"
        say(f"{file} is damaged and was set aside; to remove the {contents} that it may hold, delete {which}.")
