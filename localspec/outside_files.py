"""Reads files that others wrote: only files, and only so much of them; JSON and TOML without what would never end."""

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 2**20
TEXT_LIMIT = 256 * MIB  # bytes of a text file of a model; the largest vocabularies take 40 MiB
JSON_LIMIT = 64 * MIB  # of what is read as JSON
DATA_LIMIT = 8192 * MIB  # of texts to learn from
_MOST_DIGITS = 100  # of a whole number: it still fits in a float
_MOST_DOTS = 1000  # one after the other in a key: tomllib takes time by their square
_PART = rb"""(?:[\w-]{1,99}|"[^"\n]{0,99}"|'[^'\n]{0,99}')[ \t]{0,9}\.[ \t]{0,9}"""
_LONG_KEY = re.compile(rb"(?<![\w.'\"-])(?:" + _PART + rb"){%d}" % _MOST_DOTS)


def read_bytes(file: Path, limit: int = TEXT_LIMIT, *, pipe: bool = False) -> bytes:
    """Return the content of a regular file, or with `pipe` also what comes through a pipe, at most `limit` bytes.

    Raises OSError, with a clause for a person as its `strerror`, also for what is longer or of another kind: to open a
    pipe is to wait for its writer, and a device may have no end.
    """
    waits = 0 if pipe else getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(file, os.O_RDONLY | waits | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb") as stream:
        mode, size = (status := os.fstat(descriptor)).st_mode, status.st_size
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode))):
            raise OSError(errno.EINVAL, "it is no regular file", str(file))
        parts, left = [], limit + 1
        while left and (part := stream.read(min(left, max(size + 1, 2**16)))):  # makes room for all it is asked for
            parts.append(part)
            left -= len(part)
    if not left:
        raise OSError(errno.EFBIG, f"it is longer than {limit / MIB:g} MiB", str(file))
    return b"".join(parts)


def decoded(content: bytes) -> str:
    """Return text, without the mark that some programs of Windows begin it with.

    Raises ValueError for what is none, with what is to be said of it.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    if "\0" in text:
        raise ValueError("holds NUL bytes, so it is no text")
    return text


def parse_json(content: bytes | str, pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None) -> Any:
    """Return what JSON says, with objects as `pairs` makes them.

    Raises ValueError, also for what is nested too deeply or a number of too many digits.
    """
    try:
        return json.loads(content, parse_int=_integer, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(source: bytes) -> dict[str, Any]:
    """Return what TOML says. Raises ValueError as `parse_json` does, a tomllib.TOMLDecodeError where it is no TOML."""
    if _LONG_KEY.search(source):
        raise ValueError(f"a key has more than {_MOST_DOTS} dots")
    try:
        return tomllib.loads(source.decode("utf-8-sig"))  # some editors on Windows begin with a mark
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's own limit, told to programmers
            raise ValueError("a number has too many digits") from None
        raise


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)
