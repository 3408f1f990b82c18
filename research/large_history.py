"""Make a home directory with a large history, to measure how its size affects speed.

    python research/large_history.py HOME --conversations 100000 --megabytes 2000 --phrases 1000000

Rows are inserted into the tables of the store by plain SQL. With --no-index the index of words stays empty, because
filling it takes most of the time.
"""

import argparse
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from localspec.paths import Paths
from localspec.store.phrases import pack_key, pack_tokens
from localspec.store.store import Store

TURNS = 5  # of a conversation
WORDS = [f"word{number:x}" for number in range(5000)]


def text(chance: random.Random, length: int) -> str:
    """Return `length` characters: a random part of one long text, after a number that says where the part begins."""
    start = chance.randrange(len(WORDS))
    words = (WORDS[start:] + WORDS)[: length // 8 + 1]
    return f"{start} {' '.join(words)}"[:length]


def turns(conversations: int, length: int) -> Iterator[tuple[int, str, str]]:
    """Yield (conversation, prompt, reply): the first turn of every conversation, then every second turn, and so on."""
    chance = random.Random(1)
    for _ in range(TURNS):
        for number in range(1, conversations + 1):
            yield number, text(chance, min(200, length)), text(chance, length)


def phrases(count: int) -> Iterator[tuple[int, bytes, bytes, int]]:
    """Yield (key, tokens before, tokens after, time of use) of random phrases."""
    chance = random.Random(2)
    for number in range(count):
        tokens = [chance.randrange(30_000) for _ in range(12)]
        yield pack_key(number % 30_000, number // 30_000), pack_tokens(tokens[:6]), pack_tokens(tokens[6:]), number


def main() -> None:
    """Make the home directory that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--conversations", type=int, default=100_000)
    parser.add_argument("--megabytes", type=int, default=2000, help="of text")
    parser.add_argument("--phrases", type=int, default=0, help="of the demo model")
    parser.add_argument("--tokenizer", default="none", help="the hash of its tokenizer, as `pool list --json` tells it")
    parser.add_argument("--no-index", action="store_true")
    options = parser.parse_args()
    began, now = time.perf_counter(), time.time()
    length = options.megabytes * 1_000_000 // (options.conversations * TURNS)
    with Store.open(Paths(options.home).database, print) as store:
        pool = store.phrases.pool("demo", options.tokenizer)
        database = store.path
    assert database is not None and pool is not None
    with closing(sqlite3.connect(database, cached_statements=1024)) as connection, connection:
        connection.execute("BEGIN")
        left_out = "sql LIKE '%trigram%' OR tbl_name = 'phrase'" if options.no_index else "false"
        query = f"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND ({left_out})"
        triggers = connection.execute(query).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.executemany(
            "INSERT INTO conversation (id, model, created, used) VALUES (?, 'demo', ?, ?)",
            ((number, now, now) for number in range(1, options.conversations + 1)),
        )
        for turn, (number, *texts) in enumerate(turns(options.conversations, length), 1):
            columns = "(id, conversation, prompt, reply, reason, figures, asked)"
            insert = f"INSERT INTO turn {columns} VALUES (?, ?, ?, ?, 'stop', '{{}}', 0)"
            connection.execute(insert, (turn, number, *texts))
        connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'turn'", (turn,))
        connection.executemany(
            f"INSERT INTO phrase (pool, key, before, after, uses, used) VALUES ({pool}, ?, ?, ?, 1, ?)",
            phrases(options.phrases),
        )
        connection.execute("UPDATE pool SET tick = ? WHERE id = ?", (options.phrases, pool))
        if options.no_index:
            connection.execute("UPDATE pool SET phrases = ? WHERE id = ?", (options.phrases, pool))
        for _, statement in triggers:
            connection.execute(statement)
    print(f"{database}: {database.stat().st_size / 1e6:.0f} MB in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
