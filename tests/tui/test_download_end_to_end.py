"""A download in a chat as a user has it, in a separate process: interrupted half-way, it leaves no files behind."""

import signal
import sys
from pathlib import Path

import pytest
from golden import wording

if sys.platform == "win32":
    pytest.skip("no pseudo-terminals", allow_module_level=True)

from cli.hub_commands import WEIGHTS, at, home_with_cache, repository, stray, variables
from hub_server import served
from tui.terminal import Terminal, scripted_chat

pytestmark = pytest.mark.slow

CTRL_O, CTRL_Q, CTRL_X = "\x0f", "\x11", "\x18"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    home = home_with_cache(tmp_path, monkeypatch)
    (home / "config").mkdir(mode=0o700)
    (home / "config" / "models.toml").write_text('[mine]\nrepo = "org/name"\n')
    return home


@pytest.fixture
def hub(tmp_path):
    """Yield a hub that sends half of the weights, and then nothing."""
    with served(org__name=repository(tmp_path / "model")) as hub:
        hub.hold = 2_000_000
        yield hub


def begin(terminal: Terminal, hub) -> None:
    terminal.shows("❯", "ready")
    terminal.send("/model mine\r")
    terminal.shows("Download mine, 3.4 MiB?", wording("are_free_on_the_disk"))
    terminal.send("\r")
    terminal.until(lambda: hub.waiting.is_set() and "↓ mine" in terminal.text)


@pytest.mark.parametrize("how", ["key", "signal"])
def test_who_leaves_continues_another_time(home, hub, how):
    with scripted_chat(home, "[['Hi.']]", size=(90, 30), **variables(home, hub)) as terminal:
        begin(terminal, hub)
        if how == "key":
            terminal.send(CTRL_Q)
        else:
            terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ends() == (0 if how == "key" else 128 + signal.SIGTERM)
        terminal.check_that_it_is_whole()
    assert not list((home / "data" / "pulled").glob("*.json"))
    assert "mine" not in at(home, hub, "list").stdout
    hub.hold = None
    hub.requests.clear()
    result = at(home, hub, "pull", "mine", "--quantize", "auto")
    assert result.returncode == 0 and stray(home) == [], "what a silent server left unfinished is gone"
    assert [request.rpartition("/")[2] for request in hub.requests if request.startswith("GET /org")] == [WEIGHTS]


def test_a_download_from_its_beginning_to_its_end(home, hub):
    with scripted_chat(home, "[['Said meanwhile.']]", size=(90, 30), **variables(home, hub)) as terminal:
        begin(terminal, hub)
        terminal.send("Hello?\r")
        terminal.shows("Said meanwhile.")
        terminal.send(CTRL_O)
        terminal.shows("Which model answers?", "Stop the download")
        terminal.send(CTRL_X)
        terminal.until(lambda: "Stop the download" not in terminal.text)
        terminal.send("\x1b")
        terminal.shows("The download of mine was stopped.")
        terminal.until(lambda: "fetchesmodel.safetensorsfromthestart" in terminal.words)
        hub.hold = None
        terminal.send("/model mine\r")
        terminal.shows("Download mine, 3.4 MiB?", wording("are_free_on_the_disk"))
        terminal.send("\r")
        terminal.shows("mine is downloaded. To chat with it, type /model mine.")
        terminal.send(CTRL_Q)
        assert terminal.ends() == 0
        terminal.check_that_nobody_else_commands()
    assert stray(home) == [] and at(home, hub, "verify", "mine").returncode == 0
