"""The chat in a browser: its page, access control, and the tabs.

Each tab has a process of `localspec chat` that uses this server like any client. A tab and its process exchange the
messages of textual-serve's page and Textual's web driver: keys and sizes in one direction, as JSON, and screen output
in the other.
"""

import asyncio
import hmac
import json
import os
import re
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from localspec.environment import SERVER_KEY, TAB_DRIVER, install_extra
from localspec.errors import UsageMistake
from localspec.serving.guard import FOREIGN_HOST, FOREIGN_ORIGIN, headers_of, is_socket
from localspec.text import PasteFilter, safe

COOKIE = "localspec"
_CHAT = "/chat/"
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_NO_KEY = "This address works only once. Open the last one shown in the terminal of `localspec serve --ui`."
# Nothing from other sites, no frame around it, and no new windows: a link in a reply is shown but not opened.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src data:; "
    "connect-src ws://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "sandbox allow-scripts allow-same-origin"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_files() -> Path:
    """Return the directory of textual-serve's page. Raises UsageMistake if textual-serve is not installed."""
    spec = find_spec("textual_serve")
    if spec is None or spec.origin is None or find_spec("wsproto") is None:
        raise UsageMistake(f"--ui needs libraries that are not installed; {install_extra('ui')}.")
    return Path(spec.origin).parent / "static"


class Browser:
    """A layer in front of the API that serves the chat to browsers.

    A browser that opens `/` with the one-time key gets a secret path with the chat's files, and a cookie for this path.
    Both belong to this browser. The cookie is not for `/`, because browsers would also send that one to servers on
    other ports of this machine. After a key has been used, `tell` is called with the next key.
    """

    def __init__(self, api: ASGIApp, chats: "Tabs", tell: Callable[[str], None]) -> None:
        self._api, self._chats, self._tell = api, chats, tell
        self.key = _secret()
        self._browsers: dict[str, str] = {}  # the cookie of each path
        files = Path(__file__).parent
        self._page = Template((files / "tab.html").read_text("utf-8"))
        self._script = (files / "tab.js").read_bytes()
        routes = [
            Route("/", self._show),
            Route("/tab.js", self._page_script),
            WebSocketRoute("/ws", self._chat),
            Mount("/static", StaticFiles(directory=page_files())),
        ]
        self._app = Starlette(routes=[Route("/", self._enter), Mount(_CHAT + "{name}", routes=routes)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        of_chat = scope.get("path") == "/" or scope.get("path", "").startswith(_CHAT)
        if scope["type"] == "http" and (is_socket(scope) or not of_chat):
            await self._api(scope, receive, send)
            return
        if scope["type"] not in ("http", "websocket"):
            return
        refusal = self._refusal(scope, of_chat)
        host = "" if refusal else HTTPConnection(scope).headers["host"]
        headers = {**_HEADERS, "Content-Security-Policy": _POLICY.format(host=host)}

        async def answer(message: Message) -> None:
            if message["type"].endswith("http.response.start"):
                headers_left = [pair for pair in message["headers"] if pair[0] != b"cache-control"]
                added = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
                message = {**message, "headers": [*headers_left, *added]}
            await send(message)

        await (refusal or self._app)(scope, receive, answer)

    # -- access -------------------------------------------------------------------------------------------------------

    def _refusal(self, scope: Scope, of_chat: bool) -> Response | None:
        headers = headers_of(scope)
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0].decode("latin-1")):
            return _sentence(403, FOREIGN_HOST)
        if origins != [b"http://" + hosts[0]] and (origins or scope["type"] == "websocket"):
            return _sentence(403, FOREIGN_ORIGIN)
        if is_socket(scope) or not of_chat:
            return _sentence(404, "There is no websocket at this address; send requests over HTTP.")
        if scope["path"] == "/" or self._is_known(scope):
            return None  # the key is checked where it is used
        return _sentence(401, _NO_KEY)

    def _is_known(self, scope: Scope) -> bool:
        name = scope["path"].removeprefix(_CHAT).partition("/")[0]
        cookie = HTTPConnection(scope).cookies.get(COOKIE, "")
        return name in self._browsers and _same(cookie, self._browsers[name])

    async def _enter(self, request: Request) -> Response:
        if request.method != "GET" or not _same(request.query_params.get("key", ""), self.key):
            return _sentence(401, _NO_KEY)
        self.key, name, cookie = _secret(), _secret(), _secret()
        self._browsers[name] = cookie
        self._tell(self.key)
        answer = RedirectResponse(f"{_CHAT}{name}/", 303)
        answer.set_cookie(COOKIE, cookie, path=f"{_CHAT}{name}", httponly=True, samesite="strict")
        return answer

    # -- pages --------------------------------------------------------------------------------------------------------

    async def _show(self, request: Request) -> Response:
        if self._chats.full:
            return _sentence(503, f"{MOST_TABS} chats are open, which is the maximum; close one, and reload.")
        address = f"ws://{request.headers['host']}{_CHAT}{request.path_params['name']}/ws"
        return HTMLResponse(self._page.substitute(websocket=escape(address), most=MOST_TABS))

    async def _page_script(self, request: Request) -> Response:
        return Response(self._script, media_type="text/javascript")

    async def _chat(self, websocket: WebSocket) -> None:
        if self._chats.full:
            await websocket.send_denial_response(_sentence(503, f"{MOST_TABS} chats are open; close one."))
            return
        with self._chats.place():
            await websocket.accept()
            query = websocket.query_params
            await self._chats.run(websocket, size_of(query.get("width"), 80), size_of(query.get("height"), 24))


def _secret() -> str:
    return secrets.token_urlsafe(32)


def _same(value: str, secret: str) -> bool:
    return hmac.compare_digest(value.encode("utf-8", "replace"), secret.encode())


def _sentence(status: int, sentence: str) -> Response:
    return HTMLResponse(
        f'<!doctype html><meta charset="utf-8"><title>localspec</title><p>{escape(sentence)}</p>', status
    )


# -- tabs -------------------------------------------------------------------------------------------------------------


MOST_TABS = 8  # at once: each is a process
END_SECONDS = 2.5  # within which a process should end when its tab is gone; less than uvicorn waits
LARGEST = 1000  # columns or lines
LAST_WORDS = 4096  # bytes of standard error that are shown when it has ended

_BEGUN = b"__GANGLION__\n"  # Textual's driver sends this before the first packet
_DRAWN, _FACT = b"D", b"M"
_CLEARED = "\x1b[?1049l\x1b[0m\x1b[2J\x1b[H"
# Variables that describe the terminal in which the server was started.
_OF_A_TERMINAL = ("COLORFGBG", "LINES", "STY", "TMUX")


class Tabs:
    """The open tabs, at most `MOST_TABS` at a time. Use it from one event loop."""

    def __init__(self, url: str, key: str, model: str, *, log: bool) -> None:
        self._open, self._key = 0, key
        # -P: do not import modules from the current directory.
        self._command = [sys.executable, "-P", "-m", "localspec", "chat", "--server", url, "-m", model]
        self._command += [] if log else ["--no-log"]

    @property
    def full(self) -> bool:
        """Whether the greatest permitted number of tabs is open."""
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
        """Run a chat until the user quits the chat or closes the tab. Return after the chat's process has ended."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=self._environment(width, height),
            start_new_session=True,
        )  # fmt: skip
        stderr = bytearray()
        hearing = asyncio.create_task(_hear(process, stderr))
        drawing = asyncio.create_task(_draw(process, websocket))
        typing = asyncio.create_task(_type(websocket, process))
        try:
            await asyncio.wait({drawing, typing}, return_when=asyncio.FIRST_COMPLETED)
            still_open = not typing.done()
        finally:
            await _end(process, drawing, typing)
        await hearing
        with suppress(WebSocketDisconnect, RuntimeError):
            if still_open:
                text = safe(stderr.decode("utf-8", "replace")).replace("\n", "\r\n")
                await websocket.send_bytes(f"{_CLEARED}{text}".encode())
            await websocket.close()

    def _environment(self, width: int, height: int) -> dict[str, str]:
        """Return the environment of a tab's process. It has the server's key: a command line would reveal the key."""
        variables = {name: value for name, value in os.environ.items() if name not in _OF_A_TERMINAL}
        return {
            **variables, SERVER_KEY: self._key, "TEXTUAL_DRIVER": TAB_DRIVER, "COLUMNS": str(size_of(width, 80)),
            "ROWS": str(size_of(height, 24)), "TERM": "xterm-256color", "TEXTUAL_COLOR_SYSTEM": "truecolor",
            "PYTHONUTF8": "1",
        }  # fmt: skip


def size_of(value: object, otherwise: int) -> int:
    """Return the number of columns or lines in `value`, which a browser sent, or `otherwise` if it is invalid."""
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
                return  # here are neither addresses to open nor files to send


async def _type(websocket: WebSocket, process: Process) -> None:
    """Forward the page's messages to the chat. An invalid message, which localspec's page never sends, ends the tab."""
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


async def _hear(process: Process, stderr: bytearray) -> None:
    assert process.stderr is not None
    while piece := await process.stderr.read(LAST_WORDS):
        stderr += piece
        del stderr[:-LAST_WORDS]


def _packet(kind: bytes, content: bytes) -> bytes:
    return kind + len(content).to_bytes(4, "big") + content


def _json(**fact: Any) -> bytes:
    return json.dumps(fact).encode()


# -- the end ----------------------------------------------------------------------------------------------------------


async def _end(process: Process, *tasks: "asyncio.Task[None]") -> None:
    """End the chat of a closed tab: let it save its text and exit, or else kill its process with all children."""
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
