"""Requests to a server of this user through its socket, and the reading of its answers, line by line.

The protocol is simple lines, so that a quick command needs neither an HTTP library nor a tokenizer.
"""

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from localspec import errors
from localspec.errors import LocalspecError
from localspec.events import Done, Draft, Event, Memory, Prefill, Statistics, Text

LOOK = 0.2  # seconds between checks whether an answer is still wanted
CONNECT_SECONDS = 1.0
HEAD_SECONDS = 8.0  # until the server takes a request, and from a line's first byte to its last
SIGN_SECONDS = 10.0  # after this time, a busy or loading server reports again whose request comes first
SILENT_SECONDS = 120.0  # without any such report: a loading server may be slow to send it
LONGEST_HEAD, LONGEST_LINE = 2**16, 2**26  # bytes
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2  # macOS


class NoServer(LocalspecError):
    """An error: the server has ended, or never existed."""


class ServerDiffers(LocalspecError):
    """An error: the server's version or settings differ, so an engine of this process must answer instead."""


def process_at(connection: Any) -> int | None:
    """Return the id of the process at the other end of a Unix socket; None if the system does not say."""
    try:
        if sys.platform == "linux":
            number, *_ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        else:
            number = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)
    except OSError:
        return None
    return int(number)


def server_process(socket_path: Path) -> int | None:
    """Return the id of the process that serves this socket; None without a server, or if the system does not say."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CONNECT_SECONDS)
        connection.connect(os.fspath(socket_path))
        return process_at(connection)
    return None


def stop_it(socket_path: Path) -> str:
    """Return a clause that says how to stop the server of this socket."""
    number = server_process(socket_path)
    return f"stop process {number} first (kill {number})" if number else "stop that process first"


def lines(socket_path: Path, path: str, body: Mapping[str, Any]) -> Generator[Any, None, None]:
    """Yield the lines that the server at a socket answers, and None after each `LOOK` without data. Raises NoServer."""
    content = json.dumps(body).encode()
    # HTTP/1.0: the answer is not chunked, and ends with the connection.
    head = f"POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(CONNECT_SECONDS)
            connection.connect(os.fspath(socket_path))
            connection.settimeout(HEAD_SECONDS)
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            connection.settimeout(LOOK)
            # `since` is the time of the last whole line, or of the first byte of an unfinished one.
            buffer, headed, since = bytearray(), False, time.monotonic()
            while True:
                try:
                    piece = connection.recv(2**16)
                except TimeoutError:
                    _check_silence(since, SILENT_SECONDS if headed and not buffer else HEAD_SECONDS)
                    yield None
                    continue
                if not piece:
                    return
                if headed and not buffer:
                    since = time.monotonic()
                buffer += piece
                if not headed and (end := buffer.find(b"\r\n\r\n")) >= 0:
                    if buffer.split(b" ", 2)[1:2] != [b"200"]:
                        raise NoServer("The server does not answer like `localspec serve`.")
                    headed, since, piece = True, time.monotonic(), bytes(buffer[end + 4 :])
                    buffer = bytearray(piece)
                if not headed or b"\n" not in piece:
                    if len(buffer) > (LONGEST_LINE if headed else LONGEST_HEAD):
                        raise NoServer("The server does not answer like `localspec serve`.")
                    _check_silence(since, HEAD_SECONDS)
                    continue
                *whole, left = buffer.split(b"\n")
                buffer = bytearray(left)
                for line in whole:
                    yield json.loads(line)
                since = time.monotonic()
    except (OSError, ValueError) as error:
        raise NoServer(f"The server is gone ({error}).") from None


def _check_silence(since: float, limit: float) -> None:
    """Raise NoServer if the server has been silent for more than `limit` seconds, since the time `since`."""
    if time.monotonic() - since > limit:
        raise NoServer(f"The server has sent nothing for {limit:.0f} s.")


def raise_what_is_wrong(line: Mapping[str, Any]) -> None:
    """Raise the error that a line of the server reports: NoServer, ServerDiffers, or an error of an engine."""
    if "error" in line:
        kind, sentence = line["error"]
        if kind in ("Differs", "NotHere", "Refused", "TooMany"):
            raise ServerDiffers(sentence)
        if "being stopped" in sentence:
            raise NoServer(sentence)
        error_type = errors.UsageMistake if kind == "Refusal" else getattr(errors, kind, LocalspecError)
        raise error_type(sentence)


def event_of(line: Mapping[str, Any]) -> Event:
    """Return the event of a reply that a line of the server describes. Raises NoServer for an invalid line."""
    try:
        if "prefill" in line:
            return Prefill(*line["prefill"])
        if "text" in line:
            text, tokens, sources, seconds, steps, reasoning, thoughts = line["text"]
            drafts = tuple(Draft(*draft) for draft in line.get("drafts", ()))
            return Text(text, tuple(tokens), tuple(sources), seconds, steps, drafts, reasoning, thoughts)
        return Done(line["done"], statistics_of(line["statistics"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise NoServer("The server does not answer like `localspec serve`.") from None


def statistics_of(sent: Mapping[str, Any]) -> Statistics:
    """Return the figures of a reply from JSON that `asdict` wrote."""
    values = {field.name: sent[field.name] for field in fields(Statistics) if field.name in sent}
    values["rows"] = {int(rows): count for rows, count in sent["rows"].items()}
    values["memory"] = Memory(**sent["memory"])
    for name in ("token_ids", "acceptance_by_depth"):
        values[name] = tuple(sent[name])
    return Statistics(**values)
