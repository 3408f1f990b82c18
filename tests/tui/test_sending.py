"""The fate of a prompt: sent, waiting, stopped, refused."""

import threading

import pytest
from golden import wording
from textual.events import Key
from tui.scripted_engine import say, statistics, talked, until

from localspec.config import Settings
from localspec.errors import DoesNotFit, UsageMistake
from localspec.events import Done, Prefill, Text


@pytest.mark.slow
@pytest.mark.quick
async def test_enter_sends_what_says_something_and_the_reply_is_shown_and_kept(chat):
    async with chat(["Hello ", "there."]).opened() as (talk, pilot):
        await pilot.press("enter", "space", "ctrl+j", "space", "enter")
        assert talk.typed == " \n "
        await pilot.press("f7")
        await say(pilot, "Hi")
        await until(pilot, lambda: talk.replies() == ["Hello there."] and talk.idle())
        assert talk.prompts() == ["Hi"]
        assert talk.typed == ""
        assert "Hello there." in talk.screen_text()
        assert "40 tok/s" in talk.live
    assert talk.kept() == [("Hi", "Hello there.", "stop")]
    assert [asked[-1]["content"] for asked in talk.engine.asked] == ["Hi"]


async def test_reading_is_shown_and_a_reply_is_visible_while_it_grows(chat):
    gates = threading.Event(), threading.Event()
    held_back = Text("", (1,), ("target",), 0.1, 0)
    talk = chat([Prefill(512, 2048), gates[0], Prefill(900, 900), held_back, "Half of ", "it", gates[1], ", whole."])
    async with talk.playing() as pilot:
        await say(pilot, "Go")
        await until(pilot, lambda: "reading 512 of 2,048 tokens" in talk.live)
        gates[0].set()
        await until(pilot, lambda: talk.replies() == ["Half of it"])
        assert "Half of it" in talk.screen_text()
        await until(pilot, lambda: "context 88 %" in talk.live)
        gates[1].set()
        await until(pilot, lambda: talk.replies() == ["Half of it, whole."])


async def test_a_reply_that_goes_round_is_pointed_out_with_the_key_that_stops_it(chat):
    gates = threading.Event(), threading.Event()
    circles = ["The same thing over and over again. " * 12, gates[0], "At last, another one.", gates[1]]
    async with chat(circles, settings=Settings(keymap={"chat.stop": "f12"})).opened() as (talk, pilot):
        await say(pilot, "Tell me")
        await until(pilot, lambda: talk.live.startswith("the reply repeats itself: f12 stops it · "))
        gates[0].set()
        await until(pilot, lambda: "At last" in talk.replies()[0] and "repeats" not in talk.live)
        gates[1].set()
        await until(pilot, talk.idle)


async def test_omitted_turns_and_the_reason_for_no_drafts_are_shown(chat):
    off = Done("stop", statistics(1, off_reason="drafts cost more than they save"))
    talk = chat([Prefill(3, 9, 2), Prefill(9, 9, 2), "Short memory.", off])
    async with talk.playing(size=(140, 30)) as pilot:
        await talked(talk, pilot, "What did I say first?")
        assert talk.screen_text().count(wording("the_context_is_full")) == 1
        await pilot.press("f4")
        await until(pilot, lambda: "drafting paused: drafts cost" in talk.screen_text())


async def test_a_prompt_waits_until_the_model_is_loaded_and_escape_takes_it_back(chat):
    gate = threading.Event()
    talk = chat(["At last."])
    talk.models["scripted"] = [gate, talk.engine]
    async with talk.playing(ready=False) as pilot:
        await until(pilot, lambda: "loading scripted" in talk.live)
        await say(pilot, "Too early")
        await pilot.press("escape")
        assert talk.typed == "Too early" and "waiting (" not in talk.screen_text()
        await pilot.press("enter", *"else", "escape")
        assert talk.typed == "else"
        await pilot.press("up")
        assert talk.typed == "Too early", "it is not lost where something else is typed"
        await pilot.press("f7")
        await say(pilot, "Are you there?")
        await until(pilot, lambda: "prompt waiting (esc takes it back): Are you there?" in talk.screen_text())
        assert talk.prompts() == []
        gate.set()
        await until(pilot, lambda: talk.replies() == ["At last."])
        assert "takes it back" not in talk.screen_text()
    assert len(talk.engine.asked) == 1


async def test_prompts_that_wait_are_asked_in_turn(chat):
    gate = threading.Event()
    async with chat(["One", gate, "."], ["Two."], ["Three."]).opened() as (talk, pilot):
        await say(pilot, "a")
        await until(pilot, lambda: talk.replies() == ["One"])
        await say(pilot, "b")
        await say(pilot, "c")
        await until(pilot, lambda: "2 prompts waiting (esc takes them back): b · c" in talk.screen_text())
        gate.set()
        await until(pilot, talk.idle)
        assert talk.prompts() == ["a", "b", "c"]
        assert talk.replies() == ["One.", "Two.", "Three."]
    assert [asked[-1]["content"] for asked in talk.engine.asked] == ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.quick
async def test_letters_and_enter_that_come_in_one_burst_keep_their_order(chat):
    """A paste without brackets, or a slow line: no key may overtake another."""
    async with chat(["One."], ["Two."]).opened() as (talk, pilot):
        for key in ("a", "b", "enter", "c", "ctrl+j", "d", "backspace", "e", "left", "f", "enter", "x"):
            talk.app.simulate_key(key) if len(key) > 1 else talk.app.post_message(Key(key, key))
        await until(pilot, lambda: talk.replies() == ["One.", "Two."])
        assert talk.prompts() == ["ab", "c\nfe"]
        assert talk.typed == "x"


async def test_a_stopped_reply_keeps_what_was_said_and_the_conversation_continues(chat):
    gates = threading.Event(), threading.Event()
    talk = chat(["So far ", "so good", gates[0], " never"], ["Part", gates[1], " never"], ["Whole."])
    async with talk.playing() as pilot:
        for gate, key, said in zip(gates, ("escape", "ctrl+c"), ("So far so good", "Part"), strict=True):
            await say(pilot, key)
            await until(pilot, lambda said=said: talk.replies()[-1:] == [said])
            await pilot.press(key)
            assert talk.live == "stopping"
            gate.set()
            await until(pilot, talk.idle)
            assert talk.replies()[-1].startswith(said)
            assert "(stopped)" in talk.screen_text()
        await say(pilot, "two")
        await until(pilot, lambda: talk.replies()[2:] == ["Whole."])
    kept = talk.kept()
    assert [(prompt, reason) for prompt, _, reason in kept[:2]] == [
        ("escape", "interrupted"),
        ("ctrl+c", "interrupted"),
    ]
    assert kept[0][1].startswith("So far so good") and kept[1][1].startswith("Part") and kept[2][0] == "two"
    assert talk.engine.asked[2][1]["role"] == "assistant"


async def test_stopped_before_the_first_token_the_prompt_is_given_back_but_not_over_what_is_typed(chat):
    gates = threading.Event(), threading.Event()
    talk = chat(*([gate, Prefill(5, 5), "never seen"] for gate in gates))  # the current step is finished
    async with talk.playing() as pilot:
        for gate, typed, left in zip(gates, ("", "else"), ("Hm", "else"), strict=True):
            await say(pilot, "Hm")
            await until(pilot, lambda: talk.prompts() == ["Hm"])
            await pilot.press(*typed, "escape")
            gate.set()
            await until(pilot, talk.idle)
            assert talk.prompts() == talk.replies() == []
            assert talk.typed == left
            await pilot.press("f7", "delete")


async def test_without_a_reply_escape_does_nothing_and_ctrl_c_says_how_to_quit(chat):
    async with chat().opened() as (talk, pilot):
        await pilot.press(*"abc", "escape", "d")
        assert talk.typed == "abcd"
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "q quits." in talk.screen_text())


async def test_a_refused_prompt_leaves_no_trace_and_is_given_back(chat):
    talk = chat(["Answered."], [UsageMistake("The prompt is [too] long; shorten it.")], ["Better."])
    async with talk.playing() as pilot:
        await talked(talk, pilot, "one", "Long")
        assert talk.prompts() == ["one"] and talk.replies() == ["Answered."]
        assert wording("prompt_too_long_shorten") in talk.screen_text()
        assert talk.typed == "Long"
        await pilot.press("enter")
        await until(pilot, lambda: talk.replies() == ["Answered.", "Better."])
    assert talk.kept() == [("one", "Answered.", "stop"), ("Long", "Better.", "stop")]


async def test_a_reply_that_fails_keeps_what_was_said_and_one_that_is_empty_gives_the_prompt_back(chat):
    talk = chat(["As far as ", "this", DoesNotFit(wording("context_9_tokens_does_fit"))], [])
    async with talk.playing() as pilot:
        await talked(talk, pilot, "Go")
        assert talk.replies() == ["As far as this"]
        assert wording("context_9_tokens_does_fit_2") in talk.screen_text()
        await talked(talk, pilot, "Anybody?")
        assert wording("reply_is_empty") in talk.screen_text()
        assert talk.typed == "Anybody?"
    assert talk.kept()[0] == ("Go", "As far as this", "interrupted")


@pytest.mark.parametrize(
    ("most", "message"), [(3, wording("at_its_limit_of_tokens")), (None, wording("the_context_was_full"))]
)
async def test_a_reply_at_its_limit_says_so(chat, most, message):
    talk = chat(["As long as allowed", Done("length", statistics())], settings=Settings(max_tokens=most))
    async with talk.playing() as pilot:
        await talked(talk, pilot, "Go")
        assert message in " ".join(talk.screen_text().replace("│", " ").split())


@pytest.mark.quick
def test_an_unexpected_failure_ends_the_chat_with_the_conversation_kept(chat):
    talk = chat(["Said before ", "it broke", ZeroDivisionError("secret prompt")])

    async def story(pilot):
        await say(pilot, "Go")
        await until(pilot, lambda: talk.app.failure is not None)

    with pytest.raises(ZeroDivisionError):
        talk.play(story)
    assert isinstance(talk.app.failure, ZeroDivisionError)
    assert talk.app.return_code == 1
    assert talk.kept() == [("Go", "Said before it broke", "interrupted")]


async def test_closing_in_mid_reply_keeps_it(chat):
    gate = threading.Event()
    talk = chat(["Kept ", "so far", gate, ""])
    # The model is in the middle of a step when the chat is closed.
    threading.Thread(target=lambda: talk.thread._leaving.wait() and gate.set()).start()
    async with talk.playing() as pilot:
        await say(pilot, "Go")
        await until(pilot, lambda: talk.replies() == ["Kept so far"])
        await pilot.press("ctrl+q")
    assert talk.kept() == [("Go", "Kept so far", "interrupted")]


async def test_a_first_prompt_is_asked_at_once_with_the_files_and_is_shown_as_it_is(chat):
    hostile = "**not bold** [red]\x1b]0;title\x07 \x9b2J[/]\n# no heading"
    async with chat(["Read."], ["Again."], first=hostile, files="contents").opened(ready=False) as (talk, pilot):
        await until(pilot, lambda: talk.replies() == ["Read."] and talk.idle())
        assert wording("the_files_of_file") in talk.screen_text()
        below_the_title = talk.screen_text().partition("\n")[2]
        assert "**not bold** [red]␛]0;title␇ \ufffd2J[/]" in below_the_title
        assert "# no heading" in below_the_title
        await talked(talk, pilot, "And now?")
        assert talk.prompts()[1:] == ["And now?"]
    assert talk.engine.asked[0][-1]["content"].startswith("contents\n\n**not bold**")
    assert talk.engine.asked[1][-1]["content"] == "And now?"


async def test_files_wait_for_a_prompt_and_are_not_lost_where_it_is_refused(chat):
    async with chat([UsageMistake("Too long.")], ["Read."], files="contents").opened() as (talk, pilot):
        await until(pilot, lambda: wording("text_files_goes_before_next") in talk.screen_text())
        await talked(talk, pilot, "Hi")
        assert talk.typed == "Hi"
        await pilot.press("enter")
        await until(pilot, lambda: talk.prompts() == ["Hi"] and talk.idle())
    assert [asked[-1]["content"] for asked in talk.engine.asked] == ["contents\n\nHi"] * 2


async def test_what_is_not_kept_and_notices_from_the_opening_are_reported_at_the_top(chat):
    talk = chat(["Off the record."], settings=Settings(log=False))
    talk.notices = ["conversations are saved in [a file\x1b[2J] (only you can read it)."]
    async with talk.playing() as pilot:
        assert wording("nothing_is_kept_2") in talk.screen_text()
        assert wording("what_said_kept_file_2j") in talk.screen_text()
        await talked(talk, pilot, "Secret")
    assert talk.kept() == []


@pytest.mark.parametrize("where", ["opening", "model"])
async def test_a_mistake_on_the_command_line_ends_the_chat(chat, where):
    talk = chat()
    mistake = UsageMistake("There is no conversation 9 here.")
    if where == "opening":
        talk.opening_error = mistake
    else:
        talk.models["scripted"] = [mistake]
    async with talk.playing(ready=False) as pilot:
        await until(pilot, lambda: talk.app.failure is not None)
    assert talk.app.failure is mistake


async def test_a_model_that_does_not_fit_leaves_a_chat_that_can_choose_another(chat):
    talk = chat()
    talk.models["scripted"] = [DoesNotFit("scripted needs 99.0 GiB.")]
    async with talk.playing(ready=False) as pilot:
        await until(pilot, lambda: "✗ scripted needs 99.0 GiB." in talk.screen_text())
        assert "ctrl+o chooses another" in talk.live
        await say(pilot, "Hi")
        await until(pilot, lambda: "waiting (" in talk.screen_text())
    assert talk.app.failure is None
