"""Whether an index tells of the same rows as its table: SQLite reads one that is another's, and finds nothing in it."""

import sqlite3
from collections.abc import Sequence


class Comparison(str):
    """A query that finds nothing where the first and the last row of a table and of its index are in the other."""

    __slots__ = ()


def comparison(table: str, index: str, columns: Sequence[str], key: Sequence[str], where: str = "true") -> Comparison:
    """`columns` are those of the index, `key` is what else tells a row; the index holds rows `where` that is so."""
    names = list(dict.fromkeys((*columns, *key)))
    taken = ", ".join(f"{name} AS c{number}" for number, name in enumerate(names))

    def ends(how: str, order: Sequence[str], rows: str) -> str:
        one = f"SELECT * FROM (SELECT {taken}, ({where}) AS held FROM {table} {how} WHERE {rows} ORDER BY {{}} LIMIT 1)"
        last = ", ".join(f"{name} DESC" for name in order)
        return f"SELECT * FROM ({one.format(', '.join(order))} UNION ALL {one.format(last)})"

    def lost(rows: str, how: str, found_by: Sequence[str]) -> str:
        # `+` keeps SQLite from taking another way to the row than that by these columns.
        same = (f"{'' if name in found_by else '+'}found.{name} IS row.c{number}" for number, name in enumerate(names))
        there = f"SELECT 1 FROM {table} AS found {how} WHERE ({where}) AND {' AND '.join(same)}"
        return f"SELECT 1 FROM ({rows}) AS row WHERE NOT EXISTS ({there})"

    indexed, plain = f"INDEXED BY {index}", "NOT INDEXED"
    of_table = lost(f"{ends(plain, key, 'true')} WHERE held", indexed, names)
    return Comparison(f"{of_table} UNION ALL {lost(ends(indexed, names, where), plain, key)}")


def compare(connection: sqlite3.Connection, *comparisons: str) -> None:
    """Raises sqlite3.DatabaseError, as SQLite does of damage, where one of these queries finds something."""
    for query in comparisons:
        if connection.execute(query).fetchone() is not None:
            error = sqlite3.DatabaseError("an index tells of other rows than its table")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
