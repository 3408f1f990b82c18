"""Connections of clients that send nothing, too many connections at once, and how many one program may have."""

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
import uvicorn
from clocks import PATIENCE
from golden import matching
from uvicorn.server import ServerState

from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.serving import app, listen, over_socket
from localspec.serving.app import Serving
from localspec.serving.listen import Connection, connections_of_others, private_socket
from localspec.serving.over_socket import NoServer, lines
from localspec.serving.room import EngineRoom, Mailbox, Ticket

if sys.platform == "win32":
    pytest.skip("no sockets of the file system", allow_module_level=True)

WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def says_who(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": str(scope["client"][0]).encode()})


def served(tmp_path: Path, story: Callable[[int, Path], Awaitable[None]], most: int = 10) -> None:
    """Run the story with a server at its port and its socket."""

    class Few(Connection):
        pass

    Few.most = most
    config = uvicorn.Config(says_who, http=Few, lifespan="off", log_config=None, timeout_keep_alive=600)
    config.load()
    state, place = ServerState(), tmp_path / "socket"

    async def run() -> None:
        loop = asyncio.get_running_loop()
        port = await loop.create_server(lambda: Few(config, state, {}), "127.0.0.1", 0)
        own = await loop.create_unix_server(lambda: Few(config, state, {}), os.fspath(place))
        async with port, own, asyncio.timeout(60):
            await story(port.sockets[0].getsockname()[1], place)

    asyncio.run(run())


def test_who_does_not_ask_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(listen, "LOOK_SECONDS", 0.2)

    async def story(port, place):
        silent, _ = await asyncio.open_connection("127.0.0.1", port)
        half, writing = await asyncio.open_connection("127.0.0.1", port)
        writing.write(WHOLE[:-5])
        asked, writing_whole = await asyncio.open_connection("127.0.0.1", port)
        writing_whole.write(WHOLE)
        assert (await asked.readline()).startswith(b"HTTP/1.1 200")
        assert await silent.read() == await half.read() == b""
        assert b"127.0.0.1" in await asked.read(), "a connection that rests ends, too, and loses nothing"

    served(tmp_path, story)


def test_one_too_many_is_closed_and_the_own_socket_is_for_its_user(tmp_path):
    async def story(port, place):
        taken = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        reader, _ = await asyncio.open_connection("127.0.0.1", port)
        said = b""
        with suppress(ConnectionError):
            said = await reader.read()
        assert said == b""
        own, writing = await asyncio.open_unix_connection(os.fspath(place))
        writing.write(WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        said = await own.read()
        assert said.startswith(b"HTTP/1.1 200") and f"process {os.getpid()}".encode() in said
        taken[0][1].close()
        await taken[0][1].wait_closed()
        await asyncio.sleep(0)
        again, writing = await asyncio.open_connection("127.0.0.1", port)
        writing.write(WHOLE)
        assert (await again.readline()).startswith(b"HTTP/1.1 200")

    served(tmp_path, story, most=3)


def test_half_of_the_files_are_for_others():
    assert 100 < connections_of_others() <= listen.ENOUGH_FILES // 2


def test_a_hanging_server_counts_as_absent(tmp_path, monkeypatch):
    """It accepts connections but never answers, as a stopped process."""
    monkeypatch.setattr(over_socket, "HEAD_SECONDS", 0.3)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(os.fspath(tmp_path / "socket"))
        mute.listen()
        with pytest.raises(NoServer, match=matching("has_said_nothing")):
            list(lines(tmp_path / "socket", "/localspec/open", {}))


def test_who_waits_for_a_turn_is_given_signs_of_life(monkeypatch):
    """The client can then tell a server that hangs from one that answers others, long before ten minutes pass."""
    assert 5 * over_socket.SIGN_SECONDS < over_socket.SILENT_SECONDS <= 120
    monkeypatch.setattr(app, "LINE_SECONDS", 0.01)

    async def story():
        left = asyncio.ensure_future(asyncio.Event().wait())
        box, ticket = Mailbox(left), Ticket(None, "", 0, None)
        said = Serving(EngineRoom(Settings(), None), None)._lines(ticket, box, 3, left)
        found = [json.loads(await anext(said)) for _ in range(3)]
        box.deliver({"engine": "e"})
        while "engine" not in found[-1]:
            found.append(json.loads(await anext(said)))
        found.append(json.loads(await anext(said)))
        box.deliver({"kept": None})
        found += [json.loads(line) async for line in said]
        assert found[:3] == [{"ahead": 3}] * 3 and {"ahead": 0} in found and found[-1] == {"kept": None}

    asyncio.run(story())


def test_one_that_hangs_with_somebody_before_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(over_socket, "SILENT_SECONDS", 0.3)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(tmp_path / "socket"))
        listening.listen()
        over = threading.Event()

        def say_one_line() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(OK + b'{"ahead": 3}\n')
                over.wait(PATIENCE)

        thread = threading.Thread(target=say_one_line)
        thread.start()
        try:
            with pytest.raises(NoServer, match=matching("has_said_nothing")):
                list(lines(tmp_path / "socket", "/localspec/reply", {}))
        finally:
            over.set()
            thread.join(PATIENCE)


OK = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "piece", "pause"),
    [(OK, b"x" * 2**16, 0.0), (OK, b"x", 0.02), (b"", b"x" * 2**12, 0.0), (b"HTTP/1.0 200 OK\r\n", b"a", 0.02)],
    ids=["a line without end", "one byte at a time", "a head without end", "a head one byte at a time"],
)
def test_an_endless_answer_counts_as_no_server(tmp_path, monkeypatch, head, piece, pause):
    monkeypatch.setattr(over_socket, "LONGEST_LINE", 2**22)
    if pause:
        monkeypatch.setattr(over_socket, "HEAD_SECONDS", 0.3)
    over = threading.Event()

    def babble(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.sendall(head)
            while not over.wait(pause):
                connection.sendall(piece)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(tmp_path / "socket"))
        listening.listen()
        thread = threading.Thread(target=babble, args=(listening,), daemon=True)
        thread.start()
        words = "has sent nothing" if pause else "does not answer like"
        try:
            with (
                pytest.raises(NoServer, match=words),
                closing(lines(tmp_path / "socket", "/localspec/open", {})) as said,
            ):
                assert set(said) <= {None}
        finally:
            over.set()
        thread.join(PATIENCE)


def test_who_reads_slowly_loses_no_line(tmp_path, monkeypatch):
    monkeypatch.setattr(over_socket, "HEAD_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(tmp_path / "socket"))
        listening.listen()
        said = lines(tmp_path / "socket", "/localspec/open", {})
        answer = threading.Thread(target=lambda: _at_once(listening, OK + b'1\n"' + b"a" * 2**17 + b'"\n3\n'))
        answer.start()
        found = []
        for line in said:
            if line is not None:
                found.append(line)
                time.sleep(0.3)  # longer than a line may take
        answer.join(PATIENCE)
    assert found == [1, "a" * 2**17, 3]


def _at_once(listening: socket.socket, content: bytes) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(2**16)
        connection.sendall(content)


def test_a_socket_at_which_somebody_listens_and_a_link_stay(tmp_path):
    place = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(os.fspath(place))
        other.listen()
        with pytest.raises(LocalspecError, match=f"stop process {os.getpid()} first"), private_socket(place):
            pass
        assert place.is_socket()
    with private_socket(place) as listening:  # the socket has no server now
        assert listening.getsockname() == os.fspath(place)
    assert not place.exists()
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalspecError, match=matching("is_no_socket")), private_socket(place):
        pass
    assert place.is_symlink()


def test_what_took_the_place_of_a_socket_stays(tmp_path):
    place = tmp_path / "socket"
    with private_socket(place):
        place.unlink()
        place.write_text("mine")
    assert place.read_text() == "mine"
