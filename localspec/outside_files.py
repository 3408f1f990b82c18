"""Reads files that others wrote: only regular files of limited size; JSON and TOML with limits on nesting
and numbers."""

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
JSON_LIMIT = 64 * MIB  # of JSON
DATA_LIMIT = 8192 * MIB  # of training texts
_MOST_DIGITS = 100  # of a whole number: it still fits in a float
_MOST_DOTS = 1000  # in a row in a key: tomllib takes quadratic time
_PART = rb"""(?:[\w-]{1,99}|"[^"\n]{0,99}"|'[^'\n]{0,99}')[ \t]{0,9}\.[ \t]{0,9}"""
_LONG_KEY = re.compile(rb"(?<![\w.'\"-])(?:" + _PART + rb"){%d}" % _MOST_DOTS)


def read_bytes(file: Path, limit: int = TEXT_LIMIT, *, pipe: bool = False) -> bytes:
    """Return the content of a regular file of at most `limit` bytes. With `pipe`, the file may be a pipe, too.

    Raises OSError with a clause for the user in `strerror`. Longer content and other kinds of files are errors too:
    opening a pipe would wait for its writer, and a device may have no end.
    """
    waits = 0 if pipe else getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(file, os.O_RDONLY | waits | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb") as stream:
        mode, size = (status := os.fstat(descriptor)).st_mode, status.st_size
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode))):
            raise OSError(errno.EINVAL, "not a regular file", str(file))
        parts, left = [], limit + 1
        # `read` reserves as many bytes as requested, so request the file's size rather than the limit.
        while left and (part := stream.read(min(left, max(size + 1, 2**16)))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise OSError(errno.EFBIG, f"the file is longer than {limit / MIB:g} MiB", str(file))
    return b"".join(parts)


def decoded(content: bytes) -> str:
    """Return UTF-8 content as text, without the byte-order mark that some Windows programs write.

    Raises ValueError for bytes that are not text; its message is a clause.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    if "\0" in text:
        raise ValueError("has NUL bytes, so it is not text")
    return text


def parse_json(content: bytes | str, pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None) -> Any:
    """Return parsed JSON. `pairs`, if given, makes each object from a list of (name, value).

    Raises ValueError for invalid JSON, for deep nesting, and for a number with too many digits.
    """
    try:
        return json.loads(content, parse_int=_integer, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("arrays or objects are nested too deeply") from None


def parse_toml(source: bytes) -> dict[str, Any]:
    """Return parsed TOML. Raises ValueError as `parse_json` does, and tomllib.TOMLDecodeError if it is not TOML."""
    if _LONG_KEY.search(source):
        raise ValueError(f"a key has more than {_MOST_DOTS} dots")
    try:
        return tomllib.loads(source.decode("utf-8-sig"))  # some editors on Windows begin with a byte-order mark
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None
    except ValueError as error:
        if "integer string" in str(error):  # Python's own limit, whose message is for programmers
            raise ValueError("a number has too many digits") from None
        raise


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)
