"""One request to a server that was asked for: its answer comes line by line, of limited length, and in limited time."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from queue import Empty, Full, Queue
from typing import NamedTuple, Self

from localspec.errors import LocalspecError, first_line
from localspec.serving.address import ServerAddress

CONNECT_SECONDS = 10.0
TICK = 0.2  # seconds between two looks at whether an answer is still wanted
LONGEST_LINE = 2**20  # bytes
LONGEST_ANSWER = 64 * 2**20
PIECE = 2**16
AHEAD = 256  # lines that may wait for whoever reads them


class BrokenOff(LocalspecError):
    """The connection ended, or the server fell silent, before the answer did."""


class Silent(BrokenOff):
    """The server fell silent."""


class NothingCame(BrokenOff):
    """A reply was begun, and ended with nothing in it."""


class Head(NamedTuple):
    """What comes before the body of an answer."""

    status: int
    kind: str  # media type, in small letters
    place: str  # where it sends to instead


class Link:
    """Asks on a thread of its own, so that whoever waits can stop waiting at any moment, also for a name or a TLS host.

    Neither proxies nor redirects are followed: what is said goes to this server and nowhere else.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing more is wanted: the server learns that the client is gone."""
        self._closed.set()
        if (open_socket := self._socket) is not None:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it

    def arrivals(self) -> Iterator[Head | bytes | None]:
        """The head, then the lines of the body; None after each `TICK` in which nothing came.

        Raises BrokenOff, LocalspecError where there is no such server or it sends what nobody could read.
        """
        while True:
            try:
                one = self._arrived.get(timeout=TICK)
            except Empty:
                yield None
                continue
            if one is None:
                return
            if isinstance(one, Exception):
                raise self._said(one)
            yield one

    # -- on its thread ------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        connection: HTTPConnection | None = None
        try:
            connection = self._connection()
            connection.connect()
            self._socket = connection.sock
            connection.sock.settimeout(None)  # whoever reads has the clock
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
        where = self._address
        if where.secure:
            context = ssl.create_default_context()
            return HTTPSConnection(where.host, where.port, timeout=CONNECT_SECONDS, context=context)
        return HTTPConnection(where.host, where.port, timeout=CONNECT_SECONDS)

    def _read(self, response: HTTPResponse) -> None:
        if response.getheader("Content-Encoding", "identity").lower() not in ("identity", ""):
            raise ValueError("a compressed answer, which was not asked for")
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

    def _put(self, one: Head | bytes | Exception | None) -> None:
        while not self._closed.is_set():
            with suppress(Full):
                self._arrived.put(one, timeout=TICK)
                return

    def _said(self, error: Exception) -> LocalspecError:
        where = self._address.url
        if isinstance(error, ssl.SSLCertVerificationError):
            return LocalspecError(f"{where} shows no certificate that this machine trusts ({error.verify_message}).")
        if isinstance(error, ssl.SSLError):
            return LocalspecError(f"{where} speaks no TLS ({first_line(error)}); give http:// where that is meant.")
        if isinstance(error, socket.gaierror | UnicodeError):
            return LocalspecError(f"{where} cannot be found; correct the name, or see whether this machine is online.")
        if self._socket is None and isinstance(error, OSError):
            why = f"no answer in {CONNECT_SECONDS:.0f} s" if isinstance(error, TimeoutError) else first_line(error)
            return LocalspecError(f"{where} cannot be reached ({why}); start that server, or give another --server.")
        if isinstance(error, HTTPException):
            return BrokenOff(f"{where} broke off, or speaks no HTTP; ask again, or correct the address.")
        if isinstance(error, OSError):
            return BrokenOff(f"{where} broke off ({first_line(error)[:200]}).")
        return LocalspecError(f"{where} sends {first_line(error)[:200]}; this is no answer that can be read.")


class Patience:
    """How long one waits, from now on or from the last thing that came."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self, seconds: float | None = None) -> None:
        """Something came; `seconds` are waited for the next."""
        self._began, self._seconds = time.monotonic(), self._seconds if seconds is None else seconds

    @property
    def waited(self) -> float:
        """Seconds since something came."""
        return time.monotonic() - self._began

    @property
    def over(self) -> bool:
        """Whether that is too long."""
        return self.waited > self._seconds

    @property
    def limit(self) -> float:
        """Seconds that are waited at most."""
        return self._seconds
