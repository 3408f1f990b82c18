"""Long conversations: few messages are mounted, all can be reached."""

import threading
from dataclasses import replace

import pytest
from golden import wording
from tui.scripted_engine import say, statistics, talked, until

from localspec.events import Done
from localspec.store.store import Store
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.mounted_turns import BATCH, MOUNTED


def numbers(talk) -> list[int]:
    return [int(prompt.split()[1]) for prompt in talk.prompts()]


async def test_scrolling_to_the_top_brings_older_ones_and_keeps_the_place(long):
    async with long(30, {}).opened(size=(80, 24)) as (talk, pilot):
        view = talk.app.query_one(ConversationView)
        await until(pilot, lambda: len(talk.prompts()) == MOUNTED and view.max_scroll_y > 0)
        assert numbers(talk) == list(range(30 - MOUNTED, 30)), "only the newest turns are mounted"
        assert talk.replies()[-1] == "reply 29\n\nand *more*"
        assert "prompt 29" in talk.screen_text()
        view.scroll_home(animate=False)
        await until(pilot, lambda: len(talk.prompts()) == MOUNTED + BATCH)
        assert numbers(talk) == list(range(30 - MOUNTED - BATCH, 30))
        await until(pilot, lambda: view.scroll_y > 0)
        first_seen = next(line for line in talk.screen_text().splitlines()[1:] if "prompt" in line)
        assert f"prompt {30 - MOUNTED}" in first_seen
        for count in (20, 25, 30):
            view.scroll_home(animate=False)
            await until(pilot, lambda count=count: len(talk.prompts()) == count and view.scroll_y > 0)
        view.scroll_home(animate=False)
        await until(pilot, lambda: view.scroll_y == 0)
        assert numbers(talk) == list(range(30))


@pytest.mark.parametrize(("key", "height"), [("pageup", 24), ("alt+up", 100)], ids=["scrolled", "all in sight"])
async def test_keys_bring_older_ones_too(long, key, height):
    async with long(14, {}).opened(size=(80, height)) as (talk, pilot):
        await until(pilot, lambda: len(talk.prompts()) == MOUNTED)
        for _ in range(22):
            await pilot.press(key)
        await until(pilot, lambda: numbers(talk) == list(range(14)))


async def test_older_ones_leave_the_screen_when_the_conversation_continues(long):
    async with long(30, {}, ["One."], ["Two."]).opened(size=(80, 24)) as (talk, pilot):
        view = talk.app.query_one(ConversationView)
        await until(pilot, lambda: len(talk.prompts()) == MOUNTED and view.max_scroll_y > 0)
        view.scroll_home(animate=False)
        await until(pilot, lambda: len(talk.prompts()) == MOUNTED + BATCH)
        await talked(talk, pilot, "prompt 30")
        assert numbers(talk) == list(range(31 - MOUNTED, 31))
        assert len(view.children) == 2 * MOUNTED
        view.scroll_home(animate=False)
        await until(pilot, lambda: len(talk.prompts()) == MOUNTED + BATCH)
        assert talk.replies()[-1] == "One."
        assert numbers(talk) == list(range(31 - MOUNTED - BATCH, 31))


async def test_a_growing_reply_is_the_last_one(long):
    gate = threading.Event()
    talk = long(3, {}, [gate, "Growing", threading.Event()])
    talk.engine.scripts[0][2] = over = threading.Event()
    async with talk.playing() as pilot:
        view = talk.app.query_one(ConversationView)
        await say(pilot, "prompt 3")
        assert view.last_reply == "reply 2\n\nand *more*"
        gate.set()
        await until(pilot, lambda: view.last_reply == "Growing")
        over.set()
        await until(pilot, talk.idle)


async def test_another_conversation_while_older_messages_come(long):
    async with long(30, {}).opened(size=(80, 24)) as (talk, pilot):
        view = talk.app.query_one(ConversationView)
        await until(pilot, lambda: len(talk.prompts()) == MOUNTED and view.max_scroll_y > 0)
        view.scroll_home(animate=False)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [])
        await talked(talk, pilot, "prompt 0")
        assert numbers(talk) == [0]


async def test_a_line_stands_where_the_models_memory_begins_and_moves_with_it(chat):
    def reply(dropped: int) -> list:
        return ["Yes.", Done("stop", replace(statistics(), dropped_turns=dropped))]

    talk = chat(reply(0), reply(0), reply(1), reply(2), reply(0))

    def above() -> list[str]:
        """Return the prompts above which there is a line."""
        view = talk.app.query_one(ConversationView)
        children = list(view.children)
        return [children[at + 1].source for at, one in enumerate(children) if "memory" in one.classes]

    async with talk.playing(size=(80, 40)) as pilot:
        for number, begins in enumerate(([], [], ["1"], ["2"])):
            await talked(talk, pilot, str(number))
            await until(pilot, lambda begins=begins: above() == begins)
        assert wording("model_longer_reads_what_above") in talk.screen_text()


async def test_the_line_is_there_again_when_the_conversation_is_opened_again(long):
    talk = long(30, {})
    with Store.open(talk.database, print) as store:
        turn = store.history.read(1).turns[-1]
        store.history.write(turn.id, turn.reply, "stop", {"dropped_turns": 25})

    async with talk.playing(size=(80, 24)) as pilot:
        view = talk.app.query_one(ConversationView)
        await until(pilot, lambda: len(talk.prompts()) == MOUNTED)
        lines = list(view.query(".memory"))
        assert len(lines) == 1
        children = list(view.children)
        assert children[children.index(lines[0]) + 1].source == "prompt 25"
