"""Text that a test deletes, and a search for it in every byte of the files and in the index of words."""

import random
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from localspec.store.history import History
from localspec.store.store import Store

# Each character begins with a different byte in UTF-8, so that no common prefix hides a trigram. None has two cases,
# since the index stores lower case. Each has at least three bytes: two bytes occur by chance among numbers.
MARKER = "ⴰក漢ก한ठ𐎀ᚠ℥ꀀ"


WAL_HEADER, FRAME_HEADER = 32, 24  # bytes: the file format of SQLite, section 4
INDEX_SUMS = slice(24, 48), slice(72, 96)  # in the log's index: its WAL-mode file format, section 2.1


def bytes_on_disk(path: Path) -> bytes:
    """Return the bytes of every file, without the checksums of SQLite's log and its index, which may have any bytes."""
    return b"".join(_without_sums(file.name, file.read_bytes()) for file in path.parent.iterdir())


def _without_sums(name: str, content: bytes) -> bytes:
    if name.endswith("-wal"):
        return _pages(content)
    if name.endswith("-shm"):
        without = bytearray(content)
        for sums in INDEX_SUMS:
            without[sums] = bytes(len(without[sums]))
        return bytes(without)
    return content


def _pages(log: bytes) -> bytes:
    size = int.from_bytes(log[8:12], "big")
    frames = range(WAL_HEADER, len(log), FRAME_HEADER + size)
    return b"".join(log[begin + FRAME_HEADER : begin + FRAME_HEADER + size] for begin in frames)


def traces(path: Path, text: str = MARKER) -> set[str]:
    """Return the characters of the text that any file of the directory contains."""
    content = bytes_on_disk(path)
    return {character for character in set(text) if character.encode() in content}


def talk(history: History, chance: random.Random, conversation: int | None = None, turns: int = 20) -> int:
    """Save many shuffled messages with MARKER, in every way that leaves copies behind; return the conversation."""
    for _ in range(turns):
        words = ["".join(chance.sample(MARKER, len(MARKER))) for _ in range(200)]
        conversation, _ = history.say(conversation, f"taken back {words[0]}", model="demo", system=MARKER)
        _, turn = history.say(conversation, " ".join(words[:20]), model="demo", system=MARKER)
        for end in (30, 60, 100):
            history.write(turn, " ".join(words[:end]))
        history.write(turn, " ".join(words), chance.choice(["stop", None, "interrupted"]), {"seed": MARKER})
    history.say(conversation, f"unanswered {MARKER}", model="demo", system=MARKER)
    assert conversation is not None
    return conversation


def leave_copies(path: Path, tables: list[str]) -> int:
    """Write MARKER between the cells of a page and their list, where SQLite may leave copies of rows that it moved.

    Return on how many pages.
    """
    with closing(sqlite3.connect(path)) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        roots = [connection.execute(query, (table,)).fetchone()[0] for table in tables]
    content = bytearray(path.read_bytes())
    copies = 0
    for start in (start for root in roots for start in _tree(bytes(content), root, size)):
        cells, end = struct.unpack_from(">HH", content, start + 3)
        gap = start + (12 if content[start] in (2, 5) else 8) + 2 * cells
        room = start + end - gap
        text = MARKER.encode()[: max(room, 0)]
        content[gap : gap + len(text)] = text
        copies += room >= len(MARKER.encode())
    path.write_bytes(content)
    return copies


def _tree(content: bytes, root: int, size: int) -> Iterator[int]:
    """Yield where the pages of a tree begin."""
    start = (root - 1) * size
    yield start
    header = start + (100 if root == 1 else 0)
    if content[header] in (2, 5):
        cells = struct.unpack_from(">H", content, header + 3)[0]
        pointers = struct.unpack_from(f">{cells}H", content, header + 12)
        for place in (header + 8, *(start + pointer for pointer in pointers)):
            yield from _tree(content, struct.unpack_from(">I", content, place)[0], size)


def index_is_whole(store: Store) -> bool:
    """Return whether the index of words equals one that is built from the turns."""
    connection = store._database._connection

    def entries() -> list[object]:
        connection.execute("DROP TABLE IF EXISTS temp.entry")
        connection.execute("CREATE VIRTUAL TABLE temp.entry USING fts5vocab (main, trigram, instance)")
        return connection.execute("SELECT term, doc FROM temp.entry ORDER BY term, doc").fetchall()

    now = entries()
    connection.execute("BEGIN")
    connection.execute("INSERT INTO trigram (trigram) VALUES ('rebuild')")
    rebuilt = entries()
    connection.execute("ROLLBACK")
    return now == rebuilt
