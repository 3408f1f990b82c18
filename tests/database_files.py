"""Operations on database files: inspect them, kill their writers, remove permissions, damage them."""

import contextlib
import os
import random
import select
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path


def integrity(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def damage_root(path: Path, name: str) -> None:
    """Overwrite the first page of this table or index."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)  # no page of any kind begins like this


def damage_leaves(path: Path) -> bytes:
    """Damage every leaf that holds rows of an index or of a WITHOUT ROWID table. Return the bytes of the file."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    content = bytearray(path.read_bytes())
    damaged = 0
    for start in range(0, pages * size, size):
        # Type 10: a leaf of an index or of a WITHOUT ROWID table; those of real content hold many cells.
        if content[start] == 10 and int.from_bytes(content[start + 3 : start + 5], "big") > 5:
            content[start + 8 : start + size] = b"\xff" * (size - 8)
            damaged += 1
    assert damaged > 20
    path.write_bytes(content)
    return bytes(content)


def in_a_child(work: Callable[[int], object]) -> tuple[int, int]:
    """Fork a process that does `work(pipe)`. Return its id and the end of the pipe to read from."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            work(writer)
        finally:
            os._exit(1)
    os.close(writer)
    return child, reader


def answers(*works: Callable[[int], object]) -> list[bytes]:
    """Run each function in another process, all at once. Return what each wrote to its pipe."""
    found = []
    for child, pipe in [in_a_child(work) for work in works]:
        with open(pipe, "rb") as answer:
            found.append(answer.read())
        os.waitpid(child, 0)
    return found


def killed_lives(count: int, live: Callable[[int, int], object]) -> Iterator[set[int]]:
    """Run `live(number, pipe)` in a process that is killed, again and again.

    Yield the numbers that all processes so far have written to their pipes, one on each line.
    """
    chance, finished = random.Random(4), set[int]()
    for life in range(count):
        child, pipe = in_a_child(partial(live, life))
        # Some are killed while they open, most while they write.
        select.select([pipe], [], [], 10 if life % 3 else chance.uniform(0, 0.004))
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(pipe, "rb") as written:
            finished.update(int(line) for line in written.read().split(b"\n")[:-1] if line)
        yield finished


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """Yield a directory that every user may enter; pytest's own directory for root is closed to others."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    for inner in directory.rglob("*"):
        if inner.is_dir():
            inner.chmod(0o755)
    shutil.rmtree(directory)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Act as the user `nobody` for a while, since permissions do not restrict root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@contextlib.contextmanager
def only_readable(path: Path, directory_too: bool) -> Iterator[None]:
    """Yield the file, or it and its directory, as on a read-only medium."""
    for part in path.parent.iterdir():
        part.chmod(0o444)
    path.parent.chmod(0o555 if directory_too else 0o777)
    with as_nobody():
        yield
    path.parent.chmod(0o755)
