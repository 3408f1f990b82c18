"""A history whose list of tables is lost: its tables are known by what lies on their pages.

Pages and rows are as https://sqlite.org/fileformat2.html describes them.
"""

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from localspec.store.schema import MIGRATIONS

MOST = 2**28  # bytes of a file, which is held in memory more than once
_INTERIOR, _LEAF = 5, 13  # the first byte of a page of a table
_PAGE = 4096  # bytes, where the file does not say
_ORDER = "/* first or last */"
_ANY = f"SELECT conversation FROM {{}} ORDER BY rowid {_ORDER} LIMIT 1"
# The columns of each table, and what its rows look like: n for nothing, # for a number, t for text.
TABLES = {
    "conversation": (
        "id INTEGER PRIMARY KEY, model, system, created REAL, used REAL, title, branch_of, volume, newest, source",
        "nt[nt]##[nt][n#]##[nt]?",  # the last one came later
    ),
    "turn": (
        "id INTEGER PRIMARY KEY, conversation, prompt, reply, reason, figures, asked REAL, reasoning DEFAULT ''",
        "n#tt[nt]t#t?",  # the last one came later
    ),
    "about": ("conversation INTEGER PRIMARY KEY, title, system", "n[nt][nt]"),
    "draft": ("process, began REAL, text, server, conversation", "##t[nt]?[n#]?"),  # likewise the last two
    "sqlite_sequence": ("name, seq", "t#"),
}


def with_list(source: sqlite3.Connection) -> sqlite3.Connection | None:
    """A copy in memory in which SQLite finds conversations, turns, titles and drafts again; it has no indexes.

    None where there are no turns, the file is larger than MOST, or says that it is of another version. Raises
    sqlite3.Error and OSError.
    """
    if not hasattr(source, "serialize"):  # a Python without it
        return None
    content = _content(source)
    size, version = int.from_bytes(content[16:18]), int.from_bytes(content[60:64])
    if not content.startswith(b"SQLite format 3\0") or size < 512 or size & (size - 1):
        size, version = _PAGE, len(MIGRATIONS)
    trees = _trees(content, size)
    if version != len(MIGRATIONS) or "turn" not in trees.values():
        return None
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    pages = len(content) // size
    copy.deserialize(_first_page(size, pages) + content[size : pages * size])
    copy.text_factory = lambda content: content.decode("utf-8", "replace")
    _list(copy, trees)
    return copy


def _content(source: sqlite3.Connection) -> bytes:
    """All of its pages: with what is still in the log, if SQLite reads as much, else as they lie in the file."""
    [file] = [Path(file) for _, name, file in source.execute("PRAGMA database_list").fetchall() if name == "main"]
    if file.stat().st_size > MOST:
        return b""
    with contextlib.suppress(sqlite3.DatabaseError):
        return source.serialize()
    return file.read_bytes()


def _first_page(size: int, pages: int) -> bytes:
    """That of a file of so many pages which has no tables."""
    with contextlib.closing(sqlite3.connect(":memory:")) as empty:
        empty.execute(f"PRAGMA page_size = {size}")
        empty.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        first = bytearray(empty.serialize()[:size])
    for place, value in ((28, pages), (44, 4), (56, 1)):  # its length, and how rows and text are written
        first[place : place + 4] = value.to_bytes(4)
    return bytes(first)


def _trees(content: bytes, size: int) -> dict[int, str]:
    """The numbers of the pages on which a table begins, and what the table is called, without its volume."""
    pages = {
        number: content[(number - 1) * size : number * size]
        for number in range(2, len(content) // size + 1)
        if content[(number - 1) * size] in (_INTERIOR, _LEAF)
    }
    below = {number: _children(page) for number, page in pages.items() if page[0] == _INTERIOR}
    found = {}
    for root in sorted(pages.keys() - {child for children in below.values() for child in children}):
        leaves = (leaf for leaf in _leaves(root, below) if leaf in pages)
        row = next(filter(None, (_first_row(pages[leaf]) for leaf in leaves)), "")
        for name, (_, form) in TABLES.items():
            if re.fullmatch(form, row):
                found[root] = name
    return found


def _leaves(root: int, below: dict[int, list[int]]) -> Iterator[int]:
    waiting, seen = [root], set[int]()
    while waiting:
        page = waiting.pop()
        if page not in below:
            yield page
        elif page not in seen:  # what is damaged may go round in circles
            seen.add(page)
            waiting.extend(reversed(below[page]))


def _children(page: bytes) -> list[int]:
    return [int.from_bytes(page[at : at + 4]) for at in (*_cells(page, 12), 8)]


def _cells(page: bytes, begin: int) -> Iterator[int]:
    """Where on the page its cells are."""
    for at in range(begin, begin + 2 * int.from_bytes(page[3:5]), 2):
        yield int.from_bytes(page[at : at + 2])


def _first_row(page: bytes) -> str:
    """What the columns of the first row on a leaf are, as in TABLES; nothing where it has none."""
    with contextlib.suppress(IndexError, StopIteration):
        _, at = _number(page, next(_cells(page, 8)))
        _, begin = _number(page, at)
        length, at = _number(page, begin)
        form = ""
        while at < begin + length:
            kind, at = _number(page, at)
            form += "n" if kind == 0 else "#" if kind < 10 else "t" if kind > 12 and kind % 2 else "b"
        return form
    return ""


def _number(page: bytes, at: int) -> tuple[int, int]:
    """The number of one to nine bytes that is there, and where it ends."""
    value = 0
    for end in range(at, at + 8):
        value = value << 7 | page[end] & 127
        if page[end] < 128:
            return value, end + 1
    return value << 8 | page[at + 8], at + 9


def _list(copy: sqlite3.Connection, trees: dict[int, str]) -> None:
    """Writes a list of these tables, each turn and title in the volume that its conversation names."""
    named = {root: f"{name}_{root}" for root, name in trees.items()}
    _write_list(copy, named, trees)
    by_table = {table: [root for root, name in trees.items() if name == table] for table in TABLES}
    final = {}
    for table in ("conversation", "draft", "sqlite_sequence"):  # one of each; a mend may have left an older one
        sizes = [(_found(copy, f"SELECT count(*) FROM {named[root]}") or 0, root) for root in by_table[table]]
        final.update({max(sizes)[1]: table} if sizes else {})
    listed = {name: root for root, name in final.items()}
    numbers: dict[int, int] = {}
    free = count(max(trees))
    for root in by_table["turn"]:
        number = None
        if "conversation" in listed:
            query = f"SELECT volume FROM {named[listed['conversation']]} WHERE id = ({_ANY.format(named[root])})"
            number = _found(copy, query)
        if number is None or number < 0 or number in numbers.values():
            number = next(free)
        numbers[root] = number
    final |= {root: f"turn_{number}" if number else "turn" for root, number in numbers.items()}
    for root in by_table["about"]:
        for turns, number in numbers.items():
            name = f"about_{number}" if number else "about"
            query = f"SELECT 1 FROM {named[turns]} WHERE conversation = ({_ANY.format(named[root])}) LIMIT 1"
            if name not in final.values() and _found(copy, query):
                final[root] = name
                break
    _write_list(copy, final, trees)


def _found(copy: sqlite3.Connection, query: str) -> int | None:
    """The number that a query finds by the first row or, if that is damaged, by the last; None where there is none."""
    for order in ("", "DESC"):
        with contextlib.suppress(sqlite3.DatabaseError):
            (value,) = copy.execute(query.replace(_ORDER, order)).fetchone() or (None,)
            return value if isinstance(value, int) else None
    return None


def _write_list(copy: sqlite3.Connection, named: dict[int, str], trees: dict[int, str]) -> None:
    copy.execute("PRAGMA writable_schema = ON").fetchone()
    copy.execute("DELETE FROM sqlite_master")
    rows = ((name, name, root, f"CREATE TABLE {name} ({TABLES[trees[root]][0]})") for root, name in named.items())
    copy.executemany(
        "INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql) VALUES ('table', ?, ?, ?, ?)", rows
    )
    copy.execute("PRAGMA writable_schema = RESET").fetchone()
