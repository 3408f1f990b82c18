"""Pictures of the main screen, reviewed by a person; `pytest --snapshot-update` after an intended change."""

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from golden import wording
from machines import BILLION, LITTLE, PHI, SEVEN, unfetched
from reply_statistics import said
from textual.widgets import Input, Static, TextArea
from tui.drafted_replies import drafted_reply
from tui.scripted_engine import Thought, say, talked, until
from tui.test_conversations import keep, open_list
from tui.test_side_panel import FIGURES

from localspec.bench.race import Lane, Moment, result, sentences
from localspec.chat import figures
from localspec.config import Settings
from localspec.errors import DoesNotFit
from localspec.hub.plan import Part, Plan
from localspec.hub.records import ExpectedFile
from localspec.hub.sources import Source
from localspec.pulling.pull import Planned
from localspec.store.database import Database, NoRoom
from localspec.store.phrases import pack_key, pack_tokens
from localspec.store.store import Store
from localspec_tui import current_conversation, messages
from localspec_tui.widgets.first_screen import FirstScreen
from localspec_tui.widgets.side_panel import SidePanel
from localspec_tui.widgets.status_line import AttachedLine

REPLY = """## Sorting

A *quicksort* picks a **pivot** and sorts `what is smaller` before what is larger; List<int> stays as it is.

```python
def quicksort(items):
    if len(items) < 2:
        return items
    pivot, *rest = items
    return quicksort([x for x in rest if x < pivot]) + [pivot] + quicksort([x for x in rest if x >= pivot])
```

1. fast on average
2. little memory
   - in place

> Invented by Tony Hoare.

| case | time |
|---|---|
| best | n log n |
| worst | n² |
"""


@pytest.fixture
def looks_as_before(snap_compare, monkeypatch):
    """looks_as_before(talk, story, size): return whether the screen after the story equals the saved one."""
    monkeypatch.setattr(TextArea, "_draw_cursor", False)  # it blinks
    monkeypatch.setattr(Input, "cursor_blink", False)
    monkeypatch.setattr(figures, "free_memory", lambda _: 6 * 2**30)
    show_file = FirstScreen.show_file
    monkeypatch.setattr(
        FirstScreen, "show_file", lambda first, place: show_file(first, place and Path("~/localspec.db"))
    )

    def compare(talk, story, size) -> bool:
        async def before(pilot) -> None:
            await story(pilot)
            await pilot.pause()

        try:
            return snap_compare(talk.app, terminal_size=size, run_before=before)
        finally:
            assert talk.thread.close(20)

    return compare


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (44, 20)], ids=["wide", "usual", "narrow"])
def test_main_screen(chat, looks_as_before, size):
    talk = chat(["Hello. I am a model."], [REPLY])

    async def story(pilot):
        await until(pilot, talk.idle)
        await talked(talk, pilot, "Who are you?", "Write a quicksort in Python\nand explain it.")
        await pilot.press(*"The next prompt,", "ctrl+j", *"of two lines")

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize(
    ("key", "size"),
    [("", (120, 40)), ("", (60, 20)), ("ctrl+d", (80, 24)), ("f2", (60, 20))],
    ids=["list-wide", "list-small", "delete-usual", "rename-small"],
)
def test_conversations(chat, looks_as_before, size, key):
    talk = chat()
    long = "[red]What[/red] is " + "long " * 40
    keep(talk, "Write a quicksort in Python", "please tell me about the sea", long, days=12)
    keep(talk, *(f"Question {n}" for n in range(9)), days=3)
    with Store.open(talk.database, print) as store:
        store.history.rename(1, "Sorting")
    talk.resumed = 11

    async def story(pilot):
        await open_list(pilot, talk, first="Question 8")
        await pilot.press(*["down"] * 5, *filter(None, [key]))

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(120, 40), (60, 20)], ids=["wide", "small"])
def test_first_screen(chat, looks_as_before, size):
    talk = chat(settings=Settings(log=False))

    async def story(pilot):
        await until(pilot, talk.idle)

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(120, 40), (60, 20)], ids=["wide", "small"])
def test_error(chat, looks_as_before, size):
    talk = chat()
    talk.models["scripted"] = [
        DoesNotFit("scripted needs 14.2 GiB of memory and 3.1 GiB are free; choose a smaller one.")
    ]
    talk.notices = ["conversations are saved in a file (only you can read it)."]

    async def story(pilot):
        await until(pilot, lambda: "✗" in talk.screen_text())
        await say(pilot, "Hello?")
        await until(pilot, lambda: "waiting (" in talk.screen_text())

    assert looks_as_before(talk, story, size)


def test_stopped_and_refused(chat, looks_as_before):
    gate = threading.Event()
    talk = chat(["It was a dark", gate, " night"], [DoesNotFit(wording("context_900_tokens_does_fit"))])

    async def story(pilot):
        await until(pilot, talk.idle)
        await say(pilot, "Tell me a story")
        await until(pilot, lambda: talk.replies() == ["It was a dark"])
        await pilot.press("escape")
        gate.set()
        await until(pilot, talk.idle)
        await talked(talk, pilot, "Go on")
        await pilot.press("alt+up")

    assert looks_as_before(talk, story, (80, 24))


def test_thinking(chat, looks_as_before):
    """One reply has its thoughts folded, the next one open."""
    thought = Thought("The list is short.\n\nSo any sort will do: sorted() is there already.")
    talk = chat([thought, "Use `sorted`."], [thought, "Still `sorted`."])

    async def story(pilot):
        await talked(talk, pilot, "How do I sort?", "Really?")
        await pilot.press("alt+t")
        await until(pilot, lambda: "The list is short." in talk.screen_text())

    assert looks_as_before(talk, story, (96, 30))


@pytest.mark.parametrize("size", [(120, 40), (60, 20)], ids=["wide", "60"])
def test_sampling(chat, looks_as_before, size):
    talk = chat()
    talk.engine.generation = {"do_sample": True, "temperature": 0.8, "top_p": 0.95}

    async def story(pilot):
        await until(pilot, talk.idle)
        await pilot.press("f3", *"0.5", "down", *"2", "ctrl+s")
        await until(pilot, lambda: "must be" in talk.screen_text())

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(120, 36), (60, 20)], ids=["wide", "small"])
def test_xray(chat, looks_as_before, size):
    talk = chat()
    talk.engine.scripts = [drafted_reply(talk.engine)]

    async def story(pilot):
        await until(pilot, talk.idle)
        await talked(talk, pilot, "Say something about snow, in a few words")
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "token 1 of 9" in talk.screen_text())
        await pilot.press("right", "right", "right")
        await until(pilot, lambda: "token 4 of 9" in talk.screen_text())

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(120, 40), (100, 24)], ids=["wide", "least"])
def test_panel(chat, looks_as_before, size):
    """The panel shows everything that it can."""
    talk = chat(["Snow falls on the hill, and nobody sees it fall."])

    async def story(pilot):
        await talked(talk, pilot, "Tell me of snow")
        await pilot.press("f4")
        for number in range(1, 40):
            talk.app.query_one(SidePanel).show(
                replace(FIGURES, tokens=6 * number + 2 * (number % 3), seconds=number / 10)
            )
        await until(pilot, lambda: "saved" in talk.screen_text())

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(120, 40), (60, 20)], ids=["wide", "60"])
def test_commands(chat, looks_as_before, size):
    talk = chat(["Hello. I am a model."])

    async def story(pilot):
        await until(pilot, talk.idle)
        await talked(talk, pilot, "Who are you?")
        await pilot.press("/", "s", "down")

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(80, 24), (60, 20)], ids=["80", "60"])
def test_attached(chat, looks_as_before, size, tmp_path, monkeypatch):
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "notes.txt").write_text("one line\n" * 9)
    monkeypatch.chdir(tmp_path / "place")
    talk = chat(["They are all the same."])

    async def story(pilot):
        await until(pilot, talk.idle)
        await talked(talk, pilot, "Sort the lines of @notes.txt, please")
        await pilot.press(*"And those of @notes.txt ")
        await until(pilot, lambda: talk.app.query_one(AttachedLine).display)

    assert looks_as_before(talk, story, size)


async def test_without_colours(chat, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with chat([REPLY]).opened() as (talk, pilot):
        await talked(talk, pilot, "Write a quicksort")
        await pilot.press("alt+up")
        picture = talk.app.export_screenshot()
        text = picture[picture.index("-matrix") :]
        colours = set(re.findall("fill: #([0-9a-f]{6})", picture)) | set(re.findall('fill="#([0-9a-f]{6})"', text))
        coloured = {colour for colour in colours if len({colour[:2], colour[2:4], colour[4:]}) > 1}
        assert coloured <= {"ff5f57", "febc2e", "28c840", "c5c8c6"}  # colours of the window around the screen
        assert len(colours) > 5


class ScriptedFetch:
    """A download that fetches nothing: it reports the size of a model, and that a third has arrived."""

    given_up, stage = False, ""

    def __init__(self, model, settings, post):
        self.model, self._post, self.bytes = model, post, None

    def start(self):
        files = (ExpectedFile("model.safetensors", 3_440_000_000, "0" * 64),)
        part = Part(Source("Org/Model-1.7B"), "0" * 40, files, frozenset(), {}, license="Own Terms", gated=True)
        memory = "1.9 GiB in int8 on cpu, of 5.4 GiB that may be taken; the best of 4 plans"
        planned = Planned(Plan((part,), 48_000_000_000), True, memory, "")
        self._post(messages.FetchPlanned(self.model, planned))

    def agree(self):
        self.bytes = 1_200_000_000, 3_440_000_000

    def give_up(self):
        self.given_up = True

    def join(self, seconds):
        pass


MODELS = {
    "qwen-large": SEVEN, "phi-mini": PHI, "llama-1b": BILLION, "small-one": LITTLE,
    **{f"too-large-{n}": replace(SEVEN, num_layers=40 * n) for n in (1, 2, 3)},
}  # fmt: skip


def registered():
    for name, shape in MODELS.items():
        about = replace(unfetched(shape, name), license="Apache-2.0", description=f"What {name} is for.")
        yield replace(about, entry=replace(about.entry, gated=name.startswith("llama")))


@pytest.mark.parametrize("size", [(120, 40), (60, 20)], ids=["wide", "small"])
def test_models(chat, models, looks_as_before, monkeypatch, size):
    """One of the models is being downloaded."""
    monkeypatch.setattr("localspec_tui.fetch_thread.FetchThread", ScriptedFetch)
    talk = chat()
    models("scripted", "broken", "other", broken=["broken"], elsewhere=list(registered()))

    async def story(pilot):
        await until(pilot, talk.idle)
        talk.app._chat.download.offer("llama-1b")
        await until(pilot, lambda: "Org/Model-1.7B" in talk.screen_text())
        await pilot.press("enter", "ctrl+o")
        await until(pilot, lambda: "can be downloaded" in talk.screen_text() and "Stop" in talk.screen_text())
        told = talk.app.screen.query_one("#download", Static)  # the chat below has such a line, too
        await until(pilot, lambda: "1.1 GiB of 3.2 GiB" in str(told.content))
        await pilot.press("down", "down")

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(120, 40), (60, 20)], ids=["wide", "small"])
def test_keys(chat, looks_as_before, size):
    """A toast is shown above the keys."""
    talk = chat(["A reply.\n\n" * 30])

    async def story(pilot):
        await talked(talk, pilot, "Hi")
        await pilot.press("f1")
        await until(pilot, lambda: "Begin a new" in talk.screen_text())
        talk.app.notify(wording("holds_from_next_reply"), markup=False)
        await until(pilot, lambda: "applies from" in talk.screen_text())

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(120, 40), (60, 20)], ids=["wide", "small"])
def test_finding(chat, looks_as_before, size):
    talk = chat(["A reply about snow."], [REPLY], ["Another reply."])

    async def story(pilot):
        await talked(talk, pilot, "Tell me of snow", "Write a quicksort", "And now?")
        await pilot.press("ctrl+f", *"Pivot")
        await until(pilot, lambda: "1 of 5" in talk.screen_text())

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(80, 24), (60, 20)], ids=["usual", "small"])
def test_unsaved(chat, looks_as_before, size, monkeypatch):
    def no_room(*_):
        raise NoRoom(
            "~/localspec.db could not be read or written, so nothing more is saved: check whether the disk is full."
        )

    told = threading.Event()
    talk = chat(["Hello."], [told, "I am a model."])

    async def story(pilot):
        await talked(talk, pilot, "Hi")
        monkeypatch.setattr(Database, "save", no_room)
        await say(pilot, "Who are you?")
        await until(pilot, lambda: "This turn is not saved" in talk.screen_text())
        told.set()  # otherwise a busy machine may show the reply first
        await until(pilot, talk.idle)
        await pilot.press(*"half typed")
        await until(pilot, lambda: wording("and_what_is_typed") in talk.screen_text())

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(60, 20)], ids=["small"])
def test_download(chat, looks_as_before, monkeypatch, size):
    monkeypatch.setattr("localspec_tui.fetch_thread.FetchThread", ScriptedFetch)
    talk = chat()

    async def story(pilot):
        await until(pilot, talk.idle)
        talk.app._chat.download.offer("llama-1b")
        await until(pilot, lambda: "Org/Model-1.7B" in talk.screen_text())

    assert looks_as_before(talk, story, size)


def test_chatting_while_a_model_comes(chat, looks_as_before, monkeypatch):
    monkeypatch.setattr("localspec_tui.fetch_thread.FetchThread", ScriptedFetch)
    talk = chat(["Hello. I am a model."])

    async def story(pilot):
        await until(pilot, talk.idle)
        talk.app._chat.download.offer("llama-1b")
        await until(pilot, lambda: "Org/Model-1.7B" in talk.screen_text())
        await pilot.press("enter")
        await say(pilot, "Who are you?")
        await until(pilot, lambda: talk.idle() and "1.1 GiB of 3.2 GiB" in talk.screen_text())

    assert looks_as_before(talk, story, (80, 24))


@pytest.mark.parametrize("size", [(120, 36), (60, 20)], ids=["wide", "small"])
def test_phrases(chat, looks_as_before, size, tmp_path):
    talk = chat()
    with Store.open(talk.database, pytest.fail) as store:
        number, _ = store.history.say(None, "Sorting in Python", model="scripted", system=None)
        pool = store.phrases.pool("/models/scripted", "hash", tmp_path)
        phrases = [(pack_key(n, n + 1), b"", pack_tokens([n + 2, n + 3])) for n in range(4)]
        store.phrases.learn(pool, phrases, conversation=number)
        store.phrases.learn(pool, phrases[:1], phrases[2:])

    async def story(pilot):
        await until(pilot, talk.idle)
        await pilot.press("f8")
        await until(pilot, lambda: "4 phrases" in talk.screen_text() and "esc Back  ^d Delete" in talk.screen_text())

    assert looks_as_before(talk, story, size)


@pytest.mark.parametrize("size", [(120, 36), (60, 20)], ids=["wide", "small"])
def test_race(chat, looks_as_before, size, monkeypatch):
    talk = chat()
    words = [
        "Snow",
        "falls",
        "on",
        "the",
        "hill,",
        "and",
        "nobody",
        "sees",
        "it",
        "fall",
        "but",
        "the",
        "fox,",
        "who",
        "waits",
        "below",
        "the",
        "old",
        "oak.",
    ]
    lanes = [Lane("plain decoding"), Lane("with phrases")]
    for lane, step in zip(lanes, (0.02, 0.01), strict=True):
        lane.moments = [Moment(step * at, f"{word} ", 1) for at, word in enumerate(words, 1)]
        lane.seconds, lane.statistics = step * len(words), said(range(len(words)), drafted=9)

    def run(engine, prompt, system, settings, stop, post):
        post(messages.RaceStarted(lanes))
        post(messages.RaceEnded([*sentences(lanes, result(*lanes))], True))

    monkeypatch.setattr(current_conversation, "run_race", run)

    async def story(pilot):
        await until(pilot, talk.idle)
        await say(pilot, "/race Tell me of snow")
        await until(pilot, lambda: wording("both_texts_are_the_same_2") in talk.screen_text())

    assert looks_as_before(talk, story, size)
