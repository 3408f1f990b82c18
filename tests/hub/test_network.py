"""Downloads end with one sentence: stalled servers, waits that a server asks for, proxies, addresses and tokens."""

import gzip
import hashlib
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import CONFIG, safetensors
from clocks import PATIENCE
from each import each
from golden import matching, wording
from hub_server import Hub, Repository, served

from localspec.errors import LocalspecError
from localspec.hub.client import client, stopping_unless
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
    """Record the seconds that the client would sleep before it asks again."""
    slept: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=slept.append))
    return slept


def breaking_off(hub: Hub, gain: int, ranges: bool, body: bytes = MODEL["model.safetensors"]) -> list[int]:
    """Break each connection off `gain` bytes later than the last; without `ranges` each starts from the first byte."""
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
    """Let the client write pieces of seven bytes. It is made first, since that sets their size."""
    monkeypatch.setattr(client().constants, "DOWNLOAD_CHUNK_SIZE", 7)


@pytest.mark.usefixtures("small_pieces")
def test_little_gained_by_each_beginning_is_given_up(hub: Hub, tmp_path, monkeypatch):
    """Where each connection starts from the first byte, almost all bytes are sent again every time."""
    found = plan([SOURCE])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    asked = breaking_off(hub, 70, ranges=False)
    with pytest.raises(LocalspecError, match=matching("broke_off_while_model_safetensors")):
        fetch(found, paths=Paths(tmp_path))
    assert len(asked) < 10


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
def test_a_connection_that_breaks_off_time_after_time_is_given_up(hub: Hub, tmp_path, monkeypatch):
    found = plan([SOURCE])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    breaking_off(hub, 7, ranges=True)
    with pytest.raises(LocalspecError, match=matching("broke_off_while_model_safetensors_2")):
        fetch(found, paths=Paths(tmp_path))


def test_a_few_words_before_the_answer_are_read_over(hub: Hub, tmp_path, monkeypatch):
    def first(self: object) -> None:
        self.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n")
        self._serve()

    monkeypatch.setattr("hub_server._Handler.do_GET", first)
    fetch(plan([SOURCE]), paths=Paths(tmp_path))


@each("headers", [{"Retry-After": "100000"}, {"RateLimit": '"api";r=0;t=86400'}])
@each("file", [False, True])
def test_a_wait_that_is_too_long_is_refused(hub: Hub, tmp_path, naps, headers, file):
    hub.answer = lambda path: None
    found = plan([SOURCE])
    hub.answer = lambda path: (429, headers, b"") if "/resolve/" in path or not file else None
    with pytest.raises(LocalspecError, match=r"asks you to wait (100000|86400) seconds"):
        fetch(found, paths=Paths(tmp_path)) if file else plan([SOURCE])
    assert naps == []


@each("status", [401, 403, 404])
def test_a_wait_that_would_change_nothing_is_not_requested(hub: Hub, naps, status):
    hub.answer = lambda path: (status, {"Retry-After": "100000"}, b"")
    with pytest.raises(LocalspecError) as caught:
        plan([SOURCE])
    assert wording("asks_to_wait") not in str(caught.value) and naps == []


def test_a_short_wait_is_obeyed(hub: Hub, tmp_path, naps):
    found = plan([SOURCE])
    answers = iter([(429, {"Retry-After": "7"}, b"")] * 2)  # the client retries at once the first time
    hub.answer = lambda path: next(answers, None) if "/resolve/" in path else None
    fetch(found, paths=Paths(tmp_path))
    assert naps == [8.0]


def test_a_download_that_is_not_wanted_ends_at_the_next_request(hub: Hub, tmp_path, monkeypatch):
    """The server is silent; the client's time-out ends the wait, and complete files stay."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    found, wanted = plan([SOURCE]), threading.Event()
    wanted.set()
    hub.hold = 1000
    stopped: list[BaseException] = []

    def pulled() -> None:
        try:
            with stopping_unless(wanted.is_set):
                fetch(found, paths=Paths(tmp_path))
        except BaseException as error:  # checked below
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
    assert fetch(found, paths=Paths(tmp_path)) == [], "later downloads are not asked"


@pytest.mark.parametrize("stalled", ["HEAD", "GET"])
def test_a_server_that_says_nothing_costs_the_clients_time_outs(hub: Hub, tmp_path, monkeypatch, naps, stalled):
    found = plan([SOURCE])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.1)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    monkeypatch.setattr("huggingface_hub.file_download.time", SimpleNamespace(sleep=naps.append))

    def silent(path: str) -> None:
        if path.endswith("model.safetensors") and hub.requests[-1].startswith(stalled):
            hub.go.wait(PATIENCE)

    hub.answer = silent
    with pytest.raises(LocalspecError, match=matching("did_not_answer_in_time")) as raised:
        fetch(found, paths=Paths(tmp_path))
    hub.go.set()
    assert wording("kept_model_safetensors_fetched") in str(raised.value)


@each("form", [" {}/ ", "'{}'", '"{}"', "{}//", "{}\n"])
def test_blanks_and_quotes_around_the_address_do_not_count(hub: Hub, monkeypatch, form):
    monkeypatch.setenv("HF_ENDPOINT", form.format(hub.endpoint))
    assert plan([SOURCE]).parts


@each("value", ["huggingface.co", "ftp://x", "https://"])
def test_an_invalid_address_is_named(hub: Hub, monkeypatch, value):
    monkeypatch.setenv("HF_ENDPOINT", value)
    with pytest.raises(LocalspecError, match=r"^HF_ENDPOINT is .+ such as https://huggingface.co.$"):
        plan([SOURCE])


def test_a_token_with_a_blank_inside_is_not_shown(hub: Hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "  hf_secret\n")
    plan([SOURCE])
    assert hub.tokens == {"Bearer hf_secret"}
    monkeypatch.setenv("HF_TOKEN", "hf_secret 2")
    with pytest.raises(LocalspecError, match="HF_TOKEN") as raised:
        plan([SOURCE])
    assert "secret" not in str(raised.value)


@each(
    "name, value, said",
    [
        (
            "ALL_PROXY",
            "socks5://me:hunter2@127.0.0.1:9",
            r"SOCKS proxy needs .* ALL_PROXY=socks5://127\.0\.0\.1:9; correct",
        ),
        ("HTTP_PROXY", "ftp://me:hunter2@proxy", r"HTTP_PROXY=ftp://proxy; correct"),
        (
            "HTTP_PROXY",
            "http://me:hunter2@127.0.0.1:9",
            r"cannot be reached \(.*\); check HTTP_PROXY=http://127\.0\.0\.1:9",
        ),
        ("http_proxy", "127.0.0.1:9", r"check http_proxy=127\.0\.0\.1:9 and"),
    ],
)
def test_a_proxy_that_fails_is_named(hub: Hub, monkeypatch, name, value, said):
    client().close_session()
    with monkeypatch.context() as patched:
        for variable in ("NO_PROXY", "no_proxy"):
            patched.delenv(variable, raising=False)
        patched.setenv(name, value)
        with pytest.raises(LocalspecError, match=said) as raised:
            plan([SOURCE])
    client().close_session()
    assert "hunter2" not in str(raised.value) and hub.requests == []


@each("form", ["127.0.0.1", " localhost , 127.0.0.1 ", "*", "::1,10.0.0.0/8,127.0.0.1"])
def test_a_host_that_needs_no_proxy_is_asked_without(hub: Hub, monkeypatch, form):
    client().close_session()
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", form)
    try:
        assert plan([SOURCE]).parts
    finally:
        client().close_session()


def test_an_answer_about_a_repository_that_has_no_end_is_given_up(hub: Hub, monkeypatch):
    monkeypatch.setattr("localspec.hub.client._LONGEST_ANSWER", 100_000)
    led = (302, {"Location": f"{hub.endpoint}/elsewhere"}, b"")
    endless = (200, {"Content-Type": "application/json"}, b" " * 5_000_000)
    for answers in ([endless], [led, endless]):
        coming = iter(answers)
        hub.answer = lambda path, coming=coming: next(coming)
        with pytest.raises(LocalspecError, match=matching("sends_answer_without_end_try")):
            plan([SOURCE])


def test_an_answer_in_very_many_pieces_is_given_up(hub: Hub, monkeypatch):
    """Each piece has one byte and takes fifty times as much memory."""
    monkeypatch.setattr("localspec.hub.client._LONGEST_ANSWER", 100_000)

    def crumbs(self: object) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.wfile.write(head + b"1\r\n \r\n" * 20_000 + b"0\r\n\r\n")

    monkeypatch.setattr("hub_server._Handler.do_GET", crumbs)
    with pytest.raises(LocalspecError, match=matching("sends_answer_without_end_try")):
        plan([SOURCE])


@each("status", [302, 403, 404, 416, 500])
@each("file", [False, True])
def test_an_answer_that_leads_elsewhere_or_says_no_without_end_is_given_up(hub, tmp_path, monkeypatch, status, file):
    hub.answer = lambda path: None
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


@each("place", ["/api/", "config.json", "model.safetensors"])
def test_a_compressed_answer_is_refused(hub: Hub, tmp_path, place):
    """The size of compressed data is unknown: it may expand to gigabytes, or to nothing."""
    hub.answer = lambda path: None
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
