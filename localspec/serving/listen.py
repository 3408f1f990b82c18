"""The sockets of a server: one for its user, and a port of this machine if requested."""

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import h11
import uvicorn
from filelock import FileLock, Timeout
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.errors import LocalspecError, UsageMistake
from localspec.paths import private_directory, without_rights
from localspec.serving.over_socket import CONNECT_SECONDS, process_at, stop_it

HOST = "127.0.0.1"
LONGEST_PATH = 100  # bytes of a socket's path: the system's limit is 104 to 108
GRACE_SECONDS = 3  # for running replies, when the server stops
BACKLOG = 512
LONGEST_MESSAGE = 8 * 2**20  # bytes that a browser sends at once: a paste


@contextmanager
def private_socket(path: Path) -> Iterator[socket.socket]:
    """Yield a Unix socket for this user only. Raises LocalspecError, for example if a server already has `path`."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise LocalspecError(f"{path} is too long for the name of a socket; set LOCALSPEC_HOME to a shorter path.")
    with ExitStack() as at_the_end:
        try:
            private_directory(path.parent)
            lock = FileLock(f"{path}.lock", mode=0o600)
            at_the_end.enter_context(lock.acquire(timeout=0))
            _remove_dead(path)
            listening = at_the_end.enter_context(socket.socket(socket.AF_UNIX))
            with without_rights(0o177):
                listening.bind(os.fspath(path))
            listening.listen(BACKLOG)
            identity = _identity(path)
        except Timeout:
            raise LocalspecError(f"You already have a server running; {stop_it(path)}.") from None
        except OSError as error:
            raise LocalspecError(
                f"The server cannot listen at {path} ({error.strerror or error}); check the permissions of "
                "this directory, or set LOCALSPEC_HOME to another one."
            ) from error
        try:
            yield listening
        finally:
            with suppress(OSError):
                if _identity(path) == identity:
                    path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _remove_dead(path: Path) -> None:
    """Remove the socket of a killed server. Raises LocalspecError if a server still listens, or for any other file."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise LocalspecError(
            f"{path} is not a socket, so the server cannot use this path; move it away, and start again."
        )
    with socket.socket(socket.AF_UNIX) as dead:
        dead.settimeout(CONNECT_SECONDS)
        try:
            dead.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except TimeoutError:  # a slow process listens
            pass
    raise LocalspecError(f"Another program already listens at {path}; {stop_it(path)}.")


def port_of_this_machine(port: int) -> socket.socket:
    """Return a socket that only this machine can reach. Raises UsageMistake if the port is taken."""
    listening = socket.socket(socket.AF_INET)
    try:
        if sys.platform != "win32":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not a port that a server has just left
        listening.bind((HOST, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise UsageMistake(f"Port {port} cannot be used ({error.strerror or error}); give another one.") from error
    return listening


def serve(
    app: ASGIApp, sockets: Sequence[socket.socket], started: Callable[[], None], *, websockets: bool = False
) -> None:
    """Answer HTTP, and WebSockets if set, until SIGINT or SIGTERM. Call `started` when the server listens."""

    class Limited(Connection):
        most = connections_of_others()

    config = uvicorn.Config(
        app, lifespan="off", http=Limited, ws="wsproto" if websockets else "none", ws_max_size=LONGEST_MESSAGE,
        ws_per_message_deflate=False, log_config=None, log_level="critical", access_log=False, server_header=False,
        proxy_headers=False, timeout_graceful_shutdown=GRACE_SECONDS, timeout_keep_alive=30,
    )  # fmt: skip

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

    with _ending_cleanly():
        asyncio.run(Server(config).serve([*sockets]))


@contextmanager
def _ending_cleanly() -> Iterator[None]:
    """Make SIGTERM and a closed terminal end the server in the same way as Ctrl+C.

    When uvicorn has ended, it sends the signal to the process once more. The second signal is ignored.
    """
    handlers = {signal.SIGTERM: lambda *_: None, signal.SIGHUP: lambda *_: signal.raise_signal(signal.SIGTERM)}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


LOOK_SECONDS = 10.0  # a connection without a request stays open for at most twice this time
ENOUGH_FILES = 4096


def connections_of_others() -> int:
    """Return how many connections to the server's port are allowed: half of this process's limit on open files.

    If that limit is low, raise it first if possible.
    """
    if sys.platform == "win32":
        return ENOUGH_FILES // 2
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    return (ENOUGH_FILES if soft == resource.RLIM_INFINITY else min(soft, ENOUGH_FILES)) // 2


class Connection(H11Protocol):
    """A connection of a client. If it came through the user's own socket, `client` names the client's process."""

    most = ENOUGH_FILES // 2  # to the port at the same time
    other = False  # whether it is to the port
    _last_cycle: object = ...  # the request at the previous check; None if there was none

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of `_look`. Close the connection at once if the port has too many connections."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == getattr(socket, "AF_UNIX", None):
            # Requests of one program wait for each other, and do not overtake those of others.
            self.client = (f"process {number}", 0) if (number := process_at(connection)) else None
        else:
            self.other = True
            if sum(getattr(protocol, "other", False) for protocol in self.connections) > self.most:
                transport.abort()
                return
        self.loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Close the connection if no complete request head has arrived since the last check."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # or it is now a websocket
            return
        if self.conn.their_state is h11.IDLE and self._last_cycle is self.cycle:
            self.transport.close()
            return
        self._last_cycle = self.cycle
        self.loop.call_later(LOOK_SECONDS, self._look)
