"""Damage to files of others: hypothesis strategies over a valid file."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**40, -(10**400), 0.5, 1e308, float("nan"), float("inf"), "", " ", "0", "-1",
    "\x00", "\x1b[2J\x1b]0;x\x07", "\ud800", "a" * 10_000, "../../../etc/passwd", "/dev/zero", "{{", "{% for %}", [], [[]], [None],
    {}, {"": {}}, [0] * 5000, "PYTHON:deep",
]  # fmt: skip
DEEP = "[" * 100_000


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside, the first few of a long list."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for key, item in inside:
        yield from parts(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any, how: str) -> Any:
    """Return a copy in which the value at that path is replaced, removed or duplicated."""
    if not path:
        return new
    value = copy.deepcopy(value)
    *way, last = path
    place = value
    for key in way:
        place = place[key]
    if how == "gone":
        del place[last]
    elif how == "twice" and isinstance(place, list):
        place.append(place[last])
    else:
        place[last] = new
    return value


@st.composite
def damaged_json(draw: st.DrawFn, sound: Any) -> bytes:
    """Return JSON in which one to three values are replaced by odd ones or by values of another place."""
    ways = list(parts(sound))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(ways))
        new = draw(st.sampled_from(ODD) | st.integers(-(2**40), 2**40) | st.text(max_size=8))
        how = draw(st.sampled_from(["other", "other", "gone", "twice"]))
        try:
            sound = changed(sound, path, new, how)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed it
    return json.dumps(sound).replace('"PYTHON:deep"', DEEP).encode("utf-8", "surrogatepass")


@st.composite
def damaged_bytes(draw: st.DrawFn, sound: bytes, head: int | None = None) -> bytes:
    """Return bytes that were cut, filled, flipped, doubled or replaced, mostly in the `head`."""
    end = min(head or len(sound), len(sound))
    how = draw(st.sampled_from(["turned", "turned", "cut", "filled", "doubled", "added", "another"]))
    at = draw(st.integers(0, max(end - 1, 0)))
    length = draw(st.integers(1, 64))
    if how == "cut":
        return sound[:at]
    if how == "another":
        return draw(st.binary(max_size=200))
    if how == "doubled":
        return sound[: at + length] + sound[at:]
    if how == "added":
        return sound[:at] + draw(st.binary(min_size=1, max_size=64)) + sound[at:]
    if how == "filled":
        return sound[:at] + bytes([draw(st.sampled_from([0, 0x20, 0x7F, 0xFF]))]) * length + sound[at + length :]
    content = bytearray(sound)
    for place in draw(st.lists(st.integers(0, max(end - 1, 0)), min_size=1, max_size=8)):
        if content:
            content[place] ^= draw(st.integers(1, 255))
    return bytes(content)


def damaged_text(sound: str) -> st.SearchStrategy[bytes]:
    """Return a text in which lines or pieces are replaced."""
    pieces = st.sampled_from(
        [*sound.splitlines(), *sound.split(), "\x00", "=", '"', "[", "]", "{", "}", "'''", "\ud800", "[[x]]"]
    )
    own = st.lists(pieces | st.text(max_size=12), max_size=20).map(lambda found: "\n".join(found))
    return own.map(lambda text: text.encode("utf-8", "surrogatepass")) | damaged_bytes(sound.encode())


def either(sound: bytes) -> st.SearchStrategy[bytes]:
    """Return a JSON file, as JSON or as bytes."""
    return damaged_json(json.loads(sound)) | damaged_bytes(sound)
