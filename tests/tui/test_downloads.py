"""A download during a chat: confirmed once, shown, given up, failed or left behind; nothing is half installed."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli.hub_commands import WEIGHTS, home_with_cache, repository, stray, variables
from clocks import PATIENCE
from each import each
from golden import wording
from hub_server import Hub, Repository, served
from tui.scripted_engine import ScriptedEngine, back, say, until

from localspec.config import Settings
from localspec.errors import NotHere
from localspec.hub.plan import Part, Plan
from localspec.hub.sources import Source
from localspec.models.registry import resolve
from localspec.pulling.heads import Converted, NotConverted
from localspec.pulling.pull import AboutToFetch, Planned
from localspec_tui import messages
from localspec_tui.fetch_thread import FetchThread
from localspec_tui.screens.download import DownloadScreen
from localspec_tui.screens.models import ModelsScreen

HALF = 2_000_000  # bytes of the 3,600,000 of the weights
SIZE = (90, 30)  # without the side panel, so that sentences are not cut


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """Return the home of the chat, with an empty cache; `mine` is registered but not downloaded."""
    home_with_cache(tmp_path, monkeypatch)
    (tmp_path / "config").mkdir(mode=0o700)
    (tmp_path / "config" / "models.toml").write_text(
        '[mine]\nrepo = "org/name"\ndescription = "A model of one\'s own."\n'
    )
    return tmp_path / "home"


@pytest.fixture
def repo(tmp_path) -> Repository:
    return repository(tmp_path / "model")


@pytest.fixture
def hub(home, repo, monkeypatch):
    with served(org__name=repo) as hub:
        for name, value in variables(home, hub).items():
            monkeypatch.setenv(name, value)
        yield hub


def words(talk) -> str:
    """Return the text of the screen without its line breaks."""
    return " ".join(talk.screen_text().replace("▌", "").split())  # a toast has a bar


def asked(talk):
    """Return whether the dialog shows the size of the download."""
    return lambda: isinstance(talk.app.screen, DownloadScreen) and wording("are_free_on_the_disk") in words(talk)


def fetched(hub: Hub) -> list[str]:
    return [request.rpartition("/")[2] for request in hub.requests if request.startswith("GET /org")]


def nothing_is_half_installed(home: Path) -> bool:
    with pytest.raises(NotHere):
        resolve("mine")
    return stray(home) == []


async def begin(talk, pilot) -> None:
    """Ask for the model, and agree to the download."""
    await say(pilot, "/model mine")
    await until(pilot, asked(talk))
    await pilot.press("enter")
    await until(pilot, back(talk))


async def test_one_continues_chatting_while_a_model_comes(chat, hub, home):
    gate = threading.Event()
    talk = chat(["Half", gate, " said."], ["Again."])
    talk.models["mine"] = mine = ScriptedEngine(["I am mine."])
    hub.hold = HALF
    async with talk.playing(SIZE) as pilot:
        await say(pilot, "first")
        await until(pilot, lambda: talk.replies() == ["Half"])
        await pilot.press("ctrl+o", *"mine")
        await until(pilot, lambda: "A model of one's own" in words(talk))
        assert hub.requests == [], "to look at the list asks nobody"
        await pilot.press("enter")
        await until(pilot, asked(talk))
        assert "Download mine, 3.4 MiB? " in words(talk) and "org/name: license apache-2.0." in words(talk)
        assert WEIGHTS not in fetched(hub), "nothing is fetched before it was agreed to"
        await pilot.press("enter")
        await until(pilot, lambda: hub.waiting.is_set() and "↓ mine · 1.0 MiB of 3.4 MiB" in words(talk))
        gate.set()
        await until(pilot, lambda: talk.replies() == ["Half said."] and talk.idle())
        await say(pilot, "second")
        await until(pilot, lambda: talk.replies() == ["Half said.", "Again."] and talk.idle())
        assert "mine is downloaded" not in words(talk)
        hub.go.set()
        await until(pilot, lambda: "mine is downloaded. To chat with it, type /model mine." in words(talk))
        assert "↓ mine" not in words(talk) and talk.loaded == ["scripted"], "it is not switched to by itself"
        await say(pilot, "/model mine")
        await until(pilot, lambda: talk.loaded == ["scripted", "mine"] and talk.idle())
    assert mine.asked == [] and resolve("mine").here and stray(home) == []


async def test_a_download_is_given_up_midway_and_continued(chat, hub, home):
    talk = chat()
    hub.hold = HALF
    async with talk.playing(SIZE) as pilot:
        await begin(talk, pilot)
        await until(pilot, hub.waiting.is_set)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(talk.app.screen, ModelsScreen) and "Stop the download" in words(talk))
        await pilot.press("ctrl+x", "escape")
        await until(pilot, lambda: "The download of mine was stopped." in words(talk))
        assert "from the start (1,048,576 of 3,600," in words(talk) and wording("from_beginning_later_pull") in words(
            talk
        )
        assert nothing_is_half_installed(home)
        hub.hold = None
        hub.requests.clear()
        await begin(talk, pilot)
        await until(pilot, lambda: "mine is downloaded" in words(talk))
    assert fetched(hub) == [WEIGHTS] and resolve("mine").here and stray(home) == []


def test_who_leaves_during_a_download_waits_for_nothing(chat, hub, home):
    talk = chat()
    hub.hold = HALF

    async def story(pilot):
        await begin(talk, pilot)
        await until(pilot, hub.waiting.is_set)
        await pilot.press("ctrl+q")

    talk.play(story, SIZE, then=lambda: talk.app.end_download(PATIENCE))
    assert not hub.go.is_set() and nothing_is_half_installed(home)


async def test_who_says_no_has_fetched_nothing(chat, hub, home):
    async with chat().opened(SIZE) as (talk, pilot):
        await say(pilot, "/model mine")
        await until(pilot, asked(talk))
        await pilot.press("escape")
        await until(pilot, back(talk))
        await until(pilot, lambda: talk.app._chat.download.ended == 1)
        assert "mine" not in words(talk)
    assert WEIGHTS not in fetched(hub) and nothing_is_half_installed(home)


async def test_one_agrees_to_what_is_known_and_one_download_comes_at_a_time(chat, hub):
    talk, answered = chat(), threading.Event()
    hub.hold = HALF

    def wait(path: str) -> None:
        answered.wait(PATIENCE)

    hub.answer = wait
    async with talk.playing(SIZE) as pilot:
        await say(pilot, "/model org/name")
        await until(pilot, lambda: wording("asking_hub_what_holds") in words(talk))
        await pilot.press("enter", "enter")
        assert isinstance(talk.app.screen, DownloadScreen) and "⏎ Download" not in words(talk)
        answered.set()
        await until(pilot, asked(talk))
        assert "⏎ Download" in words(talk)
        await pilot.press("enter")
        await until(pilot, hub.waiting.is_set)
        await say(pilot, "/model mine")
        refused = wording("download_org_name_under_way_one")
        await until(pilot, lambda: refused in {told.message for told in talk.app.toasts})
        hub.go.set()
        await until(pilot, lambda: "org/name is downloaded. To chat with it, type /model org/name." in words(talk))


async def test_a_server_that_dies_costs_the_download_and_nothing_else(chat, hub, home, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time", SimpleNamespace(sleep=lambda seconds: None))
    talk = chat(["Still here."])
    hub.die_after = HALF
    async with talk.playing(SIZE) as pilot:
        await begin(talk, pilot)
        await until(pilot, lambda: f"{hub.endpoint} cannot be reached" in words(talk) or "was lost" in words(talk))
        assert wording("mine_was_not_fetched") in words(talk)
        assert wording("from_beginning_later_pull") in words(talk) and "↓" not in words(talk)
        await say(pilot, "Hello?")
        await until(pilot, lambda: talk.replies() == ["Still here."])
    assert nothing_is_half_installed(home)


def gated(hub: Hub, repo: Repository, _: pytest.MonkeyPatch) -> None:
    repo.closed = (401, "GatedRepo")


def strange(hub: Hub, repo: Repository, _: pytest.MonkeyPatch) -> None:
    hub.repositories["org/name"] = Repository({**repo.files, "config.json": b'{"architectures": ["OddForCausalLM"]}'})


def offline(hub: Hub, repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def full(hub: Hub, repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.hub.plan.free_disk_bytes", lambda: 1_000_000)


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (gated, wording("org_name_gated_visit_accept_terms")),
        (strange, wording("org_name_architecture")),
        (offline, "cannot be reached"),
        (full, wording("n976_6_kib_free_disk")),
    ],
)
async def test_what_cannot_be_fetched_is_one_sentence(chat, hub, home, repo, monkeypatch, trouble, sentence):
    talk = chat(["Still here."])
    trouble(hub, repo, monkeypatch)
    async with talk.playing(SIZE) as pilot:
        await say(pilot, "/model mine")
        await until(pilot, lambda: sentence.format(hub.endpoint + "/org/name") in words(talk))
        assert wording("mine_was_not_fetched") in words(talk)
        await until(pilot, back(talk))
        assert words(talk).count("✗") == 1
        await say(pilot, "Hello?")
        await until(pilot, lambda: talk.replies() == ["Still here."])
    assert WEIGHTS not in fetched(hub) and nothing_is_half_installed(home)


async def test_a_model_that_does_not_fit_may_be_fetched_after_a_warning(chat, hub, home, monkeypatch):
    monkeypatch.setattr("localspec.pulling.pull._memory", lambda *_: (False, "mine needs 9.0 GiB of memory"))
    async with chat().opened(SIZE) as (talk, pilot):
        await say(pilot, "/model mine")
        await until(pilot, asked(talk))
        assert wording("may_run_here_mine_needs_9_0_gib") in words(talk)
        await pilot.press("enter")
        await until(pilot, lambda: "mine is downloaded" in words(talk))


async def test_packing_is_announced_and_can_be_given_up_too(chat, hub, home, monkeypatch):
    """A drafter, or the packed form of a GGUF file: the bytes have come by then."""
    talk, gate = chat(), threading.Event()

    def made(plan, progress, registered):
        progress("making a drafter from org/name")
        assert gate.wait(PATIENCE)
        progress("making another one")
        yield from ()

    monkeypatch.setattr("localspec.pulling.pull.convert_heads", made)
    async with talk.playing(SIZE) as pilot:
        await begin(talk, pilot)
        await until(pilot, lambda: "↓ mine · making a drafter from org/name …" in words(talk))
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "Stop the download" in words(talk))
        await pilot.press("ctrl+x", "escape")
        await until(pilot, lambda: "↓ mine · stopping" in words(talk))
        gate.set()
        await until(pilot, lambda: "The download of mine was stopped." in words(talk))
        assert "mine is downloaded" not in words(talk)


HEADS, MODEL = Source.parse("org/heads"), Source.parse("org/model")


@each(
    "event, ended, noticed",
    [
        (Converted(HEADS, MODEL), "org/heads is downloaded, a drafter for org/model.", []),
        (NotConverted(HEADS, MODEL), "org/heads is downloaded.", [wording("download_their_model")]),
        (NotConverted(HEADS, None), "org/heads is downloaded.", [wording("do_not_name_the_model")]),
    ],
)
def test_heads_by_themselves_are_not_called_a_model(monkeypatch, event, ended, noticed):
    part = Part(HEADS, "0" * 40, (), frozenset(), {}, heads="medusa")
    planned = Planned(Plan((part,), 0), None, "", "")
    monkeypatch.setattr("localspec.pulling.pull.pull", lambda *rest: (one for one in (planned, AboutToFetch(0), event)))
    posted = []
    fetch = FetchThread("org/heads", Settings(), posted.append)
    fetch.agree()
    fetch.run()
    assert posted[-1].sentence == ended and not posted[-1].trouble
    said = [one.sentence for one in posted if isinstance(one, messages.Noticed)]
    assert len(said) == len(noticed) and all(map(str.__contains__, said, noticed))
