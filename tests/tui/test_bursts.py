"""Keys that come faster than the lists they are meant for are drawn."""

import threading

from clocks import PATIENCE
from textual.events import Key
from textual.widgets import OptionList
from tui.scripted_engine import say, until

from localspec_tui.screens import conversations
from localspec_tui.screens.conversations import ConversationsScreen


def test_down_and_enter_choose_the_next_model(chat):
    talk = chat()
    talk.models["demo"] = talk.engine

    async def story(pilot):
        await pilot.press("ctrl+o")
        await until(pilot, lambda: [lines.option_count for lines in talk.app.screen.query(OptionList)] == [3])
        talk.app.simulate_key("down")  # from the one that answers now, which is the first
        talk.app.simulate_key("enter")
        await until(pilot, lambda: "demo" in talk.loaded)

    talk.play(story)


def test_enter_right_behind_the_last_letter_resumes_what_was_looked_for(chat, monkeypatch):
    talk = chat(["The capital is Vienna."], ["A poem."])
    looked_for, found = [], threading.Event()

    def entries(history, words, real=conversations._entries):
        looked_for.append(words)
        if looked_for.count("vie") == 2:  # as the letters came, and for Enter
            found.set()
        assert not words or found.wait(PATIENCE)
        return real(history, words)

    monkeypatch.setattr(conversations, "_entries", entries)

    async def story(pilot):
        for prompt in ("Geography", "Write"):
            await say(pilot, prompt)
            await until(pilot, talk.idle)
            await pilot.press("ctrl+n")
            await until(pilot, lambda: talk.prompts() == [])
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(talk.app.screen, ConversationsScreen) and "Write" in talk.screen_text())
        for letter in "vie":
            talk.app.post_message(Key(letter, letter))
        talk.app.simulate_key("enter")
        await until(pilot, lambda: talk.prompts() == ["Geography"])

    talk.play(story)
