"""The address of a server, and one request to it. The answer is read line by line, with limits on length and time."""

import importlib
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from queue import Empty, Full, Queue
from typing import NamedTuple, Self

from localspec.environment import server_key
from localspec.errors import LocalspecError, UsageMistake, first_line
from localspec.setting_checks import SERVER_URL

KEYRING = "localspec"  # the service under which the system's keyring may have the key, by address


@dataclass(frozen=True)
class ServerAddress:
    """The address of a server as it is displayed, and its parts. The path of every request begins with `base`."""

    url: str
    secure: bool
    host: str
    port: int
    base: str

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the parts of an address in the settings. An address without a path means `/v1`."""
        match = SERVER_URL.fullmatch(url)
        assert match is not None
        secure = match["scheme"] == "https"
        port = int(match["port"] or (443 if secure else 80))
        if not 0 < port < 2**16:
            raise UsageMistake(f"{url} names port {port}, but ports are 1 to 65535; correct it.")
        path = (match["path"] or "").rstrip("/") or "/v1"
        return cls(url.rstrip("/"), secure, match["host"].strip("[]"), port, path)

    @property
    def name(self) -> str:
        """Return host and port of the server, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port in (80, 443) else f"{host}:{self.port}"

    @property
    def crosses_a_network_in_the_clear(self) -> bool:
        """Return whether others on the network could read requests, because they are not encrypted."""
        return not self.secure and self.host not in ("localhost", "::1") and not self.host.startswith("127.")


def key_for(address: ServerAddress) -> str | None:
    """Return the key in the environment, or else this address's key in the system's keyring; None without a key.

    Raises UsageMistake for a key that a header cannot contain.
    """
    key = server_key() or _keyring_key(address.url)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageMistake("The key for the server is not printable ASCII; correct LOCALSPEC_SERVER_KEY.")
    return key


def _keyring_key(url: str) -> str | None:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        return None
    try:
        key = keyring.get_password(KEYRING, url)
    except Exception:  # noqa: BLE001  # a keyring that is locked, or none; the server then says that a key is missing
        return None
    return key if isinstance(key, str) and key else None


CONNECT_SECONDS = 10.0
TICK = 0.2  # seconds between checks whether an answer is still wanted
LONGEST_LINE = 2**20  # bytes
LONGEST_ANSWER = 64 * 2**20
PIECE = 2**16
AHEAD = 256  # lines that may wait for their reader


class BrokenOff(LocalspecError):
    """An error: the connection ended, or the server sent nothing more, before the end of the answer."""


class SilentServer(BrokenOff):
    """An error: the server sent nothing more."""


class EmptyReply(BrokenOff):
    """An error: a reply began, and ended without content."""


class Head(NamedTuple):
    """The status line and headers of an HTTP answer."""

    status: int
    kind: str  # media type, in lower case
    location: str  # the target of a redirect


class Link:
    """A request that runs in its own thread, so that the caller can stop waiting at any moment, even during TLS.

    Proxies and redirects are not used: the text goes only to the server at `address`.
    """

    def __init__(
        self, address: ServerAddress, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self._address, self._path, self._body = address, path, body
        self._headers = {"Accept-Encoding": "identity", "Connection": "close", **(headers or {})}
        self._arrived: Queue[Head | bytes | Exception | None] = Queue(AHEAD)  # None: the end
        self._closed = threading.Event()
        self._socket: socket.socket | None = None
        threading.Thread(target=self._ask, name="server", daemon=True).start()

    def close(self) -> None:
        """Close the connection, so that the server stops writing a reply that nobody reads."""
        self._closed.set()
        if (open_socket := self._socket) is not None:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it

    def arrivals(self) -> Iterator[Head | bytes | None]:
        """Yield the head, then the lines of the body, and None after each `TICK` in which nothing came.

        Raises BrokenOff, and LocalspecError if no server answers or its answer is unreadable.
        """
        while True:
            try:
                arrival = self._arrived.get(timeout=TICK)
            except Empty:
                yield None
                continue
            if arrival is None:
                return
            if isinstance(arrival, Exception):
                raise self._in_words(arrival)
            yield arrival

    # -- on its thread ------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        connection: HTTPConnection | None = None
        try:
            connection = self._connection()
            connection.connect()
            self._socket = connection.sock
            connection.sock.settimeout(None)  # the reader has the clock
            connection.request("GET" if self._body is None else "POST", self._path, self._body, self._headers)
            with connection.getresponse() as response:
                kind = response.getheader("Content-Type", "").partition(";")[0].strip().lower()
                self._put(Head(response.status, kind, response.getheader("Location", "")))
                self._read(response)
            self._put(None)
        except Exception as error:  # noqa: BLE001  # it is raised where somebody waits
            self._put(error)
        finally:
            if connection is not None:
                connection.close()

    def _connection(self) -> HTTPConnection:
        address = self._address
        if address.secure:
            context = ssl.create_default_context()
            return HTTPSConnection(address.host, address.port, timeout=CONNECT_SECONDS, context=context)
        return HTTPConnection(address.host, address.port, timeout=CONNECT_SECONDS)

    def _read(self, response: HTTPResponse) -> None:
        if response.getheader("Content-Encoding", "identity").lower() not in ("identity", ""):
            raise ValueError("a compressed answer, which was not requested")
        line, total = bytearray(), 0
        while piece := response.read1(PIECE):
            total += len(piece)
            if total > LONGEST_ANSWER:
                raise ValueError(f"more than {LONGEST_ANSWER // 2**20} MiB")
            *whole, rest = piece.split(b"\n")
            for end in whole:
                self._put(bytes(line + end).removesuffix(b"\r"))
                line.clear()
            line += rest
            if len(line) > LONGEST_LINE:
                raise ValueError(f"a line of more than {LONGEST_LINE // 2**20} MiB")
        if line:
            self._put(bytes(line))

    def _put(self, arrival: Head | bytes | Exception | None) -> None:
        while not self._closed.is_set():
            with suppress(Full):
                self._arrived.put(arrival, timeout=TICK)
                return

    def _in_words(self, error: Exception) -> LocalspecError:
        url = self._address.url
        if isinstance(error, ssl.SSLCertVerificationError):
            return LocalspecError(
                f"{url} has no certificate that this machine trusts ({error.verify_message}); correct the address, "
                "or install the certificate."
            )
        if isinstance(error, ssl.SSLError):
            return LocalspecError(f"{url} does not speak TLS ({first_line(error)}); did you mean http://?")
        if isinstance(error, socket.gaierror | UnicodeError):
            return LocalspecError(f"{url} cannot be found; correct the name, or check whether this machine is online.")
        if self._socket is None and isinstance(error, OSError):
            reason = f"no answer in {CONNECT_SECONDS:.0f} s" if isinstance(error, TimeoutError) else first_line(error)
            return LocalspecError(f"{url} cannot be reached ({reason}); start that server, or give another --server.")
        if isinstance(error, HTTPException):
            return BrokenOff(f"{url} closed the connection, or does not speak HTTP; ask again, or correct the address.")
        if isinstance(error, OSError):
            return BrokenOff(f"{url} closed the connection ({first_line(error)[:200]}); ask again.")
        return LocalspecError(
            f"{url} sent an answer that cannot be read ({first_line(error)[:200]}); ask again, or correct the address."
        )
