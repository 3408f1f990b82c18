"""The line of keys at the bottom of every screen: important keys first, none cut off, and the others under F1."""

import pytest
from clocks import PATIENCE
from reply_statistics import said
from tui.drafted_replies import drafted_reply
from tui.scripted_engine import back, say, talked, until
from tui.test_conversations import keep
from tui.test_snapshots import ScriptedFetch, registered

from localspec.bench.race import Lane, Moment
from localspec.errors import DoesNotFit
from localspec.store.phrases import pack_key, pack_tokens
from localspec.store.store import Store
from localspec_tui import current_conversation, messages
from localspec_tui.widgets.keys_panel import KeysFooter

CHAT_60 = "⏎ Send  ^q Quit  ^n New  ^r Resume  f1 Keys    ▏^p palette"
CHAT_80 = "⏎ Send  ^q Quit  ^n New  ^r Resume  ^o Model  f4 Figures  f1 Keys  ▏^p palette"
SMALL, USUAL = (60, 20), (80, 24)
FIELD = "^s Save  esc Back  f1 Keys"


def footer(talk) -> str:
    return talk.screen_text().rpartition("\n")[2].strip()


@pytest.fixture
def full(chat, models, tmp_path, monkeypatch):
    """Return a chat that has something of everything that it can show."""
    monkeypatch.setattr("localspec_tui.fetch_thread.FetchThread", ScriptedFetch)
    talk = chat()
    models("scripted", "other", elsewhere=list(registered()))
    keep(talk, "One question", "and another", days=3)
    with Store.open(talk.database, pytest.fail) as store:
        pool = store.phrases.pool("/models/scripted", "hash", tmp_path)
        phrases = [(pack_key(n, n + 1), b"", pack_tokens([n + 2, n + 3])) for n in range(4)]
        store.phrases.learn(pool, phrases, conversation=1)
    talk.engine.scripts = [drafted_reply(talk.engine)]
    return talk


OPENED = {
    "conversations": (
        ["ctrl+r"],
        "⏎ Resume  esc Back  f2 Rename  ^d Delete  f1 Keys",
        "⏎ Resume  esc Back  f2 Rename  ^d Delete  ^s Export  f8 Delete older  f1 Keys",
    ),
    "renaming": (["ctrl+r", "f2"], *["⏎ Save  esc Cancel  f1 Keys"] * 2),
    "deleting": (["ctrl+r", "ctrl+d"], *["y Yes  n No  f1 Keys"] * 2),
    "models": (["ctrl+o"], *["⏎ Choose  esc Back  f1 Keys"] * 2),
    "phrases": (
        ["f8"],
        "esc Back  ^d Delete  f7 Delete this chat's  f1 Keys",
        "esc Back  ^d Delete  f7 Delete this chat's  f8 Delete all  f1 Keys",
    ),
    "x-ray": (["ctrl+t"], *["tab Next step  esc Back  ^q Quit  f1 Keys"] * 2),
    "race": (["f9"], *["⏎ Begin  esc Back  ^q Quit  f1 Keys"] * 2),
    "sampling": (["f3"], *["⏎ Save  esc Back  f1 Keys"] * 2),
    "system prompt": (["ctrl+s"], FIELD, FIELD),
}
HIDDEN = {
    "conversations": ["ctrl+s Export", "f8 Delete older", "down Next", "up Previous"],
    "models": ["pgdn Page down", "pgup Page up"],
    "phrases": ["f8 Delete all"],
    "sampling": ["ctrl+s Save", "up Field above", "down Field below"],
}


@pytest.mark.parametrize("name", OPENED)
async def test_what_opens_above_the_chat(full, name):
    keys, small, usual = OPENED[name]
    async with full.playing(size=USUAL) as pilot:
        await talked(full, pilot, "Hi")
        for key in keys:
            await pilot.press(key)
            await until(pilot, lambda: "⏎ Send" not in footer(full))
            await pilot.pause(0.05)
        await until(pilot, lambda: footer(full) == usual)
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: footer(full) == small)
        before = full.app.screen
        await pilot.press("f1")
        await until(pilot, lambda: footer(full) == "esc Back")
        words = ""
        for _ in range(2):  # the second time at its end
            words += " ".join(full.screen_text().split())
            await pilot.press("end")
            await pilot.pause()
        assert [one for one in [*HIDDEN.get(name, []), "ctrl+q Quit"] if one not in words] == []
        await pilot.press("f1")
        await until(pilot, lambda: full.app.screen is before and footer(full) == small)


async def test_the_chat_without_a_model_with_its_panel_and_its_keys(chat):
    talk = chat()
    talk.models["scripted"] = [DoesNotFit("scripted needs 14.2 GiB of memory and 3.1 GiB are free.")]
    async with talk.playing(size=USUAL, ready=False) as pilot:
        await until(pilot, lambda: "✗" in talk.screen_text())
        for size, expected in ((USUAL, CHAT_80), (SMALL, CHAT_60)):
            await pilot.resize_terminal(*size)
            for key in ("", "f4", "f4", "f1", "f1"):
                await pilot.press(*filter(None, [key]))
                await until(pilot, lambda expected=expected: footer(talk) == expected)


async def test_a_download_is_asked_about_and_can_be_stopped(full):
    async with full.playing(size=SMALL) as pilot:
        full.app._chat.download.offer("llama-1b")
        await until(pilot, lambda: footer(full) == "⏎ Download  esc Back  f1 Keys")
        await pilot.press("enter")
        await until(pilot, back(full))
        await pilot.press("ctrl+o")
        await until(pilot, lambda: footer(full) == "⏎ Choose  esc Back  ^x Stop the download  f1 Keys")


async def test_a_race_is_stopped_or_left_or_seen_once_more(chat, monkeypatch):
    talk = chat()
    lanes = [Lane("plain decoding"), Lane("with phrases")]
    for lane in lanes:
        lane.moments, lane.seconds, lane.statistics = [Moment(0.01, "Snow.", 1)], 0.01, said(range(1))

    def run(engine, prompt, system, settings, stop, post):
        post(messages.RaceStarted(lanes))
        assert stop.wait(PATIENCE)
        post(messages.RaceEnded(["It is over."], True))

    monkeypatch.setattr(current_conversation, "run_race", run)
    async with talk.playing(size=USUAL) as pilot:
        await say(pilot, "/race Tell me of snow")
        await until(pilot, lambda: footer(talk) == "esc Stop  ^q Quit  f1 Keys")
        await pilot.press("escape")
        whole = "esc Back  f5 Play again  f9 Another prompt  ^q Quit  f1 Keys"
        await until(pilot, lambda: footer(talk) == whole)
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: footer(talk) == whole.replace("^q Quit  ", ""))
        await pilot.press("escape")
        await until(pilot, back(talk))


async def test_keys_that_stay_the_same_are_not_composed_again(chat):
    """Bindings are refreshed at each change of focus; to make and style each key then took a third of a test's time."""
    talk = chat()
    async with talk.playing(size=USUAL) as pilot:
        await until(pilot, lambda: footer(talk) == CHAT_80)
        shown = talk.app.screen.query_one(KeysFooter)
        keys = [*shown.children]
        for _ in range(3):
            talk.app.screen.refresh_bindings()
            await pilot.pause(0.05)
        assert [id(key) for key in shown.children] == [id(key) for key in keys]
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: footer(talk) == CHAT_60)
        assert not {*keys} & {*shown.children}
