"""A server that sends scripted bytes, and records its requests."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from clocks import PATIENCE

Step = bytes | float | threading.Event  # bytes to send, seconds to wait, or a gate
MODELS = {"object": "list", "data": [{"id": "there", "owned_by": "somebody"}]}


def answer(body: bytes | Any, status: str = "200 OK", kind: str = "application/json", **headers: str) -> list[Step]:
    """Return an answer all at once."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    return [head.encode() + content]


def stream(*steps: Step | Any) -> list[Step]:
    """Return a stream of messages: JSON becomes one, bytes are sent unchanged. It has no length, so it may break off."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"
    return [head, *(one if isinstance(one, Step) else b"data: " + json.dumps(one).encode() + b"\n\n" for one in steps)]


def said(text: str, **more: Any) -> dict[str, Any]:
    """Return a piece of a reply."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


def ended(reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}}
DONE = b"data: [DONE]\n\n"
HELLO = stream(said("Hel"), said("lo."), ended(), USAGE, DONE)


class Scripted:
    """A server that answers each request with the next script. `asked` has the line, headers and body of each."""

    def __init__(self, scripts: Sequence[Sequence[Step]], models: Any = MODELS) -> None:
        self.scripts, self.models = list(scripts), models
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.gone = threading.Event()  # a client that left in the middle was noticed
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def replies(self) -> list[Any]:
        """Return the bodies of the requests for replies."""
        return [body for line, _, body in self.asked if line.startswith("POST")]

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in accept
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        reader = connection.makefile("rb")
        line = reader.readline().decode().strip()
        headers = {}
        while pair := reader.readline().decode().strip():
            name, _, value = pair.partition(": ")
            headers[name.lower()] = value
        length = int(headers.get("content-length", 0))
        self.asked.append((line, headers, json.loads(reader.read(length)) if length else None))
        script = answer(self.models) if line.startswith("GET") and not isinstance(self.models, list) else None
        if script is None:
            script = self.models if line.startswith("GET") else self.scripts.pop(0) if self.scripts else HELLO
        try:
            for step in script:
                if isinstance(step, bytes):
                    connection.sendall(step)
                elif isinstance(step, float):
                    time.sleep(step)
                elif not _opened(step, connection):
                    self.gone.set()
                    return
        except ConnectionError:
            self.gone.set()


def _opened(gate: threading.Event, connection: socket.socket) -> bool:
    """Wait for a gate. Return False if the client leaves before."""
    connection.settimeout(0.02)
    for _ in range(int(PATIENCE / 0.02)):
        if gate.is_set():
            return True
        with suppress(TimeoutError):
            if connection.recv(1) == b"":
                return False
    return False


@contextmanager
def scripted(*scripts: Sequence[Step], models: Any = MODELS) -> Iterator[Scripted]:
    server = Scripted(scripts, models)
    try:
        yield server
    finally:
        server.close()
