"""Thoughts before a reply: folded into a line that opens, separated from the answer, and switched during a chat."""

import re
import threading
from dataclasses import replace

from golden import wording
from tui.scripted_engine import Thought, say, statistics, talked, until

from localspec.config import Settings
from localspec.events import Done
from localspec.store.store import Store
from localspec_tui.widgets.reply_view import ThoughtLine

THOUGHTS = "They ask for a\nreason, [so] I give one."
NARROW = (98, 30)  # without the side panel
AT_LIMIT = Done("length", replace(statistics(2), reasoning_tokens=2, reasoning_seconds=0.2))


def toasts(talk) -> str:
    return " ".join(notification.message for notification in talk.app.toasts)


def reasoning(talk) -> list[str]:
    """Return the saved thoughts of the newest conversation, turn by turn."""
    with Store.open(talk.database, print) as store:
        saved = store.history.read(store.history.latest() or 0)
        return [turn.reasoning for turn in saved.turns] if saved else []


async def test_thinking_is_one_line_that_opens_while_it_continues_and_after(chat):
    first, second = threading.Event(), threading.Event()
    talk = chat(
        [Thought("They ask for a\n"), Thought("reason,"), first, Thought(" [so] I give one."), second, "Because."]
    )
    async with talk.playing(NARROW) as pilot:
        await say(pilot, "Why?")
        folded = re.compile(r"▸ thinking for 0\.\d s, \d tokens? · They ask for a reason,")
        await until(pilot, lambda: folded.search(talk.screen_text()))
        assert talk.replies() == [""]
        await pilot.press("alt+t")
        await until(pilot, lambda: "They ask for a\n" in unpadded(talk))
        assert "▾ thinking for 0." in talk.screen_text()
        first.set()
        await until(pilot, lambda: "reason, [so] I give one." in talk.screen_text())
        second.set()
        await until(pilot, talk.idle)
        assert "▾ thought for 0.3 s, 3 tokens" in talk.screen_text() and "[so]" in talk.screen_text()
        assert talk.replies() == ["Because."]
        await pilot.press("alt+t")
        await until(pilot, lambda: "[so]" not in talk.screen_text())
        assert "▸ thought for 0.3 s, 3 tokens" in talk.screen_text() and "Because." in talk.screen_text()
        await pilot.click(ThoughtLine)
        await until(pilot, lambda: "reason, [so] I give one." in talk.screen_text())
    assert talk.kept() == [("Why?", "Because.", "stop")] and reasoning(talk) == [THOUGHTS]


def unpadded(talk) -> str:
    return "\n".join(line.rstrip() for line in talk.screen_text().split("\n"))


async def test_a_resumed_conversation_has_its_thoughts_folded_and_the_model_is_given_them(chat):
    async with chat([Thought(THOUGHTS), "Because."], ["Yes."]).opened(NARROW) as (talk, pilot):
        await talked(talk, pilot, "Why?")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [])
        await pilot.press("alt+t")
        await until(pilot, lambda: wording("nothing_thought_before_reply_yet") in talk.screen_text())
        talk.app._chat.conversations.resume(1)
        await until(pilot, lambda: "▸ thought for 0.1 s, 1 token" in talk.screen_text())
        assert "[so]" not in talk.screen_text()
        await talked(talk, pilot, "Really?")
        await say(pilot, "/think show")
        await until(pilot, lambda: "reason, [so] I give one." in talk.screen_text())
    before = {"role": "assistant", "content": "Because.", "reasoning_content": THOUGHTS}
    assert talk.engine.asked[-1] == [
        {"role": "user", "content": "Why?"},
        before,
        {"role": "user", "content": "Really?"},
    ]


async def test_a_limit_and_a_stop_within_thoughts_are_shown_and_the_turn_stays(chat):
    gate = threading.Event()
    talk = chat([Thought("Hm,"), Thought(" well"), AT_LIMIT], ["Yes."], [Thought("So,"), gate, Thought(" well")])
    async with talk.playing(NARROW) as pilot:
        await talked(talk, pilot, "Why?")
        text = " ".join(talk.screen_text().split())
        assert wording("thinking_filled_context_there_2") in text
        assert talk.prompts() == ["Why?"] and talk.typed == "" and "▸ thought for 0.2 s, 2 tokens" in text
        await talked(talk, pilot, "And?")
        await say(pilot, "Now?")
        await until(pilot, lambda: "▸ thinking for" in talk.screen_text())
        await pilot.press("escape")
        gate.set()
        await until(pilot, talk.idle)
        assert "(stopped)" in talk.screen_text() and talk.prompts()[-1] == "Now?"
    assert talk.kept() == [("Why?", "", "length"), ("And?", "Yes.", "stop"), ("Now?", "", "interrupted")]
    assert reasoning(talk)[:2] == ["Hm, well", ""] and reasoning(talk)[2].startswith("So,")
    assert talk.engine.asked[1] == [{"role": "user", "content": "And?"}]  # nothing was answered before


async def test_thinking_is_switched_by_command_and_palette(chat):
    talk = chat(["a"], ["b"], ["c"], ["d"], ["e"], settings=Settings(think=False, origins={"think": "--no-think"}))
    talk.engine.switch = True
    async with talk.playing(NARROW) as pilot:
        await talked(talk, pilot, "one")
        await say(pilot, "/think")
        await until(pilot, lambda: "The model answers without thinking (/think off). Other choices:" in toasts(talk))
        talk.app.clear_notifications()
        await pilot.pause()
        assert "scripted · no thinking · " in talk.screen_text().splitlines()[0]
        await say(pilot, "/think ON")
        await until(pilot, lambda: "scripted · thinking · " in talk.screen_text().splitlines()[0])
        await talked(talk, pilot, "two")
        await say(pilot, "/think auto")
        await until(pilot, lambda: "thinking" not in talk.screen_text().splitlines()[0])
        await talked(talk, pilot, "three")
        await pilot.press("ctrl+p", *"before it answers", "enter")
        await until(pilot, lambda: "no thinking" in talk.screen_text().splitlines()[0])
        await talked(talk, pilot, "four")
        await say(pilot, "/think default")
        await until(pilot, lambda: "/think takes on, off, auto or show, not 'default'" in talk.screen_text())
    assert talk.engine.thought == [False, True, None, False]


async def test_a_model_without_a_switch_refuses_it(chat):
    async with chat(["a"]).opened(NARROW) as (talk, pilot):
        for keys in (["ctrl+p", *"before it answers", "enter"], [*"/think on", "enter"]):
            await pilot.press(*keys)
            await until(pilot, lambda: "scripted has no switch for thinking" in toasts(talk) + talk.screen_text())
            talk.app.clear_notifications()
            await until(pilot, lambda: not toasts(talk))
        await pilot.press("f7", "delete")
        await talked(talk, pilot, "one")
    assert talk.engine.thought == [None]
