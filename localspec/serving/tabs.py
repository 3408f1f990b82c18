"""The chats in a browser's tabs: each is a process of `localspec chat` that uses this server like any client.

A tab and its process exchange the messages of textual-serve's page and Textual's web driver: keys and sizes in one
direction, as JSON, and screen output in the other.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from localspec.environment import SERVER_KEY, TAB_DRIVER
from localspec.text import PasteFilter, safe

MOST_TABS = 8  # at once: each is a process
END_SECONDS = 2.5  # for one to end by itself when its tab is gone, which is within what uvicorn waits
LARGEST = 1000  # columns or lines
LAST_WORDS = 4096  # bytes of standard error that are shown when it has ended

_BEGUN = b"__GANGLION__\n"  # Textual's driver says so before the first packet
_DRAWN, _FACT = b"D", b"M"
_CLEARED = "\x1b[?1049l\x1b[0m\x1b[2J\x1b[H"
# What says of the terminal in which the server was started how things look there.
_OF_A_TERMINAL = ("COLORFGBG", "LINES", "STY", "TMUX")


class Tabs:
    """The open tabs, at most `MOST_TABS` at a time. Use it from one event loop."""

    def __init__(self, url: str, key: str, model: str, *, log: bool) -> None:
        self._open, self._key = 0, key
        # -P: what lies in this directory is no module of ours.
        self._command = [sys.executable, "-P", "-m", "localspec", "chat", "--server", url, "-m", model]
        self._command += [] if log else ["--no-log"]

    @property
    def full(self) -> bool:
        """Whether as many tabs are open as are allowed."""
        return self._open >= MOST_TABS

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count one more tab as open within this context."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def run(self, websocket: WebSocket, width: int, height: int) -> None:
        """Run a chat until the user leaves it or its tab. Return after its process has ended."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=self._environment(width, height),
            start_new_session=True,
        )  # fmt: skip
        said = bytearray()
        hearing = asyncio.create_task(_hear(process, said))
        drawing = asyncio.create_task(_draw(process, websocket))
        typing = asyncio.create_task(_type(websocket, process))
        try:
            await asyncio.wait({drawing, typing}, return_when=asyncio.FIRST_COMPLETED)
            left = not typing.done()
        finally:
            await _end(process, drawing, typing)
        await hearing
        with suppress(WebSocketDisconnect, RuntimeError):
            if left:
                words = safe(said.decode("utf-8", "replace")).replace("\n", "\r\n")
                await websocket.send_bytes(f"{_CLEARED}{words}".encode())
            await websocket.close()

    def _environment(self, width: int, height: int) -> dict[str, str]:
        """Return the environment variables. They include the key, because other users can read command lines."""
        kept = {name: value for name, value in os.environ.items() if name not in _OF_A_TERMINAL}
        return {
            **kept, SERVER_KEY: self._key, "TEXTUAL_DRIVER": TAB_DRIVER, "COLUMNS": str(size_of(width, 80)),
            "ROWS": str(size_of(height, 24)), "TERM": "xterm-256color", "TEXTUAL_COLOR_SYSTEM": "truecolor",
            "PYTHONUTF8": "1",
        }  # fmt: skip


def size_of(value: object, otherwise: int) -> int:
    """Return a number of columns or lines that a browser sent, or `otherwise` if it is invalid."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if 0 < number <= LARGEST else otherwise


# -- what goes to and fro ---------------------------------------------------------------------------------------------


async def _draw(process: Process, websocket: WebSocket) -> None:
    assert process.stdout is not None
    with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, WebSocketDisconnect):
        await process.stdout.readuntil(_BEGUN)
        while True:
            head = await process.stdout.readexactly(5)
            content = await process.stdout.readexactly(int.from_bytes(head[1:], "big"))
            if head[:1] == _DRAWN:
                await websocket.send_bytes(content)
            elif head[:1] == _FACT and json.loads(content).get("type") == "exit":
                return  # of addresses to open and files to send there are none here


async def _type(websocket: WebSocket, process: Process) -> None:
    """Forward the page's messages to the chat.

    An invalid message ends the tab, because localspec's page never sends one.
    """
    assert process.stdin is not None
    pastes = PasteFilter()
    with suppress(WebSocketDisconnect, KeyError, ValueError, TypeError, OSError):
        while True:
            kind, *more = json.loads(await websocket.receive_text())
            match kind:
                case "stdin":
                    process.stdin.write(_packet(_DRAWN, pastes.read(more[0]).encode()))
                case "resize":
                    width, height = size_of(more[0]["width"], 80), size_of(more[0]["height"], 24)
                    process.stdin.write(_packet(_FACT, _json(type="resize", width=width, height=height)))
                case "focus" | "blur":
                    process.stdin.write(_packet(_FACT, _json(type=kind)))
                case "ping":
                    await websocket.send_json(["pong", *more])
                case _:
                    return
            await process.stdin.drain()


async def _hear(process: Process, said: bytearray) -> None:
    assert process.stderr is not None
    while piece := await process.stderr.read(LAST_WORDS):
        said += piece
        del said[:-LAST_WORDS]


def _packet(kind: bytes, content: bytes) -> bytes:
    return kind + len(content).to_bytes(4, "big") + content


def _json(**fact: Any) -> bytes:
    return json.dumps(fact).encode()


# -- the end ----------------------------------------------------------------------------------------------------------


async def _end(process: Process, *tasks: "asyncio.Task[None]") -> None:
    """End the chat after its tab is gone. It saves its text and ends, or it is killed with all its children."""
    try:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while await process.stdout.read(2**16):  # unread output would block it
                    pass
                await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
