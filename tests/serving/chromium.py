"""A headless Chromium, driven over two pipes by its own protocol, and the content of its tabs."""

import base64
import fcntl
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pyte
from clocks import PATIENCE

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SIZE = 1280, 800
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
    f"--window-size={SIZE[0]},{SIZE[1]}",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # as on a machine without a network
)  # fmt: skip


class Chromium:
    """A browser for one thread. `asked` has the requests of its tabs, `complaints` their errors."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAM is not None
        (to_read, self._write), (self._read, to_write) = _pipe(), _pipe()
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = shlex.join([PROGRAM, *FLAGS, *root, f"--user-data-dir={folder}", "about:blank"])
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command} 3<&{to_read} 4>&{to_write}"], pass_fds=(to_read, to_write),
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number = b"", 0
        self._results: dict[int, Any] = {}
        self._tabs: dict[str, Tab] = {}
        self.asked: list[str] = []
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError, subprocess.TimeoutExpired):
            os.write(self._write, b'{"id": 0, "method": "Browser.close"}\0')  # which leaves no files in /tmp
            self._process.wait(PATIENCE)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def tab(self, url: str) -> "Tab":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session, target)
        for domain in ("Network", "Page", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        tab.call("Page.navigate", url=url)
        return tab

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        number, asked = self._number, {"id": self._number, "method": method, "params": parameters}
        os.write(self._write, json.dumps(asked | ({"sessionId": session} if session else {})).encode() + b"\0")
        self.until(lambda: number in self._results)
        found = self._results.pop(number)
        assert "error" not in found, found
        return found["result"]

    def until(self, condition: Callable[[], object], told: Callable[[], str] = lambda: "it never came to pass") -> None:
        """Handle messages until the condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, told()
            if select.select([self._read], [], [], 0.05)[0]:
                piece = os.read(self._read, 2**16)
                assert piece, "Chromium has ended"
                *whole, self._buffer = (self._buffer + piece).split(b"\0")
                for one in whole:
                    self._take(json.loads(one))

    def _take(self, message: Any) -> None:
        if "id" in message:
            self._results[message["id"]] = message
            return
        said, tab = message["params"], self._tabs.get(message.get("sessionId", ""))
        match message["method"]:
            case "Network.requestWillBeSent":
                self.asked.append(said["request"]["url"])
            case "Network.webSocketCreated":
                self.asked.append(said["url"])
                assert tab is not None
                tab.begin()
            case "Network.webSocketFrameReceived" if tab is not None:
                frame = said["response"]
                if frame["opcode"] == 2:
                    tab.stream.feed(base64.b64decode(frame["payloadData"]))
            case "Network.webSocketFrameSent" if tab is not None:
                tab.sent(said["response"]["payloadData"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(said["exceptionDetails"].get("exception", {}).get("description")))
            case "Log.entryAdded" if said["entry"]["level"] == "error":
                self.complaints.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")


def _pipe() -> tuple[int, int]:
    """Return a pipe whose ends are not 3 and 4, the numbers that Chromium's pipes get."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


class Tab:
    """A tab of the browser. An emulated screen of the same size follows its drawing."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target
        self.begin()

    def begin(self) -> None:
        self._screen = pyte.Screen(80, 24)
        self.stream = pyte.ByteStream(self._screen)

    def sent(self, message: str) -> None:
        kind, *more = json.loads(message)
        if kind == "resize":
            self._screen.resize(more[0]["height"], more[0]["width"])

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, self._session, **parameters)

    @property
    def text(self) -> str:
        """Return the text of the screen in one line."""
        return " ".join(" ".join(self._screen.display).split())

    def shows(self, *words: str) -> None:
        """Wait until all of these texts are on the screen."""
        self._browser.until(lambda: all(word in self.text for word in words), lambda: f"no {words} in {self.text}")

    def page(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def type(self, text: str) -> None:
        for letter in text:
            self.call("Input.dispatchKeyEvent", type="keyDown", text=letter, key=letter)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=letter)

    def press(self, key: str, code: int) -> None:
        sign = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **(sign if kind == "keyDown" else {}),
            )  # fmt: skip

    def picture(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
