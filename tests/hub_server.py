"""A small hub on this machine: the part of its HTTP that the real client uses, and every way to fail."""

import gzip
import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from clocks import PATIENCE

LARGE = 10_000  # bytes from which a file counts as one of LFS, and has a sha256


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repository:
    """A repository: `files` by name. Descriptions and transfers can be made to differ from the files."""

    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=dict)  # name -> commit
    card: Any = field(default_factory=lambda: {"license": "apache-2.0"})
    gated: Any = False
    closed: tuple[int, str] | None = None  # the status, and X-Error-Code, that every file is refused with
    sent: dict[str, bytes] = field(default_factory=dict)  # other content than was announced
    listed: list[dict[str, Any]] = field(default_factory=list)  # more entries of the listing, unchanged

    def __post_init__(self) -> None:
        commit = hashlib.sha1(b"".join(name.encode() + self.files[name] for name in sorted(self.files))).hexdigest()
        self.revisions = {"main": commit, **self.revisions}

    def entries(self) -> list[dict[str, Any]]:
        entries = []
        for name, content in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
            if len(content) >= LARGE:
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 130}
            entries.append(entry)
        return entries + self.listed


@dataclass
class Hub:
    """A hub. `die_after`: bytes of large files until the server dies; `pause`: seconds before each `piece` of a file."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    endpoint: str = ""
    pause: float = 0.0
    piece: int = 2**16
    die_after: int | None = None
    answer: Callable[[str], tuple[int, dict[str, str], bytes] | None] = lambda path: None  # instead of anything else
    token: str | None = None  # accepted encodings
    gzip: bool = False  # small files are sent this way to clients that accept it
    chunked: bool = False  # no answer with a file says how long it is
    elsewhere: bool = False  # large files come from another host, as from a content network
    requests: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    tokens_elsewhere: set[str | None] = field(default_factory=set)
    dead: bool = False
    sent_bytes: int = 0
    waiting: threading.Event = field(default_factory=threading.Event)  # set once `hold` bytes of large files are out
    hold: int | None = None  # bytes of large files that are sent before everything waits for `go`
    go: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer waits 40 ms for the client to acknowledge the headers
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        hub = self.hub
        if hub.dead:
            self.close_connection = True
            self.connection.close()
            return
        hub.requests.append(f"{self.command} {self.path}")
        (hub.tokens_elsewhere if self.path.startswith("/elsewhere") else hub.tokens).add(
            self.headers.get("authorization")
        )
        if (given := hub.answer(self.path)) is not None:
            self._answer(*given)
            return
        path = unquote(urlsplit(self.path).path)
        if api := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(?:revision|(refs))(?:/(.+))?)?", path):
            self._about(api[1], api[3] or "main", bool(api[2]))
        elif file := re.fullmatch(r"(?:/elsewhere)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(file[1], file[2], file[3])
        else:
            self._answer(404, {}, b"{}")

    def _about(self, name: str, revision: str, refs: bool) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._answer(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b"{}")
            return
        if refs:
            branches = [
                {"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in repository.revisions.items()
            ]
            self._json({"branches": branches, "tags": [], "converts": []})
            return
        commit = self._commit(repository, revision)
        if commit is None:
            self._answer(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}, b"{}")
            return
        assert parse_qs(urlsplit(self.path).query).get("blobs") == ["true"]
        self._json(
            {"id": name, "sha": commit, "gated": repository.gated, "cardData": repository.card,
             "siblings": repository.entries(), "tags": [], "private": False}
        )  # fmt: skip

    @staticmethod
    def _commit(repository: Repository, revision: str) -> str | None:
        return revision if revision in repository.revisions.values() else repository.revisions.get(revision)

    def _file(self, name: str, revision: str, file: str) -> None:
        hub, repository = self.hub, self.hub.repositories.get(name)
        commit = self._commit(repository, revision) if repository else None
        if repository is None or commit is None or file not in repository.files:
            self._answer(404, {"X-Error-Code": "EntryNotFound"}, b"")
            return
        if repository.closed and self.headers.get("authorization") != f"Bearer {self.hub.token}":
            status, code = repository.closed
            self._answer(status, {"X-Error-Code": code} if code else {}, b"")
            return
        announced = content = repository.files[file]
        if self.command == "GET":
            content = repository.sent.get(file, announced)
        large = len(announced) >= LARGE
        etag = hashlib.sha256(announced).hexdigest() if large else git_sha1(announced)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if large:
            headers |= {"X-Linked-Size": str(len(announced)), "X-Linked-Etag": f'"{etag}"'}
        if large and hub.elsewhere and not self.path.startswith("/elsewhere"):
            place = hub.endpoint.replace("127.0.0.1", "localhost")
            self._answer(302, {**headers, "Location": f"{place}/elsewhere{self.path}"}, b"")
            return
        if hub.gzip and not large and "gzip" in self.headers.get("Accept-Encoding", ""):
            self._answer(200, {**headers, "Content-Encoding": "gzip"}, gzip.compress(content))
            return
        status, start = 200, 0
        if wanted := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            status, start = 206, int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if hub.chunked and self.command == "GET":
            headers["Transfer-Encoding"] = "chunked"
            content = content[:start] + b"%x\r\n%b\r\n0\r\n\r\n" % (len(content) - start, content[start:])
        self._answer(status, headers, content[start:], large)

    def _json(self, value: object) -> None:
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _answer(self, status: int, headers: dict[str, str], body: bytes, large: bool = False) -> None:
        self.send_response(status)
        length = {} if "Transfer-Encoding" in headers else {"Content-Length": str(len(body))}
        for name, value in {**length, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection |= headers.get("Connection") == "close"
        if self.command == "HEAD":
            return
        try:
            for start in range(0, len(body), self.hub.piece):
                self._piece(body[start : start + self.hub.piece], large)
        except (OSError, ConnectionError):
            self.close_connection = True

    def _piece(self, piece: bytes, large: bool) -> None:
        hub = self.hub
        if large:
            time.sleep(hub.pause)
            if hub.hold is not None and hub.sent_bytes + len(piece) > hub.hold:
                hub.waiting.set()
                hub.go.wait(PATIENCE)
            if hub.die_after is not None and hub.sent_bytes + len(piece) > hub.die_after:
                hub.dead = True
            if hub.dead:
                raise ConnectionError
            hub.sent_bytes += len(piece)
        self.wfile.write(piece)
        self.wfile.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that were killed; print any other error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def served(**repositories: Repository) -> Iterator[Hub]:
    """Yield a hub with these repositories, `__` in a name for the slash. It ends with the with statement."""
    hub = Hub({name.replace("__", "/"): repository for name, repository in repositories.items()})
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = _Server(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.go.set()
        server.shutdown()
        thread.join()
        server.server_close()


def model_repository(directory: Path, **more: Any) -> Repository:
    """Return a directory in the Hugging Face layout as a repository."""
    return Repository({file.name: file.read_bytes() for file in sorted(directory.iterdir()) if file.is_file()}, **more)
