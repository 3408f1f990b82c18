"""Fixtures of the terminal interface: an application with a scripted engine and a separate store."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pyperclip
import pytest
from clocks import PATIENCE
from machines import cpu, machine
from textual._context import active_app
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from tui.scripted_engine import ScriptedChat, card

from localspec.chat import model_list
from localspec.choosing import survey
from localspec.errors import LocalspecError
from localspec.models import registry
from localspec.models.registry import TargetCard
from localspec.store.store import Store
from localspec.weights.checkpoint import Checkpoint

HERE = Path(__file__).parent
LOOK_SECONDS = 0.001
THREAD_SECONDS = 0.25  # a thread that takes longer waits for the test


@pytest.fixture
def chat(tmp_path, monkeypatch) -> Callable[..., ScriptedChat]:
    """chat(script, script, …): the application, whose engine answers with these."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLORFGBG", raising=False)

    def make(*scripts: Any, **about: Any) -> ScriptedChat:
        return ScriptedChat(tmp_path, *scripts, **about)

    return make


@pytest.fixture
def long(chat) -> Callable[..., ScriptedChat]:
    """Return long(turns, {number: reply}, script, …): a chat that continues a saved conversation of `turns` turns."""

    def make(turns: int, replies: dict[int, str], *scripts: Any) -> ScriptedChat:
        talk = chat(*scripts)
        conversation = None
        with Store.open(talk.database, print) as store:
            for number in range(turns):
                conversation, turn = store.history.say(conversation, f"prompt {number}", model="scripted", system=None)
                store.history.write(turn, replies.get(number, f"reply {number}\n\nand *more*"), "stop")
        talk.resumed = conversation
        return talk

    return make


@pytest.fixture
def models(monkeypatch) -> Callable[..., None]:
    """models(name, …, broken, elsewhere): install these models, some of them broken, and register absent ones.

    They are on an invented machine with 6 GiB of memory.
    """

    def show(*names: str, broken: Sequence[str] = (), elsewhere: Sequence[TargetCard] = ()) -> None:
        found = Checkpoint(card("x").path, {}, "LlamaForCausalLM", (), 8_000_000, 16_000_000)
        here = [(card(name), LocalspecError("It is [damaged].") if name in broken else found) for name in names]
        monkeypatch.setattr(registry, "installed", lambda: iter(here))
        monkeypatch.setattr(survey, "known", lambda: {one.name: one for one in elsewhere})
        monkeypatch.setattr(model_list, "this_machine", lambda bandwidth: machine(cpu(6)))

    return show


async def settled(min_sleep: float = 0, max_sleep: float = PATIENCE) -> None:
    """Wait until the application has nothing left to do. Textual's own wait may end while the application gets no CPU time."""
    loop: Any = asyncio.get_running_loop()
    began, quiet = loop.time(), 0
    while quiet < 3 and (waited := loop.time() - began) < max_sleep:
        await asyncio.sleep(0)
        app = active_app.get(None)
        draws = (
            app is not None
            and not app._exit
            and any(screen._update_timer._active.is_set() for screen in app.screen_stack)
        )
        threads = loop._default_executor
        works = threads and (threads._work_queue.qsize() or threads._idle_semaphore._value < len(threads._threads))
        waits = draws or (works and waited < THREAD_SECONDS)
        quiet = 0 if loop._ready or waits else quiet + 1
        if waits and not loop._ready:
            await asyncio.sleep(LOOK_SECONDS)


@pytest.fixture(autouse=True)
def quick_pilot(monkeypatch) -> None:
    """Send each key as soon as the previous one was handled."""
    monkeypatch.setattr("textual.pilot.wait_for_idle", settled)
    monkeypatch.setattr("textual.app.wait_for_idle", settled)


@pytest.fixture(scope="session", autouse=True)
def styles_read_once() -> Iterator[None]:
    """Read style sheets once: they are the same in every application, which would take a tenth of its time to read them.

    Textual computes the hash of every rule for every widget, so use the hash by identity, without a call of Python.
    """
    read: dict[tuple[object, ...], list[RuleSet]] = {}
    original = Stylesheet._parse_rules

    def parse_rules(sheet: Stylesheet, *given: Any, **more: Any) -> list[RuleSet]:
        key = (*sorted(sheet._variables.items()), given, *sorted(more.items()))
        if key not in read:
            read[key] = original(sheet, *given, **more)
        return read[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_rules)
        patch.setattr(RuleSet, "__hash__", object.__hash__)
        yield


@pytest.fixture(autouse=True)
def clipboard(monkeypatch) -> list[str]:
    """Return the copied texts; the machine's own clipboard is not used."""
    copied: list[str] = []
    monkeypatch.setattr(pyperclip, "copy", copied.append)
    return copied


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark most tests as slow, since each takes half a second; a few `quick` ones represent the others in `make check`."""
    for item in items:
        plays = item.path.parent == HERE and "chat" in getattr(item, "fixturenames", ())
        if plays and not item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True
