"""Another answer or another prompt: the conversation continues in a new branch, and the old one stays."""

import threading

import pytest
from golden import wording
from tui.scripted_engine import say, talked, until

from localspec.errors import UsageMistake
from localspec.events import Prefill
from localspec.store.store import Store
from localspec_tui.widgets.prompt import Prompt


def conversations(talk):
    """(prompt, reply) of every turn, by the number of its conversation."""
    with Store.open(talk.database, pytest.fail) as store:
        numbers = sorted(info.id for info in store.history.conversations())
        return {n: [(turn.prompt, turn.reply) for turn in store.history.read(n).turns] for n in numbers}


async def test_another_answer_takes_the_place_of_the_last_which_stays(chat):
    talk = chat(["First."], ["Second."], ["Third."], ["After."])
    talk.engine.generation = {"do_sample": True}
    async with talk.playing() as pilot:
        await talked(talk, pilot, "one", "two")
        await pilot.press("f5")
        await until(pilot, lambda: talk.replies() == ["First.", "Third."])
        await until(pilot, lambda: "stays in conversation 1" in " ".join(talk.screen_text().split()))
        await until(pilot, talk.idle)
        assert talk.prompts() == ["one", "two"]
        await say(pilot, "three")
        await until(pilot, lambda: talk.idle() and talk.replies()[-1] == "After.")
    assert conversations(talk) == {
        1: [("one", "First."), ("two", "Second.")],
        2: [("one", "First."), ("two", "Third."), ("three", "After.")],
    }
    assert [message["content"] for message in talk.engine.asked[2]] == ["one", "First.", "two"]


@pytest.mark.parametrize("turns", [3, 13])
async def test_an_earlier_prompt_is_changed_and_continued_from(chat, turns):
    talk = chat(["Changed."])
    with Store.open(talk.database, pytest.fail) as store:
        for n in range(turns):
            talk.resumed, turn = store.history.say(talk.resumed, f"prompt {n}", model="scripted", system=None)
            store.history.write(turn, f"Reply {n}.", "stop")

    async with talk.playing() as pilot:
        await until(pilot, lambda: talk.replies()[-1:] == [f"Reply {turns - 1}."])
        await pilot.press("alt+up", "alt+up", "alt+up", "alt+up", "f2")
        assert talk.typed == f"prompt {turns - 2}"
        assert wording("esc_leaves_all") in talk.live
        await pilot.press("!", "enter")
        await until(pilot, lambda: talk.replies()[-1] == "Changed." and talk.idle())
        assert talk.prompts()[-2:] == [f"prompt {turns - 3}", f"prompt {turns - 2}!"]
    found = conversations(talk)
    assert len(found[1]) == turns and found[2][:-1] == found[1][: turns - 2]
    assert found[2][-1] == (f"prompt {turns - 2}!", "Changed.")


async def test_escape_leaves_an_earlier_prompt_as_it_was_and_edit_with_a_text_says_it_instead(chat):
    async with chat(["First."], ["Second."], ["Third."]).opened(size=(60, 20)) as (talk, pilot):
        await talked(talk, pilot, "one")
        await pilot.press("f2", "x")
        assert talk.live == wording("enter_says_instead_esc_leaves_all")
        await pilot.press("escape")
        assert talk.typed == ""
        await say(pilot, "two")
        await until(pilot, lambda: talk.replies() == ["First.", "Second."] and talk.idle())
        assert list(conversations(talk)) == [1]
        await say(pilot, "/edit another one")
        await until(pilot, lambda: talk.replies() == ["First.", "Third."] and talk.idle())
        assert talk.prompts() == ["one", "another one"]
    assert conversations(talk)[2] == [("one", "First."), ("another one", "Third.")]


@pytest.mark.parametrize("how", ["escape", "refused"])
async def test_where_nothing_comes_of_another_answer_the_one_before_is_there_again(chat, how):
    gate = threading.Event()
    again = [UsageMistake("It is too long.")] if how == "refused" else [gate, Prefill(5, 5), "Second."]
    async with chat(["First."], again, ["Third."]).opened() as (talk, pilot):
        await talked(talk, pilot, "one")
        await pilot.press("f5")
        if how != "refused":
            await until(pilot, lambda: len(talk.engine.asked) == 2 and talk.thread.buffer.accepted)
            await pilot.press(how)
            gate.set()
        await until(pilot, lambda: talk.idle() and talk.replies() == ["First."])
        assert talk.prompts() == ["one"] and talk.typed == ""
        await talked(talk, pilot, "two")
        assert talk.replies() == ["First.", "Third."]
    assert conversations(talk) == {1: [("one", "First."), ("two", "Third.")]}
    assert [message["content"] for message in talk.engine.asked[2]] == ["one", "First.", "two"]


async def test_where_nothing_comes_of_another_prompt_it_is_being_changed_again(chat):
    gate = threading.Event()
    async with chat(["First."], [gate, Prefill(5, 5), "Second."], ["Third."]).opened() as (talk, pilot):
        await talked(talk, pilot, "one")
        await pilot.press("f2", "!", "enter")
        await until(pilot, lambda: len(talk.engine.asked) == 2 and talk.thread.buffer.accepted)
        await pilot.press("escape")
        gate.set()
        await until(pilot, lambda: talk.idle() and talk.replies() == ["First."])
        assert talk.prompts() == ["one"] and talk.typed == "one!"
        assert talk.live == wording("enter_says_instead_esc_leaves_all")
        await pilot.press("enter")
        await until(pilot, lambda: talk.idle() and talk.replies() == ["Third."])
    assert list(conversations(talk).values()) == [[("one", "First.")], [("one!", "Third.")]]


async def test_during_a_reply_and_before_the_first_it_is_refused(chat):
    gate = threading.Event()
    async with chat(["Half", gate, "."]).opened() as (talk, pilot):
        for key in ("f5", "f2"):
            await pilot.press(key)
            await until(pilot, lambda: wording("nothing_was_said_yet") in talk.screen_text())
            talk.app.clear_notifications()
            await until(pilot, lambda: wording("nothing_was_said_yet") not in talk.screen_text())
        await say(pilot, "one")
        await until(pilot, lambda: talk.replies() == ["Half"])
        for key in ("f5", "f2"):
            await pilot.press(key)
            await until(pilot, lambda: wording("a_reply_is_under_way") in talk.screen_text())
            talk.app.clear_notifications()
            await until(pilot, lambda: wording("a_reply_is_under_way") not in talk.screen_text())
        gate.set()
        await until(pilot, talk.idle)
        assert talk.replies() == ["Half."]


async def test_another_answer_is_requested_behind_a_prompt_that_is_on_its_way(chat):
    """Otherwise the new answer would replace a prompt that was just sent."""
    gate = threading.Event()
    async with chat(["One."], [gate, "Two."]).opened() as (talk, pilot):
        await talked(talk, pilot, "first")
        talk.app._chat.post_message(Prompt.Sent("second"))
        await talk.app.run_action("again", talk.app._chat)
        await until(pilot, lambda: any("being written" in toast.message for toast in talk.app.toasts))
        gate.set()
        await until(pilot, lambda: talk.replies() == ["One.", "Two."] and talk.idle())
        assert talk.prompts() == ["first", "second"]


async def test_an_answer_that_comes_out_the_same_makes_no_branch(chat):
    talk = chat(["First."], ["Second."], ["First."], ["After."])
    talk.engine.generation = {"do_sample": True}
    async with talk.playing() as pilot:
        await talked(talk, pilot, "one")
        await pilot.press("f5")
        await until(pilot, lambda: talk.replies() == ["Second."] and talk.idle())
        await pilot.press("f5")
        await until(pilot, lambda: wording("same_answer") in " ".join(talk.screen_text().split()) and talk.idle())
        [remedy] = [toast.message for toast in talk.app.toasts if wording("same_answer") in toast.message]
        assert remedy.endswith("; ask again, or use other words."), "at temperature 1 a higher one is no remedy"
        assert talk.replies() == ["Second."], "an older answer is one of those before"
        await say(pilot, "two")
        await until(pilot, lambda: talk.replies() == ["Second.", "After."] and talk.idle())
    assert conversations(talk) == {1: [("one", "First.")], 2: [("one", "Second."), ("two", "After.")]}


async def test_a_new_conversation_begins_with_the_first_settings(chat):
    async with chat(["One."], ["Two."]).opened() as (talk, pilot):
        await say(pilot, "/set temperature 0.5")
        await say(pilot, "/system You are a pirate.")
        await talked(talk, pilot, "one")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [])
        await talked(talk, pilot, "two")
    assert [sampling.temperature for sampling, _ in talk.engine.asked_with] == [0.5, 0.0]
    assert [[message["role"] for message in asked] for asked in talk.engine.asked] == [["system", "user"], ["user"]]
