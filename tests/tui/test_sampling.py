"""Sampling changed on the full screen: by `/set`, and in its dialog."""

import threading

import pytest
from golden import wording
from textual.widgets import Input
from tui.scripted_engine import say, talked, until

from localspec_tui.screens.settings_dialogs import SamplingScreen


def asked_with(talk):
    """Return how each reply was sampled."""
    return [(sampling.temperature, sampling.seed, limits.max_tokens) for sampling, limits in talk.engine.asked_with]


async def test_set_holds_from_the_next_reply_on(chat):
    async with chat(["One."], ["Two."]).opened() as (talk, pilot):
        await talked(talk, pilot, "first")
        await say(pilot, "/set temperature 0.5")
        await say(pilot, "/set max-tokens 9")
        await until(pilot, lambda: "temperature 0.5 · max-tokens 9" in talk.screen_text().splitlines()[0])
        assert wording("from_the_next_reply_on") not in talk.screen_text(), "which one sees"
        await say(pilot, "/set max_tokens")
        await until(pilot, lambda: "max-tokens 9 /set" in talk.screen_text())
        await say(pilot, "second")
        await until(pilot, lambda: talk.replies() == ["One.", "Two."] and talk.idle())
    assert asked_with(talk) == [(0.0, 7, None), (0.5, 7, 9)]


async def test_sampling_is_mentioned_where_it_is_not_visible(chat):
    gate = threading.Event()

    async def told():
        await until(pilot, lambda: wording("holds_from_next_reply") in talk.screen_text())
        talk.app.clear_notifications()
        await until(pilot, lambda: wording("holds_from_next_reply") not in talk.screen_text())

    async with chat(["Half", gate, "."]).opened(size=(60, 20)) as (talk, pilot):
        await say(pilot, "/set temperature default")  # which changes nothing
        await told()
        await say(pilot, "first")
        await until(pilot, lambda: talk.replies() == ["Half"])
        await say(pilot, "/set temperature 0.5")
        await told()
        gate.set()
        await until(pilot, talk.idle)
        for line in ("max-tokens 9", "seed 12345", "min-p 0.05"):  # there is no room for all of them
            await say(pilot, f"/set {line}")
        await told()


async def test_another_answer_takes_the_next_seed_and_the_next_prompt_the_one_that_was_set(chat):
    async with chat(*(["A reply."] for _ in range(5))).opened() as (talk, pilot):
        for line in ("first", "/set seed 40", "/again", "/again", "/again", "second"):
            asked = len(talk.engine.asked_with) + (not line.startswith("/set"))
            await say(pilot, line)
            await until(pilot, lambda asked=asked: talk.idle() and len(talk.engine.asked_with) == asked)
    assert [seed for _, seed, _ in asked_with(talk)] == [7, 40, 41, 42, 40]


async def test_a_mistake_is_reported_and_the_line_given_back(chat):
    async with chat().opened() as (talk, pilot):
        await say(pilot, "/set top-p 0.5")
        await until(pilot, lambda: "/set top-p 0.5 has no effect at temperature 0" in talk.screen_text())
        assert talk.typed == "/set top-p 0.5"


async def test_the_dialog(chat):
    async with chat(["One."]).opened() as (talk, pilot):
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(talk.app.screen, SamplingScreen))
        await until(pilot, lambda: isinstance(talk.app.focused, Input))
        await pilot.press(*"0.9", "down", *"2", "enter")
        await until(pilot, lambda: "top-p 2 must be a number above 0" in talk.screen_text())
        assert "/set top-p 2" not in talk.screen_text()  # the user did not type that here
        await pilot.press("backspace", *"0.5", *["down"] * 4, "up", "down", *"12", "ctrl+s")
        await until(pilot, lambda: not isinstance(talk.app.screen, SamplingScreen))
        await say(pilot, "hello")
        await until(pilot, lambda: talk.replies() == ["One."] and talk.idle())
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(talk.app.screen, SamplingScreen))
        assert [field.value for field in talk.app.screen.query(Input)] == ["0.9", "0.5", "", "", "", "12"]
        await pilot.press("x", "escape")
        await until(pilot, lambda: not isinstance(talk.app.screen, SamplingScreen))
        await say(pilot, "/set temp")
        await until(pilot, lambda: "temperature 0.9 /set" in talk.screen_text())
    assert asked_with(talk) == [(0.9, 12, None)]


def test_escape_leaves_sampling_as_it_was_and_what_was_typed_comes_back(chat):
    talk = chat(["One."])

    async def opened(pilot):
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(talk.app.screen, SamplingScreen))
        await until(pilot, lambda: isinstance(talk.app.focused, Input))
        typed = [field.value for field in talk.app.screen.query(Input) if field.value]
        return typed, "not saved yet" in talk.screen_text()

    async def story(pilot):
        assert await opened(pilot) == ([], False)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(talk.app.screen, SamplingScreen))
        assert wording("what_you_typed") not in talk.screen_text(), "nothing was"
        await opened(pilot)
        await pilot.press(*"1.5", "escape")
        await until(pilot, lambda: "f3 brings back what you typed." in talk.screen_text())
        await say(pilot, "hello")
        await until(pilot, lambda: talk.replies() == ["One."] and talk.idle())
        assert await opened(pilot) == (["1.5"], True)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: not isinstance(talk.app.screen, SamplingScreen))
        assert await opened(pilot) == (["1.5"], False)

    talk.play(story)
    assert asked_with(talk) == [(0.0, 7, None)]


async def test_what_was_set_while_the_first_model_loads_is_taken_back_where_it_contradicts_it(chat):
    talk = chat(["One."])
    talk.models["scripted"] = [gate := threading.Event(), talk.engine]
    async with talk.playing(ready=False) as pilot:
        await say(pilot, "/set top-k 5")
        await until(pilot, lambda: "top-k 5" in talk.screen_text().splitlines()[0])
        gate.set()
        await until(pilot, talk.idle)
        await until(pilot, lambda: wording("sampling_what_beginning") in talk.screen_text())
    assert talk.app.failure is None


@pytest.mark.parametrize(("generation", "warned"), [({"do_sample": False}, True), ({"do_sample": True}, False)])
async def test_another_answer_that_would_be_the_same_is_drawn(chat, generation, warned):
    talk = chat(["One."], ["Two."])
    talk.engine.generation = generation
    async with talk.playing() as pilot:
        await talked(talk, pilot, "first")
        await pilot.press("f5")
        await until(pilot, lambda: talk.replies() == ["Two."] and talk.idle())
        if warned:
            await until(pilot, lambda: "sampled at temperature 0.7" in " ".join(talk.screen_text().split()))
        assert ("At temperature 0" in talk.screen_text()) is warned
        assert [sampling.temperature for sampling, _ in talk.engine.asked_with] == (
            [0.0, 0.7] if warned else [1.0, 1.0]
        )
