"""A server is waited for, not for ever: what trickles is given up, and a wait that is asked for is told or refused."""

import gzip
import hashlib
import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import CONFIG, safetensors
from clocks import PATIENCE
from golden import matching, wording
from httpcore2 import ReadTimeout
from hub_server import Hub, Repository, served

from localspec.errors import LocalspecError
from localspec.hub import pace
from localspec.hub.client import client
from localspec.hub.fetch import Interrupted, fetch
from localspec.hub.plan import plan
from localspec.hub.sources import Source
from localspec.paths import Paths

SOURCE = Source("org/name")
MODEL = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": safetensors({"a": [100, 100]}),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with served(org__name=Repository(MODEL)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield hub


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the client would have slept before it asks again."""
    slept: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=slept.append))
    return slept


@pytest.mark.slow
def test_a_server_that_trickles_is_given_up(hub: Hub, tmp_path, monkeypatch):
    found = plan([SOURCE])
    monkeypatch.setattr(pace, "WINDOW", 0.2)
    hub.piece, hub.pause = 1, 0.01
    with pytest.raises(
        LocalspecError, match=f"{matching('sends_less_than')} .* {matching('kib_a_second_try_again_later')}"
    ):
        fetch(found, paths=Paths(tmp_path))
    assert hub.sent_bytes < len(MODEL["model.safetensors"])


def breaking_off(hub: Hub, gain: int, ranges: bool, body: bytes = MODEL["model.safetensors"]) -> list[int]:
    """Each connection breaks off after `gain` bytes more than the one before; without `ranges` each begins anew."""
    asked: list[int] = []
    digest = hashlib.sha256(body).hexdigest()

    def answer(path: str) -> tuple[int, dict[str, str], bytes] | None:
        if not path.endswith("model.safetensors"):
            return None
        begin = len(asked) * gain if ranges else 0
        end = (len(asked) + 1) * gain
        asked.append(end)
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": hub.repositories["org/name"].revisions["main"]}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
        headers |= {"Content-Length": str(len(body) - begin), "Connection": "close"}
        return 206 if begin else 200, headers, body[begin:end]

    hub.answer = answer
    return asked


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client keeps what has come in whole pieces; it is made first, for that sets their size."""
    monkeypatch.setattr(client().constants, "DOWNLOAD_CHUNK_SIZE", 7)


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
def test_little_gained_by_each_of_many_connections_is_given_up(hub: Hub, tmp_path, monkeypatch):
    """Each is fast in itself."""
    found = plan([SOURCE])
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr("time.sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))  # between them
    asked = breaking_off(hub, 7, ranges=True)
    with pytest.raises(
        LocalspecError, match=f"{matching('sends_less_than')} .* {matching('kib_a_second_try_again_later')}"
    ):
        fetch(found, paths=Paths(tmp_path))
    assert pace.Gain.WINDOWS * pace.WINDOW <= len(asked) < pace.Gain.WINDOWS * pace.WINDOW + 10


@pytest.mark.usefixtures("small_pieces")
def test_little_gained_by_each_beginning_is_given_up(hub: Hub, tmp_path, monkeypatch):
    """Where each connection begins anew, all but those few bytes come again every time."""
    found = plan([SOURCE])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    asked = breaking_off(hub, 70, ranges=False)
    with pytest.raises(LocalspecError, match=matching("broke_off_while_model_safetensors")):
        fetch(found, paths=Paths(tmp_path))
    assert len(asked) < 10


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
def test_a_connection_that_breaks_off_time_after_time_is_given_up(hub: Hub, tmp_path, monkeypatch):
    """However fast: the client calls itself each time."""
    found = plan([SOURCE])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    breaking_off(hub, 7, ranges=True)
    with pytest.raises(LocalspecError, match=matching("broke_off_while_model_safetensors_2")):
        fetch(found, paths=Paths(tmp_path))


def test_what_is_waited_for_because_the_server_asks_is_no_slowness(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with pace.waits_told(lambda sentence: None):
        gain = pace.Gain(lambda: "the server")
        for _ in range(3):
            pace.obey("the server", 429, {"retry-after": "60"})
            clock.now += 60
        clock.now += 10
        gain.come(1)
        clock.now += 171
        with pytest.raises(LocalspecError, match=matching("server_sends_less_than_4_kib")):
            gain.come(2)


class _Dripping:
    def read(self, *_: object, **__: object) -> bytes:
        return b"x"


def test_each_question_is_waited_for_anew(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(pace.time, "monotonic", lambda: float(next(clock)))
    stream = pace.PacedStream(type("Drips", (_Dripping,), {"write": lambda *_: None})(), lambda: "the server")
    for _ in range(10):
        stream.write(b"?")
        for _ in range(50):
            assert stream.read(100) == b"x"
    with pytest.raises(LocalspecError, match=matching("server_sends_less_than_4_kib")):
        [stream.read(100) for _ in range(50)]


def test_what_is_slow_and_comes_is_taken(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(pace.time, "monotonic", lambda: float(next(clock)))
    sent = b"HTTP/1.1 200 OK\r\n".ljust(5000, b"x")
    stream = pace.PacedStream(type("Slow", (), {"read": lambda *_: sent})(), lambda: "the server")
    for _ in range(1000):
        stream.read(9999)


@pytest.mark.slow
def test_a_server_that_says_for_ever_that_it_will_answer_is_given_up(hub: Hub, monkeypatch):
    def going_on(self: object) -> None:
        with suppress(OSError):
            for _ in range(200):
                self.wfile.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 1000)  # five megabytes
        self._serve()  # so that the test ends without the limit, too

    monkeypatch.setattr("hub_server._Handler.do_GET", going_on)
    with pytest.raises(LocalspecError, match=matching("says_again_again_will_answer_try")):
        plan([SOURCE])


@pytest.mark.parametrize(
    "beginning",
    [
        (b"HTTP/1.1 100 Continue\r\nX: HTTP/1.1 200 OK\r\n\r\n",),
        (b"HTTP/1.1 100 HTTP/1.1 200 OK\r\n\r\n",),
        (b"HTTP/1.1 100 Continue\r\nX: a\r\n HTTP/1.1 200 OK\r\n\r\n",),
    ],
)
def test_words_within_a_header_begin_no_answer(monkeypatch, beginning):
    monkeypatch.setattr(pace, "LONGEST_PRELUDE", 10_000)
    with pytest.raises(LocalspecError, match=matching("server_says_again_again_will")):
        _read_all(beginning * 1000)


def test_who_says_so_without_haste_is_given_up_too(monkeypatch):
    """Faster than what trickles, and slower than the limit in one window."""
    clock = iter(range(10_000))
    monkeypatch.setattr(pace.time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(LocalspecError, match=matching("server_says_again_again_will")):
        _read_all([b"HTTP/1.1 100 Continue\r\n\r\n" * 300] * 1000)


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 103 Early Hints@Link: a@@"])
@pytest.mark.parametrize("piece", [1, 2, 7, 1000])
def test_an_answer_is_seen_to_begin_however_it_is_cut(monkeypatch, end, before, piece):
    monkeypatch.setattr(pace, "LONGEST_PRELUDE", 100)
    sent = (before + b"HTTP/1.1 200 OK@@").replace(b"@", end) + b"x" * 1000
    _read_all([sent[at : at + piece] for at in range(0, len(sent), piece)])


def _read_all(pieces: Iterable[bytes]) -> None:
    """Each in a read of its own, as the answer to a second question of one connection."""
    coming = iter([b"HTTP/1.1 200 OK\r\n\r\n", *pieces])
    sends = {"write": lambda *_: None, "read": lambda *_, **__: next(coming, b"")}
    stream = pace.PacedStream(type("Sends", (), sends)(), lambda: "the server")
    stream.write(b"?")
    stream.read(100)
    stream.write(b"?")
    while stream.read(100):
        pass


def test_an_answer_about_a_repository_that_has_no_end_is_given_up(hub: Hub, monkeypatch):
    """Wherever the server leads for it."""
    monkeypatch.setattr("localspec.hub.client._LONGEST_ANSWER", 100_000)
    led = (302, {"Location": f"{hub.endpoint}/elsewhere"}, b"")
    endless = (200, {"Content-Type": "application/json"}, b" " * 5_000_000)
    for answers in ([endless], [led, endless]):
        coming = iter(answers)
        hub.answer = lambda path, coming=coming: next(coming)
        with pytest.raises(LocalspecError, match=matching("sends_answer_without_end_try")):
            plan([SOURCE])


def test_an_answer_in_very_many_pieces_is_given_up(hub: Hub, monkeypatch):
    """Each takes fifty times the memory of the byte that it is."""
    monkeypatch.setattr("localspec.hub.client._LONGEST_ANSWER", 100_000)

    def crumbs(self: object) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.wfile.write(head + b"1\r\n \r\n" * 20_000 + b"0\r\n\r\n")

    monkeypatch.setattr("hub_server._Handler.do_GET", crumbs)
    with pytest.raises(LocalspecError, match=matching("sends_answer_without_end_try")):
        plan([SOURCE])


@pytest.mark.parametrize("status", [302, 403, 404, 416, 500])
@pytest.mark.parametrize("file", [False, True])
def test_an_answer_that_leads_elsewhere_or_says_no_without_end_is_given_up(hub, tmp_path, monkeypatch, status, file):
    found = plan([SOURCE])
    monkeypatch.setattr("localspec.hub.client._LONGEST_REFUSAL", 100_000)
    asked: list[str] = []

    def answer(path: str) -> tuple[int, dict[str, str], bytes] | None:
        if ("/resolve/" in path) != file or hub.requests[-1].startswith("HEAD"):
            return None
        asked.append(path)
        return status, {"Location": "/elsewhere"} if status == 302 else {}, b" " * 2_000_000

    hub.answer = answer
    with pytest.raises(LocalspecError, match=matching("sends_answer_without_end_try")):
        fetch(found, paths=Paths(tmp_path)) if file else plan([SOURCE])
    assert len(asked) == 1


@pytest.mark.parametrize("place", ["/api/", "config.json", "model.safetensors"])
def test_a_compressed_answer_is_refused(hub: Hub, tmp_path, place):
    """What it says of itself cannot be limited: it may stand for gigabytes, or for nothing for ever."""
    found = plan([SOURCE])
    wanted = MODEL.get(place, b"{}")
    headers = {
        "ETag": f'"{hashlib.sha256(wanted).hexdigest()}"',
        "X-Repo-Commit": hub.repositories["org/name"].revisions["main"],
        "Content-Encoding": "gzip",
    }

    def answer(path: str) -> tuple[int, dict[str, str], bytes] | None:
        return (200, headers, gzip.compress(wanted)) if place in path else None

    hub.answer = answer
    with pytest.raises(LocalspecError, match=matching("sends_compressed_what_asked")):
        plan([SOURCE]) if place == "/api/" else fetch(found, paths=Paths(tmp_path))


def test_a_few_words_before_the_answer_are_read_over(hub: Hub, tmp_path, monkeypatch):
    def first(self: object) -> None:
        self.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n")
        self._serve()

    monkeypatch.setattr("hub_server._Handler.do_GET", first)
    fetch(plan([SOURCE]), paths=Paths(tmp_path))


def test_every_connection_is_watched(hub: Hub, monkeypatch):
    """Those of a client that goes through a proxy too."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    from localspec.hub.client import _session

    with _session() as session:
        transports = [session._transport, *session._mounts.values()]
        backends = [one._pool._network_backend for one in transports if one is not None]
    assert len(backends) >= 2 and all(isinstance(one, pace.PacedBackend) for one in backends)


@pytest.mark.parametrize("headers", [{"Retry-After": "100000"}, {"RateLimit": '"api";r=0;t=86400'}])
@pytest.mark.parametrize("file", [False, True])
def test_a_wait_that_is_too_long_is_refused(hub: Hub, tmp_path, naps, headers, file):
    found = plan([SOURCE])
    hub.answer = lambda path: (429, headers, b"") if "/resolve/" in path or not file else None
    with pytest.raises(LocalspecError, match=r"asks to wait (100000|86400) seconds before it is asked again"):
        fetch(found, paths=Paths(tmp_path)) if file else plan([SOURCE])
    assert naps == []


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wait_that_would_change_nothing_is_not_asked_for(hub: Hub, naps, status):
    hub.answer = lambda path: (status, {"Retry-After": "100000"}, b"")
    with pytest.raises(LocalspecError) as caught:
        plan([SOURCE])
    assert wording("asks_to_wait") not in str(caught.value) and naps == []


def test_a_short_wait_is_obeyed_and_told(hub: Hub, tmp_path, naps):
    found, told = plan([SOURCE]), []
    answers = iter([(429, {"Retry-After": "7"}, b"")] * 2)  # the client asks once more at once
    hub.answer = lambda path: next(answers, None) if "/resolve/" in path else None
    fetch(found, paths=Paths(tmp_path), notice=told.append)
    assert naps == [8.0]
    assert told == [wording("asks_to_wait_7_seconds", endpoint=hub.endpoint)] * 2


def test_waits_add_up(hub: Hub, tmp_path, naps):
    found, told = plan([SOURCE]), []
    hub.answer = lambda path: (429, {"Retry-After": "50"}, b"")
    with pytest.raises(LocalspecError, match=matching("asks_wait_50_seconds_before_asked")):
        fetch(found, paths=Paths(tmp_path), notice=told.append)
    assert len(told) == 3 and sum(naps) <= pace.ALL_WAITS + 3


def test_who_no_longer_wants_an_answer_does_not_wait_for_it(hub: Hub, tmp_path):
    """The server says nothing for as long as a connection lasts; what came so far is not kept."""
    found, wanted = plan([SOURCE]), threading.Event()
    wanted.set()
    hub.hold = 1000
    stopped: list[BaseException] = []

    def pulled() -> None:
        try:
            with pace.given_up_unless(wanted.is_set):
                fetch(found, paths=Paths(tmp_path))
        except BaseException as error:  # it is looked at below
            stopped.append(error)

    thread = threading.Thread(target=pulled)
    thread.start()
    assert hub.waiting.wait(PATIENCE)
    wanted.clear()
    thread.join(PATIENCE)
    assert isinstance(stopped[0], Interrupted) and not hub.go.is_set()
    assert wording("kept_model_safetensors_fetched") in str(stopped[0])
    assert not list((tmp_path / "hf").rglob("*.incomplete"))
    hub.go.set()
    assert fetch(found, paths=Paths(tmp_path)) == [], "others are not asked any more whether they want it"


def test_a_server_that_is_silent_for_too_long_is_given_up_all_the_same(hub: Hub, monkeypatch, naps):
    monkeypatch.setattr("localspec.hub.plan.PATIENCE", 0.3)

    def silent(path: str) -> None:
        hub.go.wait(PATIENCE)

    hub.answer = silent
    with pace.given_up_unless(lambda: True), pytest.raises(LocalspecError, match=matching("did_not_answer_in_time")):
        plan([SOURCE])


def test_silence_is_told_and_ends_however_often_the_client_asks_again(hub: Hub, tmp_path, monkeypatch, naps):
    """About a file that is not here it asks seven times, for a minute each."""
    found = plan([SOURCE])
    monkeypatch.setattr("localspec.hub.fetch.PATIENCE", 0.05)
    monkeypatch.setattr("huggingface_hub.file_download._ETAG_RETRY_TIMEOUT", 0.05)
    monkeypatch.setattr(pace, "LONGEST_WAIT", 0.14)
    hub.answer = lambda path: hub.go.wait(PATIENCE) and None if path.endswith("model.safetensors") else None
    told: list[str] = []
    with pytest.raises(LocalspecError, match=matching("answered_0_seconds_try_again")) as raised:
        fetch(found, paths=Paths(tmp_path), notice=told.append)
    hub.go.set()
    assert told == [wording("answered_0_seconds", endpoint=hub.endpoint)] * 2
    assert wording("kept_model_safetensors_fetched") in str(raised.value)


def test_silence_before_an_answer_does_not_count_after_it(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(pace.time, "monotonic", lambda: 25.0 * next(clock))
    answers = iter([ReadTimeout(), b"HTTP/1.1 200 OK\r\n\r\n"] * 5)

    def read(*_: object) -> bytes:
        if isinstance(answer := next(answers), bytes):
            return answer
        raise answer

    told: list[str] = []
    with pace.waits_told(told.append):
        for _ in range(5):
            stream = pace.PacedStream(SimpleNamespace(read=read), lambda: "the server")
            with pytest.raises(ReadTimeout):
                stream.read(100)
            stream.read(100)
    assert told == [wording("server_answered_25_seconds")] * 5
