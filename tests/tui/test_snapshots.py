"""What the main screen looks like. Looked at by a person; `pytest --snapshot-update` after a change that is meant."""

import re
import threading

import pytest
from textual.widgets import TextArea
from tui.scripted_engine import say, until

from localspec.errors import DoesNotFit

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
    """looks_as_before(talk, story, size): whether the screen after the story is the one that was kept."""
    monkeypatch.setattr(TextArea, "_draw_cursor", False)  # it blinks

    def compare(talk, story, size) -> bool:
        async def before(pilot) -> None:
            await story(pilot)
            await pilot.pause()

        try:
            return snap_compare(talk.app, terminal_size=size, run_before=before)
        finally:
            assert talk.thread.close(20)

    return compare


@pytest.mark.parametrize("size", [(120, 40), (44, 20)], ids=["wide", "narrow"])
def test_main_screen(chat, looks_as_before, size):
    talk = chat(["Hello. I am a model."], [REPLY])

    async def story(pilot):
        await until(pilot, talk.idle)
        for prompt in ("Who are you?", "Write a quicksort in Python\nand explain it."):
            await say(pilot, prompt)
            await until(pilot, talk.idle)
        await pilot.press(*"The next prompt,", "ctrl+j", *"of two lines")

    assert looks_as_before(talk, story, size)


def test_error(chat, looks_as_before):
    talk = chat()
    talk.models["scripted"] = [
        DoesNotFit("scripted needs 14.2 GiB of memory and 3.1 GiB are free; choose a smaller one.")
    ]
    talk.notices = ["what is said is kept in a file, readable for you alone."]

    async def story(pilot):
        await until(pilot, lambda: "✗" in talk.screen_text())
        await say(pilot, "Hello?")
        await until(pilot, lambda: "waits" in talk.screen_text())

    assert looks_as_before(talk, story, (80, 24))


def test_stopped_and_refused(chat, looks_as_before):
    gate = threading.Event()
    talk = chat(["It was a dark", gate, " night"], [DoesNotFit("A context of 900 tokens does not fit.")])

    async def story(pilot):
        await until(pilot, talk.idle)
        await say(pilot, "Tell me a story")
        await until(pilot, lambda: talk.replies() == ["It was a dark"])
        await pilot.press("escape")
        gate.set()
        await until(pilot, talk.idle)
        await say(pilot, "Go on")
        await until(pilot, talk.idle)
        await pilot.press("alt+up")

    assert looks_as_before(talk, story, (80, 24))


def test_without_colours(chat, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    talk = chat([REPLY])

    async def story(pilot):
        await say(pilot, "Write a quicksort")
        await until(pilot, talk.idle)
        await pilot.press("alt+up")
        picture = talk.app.export_screenshot()
        text = picture[picture.index("-matrix") :]
        colours = set(re.findall("fill: #([0-9a-f]{6})", picture)) | set(re.findall('fill="#([0-9a-f]{6})"', text))
        coloured = {colour for colour in colours if len({colour[:2], colour[2:4], colour[4:]}) > 1}
        assert coloured <= {"ff5f57", "febc2e", "28c840", "c5c8c6"}  # of the window that is drawn around
        assert len(colours) > 5

    talk.play(story)
