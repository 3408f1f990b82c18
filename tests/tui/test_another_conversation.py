"""Another conversation is asked for while much else goes on: nothing is lost, nothing is said in the wrong one."""

import threading

from textual import events
from tui.scripted_engine import say, until


def burst(pilot, keys: str) -> None:
    """Keys as a terminal sends them that was slow: all at once."""
    for key in keys:
        name = {"\x0e": "ctrl+n", "\r": "enter", " ": "space"}.get(key, key)
        pilot.app.post_message(events.Key(name, key))


def test_what_is_typed_behind_ctrl_n_is_said_in_the_new_one(chat):
    gate = threading.Event()
    talk = chat(["Half a reply", gate, "."], ["New."])

    async def story(pilot):
        await say(pilot, "Go")
        await until(pilot, lambda: talk.replies() == ["Half a reply"])
        burst(pilot, "\x0ehi there\r")
        gate.set()
        await until(pilot, lambda: talk.replies() == ["New."])
        assert talk.prompts() == ["hi there"] and talk.typed == ""

    talk.play(story)
    assert [message["content"] for message in talk.engine.asked[1]] == ["hi there"]


def test_a_prompt_that_is_sent_before_the_new_one_is_there_waits_for_it(chat):
    """The engine's thread is busy: it shows the new conversation only after the prompt was sent."""
    gate = threading.Event()
    talk = chat(["Half", gate], ["New."], ["Newer."])

    async def story(pilot):
        await say(pilot, "Go")
        await until(pilot, lambda: talk.replies() == ["Half"])
        await pilot.press("ctrl+n", "ctrl+n")
        await say(pilot, "hi")
        gate.set()
        await until(pilot, lambda: talk.replies() == ["New."])
        await say(pilot, "more")
        await until(pilot, lambda: talk.replies() == ["New.", "Newer."])

    talk.play(story)
    assert talk.kept() == [("hi", "New.", "stop"), ("more", "Newer.", "stop")]


def test_figures_of_the_one_before_are_gone(chat):
    talk = chat(["Some text."])

    async def story(pilot):
        await say(pilot, "Hi")
        await until(pilot, lambda: "tokens/s" in talk.live and talk.idle())
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [] and "tokens" not in talk.live)
        assert "bitwise" in talk.live

    talk.play(story)


def test_a_prompt_of_the_command_line_is_found_again(chat):
    gate = threading.Event()
    talk = chat(["Yes."], first="from the shell")
    talk.models["scripted"] = [gate, talk.engine]

    async def story(pilot):
        await until(pilot, lambda: "from the shell" in talk.screen_text())
        await pilot.press("a", "escape", "up")
        assert talk.typed == "from the shell"
        gate.set()

    talk.play(story, ready=False)


def test_a_low_window_shows_where_one_types(chat):
    talk = chat()

    async def story(pilot):
        for letter in "abcdefg":
            await pilot.press(letter, "ctrl+j")
        await pilot.press("z")
        await until(pilot, lambda: "z" in talk.screen_text())

    talk.play(story, size=(40, 6))
    talk = chat()
    talk.play(story, size=(80, 10))
