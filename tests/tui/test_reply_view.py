"""The line below a reply: how it ended, and its figures."""

import threading
from dataclasses import replace

from each import each
from golden import wording
from tui.scripted_engine import say, statistics, talked, until

from localspec.events import Done
from localspec_tui.widgets.reply_view import _below

FAST = replace(
    statistics(248), acceptance_length=3.1, steps=80, decode_seconds=4.0, step_seconds=4.0, plain_seconds=10.0
)


async def test_what_a_reply_took_stands_below_it_and_below_it_when_it_is_resumed(chat):
    async with chat(["A long story.", Done("stop", FAST)]).opened() as (talk, pilot):
        await talked(talk, pilot, "Tell me a story")
        assert "4.1 s · 248 tokens · 2.5× faster" in talk.screen_text()
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [])
        talk.app._chat.conversations.resume(1)
        await until(pilot, lambda: "4.1 s · 248 tokens · 2.5× faster" in talk.screen_text())


async def test_a_reply_that_was_stopped_says_so_and_what_it_took(chat):
    gate = threading.Event()
    async with chat(["It was a dark", gate, " night"]).opened() as (talk, pilot):
        await say(pilot, "Tell me a story")
        await until(pilot, lambda: talk.replies() == ["It was a dark"])
        await pilot.press("escape")
        gate.set()
        await until(pilot, talk.idle)
        assert "(stopped) · 0.6 s · 3 tokens" in talk.screen_text()


@each(
    "source, reason, figures, expected",
    [
        ("Yes.", "length", {}, wording("reply_ended_limit_tokens")),
        ("Yes.", "length", {"context_full": True}, wording("reply_ended_because_context_full")),
        ("Yes.", "length", {"context_full": "so"}, wording("reply_ended_limit_tokens")),
        ("again and again, " * 40, "interrupted", {}, wording("stopped_it_repeats_itself")),
        ("Yes.", "stop", {}, ""),
    ],
)
def test_how_it_ended_stands_below_it(source, reason, figures, expected):
    assert _below(source, reason, figures) == expected
