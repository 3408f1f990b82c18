"""A race in the chat, next to the conversation: live, played back, and stopped at any time."""

import re
import threading

import pytest
from clocks import PATIENCE
from golden import wording
from reply_statistics import said
from scripted_models import scripted_model
from textual.widgets import Input
from tui.scripted_engine import say, talked, until

from localspec import Engine, Limits, config
from localspec.bench.race import LIVE, REPLAYED, Lane
from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.events import Done, Prefill, Text
from localspec.models import registry
from localspec.store.store import Store
from localspec_tui.current_conversation import run_race
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.race import RaceScreen


@pytest.fixture
def races(monkeypatch):
    """races(gate): replace the drafters of a race by scripted ones, and record their requests."""
    asked = []

    def make(gate=None, ids=(1, 2, 3), error=None):
        def stream(words):
            yield Prefill(3, 3)
            for number, word in enumerate(words):
                yield Text(word, (number,), ("target",), 0.1, number)
                if gate is not None and number == 1:
                    assert gate.wait(PATIENCE)
            yield Done("stop", said(ids if words[0] == "fast" else (1, 2, 3)))

        def opponents(engine, prompt, system, settings):
            asked.append((prompt, system))
            if error:
                raise error
            return [Lane("plain decoding"), Lane("with phrases")], [
                stream(["plain", " one", " two"]),
                stream(["fast", " and", " safe\x1b[2J".replace("\x1b", "␛")]),
            ]

        monkeypatch.setattr("localspec.bench.race.opponents", opponents)
        return asked

    return make


def shows(talk, text):
    return lambda: text in talk.screen_text()


def under_way(talk):
    return lambda: "plain one" in talk.screen_text() or "fast and" in talk.screen_text()


def rules(talk):
    """Return the lines between the parts of its table."""
    return [line.strip() for line in talk.screen_text().split("\n") if "┼" in line]


async def test_a_race_with_a_prompt_of_its_own(chat, races):
    gate = threading.Event()
    asked, talk = races(gate), chat(settings=Settings(system="Be [kind]."))
    async with talk.playing() as pilot:
        await say(pilot, "/race Tell [me]")
        await until(pilot, lambda: isinstance(talk.app.screen, RaceScreen) and talk.app.screen._lanes)
        talk.app.screen.on_resize()  # before anything was drawn
        await until(pilot, shows(talk, LIVE))
        await until(pilot, under_way(talk))
        assert talk.app.focused is None and "Play again" not in talk.screen_text()
        gate.set()
        await until(pilot, shows(talk, wording("both_texts_are_the_same")))
        await until(pilot, shows(talk, "f5 Play again"))
        page = talk.screen_text()
        assert (
            "Race: Tell [me]" in page
            and "fast and safe␛[2J" in page
            and re.search(r"with\s+phrases,\s+and", page)
            and REPLAYED in page
        )
        await pilot.resize_terminal(60, 24)  # the race is over, but it is drawn once more
        await until(pilot, lambda: [len(rule) == 2 * rule.index("┼") + 1 < 60 for rule in rules(talk)] == [True, True])
        await pilot.press("f5")
        await until(pilot, shows(talk, wording("both_texts_are_the_same")))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(talk.app.screen, ChatScreen))
    assert asked == [("Tell [me]", "Be [kind].")]
    assert talk.engine.asked == [] and talk.kept() == []


async def test_another_prompt_races_from_there(chat, races):
    asked, talk = races(), chat()
    async with talk.playing(size=(60, 20)) as pilot:
        await say(pilot, "/race first")
        await until(pilot, shows(talk, wording("both_texts_are_the_same")))
        assert "f9 Another prompt" in talk.screen_text()
        page = talk.screen_text()
        await pilot.press("f9")
        await until(pilot, lambda: isinstance(talk.app.focused, Input) and "⏎ Begin" in talk.screen_text())
        assert "Another prompt" not in talk.screen_text() and talk.app.focused.value == "first"
        assert REPLAYED in talk.screen_text() and wording("both_texts_are_the_same") in talk.screen_text()
        await pilot.press(*"other", "escape")
        await until(pilot, lambda: talk.screen_text() == page)
        await pilot.press("f9")
        await until(pilot, lambda: isinstance(talk.app.focused, Input))
        await pilot.press("end", "ctrl+u")
        await pilot.press(*"second", "enter")
        await until(pilot, shows(talk, "Race: second"))
        await until(pilot, lambda: len(asked) == 2 and wording("both_texts_are_the_same") in talk.screen_text())
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(talk.app.screen, ChatScreen))
    assert [prompt for prompt, _ in asked] == ["first", "second"]


async def test_a_prompt_that_names_a_file_is_proposed_as_it_was_typed(chat, races, tmp_path):
    asked, talk = races(), chat(["One."])
    (tmp_path / "notes.txt").write_text("Many words.")
    typed = f"What is in @{tmp_path / 'notes.txt'}"
    async with talk.playing() as pilot:
        await talked(talk, pilot, typed)
        await pilot.press("f9")
        await until(pilot, lambda: isinstance(talk.app.screen, RaceScreen) and talk.app.focused is not None)
        assert talk.app.screen.query_one(Input).value == typed
        await pilot.press("enter")
        await until(pilot, shows(talk, wording("both_texts_are_the_same")))
        await pilot.press("escape")
        (tmp_path / "notes.txt").unlink()
        await say(pilot, f"/race {typed}")
        await until(pilot, lambda: re.search(r"cannot[\s▌]+be[\s▌]+read", talk.screen_text()))  # perhaps on two lines
    assert asked[0][0] == talk.engine.asked[0][-1]["content"] and asked[0][0].startswith("Many words.")
    assert len(asked) == 1


async def test_it_can_be_stopped_and_left(chat, races):
    gate = threading.Event()
    races(gate)
    async with chat(["One."]).opened() as (talk, pilot):
        await say(pilot, "/race go")
        await until(pilot, under_way(talk))
        await pilot.press("escape")
        gate.set()
        await until(pilot, shows(talk, wording("the_race_was_stopped")))
        await pilot.press("f5")
        assert REPLAYED not in talk.screen_text()
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(talk.app.screen, ChatScreen))
        await say(pilot, "Still there?")
        await until(pilot, lambda: talk.replies() == ["One."])


async def test_while_the_second_engine_loads_it_says_so(chat, monkeypatch):
    gate = threading.Event()
    talk = chat()

    def opponents(*_):
        assert gate.wait(PATIENCE)
        raise LocalspecError("Nothing can race here.")

    monkeypatch.setattr("localspec.bench.race.opponents", opponents)
    monkeypatch.setattr("localspec.serving.socket_engine.in_this_process", lambda engine: engine)
    async with talk.playing() as pilot:
        await say(pilot, "/race go")
        await until(pilot, shows(talk, wording("loading_engine_beside_one_answers")))
        gate.set()
        await until(pilot, shows(talk, "Nothing can race here."))
        assert "Loading" not in talk.screen_text()


async def test_where_it_cannot_be_or_the_texts_part_it_says_so(chat, races):
    gate = threading.Event()
    races(error=LocalspecError("There is no room for two."))
    async with chat([gate, "One."]).opened() as (talk, pilot):
        await say(pilot, "first")
        await pilot.press("f9")
        await until(pilot, shows(talk, wording("race_waits_until_reply_under_way")))
        gate.set()
        await until(pilot, talk.idle)
        await say(pilot, "/race go")
        await until(pilot, shows(talk, "There is no room for two."))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(talk.app.screen, ChatScreen))
        races(ids=(1, 9, 3))
        await say(pilot, "/race go")
        await until(pilot, shows(talk, wording("texts_part_token_2")))


@pytest.mark.slow
def test_a_model_for_which_drafting_does_not_pay_races_with_phrases(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    pieces = [f"{word} ".encode() for word in ("one", "two", "three", "four")]
    model = scripted_model(tmp_path / "words", pieces, again=0, context=2000).path
    settings = config.load(flags={"drafter": "none", "max_tokens": 24, "seed": 1})
    engine, posted = Engine.open(settings, registry.resolve(str(model))), []
    assert not engine.choice.nodes
    run_race(engine, "Count!", None, settings, threading.Event(), posted.append)
    begun, ended = posted
    assert (
        ended.over and begun.lanes[1].name == "with phrases" and wording("both_texts_are_the_same") in ended.sentences
    )


@pytest.mark.slow
def test_a_race_during_a_conversation_that_continues(tmp_path, monkeypatch):
    """On real engines: a race gives the same texts as separate replies, and leaves nothing behind."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    pieces = [f"{word} ".encode() for word in ("one", "two", "three", "four")]
    model = scripted_model(tmp_path / "words", pieces, again=0, context=2000).path
    settings = config.load(flags={"drafter": "phrases", "draft_max": 4, "max_tokens": 24, "seed": 1})
    with Store.open(tmp_path / "kept.db", pytest.fail) as store:
        engine = Engine.open(settings, registry.resolve(str(model)), store=store)
        list(engine.chat([{"role": "user", "content": "Count!"}], engine.sampling(settings), Limits(12)))
        before = [*engine.session.tokens], engine.session.cache.length, store.phrases.pools()[0].phrases
        posted = []
        run_race(engine, "Count again!", None, settings, threading.Event(), posted.append)
        begun, ended = posted
        assert ended.over and wording("both_texts_are_the_same") in ended.sentences
        assert [lane.until()[0] for lane in begun.lanes] == ["one two three four " * 6] * 2
        assert begun.lanes[1].statistics.steps < begun.lanes[0].statistics.steps
        assert before == ([*engine.session.tokens], engine.session.cache.length, store.phrases.pools()[0].phrases)
