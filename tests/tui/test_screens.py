"""The screens behind keys: new and earlier conversations, other models, the system prompt."""

import threading
import weakref

import pytest
from clocks import PATIENCE
from textual.widgets import OptionList
from tui.scripted_engine import ScriptedEngine, card, say, until

from localspec.checkpoint import Checkpoint
from localspec.config import Settings
from localspec.errors import DoesNotFit, LocalspecError, UsageMistake
from localspec.events import Prefill
from localspec.models import registry
from localspec.store.history import ConversationInfo, Found
from localspec.store.store import Store
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.conversations import ConversationsScreen


def back(talk):
    return lambda: isinstance(talk.app.screen, ChatScreen)


# -- conversations -----------------------------------------------------------------------------------------------------


def test_ctrl_n_begins_anew(chat):
    talk = chat(["One."], ["Two."])

    async def story(pilot):
        await say(pilot, "first")
        await until(pilot, talk.idle)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [])
        assert "first" not in talk.screen_text()
        await say(pilot, "second")
        await until(pilot, talk.idle)
        assert talk.prompts() == ["second"]

    talk.play(story)
    assert len(talk.engine.asked[1]) == 1
    assert [turn[0] for turn in talk.kept()] == ["second"]


def test_ctrl_n_in_mid_reply_stops_and_keeps_it(chat):
    gate = threading.Event()
    talk = chat(["Half", gate, ""])

    async def story(pilot):
        await say(pilot, "first")
        await until(pilot, lambda: talk.replies() == ["Half"])
        await pilot.press("ctrl+n")
        gate.set()
        await until(pilot, lambda: talk.prompts() == [])

    talk.play(story)
    assert talk.kept() == [("first", "Half", "interrupted")]


def test_ctrl_r_goes_on_with_an_earlier_one(chat):
    talk = chat(["Reply about [cats]."], ["Reply about dogs."], ["More on cats."])

    async def story(pilot):
        for prompt in ("Say [cats]", "Say dogs"):
            await say(pilot, prompt)
            await until(pilot, talk.idle)
            await pilot.press("ctrl+n")
            await until(pilot, lambda: talk.prompts() == [])
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Say [cats]" in talk.screen_text())
        assert talk.screen_text().index("Say dogs") < talk.screen_text().index("Say [cats]")
        await pilot.press("down", "enter")
        await until(pilot, lambda: talk.replies() == ["Reply about [cats]."])
        await until(pilot, back(talk))
        assert "Say [cats]" in talk.screen_text().splitlines()[0]
        await say(pilot, "Go on")
        await until(pilot, talk.idle)

    talk.play(story)
    assert [turn[0] for turn in talk.kept()] == ["Say [cats]", "Go on"]
    assert [message["content"] for message in talk.engine.asked[-1]] == ["Say [cats]", "Reply about [cats].", "Go on"]


def test_conversations_are_searched_by_what_was_said(chat):
    talk = chat(["The capital is Vienna."], ["A poem."])

    async def story(pilot):
        for prompt in ("Geography", "Write"):
            await say(pilot, prompt)
            await until(pilot, talk.idle)
            await pilot.press("ctrl+n")
            await until(pilot, lambda: talk.prompts() == [])
        await pilot.press("ctrl+r", *"vienna")
        await until(pilot, lambda: "The capital is Vienna." in talk.screen_text())
        await until(pilot, lambda: "Write" not in talk.screen_text())
        await pilot.press("enter")
        await until(pilot, lambda: talk.replies() == ["The capital is Vienna."])

    talk.play(story)


def test_what_was_looked_for_last_counts(chat):
    begun, gate = threading.Event(), threading.Event()

    class Slow:
        """A history whose first search takes longest."""

        def conversations(self, limit):
            return []

        def search(self, words, limit):
            if words == "a":
                begun.set()
                assert gate.wait(PATIENCE)
            return [Found(ConversationInfo(1, f"found for {words}", "scripted", 0.0, 0.0, 1), 1, "…")]

    talk = chat()

    async def story(pilot):
        talk.app._chat._history = Slow()
        await pilot.press("ctrl+r", "a")
        await until(pilot, begun.is_set)
        await pilot.press("b")
        await until(pilot, lambda: "found for ab" in talk.screen_text())
        gate.set()
        for _ in range(10):
            await pilot.pause(0.01)
        assert "found for ab" in talk.screen_text()
        await pilot.press("escape")

    talk.play(story)


def test_titles_and_what_was_found_are_text(chat):
    talk = chat(["found [bold]here[/] [/]"], first="[red]title[/red] [/]")

    async def story(pilot):
        await until(pilot, talk.idle)
        await pilot.press("ctrl+r", *"here")
        await until(pilot, lambda: "found [bold]here[/] [/]" in talk.screen_text())
        assert talk.screen_text().count("[red]title[/red] [/]") >= 2  # in the line at the top, and in the list

    talk.play(story)


def test_nothing_found_is_said_and_escape_goes_back(chat):
    talk = chat()

    async def story(pilot):
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "No conversation is kept here yet." in talk.screen_text())
        await pilot.press(*"zebra")
        await until(pilot, lambda: "Nothing was found." in talk.screen_text())
        await pilot.press("enter", "up", "down", "escape")
        await until(pilot, back(talk))

    talk.play(story)


def test_a_click_chooses_a_conversation(chat):
    talk = chat(["Hello."])

    async def story(pilot):
        await say(pilot, "first")
        await until(pilot, talk.idle)
        await pilot.press("ctrl+n", "ctrl+r")
        await until(pilot, lambda: isinstance(talk.app.screen, ConversationsScreen) and "1 turn" in talk.screen_text())
        await pilot.click("OptionList", offset=(4, 0))
        await until(pilot, lambda: talk.replies() == ["Hello."])

    talk.play(story)


def test_a_conversation_that_was_deleted_meanwhile_is_told(chat):
    talk = chat(["Hello."])

    async def story(pilot):
        await say(pilot, "first")
        await until(pilot, talk.idle)
        await pilot.press("ctrl+n", "ctrl+r")
        await until(pilot, lambda: isinstance(talk.app.screen, ConversationsScreen) and "1 turn" in talk.screen_text())
        talk.app._chat._history.remove([1])
        await pilot.press("enter")
        await until(pilot, lambda: "There is no conversation 1 here" in talk.screen_text())

    talk.play(story)


def test_resuming_shows_what_was_said_and_gives_an_unanswered_prompt_back(chat):
    before = chat(["Answered."], [LocalspecError("It broke before anything was said.")])

    async def first(pilot):
        await say(pilot, "one")
        await until(pilot, before.idle)

    before.play(first)
    before.engine.asked.clear()
    with_unanswered = chat()

    def leave_unanswered(notice, progress):
        # What a process leaves behind that was killed.
        with_unanswered.conversation._history.say(1, "two", model="scripted", system=None)

    with_unanswered.models["scripted"] = [leave_unanswered, with_unanswered.engine]

    async def second(pilot):
        pass

    with_unanswered.play(second)
    talk = chat(["At last."])
    talk.resumed = 1

    async def story(pilot):
        await until(pilot, lambda: talk.typed == "two")
        assert talk.prompts() == ["one"]
        await pilot.press("enter")
        await until(pilot, talk.idle)

    talk.play(story)
    assert talk.kept() == [("one", "Answered.", "stop"), ("two", "At last.", "stop")]


def test_a_reply_that_was_cut_off_by_a_kill_says_so(chat):
    before = chat()

    def leave_half(notice, progress):
        _, turn = before.conversation._history.say(None, "one", model="scripted", system=None)
        before.conversation._history.write(turn, "Half of")

    before.models["scripted"] = [leave_half, before.engine]

    async def nothing(pilot):
        pass

    before.play(nothing)
    talk = chat()
    talk.resumed = 1

    async def story(pilot):
        await until(pilot, lambda: talk.replies() == ["Half of"])
        assert "(cut off" in talk.screen_text()

    talk.play(story)


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def models(monkeypatch):
    def show(*names, broken=()):
        found = Checkpoint(card("x").path, {}, "LlamaForCausalLM", (), 8_000_000, 16_000_000)
        entries = [(card(name), LocalspecError("It is [damaged].") if name in broken else found) for name in names]
        monkeypatch.setattr(registry, "installed", lambda: iter(entries))

    return show


def test_ctrl_o_lets_another_model_answer(chat, models):
    models("bro[ken]", "scripted", "bro[ken] too", "other", broken=["bro[ken]", "bro[ken] too"])
    talk = chat(["One."])
    talk.models["other"] = other = ScriptedEngine(["Two."])

    async def story(pilot):
        await say(pilot, "first")
        await until(pilot, talk.idle)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "scripted (answers now)" in talk.screen_text())
        assert talk.app.screen.query_one(OptionList).highlighted == 1
        assert "It is [damaged]." in talk.screen_text()
        await pilot.press("down", "enter")
        await until(pilot, lambda: "localspec · other" in talk.screen_text())
        await say(pilot, "second")
        await until(pilot, talk.idle)
        assert talk.replies() == ["One.", "Two."]

    talk.play(story)
    assert len(other.asked[0]) == 3
    with Store.open(talk.database, print) as store:
        assert store.history.read(1).info.model == str(card("other").path)
    assert talk.loaded == ["scripted", "other"]


def test_a_model_given_by_its_directory_is_in_the_list_and_answers_now(chat, models):
    models("other")
    talk = chat()

    async def story(pilot):
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "scripted (answers now)" in talk.screen_text())
        assert str(card("scripted").path) in talk.screen_text()
        assert "other (answers now)" not in talk.screen_text()
        assert talk.app.screen.query_one(OptionList).highlighted == 0

    talk.play(story)


def test_a_reply_under_way_is_stopped_for_another_model(chat, models):
    models("scripted", "other")
    gate = threading.Event()
    talk = chat(["Half", gate, Prefill(5, 5), "never"])
    talk.models["other"] = ScriptedEngine(["Two."])

    async def story(pilot):
        await say(pilot, "first")
        await until(pilot, lambda: talk.replies() == ["Half"])
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "answers now" in talk.screen_text())
        await pilot.press("down", "enter")
        await until(pilot, lambda: talk.live == "stopping")
        gate.set()
        await until(pilot, lambda: "localspec · other" in talk.screen_text())
        assert talk.replies() == ["Half"]

    talk.play(story)
    assert talk.kept() == [("first", "Half", "interrupted")]


def test_escape_keeps_the_model(chat, models):
    models("scripted", "other")
    talk = chat()

    async def story(pilot):
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "answers now" in talk.screen_text())
        await pilot.press("down", "escape")
        await until(pilot, back(talk))

    talk.play(story)
    assert talk.loaded == ["scripted"]


def test_the_model_before_is_dropped_first_and_loaded_again_where_the_other_fails(chat, models):
    models("scripted", "other")
    talk = chat(["One."])
    held = []

    def look(notice, progress):
        held.append(talk.thread._engine)

    talk.models["other"] = [look, DoesNotFit("other needs 99.0 GiB.")]

    async def story(pilot):
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "answers now" in talk.screen_text())
        await pilot.press("down", "enter")
        await until(pilot, lambda: "✗ other needs 99.0 GiB." in talk.screen_text())
        await until(pilot, talk.idle)
        assert "localspec · scripted" in talk.screen_text()
        await say(pilot, "first")
        await until(pilot, lambda: talk.replies() == ["One."])

    talk.play(story)
    assert held == [None]
    assert talk.loaded == ["scripted", "other", "scripted"]


def test_nothing_of_a_refused_model_is_left_when_the_one_before_is_loaded_again(chat, models):
    models("scripted", "other")
    talk = chat()
    left = []

    def refuse(settings):
        raise UsageMistake("--top-p has no effect with other.")

    def load_other(notice, progress):
        engine = ScriptedEngine()
        engine.sampling = refuse
        left.append(weakref.ref(engine))
        talk.models["other"].append(engine)

    def look(notice, progress):
        left[1:] = [reference() for reference in left[:1]]

    talk.models["other"] = [load_other]
    talk.models["scripted"] = [look, talk.engine]

    async def story(pilot):
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "answers now" in talk.screen_text())
        await pilot.press("down", "enter")
        await until(pilot, lambda: "--top-p has no effect" in talk.screen_text())
        await until(pilot, talk.idle)

    real = talk.thread._loading

    def loading(*about, **more):
        try:
            return real(*about, **more)
        finally:
            talk.models["other"] = [load_other]

    talk.thread._loading = loading
    talk.play(story)
    assert left[1] is None


def test_where_no_model_can_be_loaded_any_more_it_is_said(chat, models):
    models("scripted", "other")
    talk = chat()
    engines = [talk.engine]

    def load_once(notice, progress):
        if not engines:
            raise DoesNotFit("scripted fits no more.")

    talk.models["scripted"] = [load_once, talk.engine]
    talk.models["other"] = [DoesNotFit("other needs 99.0 GiB.")]

    async def story(pilot):
        engines.clear()
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "answers now" in talk.screen_text())
        await pilot.press("down", "enter")
        await until(pilot, lambda: "✗ scripted fits no more." in talk.screen_text())
        assert "no model is loaded" in talk.live

    talk.play(story)


def test_a_registry_that_cannot_be_read_is_told(chat, monkeypatch):
    def broken():
        raise LocalspecError("models.toml, line 1: [this] is not TOML.")

    monkeypatch.setattr(registry, "installed", broken)
    talk = chat()

    async def story(pilot):
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "[this] is not TOML" in talk.screen_text())
        await pilot.press("enter", "escape")
        await until(pilot, back(talk))

    talk.play(story)


# -- the system prompt -------------------------------------------------------------------------------------------------


def test_ctrl_s_sets_the_system_prompt(chat):
    talk = chat(["Aye."], ["Plain."], settings=Settings(system="Be brief."))

    async def story(pilot):
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "Be brief." in talk.screen_text())
        await pilot.press("f7", *"Talk like", "enter", *"a pirate.", "ctrl+s")
        await until(pilot, back(talk))
        await say(pilot, "Hi")
        await until(pilot, talk.idle)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "a pirate." in talk.screen_text())
        await pilot.press("f7", "space", "ctrl+s")
        await until(pilot, back(talk))
        await say(pilot, "Ho")
        await until(pilot, talk.idle)

    talk.play(story)
    assert talk.engine.asked[0][0] == {"role": "system", "content": "Talk like\na pirate."}
    assert talk.engine.asked[1][0]["role"] == "user"


def test_escape_leaves_the_system_prompt_as_it_was(chat):
    talk = chat(["Aye."], settings=Settings(system="Be brief."))

    async def story(pilot):
        await pilot.press("ctrl+s", *"not this", "escape")
        await until(pilot, back(talk))
        await say(pilot, "Hi")
        await until(pilot, talk.idle)

    talk.play(story)
    assert talk.engine.asked[0][0] == {"role": "system", "content": "Be brief."}
