"""Access control: requests need the key, and must come from this machine and not from other sites' pages."""

import asyncio
import hmac
import json
import re
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.environment import SERVE_KEY, serve_key
from localspec.errors import LocalspecError, UsageMistake
from localspec.outside_files import read_bytes
from localspec.paths import private_directory, write_anew
from localspec.serving.replies import error

LOCAL = ("localhost", "127.0.0.1", "::1")
LONGEST_BODY = 8 * 2**20  # bytes
BODY_SECONDS = 30.0
REST_SECONDS = 2.0  # for a client that still sends a refused body
# Nothing before the host, and nothing after the port: other parsers might take another part for the host.
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,253})(:[0-9]{1,5})?", re.ASCII)
TOO_LONG = f"The body of the request is longer than {LONGEST_BODY // 2**20} MiB; send less of it."
FOREIGN_HOST = "The header 'Host' names another machine; use localhost."
FOREIGN_ORIGIN = "The header 'Origin' names another site, whose pages may not send requests to this server."


class Guard:
    """A guard in front of an ASGI application.

    Requests through the user's own socket need no key, because the socket's file mode protects it. All other requests
    need the `key`, and are refused if `key` is None. The headers `Host` and `Origin` must name this machine, because
    web pages can send requests to it, too. If the domain name of a page points to this machine (DNS rebinding), only
    `Host` shows that.
    """

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # nothing else is served
            return
        refusal = self._refusal(scope)
        if refusal:
            await refuse(send, *refusal, rest=receive if refusal[1] == TOO_LONG else None)
            return
        await self._app(scope, _BodyReader(receive), send)

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        headers = headers_of(scope)
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        trusted = is_socket(scope)
        if not trusted and (len(hosts) != 1 or _host(hosts[0]) not in LOCAL):
            return 403, FOREIGN_HOST, "invalid_request_error"
        if any(_origin(origin) not in LOCAL for origin in origins):
            return 403, FOREIGN_ORIGIN, "invalid_request_error"
        keys = headers.get(b"authorization", [])
        if not trusted and (
            self._key is None or len(keys) != 1 or not hmac.compare_digest(_bearer(keys[0]), self._key)
        ):
            if not keys:
                return 401, "The key is missing; send 'Authorization: Bearer KEY'.", "authentication_error"
            return 401, "The key is wrong; send 'Authorization: Bearer KEY'.", "authentication_error"
        lengths = headers.get(b"content-length", [])
        if any(_length(length) > LONGEST_BODY for length in lengths):
            return 413, TOO_LONG, "invalid_request_error"
        return None


class BadBody(HTTPException):
    """An error: a body is too long or arrives too slowly. `detail` is a sentence."""


class _BodyReader:
    """A reader of a request's body, with limits on its length and on the time until it is complete."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._left, self._open = receive, LONGEST_BODY, True
        self._until = asyncio.get_running_loop().time() + BODY_SECONDS

    async def __call__(self) -> Message:
        if not self._open:
            return await self._receive()  # it returns when the client leaves
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            self._open = False
            raise BadBody(408, f"The body of the request did not arrive within {BODY_SECONDS:.0f} seconds.") from None
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self._open = False
            raise BadBody(413, TOO_LONG)
        self._open = bool(message.get("more_body", False))
        return message


def headers_of(scope: Scope) -> dict[bytes, list[bytes]]:
    """Return all values of each header, by its name in lower case."""
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    return headers


def is_socket(scope: Scope) -> bool:
    """Return whether the request came through the user's own socket."""
    server = scope.get("server")
    return server is not None and server[1] is None


def _host(value: bytes) -> str:
    """Return the host in a header's value `host` or `host:port`, in lower case; empty for anything else."""
    match = _AUTHORITY.fullmatch(value.decode("latin-1"))
    return match["host"].strip("[]").lower() if match else ""


def _origin(value: bytes) -> str:
    scheme, _, rest = value.partition(b"://")
    return _host(rest) if scheme in (b"http", b"https") else ""


def _length(value: bytes) -> int:
    """Return the number in a Content-Length header, which has at most 20 digits: longer values were refused before."""
    return int(value) if value.isdigit() else 0


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


async def refuse(send: Send, status: int, sentence: str, kind: str, rest: Receive | None = None) -> None:
    """Send a refusal and close the connection.

    If `rest` is given, it receives the rest of the body, which is discarded.
    """
    body = json.dumps(error(sentence, kind)).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if rest is not None:  # closing the connection while the client still sends would lose the answer
        await send({"type": "http.response.body", "body": body, "more_body": True})
        body = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                while (await rest()).get("more_body"):
                    pass
    await send({"type": "http.response.body", "body": body})


SHORTEST = 16  # characters: fewer could be guessed
_KEY = re.compile(r"[!-~]+")


def serving_key(file: Path, notice: Callable[[str], None] = lambda _: None) -> str:
    """Return the key in the environment, or else the key in `file`. Write a new key if the file is missing or empty.

    If others could read the key file, restrict its permissions and report a `notice`. Raises LocalspecError.
    """
    if (environment_key := serve_key()) is not None:
        if len(environment_key) < SHORTEST or not _KEY.fullmatch(environment_key):
            raise UsageMistake(
                f"{SERVE_KEY} must be {SHORTEST} or more printable ASCII characters without blanks; give another one."
            )
        return environment_key
    try:
        private_directory(file.parent)
        try:
            saved_key = read_bytes(file).decode("ascii", "replace").strip()
        except FileNotFoundError:
            saved_key = ""
        if not saved_key:  # or one that a full disk left empty
            key = f"localspec-{secrets.token_urlsafe(32)}"
            write_anew(file, key.encode())
            return key
        if len(saved_key) < SHORTEST or not _KEY.fullmatch(saved_key):
            raise LocalspecError(f"{file} has no valid key; delete the file, and the next start makes a new key.")
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            file.chmod(0o600)
            notice(
                f"other users could read {file} until now and may know the key; delete the file, and the next start "
                "makes a new key."
            )
        return saved_key
    except OSError as error:
        raise LocalspecError(f"The key cannot be saved in {file} ({error.strerror}); set {SERVE_KEY}.") from error
