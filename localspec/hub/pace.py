"""How long a server is waited for: what trickles is given up, waits that it asks for are told or refused, and whoever
no longer wants an answer need not wait for it."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from localspec.errors import LocalspecError

WINDOW = 60.0  # seconds of waiting for one answer, in which
LEAST_BYTES = 60 * 4096  # so many bytes of it must have come, unless it ends before
LONGEST_WAIT, ALL_WAITS = 60.0, 180.0  # seconds that a server may ask to wait, at once and in one pull
LONGEST_PRELUDE = 2**20  # bytes before an answer begins
_BEGIN = b"\n\n"  # an answer stands at the beginning, or behind the empty line that ends the one before
_ANSWER = re.compile(rb"\n\r?\nHTTP/\d(?:\.\d)? [2-9]\d\d")
LOOK = 0.25  # seconds of waiting, after which it is asked again whether anybody wants the answer


class _Waits:
    """What a server asked to wait since a pull began, and who is told."""

    notice: Callable[[str], None] = staticmethod(lambda _: None)
    seconds = 0.0
    silence = 0.0  # seconds that it has let pass without an answer, since the last one


class _Wanted:
    """Whether what is being waited for is still wanted; None where nobody can be asked."""

    asked: Callable[[], bool] | None = None


@contextmanager
def given_up_unless(wanted: Callable[[], bool]) -> Iterator[None]:
    """Meanwhile whoever waits for a server is interrupted as by Ctrl+C, soon after `wanted` says no.

    For a pull that is not on the main thread, which no signal reaches.
    """
    _Wanted.asked = staticmethod(wanted)
    try:
        yield
    finally:
        _Wanted.asked = None


@contextmanager
def waits_told(notice: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile each wait that a server asks for is told in a sentence, and counts."""
    before = _Waits.notice
    _Waits.notice, _Waits.seconds, _Waits.silence = staticmethod(notice), 0.0, 0.0
    try:
        yield
    finally:
        _Waits.notice = staticmethod(before)


def obey(server: str, status: int, headers: Mapping[str, str]) -> None:
    """Looks for a wait in an answer that the client will obey. Raises LocalspecError for one that is too long."""
    if status != 429 and status < 500:  # that it is not there, or not for us, no waiting changes
        return
    asked = [headers.get("retry-after", "").strip()]
    asked += re.findall(r"\bt=(\d+)", headers.get("ratelimit", ""))
    seconds = max((int(found[:9]) for found in asked if found.isdecimal()), default=0)
    if not seconds:
        return
    _Waits.seconds += seconds
    if seconds > LONGEST_WAIT or _Waits.seconds > ALL_WAITS:
        raise LocalspecError(f"{server} asks to wait {seconds} seconds before it is asked again; try again then.")
    _Waits.notice(f"{server} asks to wait {seconds} seconds.")


class Gain:
    """What is gained of a file: where connections break off or begin anew, again and again, each of them looks fast."""

    WINDOWS = 3  # of time for as many bytes: the client outlives a network that is gone for one

    def __init__(self, server: Callable[[], str]) -> None:
        self._server = server
        self._most = self._then = 0
        self._began = self._time()

    def come(self, read: int) -> None:
        """`read` bytes of the file are here. Raises LocalspecError where too few came that had not come before."""
        self._most = max(self._most, read)
        if self._time() - self._began > self.WINDOWS * WINDOW:
            if self._most - self._then < self.WINDOWS * LEAST_BYTES:
                raise _too_slow(self._server())
            self._then, self._began = self._most, self._time()

    @staticmethod
    def _time() -> float:
        return time.monotonic() - _Waits.seconds  # without what the server asked to wait


def _too_slow(server: str) -> LocalspecError:
    return LocalspecError(f"{server} sends less than {LEAST_BYTES / WINDOW / 1024:.0f} KiB a second; try again later.")


@contextmanager
def _told_of_silence(server: Callable[[], str], began: float) -> Iterator[None]:
    """Where no answer comes in time the client asks again and again, for minutes and without a word."""
    from httpcore2 import ConnectTimeout, ReadTimeout

    try:
        yield
    except (ConnectTimeout, ReadTimeout):
        _Waits.silence += time.monotonic() - began
        said = f"{server()} has not answered for {_Waits.silence:.0f} seconds"
        if _Waits.silence >= LONGEST_WAIT:
            raise LocalspecError(f"{said}; try again later.") from None
        _Waits.notice(f"{said}.")
        raise


class PacedBackend:
    """Opens connections as `backend`, of httpcore, does; what comes through them must come in time."""

    def __init__(self, backend: Any, server: Callable[[], str]) -> None:
        self._backend, self._server = backend, server

    def connect_tcp(self, *place: Any, **options: Any) -> "PacedStream":
        with _told_of_silence(self._server, time.monotonic()):
            return PacedStream(self._backend.connect_tcp(*place, **options), self._server)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class PacedStream:
    """A connection. Whoever sends a byte now and then never lets a read time out: here all of them count together."""

    def __init__(self, stream: Any, server: Callable[[], str]) -> None:
        self._stream, self._server = stream, server
        self._waited, self._bytes = 0.0, 0
        self._begun, self._prelude, self._tail = False, 0, _BEGIN

    def read(self, *given: Any, **options: Any) -> bytes:
        """Raises LocalspecError where too little has come in `WINDOW` seconds of waiting, or no answer begins."""
        began = time.monotonic()
        read = self._stream.read if _Wanted.asked is None else self._while_wanted
        with nullcontext() if self._begun else _told_of_silence(self._server, began):
            content: bytes = read(*given, **options)
        self._waited += time.monotonic() - began
        self._bytes += len(content)
        if not self._begun:
            self._look_for_answer(content)
        if self._waited > WINDOW:
            if self._bytes < LEAST_BYTES and content:
                raise _too_slow(self._server())
            self._waited, self._bytes = 0.0, 0
        return content

    def _look_for_answer(self, content: bytes) -> None:
        """Answers that say that another one will follow are read over by the client, however many there are."""
        seen = self._tail + content
        self._begun, self._tail = bool(_ANSWER.search(seen)), seen[-16:]
        if self._begun:
            _Waits.silence = 0.0
        self._prelude += len(content)
        if not self._begun and self._prelude > LONGEST_PRELUDE:
            raise LocalspecError(f"{self._server()} says again and again that it will answer; try again later.")

    def _while_wanted(self, most: int, timeout: float | None = None) -> bytes:
        """The same read, in short waits. Raises KeyboardInterrupt once its answer is not wanted any more."""
        from httpcore2 import ReadTimeout

        left = float("inf") if timeout is None else timeout
        while True:
            if _Wanted.asked is not None and not _Wanted.asked():
                raise KeyboardInterrupt
            try:
                return bytes(self._stream.read(most, timeout=min(LOOK, left)))
            except ReadTimeout:
                left -= LOOK
                if left <= 0:
                    raise

    def write(self, *given: Any, **options: Any) -> None:
        """What is asked anew is waited for anew."""
        self._waited, self._bytes = 0.0, 0
        self._begun, self._prelude, self._tail = False, 0, _BEGIN
        self._stream.write(*given, **options)

    def start_tls(self, *given: Any, **options: Any) -> "PacedStream":
        with _told_of_silence(self._server, time.monotonic()):
            return PacedStream(self._stream.start_tls(*given, **options), self._server)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def pace(client: Any, server: Callable[[], str]) -> Any:
    """Makes an HTTP client of httpx open its connections through `PacedBackend`, those to proxies too. Returns it."""
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            pool = transport._pool
            pool._network_backend = PacedBackend(pool._network_backend, server)
    return client
