"""Waiting clients get comments in streams, whatever the reason for the wait."""

import asyncio
import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from clocks import PATIENCE
from scripted_models import scripted_model
from serving.conftest import Server, start

from localspec.serving import app
from localspec.serving.room import EngineRoom

SOON = (
    "import sys; from localspec.serving import app; from localspec.cli.main import main\n"
    "app.SIGN_SECONDS = 0.1; sys.exit(main())"
)  # comments come after 0.1 s


@pytest.fixture
def endless(tmp_path: Path) -> Any:
    """Yield a server whose replies end only at their limit."""
    path = scripted_model(tmp_path / "model", [b"a", b"b"], again=0, context=100_000).path
    one = start(tmp_path, "-m", str(path), program=("-c", SOON))
    yield one
    one.stop()


def streaming(server: Server, said: Any, **more: Any) -> socket.socket:
    """Return a request for a stream, of which nothing is read yet."""
    asked = {"messages": [{"role": "user", "content": said}], "stream": True, "temperature": 0, **more}
    body = json.dumps(asked).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    head = f"POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {server.key}\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def until(connection: socket.socket, words: bytes) -> bytes:
    got = b""
    while words not in got:
        piece = connection.recv(4096)
        assert piece, got
        got += piece
    return got


@pytest.mark.slow
def test_who_waits_for_anothers_reply_gets_headers_and_comments(endless: Server) -> None:
    first = streaming(endless, "Hi", max_tokens=90_000)
    until(first, b'"content"')
    second = streaming(endless, "Hi", max_tokens=2)
    wrong = streaming(endless, "a" * 100_000, max_tokens=2)
    got = until(second, b": waiting\n\n: waiting\n\n")
    assert got.split(b"\r\n")[0].endswith(b"200 OK") and b"text/event-stream" in got and b"data:" not in got
    got = until(wrong, b": waiting\n\n")
    assert got.split(b"\r\n")[0].endswith(b"200 OK")
    first.close()
    rest = until(second, b"[DONE]")
    assert rest.count(b'"content": "a"') == rest.count(b'"content": "b"') == 1
    error = json.loads(until(wrong, b"[DONE]").split(b"data: ")[1])["error"]
    assert error["type"] == "invalid_request_error" and "100,000" in error["message"]


@pytest.mark.slow
def test_clients_read_over_them(endless: Server) -> None:
    openai = pytest.importorskip("openai")
    first = streaming(endless, "Hi", max_tokens=90_000)
    until(first, b'"content"')
    threading.Timer(1.0, first.close).start()
    model = endless.ask("/v1/models").json["data"][0]["id"]
    pieces = openai.OpenAI(base_url=endless.url, api_key=endless.key).chat.completions.create(
        model=model, stream=True, max_tokens=2, temperature=0, messages=[{"role": "user", "content": "Hi"}]
    )
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "ab"


def test_bodies_are_not_parsed_where_all_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    parsing, looping = list[threading.Thread](), list[threading.Thread]()

    def parsed(body: bytes, *_: object) -> Any:
        parsing.append(threading.current_thread())
        return json.loads(body)

    class Room:
        metrics = SimpleNamespace(answered=lambda status: None)

        def ask(self, ticket: object) -> None:
            looping.append(threading.current_thread())
            raise app.TooMany("enough")

    body, sent = b'{"messages": [{"role": "user", "content": "Hi"}]}', list[Any]()

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    monkeypatch.setattr(app, "parse_json", parsed)
    room = app.Serving(cast("EngineRoom", Room()), cast("Any", None))
    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b"",
        "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http", "root_path": "",
    }  # fmt: skip
    asyncio.run(room.app(scope, receive, send))
    assert sent[0]["status"] == 503
    assert parsing and looping and parsing[0] is not looping[0]
