"""A server of the demo model in a separate process, and helpers that send it requests."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clocks import PATIENCE
from command import environment

KEY = "a key of sixteen and more".replace(" ", "-")


class _OverSocket(http.client.HTTPConnection):
    """A connection to a socket of the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def pieces(self) -> list[Any]:
        """Return the pieces of a stream, without its end and without comments about waiting."""
        *pieces, end, rest = self.body.decode().split("\n\n")
        assert end == "data: [DONE]" and not rest
        return [json.loads(piece.removeprefix("data: ")) for piece in pieces if not piece.startswith(":")]


@dataclass
class Server:
    process: subprocess.Popen[str]
    home: Path
    port: int
    key: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def socket(self) -> Path:
        return self.home / "state" / "serve.sock"

    def connection(self, own: bool = False) -> http.client.HTTPConnection:
        tcp = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        return _OverSocket(self.socket) if own else tcp

    def ask(
        self, path: str, body: Any = None, *, method: str = "", own: bool = False, headers: Mapping[str, str] | None = None
    ) -> Answer:  # fmt: skip
        """Send one request, with the key unless `own`, which uses the socket."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {} if own else {"Authorization": f"Bearer {self.key}"}
        connection = self.connection(own)
        try:
            connection.request(
                method or ("GET" if content is None else "POST"), path, content, {**sent, **(headers or {})}
            )
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def chat(self, said: str, **more: Any) -> Answer:
        return self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": said}], **more})

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


def start(home: Path, *arguments: str, program: Sequence[str] = ("-m", "localspec"), **variables: str) -> Server:
    """Return a server on a free port; LOCALSPEC_SERVE_KEY is KEY unless `variables` say otherwise."""
    own = {"LOCALSPEC_SERVE_KEY": KEY, **variables}
    process = subprocess.Popen(
        [sys.executable, *program, "serve", "-m", "demo", "--port", "0", *arguments],
        env=environment(home, **own), cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout and process.stderr
    process.stdout.readline()
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.stderr.read())
    key = own["LOCALSPEC_SERVE_KEY"] or (home / "data" / "serving.key").read_text()
    return Server(process, home, int(line.split("/v1")[0].rpartition(":")[2]), key)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server for all tests of a module."""
    found = start(tmp_path_factory.mktemp("h"))
    yield found
    assert found.stop() == 0
    assert found.process.stderr and found.process.stderr.read() == ""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """servers(ARGUMENT, …): start a server for one test, with tmp_path as its home."""
    made: list[Server] = []

    def make(*arguments: str, **variables: str) -> Server:
        made.append(start(tmp_path, *arguments, **variables))
        return made[-1]

    yield make
    for one in made:
        one.stop()
