"""`localspec serve --ui`, the chat in a browser: who may enter, when it ends, and its screen in a real Chromium."""

import http.client
import json
import re
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyte
import pytest
from clocks import PATIENCE, until
from command import called, localspec
from golden import wording
from serving.chromium import PROGRAM, Chromium
from serving.conftest import start

from localspec.serving import browser

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no sockets with a mode")
pytest.importorskip("textual_serve")
wsproto = pytest.importorskip("wsproto")
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, RejectConnection, Request, TextMessage  # noqa: E402

CAP = 2
# Fewer chats at a time, which must end by themselves, and a reply of half a minute, so that there is time to act.
CODE = (
    "import sys; from localspec.cli.main import main; from localspec.serving import browser; "
    f"browser.MOST_TABS, browser.END_SECONDS = {CAP}, {2 * PATIENCE}; sys.exit(main())"
)
SLOW = {"LOCALSPEC_ISA": "c", "LOCALSPEC_TEMPERATURE": "100", "LOCALSPEC_SEED": "1", "LOCALSPEC_DRAFTER": "none"}
STORY = "Tell me a long story."


class Shown:
    """A server with `--ui`, and the last key that it printed."""

    def __init__(self, home: Path) -> None:
        self.server = start(home, "--ui", program=("-c", CODE), **SLOW)
        self.host = f"127.0.0.1:{self.server.port}"
        self.link = self.next_link()

    def next_link(self) -> str:
        assert self.server.process.stdout
        self.link = self.server.process.stdout.readline().split()[0]
        assert self.link.startswith(f"http://{self.host}/?key=") and len(self.link) > 60
        return self.link

    def get(self, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            answer.content = answer.read()
            return answer
        finally:
            connection.close()

    def enter(self) -> "Entered":
        """Return the state of a browser that has opened the link."""
        answer = self.get(self.link.removeprefix(f"http://{self.host}"))
        assert answer.status == 303
        self.next_link()
        return Entered(answer.headers["Location"], answer.headers["Set-Cookie"].split(";")[0])

    def chats(self) -> list[psutil.Process]:
        """Return the processes of its tabs."""
        below = psutil.Process(self.server.process.pid).children(recursive=True)
        found = []
        for one in below:
            with suppress(psutil.NoSuchProcess):
                found += [one] if "chat" in one.cmdline() else []
        return found

    def websocket(self, entered: "Entered", **headers: str) -> "WebSocket":
        own = {"Origin": f"http://{self.host}", "Cookie": entered.cookie}
        return WebSocket(
            self.server.port, {"Host": self.host, **own, **headers}, f"{entered.path}ws?width=100&height=30"
        )


@dataclass
class Entered:
    path: str
    cookie: str


class WebSocket:
    """A tab without a browser. `status` is 101 once it is open; `text` has its drawing."""

    def __init__(self, port: int, headers: dict[str, str], target: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._protocol = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        host = headers.pop("Host")
        pairs = [(name.encode(), value.encode()) for name, value in headers.items() if value]
        self._screen = pyte.Screen(100, 30)
        self._stream, self.closed, self.status = pyte.ByteStream(self._screen), False, 0
        self._socket.sendall(self._protocol.send(Request(host=host, target=target, extra_headers=pairs)))
        while not self.status:
            self.take()

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._screen.display).split())

    def take(self) -> None:
        piece = self._socket.recv(2**16)
        self._protocol.receive_data(piece or None)
        for event in self._protocol.events():
            match event:
                case AcceptConnection():
                    self.status = 101
                case RejectConnection():
                    self.status = event.status_code
                case BytesMessage():
                    self._stream.feed(bytes(event.data))
                case CloseConnection():
                    self.closed = True

    def shows(self, words: str) -> None:
        while words not in self.text:
            assert not self.closed, self.text
            self.take()

    def say(self, *message: object) -> None:
        self._socket.sendall(self._protocol.send(TextMessage(data=json.dumps(message))))

    def tell_a_story(self) -> None:
        """Ask for a story, and wait until the reply has begun."""
        self.shows("Say something")
        self.say("stdin", STORY)
        self.shows(STORY)
        self.say("stdin", "\r")
        self.shows("tok/s")

    def end(self) -> None:
        """Wait until the server closes it."""
        while not self.closed:
            self.take()
        self.leave()

    def leave(self) -> None:
        """Close the connection as a killed browser does."""
        self._socket.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return a server for the tests of this module that do not end it."""
    found = Shown(tmp_path_factory.mktemp("h"))
    yield found
    assert found.server.stop() == 0
    assert found.server.process.stderr.read() == ""


def test_a_key_opens_one_browser_and_opens_it_once(shown):
    used = shown.link.removeprefix(f"http://{shown.host}")
    for path in (
        "/",
        "/?key=",
        "/?key=x",
        f"{used}x",
        "/?key=%FF%D8",
        "/chat/",
        "/chat/x/",
        "/chat/x/static/js/textual.js",
    ):
        assert shown.get(path).status == 401, path
    assert (
        shown.get(used, "HEAD").status == 401
        and shown.get("/", Authorization=f"Bearer {shown.server.key}").status == 401
    )
    answer = shown.get(used)
    path, cookie = answer.headers["Location"], answer.headers["Set-Cookie"]
    assert answer.status == 303 and cookie.count("; ") == 3
    assert {*cookie.split("; ")[1:]} == {"HttpOnly", f"Path={path.rstrip('/')}", "SameSite=strict"}
    assert shown.get(used).status == 401, "used up"
    assert shown.next_link() != used and used.removeprefix("/?key=") not in shown.link
    one, other = Entered(path, cookie.split(";")[0]), shown.enter()
    assert shown.get(one.path, Cookie=one.cookie).status == 200 == shown.get(other.path, Cookie=other.cookie).status
    for who, with_what in (
        (one, other.cookie),
        (other, one.cookie),
        (one, ""),
        (one, "localspec=x"),
        (one, "localspec="),
    ):
        assert shown.get(who.path, Cookie=with_what).status == 401
        assert shown.get(f"{who.path}static/js/textual.js", Cookie=with_what).status == 401
    assert shown.get("/v1/models", Cookie=one.cookie).status == 401, "the API has another key"
    assert shown.server.ask("/v1/models").status == 200
    assert shown.server.ask(one.path, own=True).status == 404


def test_key_host_and_origin_are_inspected_before_a_websocket_opens(shown):
    entered, port = shown.enter(), shown.server.port
    for status, headers in (
        (401, {"Cookie": ""}),
        (401, {"Cookie": "localspec=x"}),
        (403, {"Origin": ""}),
        (403, {"Origin": "null"}),
        (403, {"Origin": "https://evil.example"}),
        (403, {"Origin": f"http://localhost:{port}"}),
        (403, {"Origin": f"http://127.0.0.1:{port + 1 if port < 65535 else 1}"}),
        (403, {"Origin": f"https://{shown.host}"}),
        (403, {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}),
        (403, {"Host": f"127.0.0.1.evil.example:{port}", "Origin": f"http://127.0.0.1.evil.example:{port}"}),
        (403, {"Host": f"127.0.0.1@evil.example:{port}", "Origin": f"http://127.0.0.1@evil.example:{port}"}),
    ):
        refused = shown.websocket(entered, **headers)
        assert refused.status == status, headers
        refused.leave()
    for path in ("/ws", "/v1/models", f"{entered.path}x", entered.path):
        answer = shown.get(
            path, Connection="Upgrade", Upgrade="websocket", Cookie=entered.cookie, Origin=f"http://{shown.host}",
            **{"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"},
        )  # fmt: skip
        assert answer.status in (403, 404), path
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        assert shown.get(entered.path, Cookie=entered.cookie, **headers).status == 403
        assert shown.get(shown.link.removeprefix(f"http://{shown.host}"), **headers).status == 403
    assert shown.chats() == []


@pytest.mark.slow
def test_the_page_and_all_that_it_loads_comes_from_here(shown):
    entered = shown.enter()
    answer = shown.get(entered.path, Cookie=entered.cookie)
    page = answer.content.decode()
    addresses = re.findall(r"[a-z]+://[^\s\"'<>)]+", page)
    assert addresses == [f"ws://{shown.host}{entered.path}ws"]
    found = re.findall(r"(?:href|src)=\"([^\"]*)\"|url\(\"([^\"]*)\"\)", page)
    named = [one or other for one, other in found if (one or other) not in ("", "data:,")]
    assert len(named) == 6 and all(re.fullmatch(r"[\w./-]+", one) for one in named)
    for one in named:
        found = shown.get(entered.path + one, Cookie=entered.cookie)
        assert found.status == 200 and len(found.content) > 100, one
        if one.endswith("css"):
            assert b"url(" not in found.content and b"@import" not in found.content
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and f"connect-src ws://{shown.host};" in policy and "*" not in policy
    assert "allow-popups" not in policy and wording("sandbox_allow_scripts_allow_same") in policy
    assert answer.headers["Referrer-Policy"] == "no-referrer" and answer.headers["Cache-Control"] == "no-store"
    for outside in (
        "static/../../server.py",
        "static/%2e%2e/%2e%2e/server.py",
        "static//etc/passwd",
        "static/",
        "browser.py",
    ):
        assert shown.get(entered.path + outside, Cookie=entered.cookie).status in (401, 404), outside


@pytest.mark.slow
def test_tabs_are_capped_and_one_that_is_closed_in_the_middle_of_a_reply_leaves_nothing(shown):
    entered = shown.enter()
    first, second = shown.websocket(entered), shown.websocket(entered)
    assert first.status == second.status == 101
    third = shown.websocket(entered)
    full = shown.get(entered.path, Cookie=entered.cookie)
    assert third.status == 503 == full.status and b"close one" in full.content
    first.tell_a_story()
    chats = shown.chats()
    assert len(chats) == CAP
    for one in chats:
        told = " ".join(one.cmdline())
        assert shown.server.key not in told and entered.cookie not in told, "other users can read that"
        assert one.environ()["LOCALSPEC_SERVER_KEY"] == shown.server.key
    first.leave()
    second.leave()
    until(lambda: not any(one.is_running() for one in chats))
    assert shown.chats() == [] and shown.server.chat("Hi", max_tokens=1).status == 200
    assert "(stopped)" in localspec(shown.server.home, "history", "show", "1").stdout, "it had the time to keep that"
    assert shown.server.ask("/metrics").body.decode().count("localspec_waiting_requests 0") == 1
    again = shown.websocket(entered)
    assert again.status == 101, "there is room again"
    again.shows("Say something")
    again.say("stdin", "\x11")  # Ctrl+Q
    again.end()
    until(lambda: shown.chats() == [])


@pytest.mark.slow
def test_an_invalid_message_ends_only_its_tab(shown):
    entered = shown.enter()
    other = shown.websocket(entered)
    other.shows("Say something")
    for message in ((), ("stdin",), ("stdin", 5), ("resize", {"width": "x"}), ("resize", []), ({},)):
        until(lambda: shown.get(entered.path, Cookie=entered.cookie).status == 200)  # the previous chat has ended
        tab = shown.websocket(entered)
        tab.say("resize", {"width": 10**9, "height": -1})
        tab.say(*message)
        tab.end()
    other.say("stdin", "still here")
    other.shows("still here")
    other.leave()
    until(lambda: shown.chats() == [])


@pytest.mark.slow
def test_why_a_chat_could_not_begin_is_shown_in_its_tab(tmp_path):
    shown = Shown(tmp_path)
    try:
        (tmp_path / "config").mkdir(exist_ok=True)
        (tmp_path / "config" / "config.toml").write_text("nonsense = 1\n")
        tab = shown.websocket(shown.enter())
        tab.end()
        assert "localspec: Unknown setting 'nonsense'" in tab.text and shown.chats() == []
    finally:
        shown.server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("end", [pytest.param("terminate", marks=pytest.mark.slow), "kill"])
def test_a_server_that_ends_leaves_no_chat_behind(tmp_path, end):
    shown = Shown(tmp_path)
    entered = shown.enter()
    busy, idle = shown.websocket(entered), shown.websocket(entered)
    busy.tell_a_story()
    idle.shows("Say something")
    below = psutil.Process(shown.server.process.pid).children(recursive=True)
    assert len(shown.chats()) == CAP
    if end == "terminate":
        shown.chats()[1].suspend()  # so that it cannot end by itself
    getattr(shown.server.process, end)()
    assert shown.server.process.wait(PATIENCE) == (0 if end == "terminate" else -9)
    until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in below))
    busy.leave()
    idle.leave()
    kept = localspec(tmp_path, "history", "show", "1").stdout
    assert STORY in kept and "no reply" not in kept
    assert not (tmp_path / "state" / "logs" / "last-error.log").exists()


@pytest.mark.slow
def test_without_its_libraries_the_flag_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(browser, "find_spec", lambda name: None)
    found = called(tmp_path, "serve", "-m", "demo", "--ui")
    assert found.returncode == 2 and found.stdout == "" and wording("uv_tool_install_ui") in found.stderr


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium is here; Debian's package is `chromium`")
def test_in_a_real_browser_one_types_sees_a_reply_come_stops_it_and_looks_into_it(tmp_path):
    shown = Shown(tmp_path)
    try:
        with Chromium(tmp_path / "chromium") as chromium:
            tab = chromium.tab(shown.link)
            tab.shows("Say something")
            empty = tab.picture()
            tab.type(STORY)  # without a click
            tab.shows(f"❯ {STORY}")
            tab.press("Enter", 13)
            tab.shows("tok/s")
            before = tab.text
            chromium.until(lambda: tab.text != before)  # more of the reply has come
            tab.press("Escape", 27)
            tab.shows("(stopped)", "Say something")
            assert len(shown.chats()) == 1 and tab.picture() != empty
            tab.type("/xray")
            tab.press("Enter", 13)
            tab.shows("token 1 of", "by the model")
            tab.press("Escape", 27)
            tab.shows("Say something")
            page = tab.page("location.href")
            assert page.startswith(f"http://{shown.host}/chat/"), "the key is no longer in sight"
            tab.call("Page.reload")
            chromium.until(lambda: sum(one.startswith("ws:") for one in chromium.asked) == 2)
            tab.shows("Say something")
            tab.close()
            until(lambda: shown.chats() == [])
            own = (f"http://{shown.host}/", f"ws://{shown.host}/")
            assert len(chromium.asked) > 8 and all(one.startswith(own) for one in chromium.asked), chromium.asked
            assert chromium.complaints == []
            again = chromium.tab(page)
            again.shows("Say something")
            assert again.page("window.open('http://127.0.0.1/') === null"), "a link in a reply opens nothing"
    finally:
        assert shown.server.stop() == 0
