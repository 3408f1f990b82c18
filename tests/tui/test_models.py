"""The list of models: installed ones, downloads, and those that do not fit; and switching to another model."""

import asyncio
import threading
import weakref
from dataclasses import replace

import pytest
from clocks import PATIENCE
from golden import wording
from machines import BILLION, SEVEN, cpu, machine, unfetched
from textual.widgets import OptionList
from tui.scripted_engine import ScriptedEngine, back, card, say, talked, until

from localspec.chat import model_list
from localspec.errors import DoesNotFit, LocalspecError, UsageMistake
from localspec.events import Prefill
from localspec.models import registry
from localspec.store.store import Store
from localspec_tui.screens import dialogs
from localspec_tui.screens.models import ModelsScreen
from localspec_tui.widgets.download_line import DownloadLine
from localspec_tui.widgets.keys_panel import KeysFooter


async def test_ctrl_o_lets_another_model_answer(chat, models):
    models("bro[ken]", "scripted", "bro[ken] too", "other", broken=["bro[ken]", "bro[ken] too"])
    gate = threading.Event()
    talk = chat(["One."], ["Half", gate, Prefill(5, 5), "never"])
    talk.engine.choice.pace = ("about 61.3 tokens/s", "1.8× faster with drafts")
    talk.models["other"] = other = ScriptedEngine(["Two."])
    async with talk.playing(size=(140, 30)) as pilot:
        await until(pilot, lambda: "cpu · about 61.3 tokens/s · 1.8× faster with drafts" in talk.screen_text())
        await talked(talk, pilot, "first")
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "MiB · about 61.3 tokens/s · 1.8× faster with drafts" in talk.screen_text())
        assert "scripted (answers now)" in talk.screen_text()
        assert talk.app.screen.query_one(OptionList).highlighted == 2, "below a heading and what is broken"
        assert "It is [damaged]." in talk.screen_text()
        await pilot.press("down", "escape")
        await until(pilot, back(talk))
        await say(pilot, "half")
        await until(pilot, lambda: talk.replies() == ["One.", "Half"])
        assert talk.loaded == ["scripted"], "Escape keeps the model"
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "answers now" in talk.screen_text())
        await pilot.press("down", "enter")
        await until(pilot, lambda: talk.live == "stopping")
        gate.set()
        await until(pilot, lambda: "localspec · other" in talk.screen_text() and talk.idle())
        await talked(talk, pilot, "second")
        assert talk.replies() == ["One.", "Half", "Two."]
    assert talk.kept()[1:] == [("half", "Half", "interrupted"), ("second", "Two.", "stop")]
    assert len(other.asked[0]) == 5
    with Store.open(talk.database, print) as store:
        assert store.history.read(1).info.model == str(card("other").path)
    assert talk.loaded == ["scripted", "other"]


async def test_a_model_given_by_its_directory_is_in_the_list_and_answers_now(chat, models):
    models("other")
    async with chat().opened() as (talk, pilot):
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "scripted (answers now)" in talk.screen_text())
        assert str(card("scripted").path) in talk.screen_text()
        assert "other (answers now)" not in talk.screen_text()
        assert talk.app.screen.query_one(OptionList).highlighted == 1


async def test_the_model_before_is_dropped_first_and_loaded_again_where_the_other_fails(chat, models):
    models("scripted", "other")
    talk = chat(["One."])
    held = []

    def look(notice, progress):
        held.append(talk.thread.model.engine)

    talk.models["other"] = [look, DoesNotFit("other needs 99.0 GiB.")]
    async with talk.playing() as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "answers now" in talk.screen_text())
        await pilot.press("down", "enter")
        await until(pilot, lambda: "✗ other needs 99.0 GiB." in talk.screen_text())
        await until(pilot, talk.idle)
        assert "localspec · scripted" in talk.screen_text()
        await say(pilot, "first")
        await until(pilot, lambda: talk.replies() == ["One."])
    assert held == [None]
    assert talk.loaded == ["scripted", "other", "scripted"]


async def test_nothing_of_a_refused_model_is_left_when_the_one_before_is_loaded_again(chat, models):
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
    real = talk.thread.model._loading

    def loading(*about, **more):
        try:
            return real(*about, **more)
        finally:
            talk.models["other"] = [load_other]

    talk.thread.model._loading = loading
    async with talk.playing() as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "answers now" in talk.screen_text())
        await pilot.press("down", "enter")
        await until(pilot, lambda: "--top-p has no effect" in talk.screen_text())
        await until(pilot, talk.idle)
    assert left[1] is None


async def test_where_no_model_can_be_loaded_any_more_it_is_reported(chat, models):
    models("scripted", "other")
    talk = chat()
    engines = [talk.engine]

    def load_once(notice, progress):
        if not engines:
            raise DoesNotFit("scripted fits no more.")

    talk.models["scripted"] = [load_once, talk.engine]
    talk.models["other"] = [DoesNotFit("other needs 99.0 GiB.")]
    async with talk.playing() as pilot:
        engines.clear()
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "answers now" in talk.screen_text())
        await pilot.press("down", "enter")
        await until(pilot, lambda: "✗ scripted fits no more." in talk.screen_text())
        assert wording("no_model_is_loaded") in talk.live


async def test_an_unreadable_registry_is_reported(chat, monkeypatch):
    def broken():
        raise LocalspecError("models.toml, line 1: [this] is not TOML.")

    monkeypatch.setattr(registry, "installed", broken)
    async with chat().opened() as (talk, pilot):
        await pilot.press("ctrl+o")
        await until(pilot, lambda: wording("this_is_not_toml") in talk.screen_text())
        await pilot.press("enter", "escape")
        await until(pilot, back(talk))


@pytest.fixture
def offered(monkeypatch) -> list[str]:
    """Return the downloads that the chat would ask the hub about, without asking it."""
    names: list[str] = []
    monkeypatch.setattr(DownloadLine, "offer", lambda line, model: names.append(model))
    return names


def lines(talk) -> list[str]:
    """Return the list, and nothing around it."""
    found = talk.app.screen.query_one(OptionList)
    return [line for option in found.options for line in str(option.prompt).splitlines() if line]


def highlighted(talk) -> str:
    option = talk.app.screen.query_one(OptionList).highlighted_option
    return str(option.prompt).splitlines()[0] if option else ""


async def test_three_parts_in_order_and_a_search_as_one_types(chat, models, offered):
    talk = chat()
    seven = replace(unfetched(SEVEN, "seven"), license="Own [terms]")
    seven = replace(seven, entry=replace(seven.entry, gated=True))
    billion = unfetched(BILLION, "bil[lion]")
    models(
        "scripted", "other", elsewhere=[replace(seven, name="heavy"), replace(billion, license="Own [terms]\x1b[2J")]
    )
    async with talk.playing() as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: wording("does_not_fit_this_machine") in lines(talk))
        found = lines(talk)
        assert found[0] == "Here" and found[1] == "scripted (answers now)" and found[3] == "other"
        assert found[5:7] == [wording("fits_machine_can_downloaded"), "bil[lion] (recommended)"]
        assert found[7].startswith("2.3 GiB download · about ") and found[7].endswith("Own [terms]␛[2J")
        assert found[8:10] == [wording("does_not_fit_this_machine"), wording("heavy_gated_terms_must_accepted")]
        assert found[10].startswith("needs ") and found[10].endswith(wording("gib_5_4_gib_may_used"))
        assert highlighted(talk) == "scripted (answers now)"
        await pilot.press("up", "up")  # wraps around, past models that cannot be chosen
        assert highlighted(talk) == "other"
        await pilot.press("pagedown")
        assert highlighted(talk) == "bil[lion] (recommended)"
        await pilot.press("pageup")
        assert highlighted(talk) == "scripted (answers now)"
        await pilot.press(*"heavy")
        await until(pilot, lambda: len(lines(talk)) == 3)
        await pilot.press("enter")
        assert isinstance(talk.app.screen, ModelsScreen), "what does not fit is not chosen"
        await pilot.press(*["backspace"] * 5, *"terms d")
        await until(pilot, lambda: highlighted(talk) == "bil[lion] (recommended)")
        await pilot.press("enter")
        await until(pilot, back(talk))
    assert offered == ["bil[lion]"] and talk.loaded == ["scripted"]


async def test_a_name_of_the_hub_is_looked_up_there(chat, models, offered):
    talk = chat()
    models("scripted")
    async with talk.playing() as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: lines(talk) and "Checking which" not in talk.screen_text())
        await pilot.press(*"org")
        await until(pilot, lambda: lines(talk) == [wording("nothing_found_org_name_looks_one")])
        await pilot.press("enter", *"/name")
        await until(pilot, lambda: highlighted(talk) == "org/name")
        await pilot.press("enter")
        await until(pilot, back(talk))
    assert offered == ["org/name"]


async def test_what_does_not_fit_can_be_inspected(chat, models):
    talk = chat()
    models("scripted", elsewhere=[unfetched(BILLION, "fits"), *(unfetched(SEVEN, f"large {n}") for n in range(9))])
    async with talk.playing(size=(80, 24)) as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "large 0" in talk.screen_text())
        await pilot.press("down", "down")
        await until(pilot, lambda: "large 8" in talk.screen_text())
        assert highlighted(talk) == "fits (recommended)"
        await pilot.press("down")
        assert highlighted(talk) == "scripted (answers now)"
        await pilot.press("pagedown", "pagedown")
        await until(pilot, lambda: "large 8" in talk.screen_text() and highlighted(talk) == "fits (recommended)")
        await pilot.press("pageup", "pageup")
        await until(pilot, lambda: "Here" in talk.screen_text().split())


async def test_what_is_here_can_be_chosen_while_the_machine_is_inspected(chat, models, monkeypatch):
    gate, talk = threading.Event(), chat()
    talk.models["other"] = ScriptedEngine()
    models("scripted", "other")

    def look(bandwidth):
        assert gate.wait(PATIENCE)
        return machine(cpu(6, bandwidth=None))

    monkeypatch.setattr(model_list, "this_machine", look)
    async with talk.playing() as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: wording("looking_what_fits_machine") in talk.screen_text() and len(lines(talk)) == 5)
        await pilot.press("down")
        assert highlighted(talk) == "other"
        gate.set()
        await until(pilot, lambda: wording("localspec_doctor_measures_this") in talk.screen_text())
        assert highlighted(talk) == "other", "the list that comes later leaves the place"
        await pilot.click(OptionList, offset=(3, 3))
        await until(pilot, lambda: talk.loaded == ["scripted", "other"])


async def test_what_is_looked_for_comes_back_to_a_screen_that_is_leaving(chat, models, monkeypatch):
    """Widgets are removed one by one and the screen last, so a worker of it runs until then."""
    gate, talk = threading.Event(), chat()
    models("scripted", "other")

    def look(bandwidth):
        assert gate.wait(PATIENCE)
        return machine(cpu(6))

    class SlowFooter(KeysFooter):
        async def on_unmount(self):
            gate.set()
            await asyncio.sleep(0.3)  # the result is on its way

    monkeypatch.setattr(model_list, "this_machine", look)
    monkeypatch.setattr(dialogs, "KeysFooter", SlowFooter)
    async with talk.playing() as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: len(lines(talk)) == 5)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(talk.app.screen, ModelsScreen))
        await talked(talk, pilot, "still here")
