"""The chat in a browser: its page, a websocket for every tab, and access control."""

import hmac
import re
import secrets
from collections.abc import Callable
from html import escape
from importlib.util import find_spec
from pathlib import Path
from string import Template

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from localspec.environment import install_extra
from localspec.errors import UsageMistake
from localspec.serving import tabs
from localspec.serving.guard import FOREIGN_HOST, FOREIGN_ORIGIN, headers_of, is_socket
from localspec.serving.tabs import Tabs, size_of

COOKIE = "localspec"
_CHAT = "/chat/"
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_NO_KEY = "This address works only once. Open the last one shown in the terminal of `localspec serve --ui`."
# Nothing from elsewhere, no frame around it, and no new windows: a link in a reply is shown but not opened.
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
    """Return the directory of textual-serve's page. Raises UsageMistake if it is not installed."""
    found = find_spec("textual_serve")
    if found is None or found.origin is None or find_spec("wsproto") is None:
        raise UsageMistake(f"--ui needs libraries that are not installed; {install_extra('ui')}.")
    return Path(found.origin).parent / "static"


class Browser:
    """A layer in front of the API that serves the chat to browsers.

    A browser that opens `/` with the one-time key gets a secret path with the chat's files. That path and its cookie
    belong to one browser. A cookie for `/` could be sent to any other server of this machine, because cookies ignore
    ports. After a key has been used, `tell` is called with the next key.
    """

    def __init__(self, api: ASGIApp, chats: Tabs, tell: Callable[[str], None]) -> None:
        self._api, self._chats, self._tell = api, chats, tell
        self.key = _secret()
        self._browsers: dict[str, str] = {}  # the cookie of each path
        own = Path(__file__).parent
        self._page = Template((own / "tab.html").read_text("utf-8"))
        self._script = (own / "tab.js").read_bytes()
        below = [
            Route("/", self._show),
            Route("/tab.js", self._page_script),
            WebSocketRoute("/ws", self._chat),
            Mount("/static", StaticFiles(directory=page_files())),
        ]
        self._app = Starlette(routes=[Route("/", self._enter), Mount(_CHAT + "{name}", routes=below)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = scope.get("path") == "/" or scope.get("path", "").startswith(_CHAT)
        if scope["type"] == "http" and (is_socket(scope) or not own):
            await self._api(scope, receive, send)
            return
        if scope["type"] not in ("http", "websocket"):
            return
        refused = self._refused(scope, own)
        host = "" if refused else HTTPConnection(scope).headers["host"]
        headers = {**_HEADERS, "Content-Security-Policy": _POLICY.format(host=host)}

        async def answer(message: Message) -> None:
            if message["type"].endswith("http.response.start"):
                kept = [pair for pair in message["headers"] if pair[0] != b"cache-control"]
                added = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
                message = {**message, "headers": [*kept, *added]}
            await send(message)

        await (refused or self._app)(scope, receive, answer)

    # -- access -------------------------------------------------------------------------------------------------------

    def _refused(self, scope: Scope, own: bool) -> Response | None:
        headers = headers_of(scope)
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0].decode("latin-1")):
            return _sentence(403, FOREIGN_HOST)
        if origins != [b"http://" + hosts[0]] and (origins or scope["type"] == "websocket"):
            return _sentence(403, FOREIGN_ORIGIN)
        if is_socket(scope) or not own:
            return _sentence(404, "There is no websocket at this address.")
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
            return _sentence(503, f"{tabs.MOST_TABS} chats are open, which is the maximum; close one, and reload.")
        where = f"ws://{request.headers['host']}{_CHAT}{request.path_params['name']}/ws"
        return HTMLResponse(self._page.substitute(websocket=escape(where), most=tabs.MOST_TABS))

    async def _page_script(self, request: Request) -> Response:
        return Response(self._script, media_type="text/javascript")

    async def _chat(self, websocket: WebSocket) -> None:
        if self._chats.full:
            await websocket.send_denial_response(_sentence(503, f"{tabs.MOST_TABS} chats are open; close one."))
            return
        with self._chats.place():
            await websocket.accept()
            asked = websocket.query_params
            await self._chats.run(websocket, size_of(asked.get("width"), 80), size_of(asked.get("height"), 24))


def _secret() -> str:
    return secrets.token_urlsafe(32)


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def _sentence(status: int, sentence: str) -> Response:
    return HTMLResponse(
        f'<!doctype html><meta charset="utf-8"><title>localspec</title><p>{escape(sentence)}</p>', status
    )
