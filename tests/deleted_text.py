"""Text that is deleted and looked for afterwards, in every byte of the files and in the index of words."""

import random
from pathlib import Path

from localspec.store.history import History
from localspec.store.store import Store
from localspec.store.volumes import every, suffix

# Each character of its own beginning in UTF-8, so that no trigram can hide behind a prefix it shares with another; of
# one case, which is how the index has them too.
# Of three bytes and more: two bytes of a character come up by chance among numbers.
MARKER = "ⴰក漢ก한ठ𐎀ᚠ℥ꀀ"


WAL_HEADER, FRAME_HEADER = 32, 24  # bytes: the file format of SQLite, section 4
INDEX_SUMS = slice(24, 48), slice(72, 96)  # in the log's index: its WAL-mode file format, section 2.1


def bytes_on_disk(path: Path) -> bytes:
    """Of every file, without the checksums of SQLite's log and of its index: any character comes up there by chance."""
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
    """Which characters of the text stand in any file of the directory."""
    content = bytes_on_disk(path)
    return {character for character in set(text) if character.encode() in content}


def talk(history: History, chance: random.Random, conversation: int | None = None, turns: int = 20) -> int:
    """Much said with MARKER, shuffled, in every way that leaves copies behind; returns the conversation."""
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


def index_is_whole(store: Store) -> bool:
    """Whether the index is in every volume what it would be if it were made anew."""
    connection = store._database._connection

    def entries() -> list[object]:
        return connection.execute("SELECT term, doc FROM temp.entry ORDER BY term, doc").fetchall()

    for trigram in (f"trigram{suffix(number)}" for number in every(connection)):
        connection.execute("DROP TABLE IF EXISTS temp.entry")
        connection.execute(f"CREATE VIRTUAL TABLE temp.entry USING fts5vocab (main, {trigram}, instance)")
        now = entries()
        connection.execute("BEGIN")
        connection.execute(f"INSERT INTO {trigram} ({trigram}) VALUES ('rebuild')")
        anew = entries()
        connection.execute("ROLLBACK")
        if now != anew:
            return False
    return True
