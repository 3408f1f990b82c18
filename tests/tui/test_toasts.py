"""What is told for a moment, in lines of its own."""

import asyncio

import pytest
from clocks import PATIENCE
from textual.screen import ModalScreen
from textual.widgets import Tooltip
from textual.widgets._footer import FooterKey
from textual.widgets._toast import Toast
from tui.scripted_engine import talked, until

from localspec_tui import messages
from localspec_tui.app import TOASTS
from localspec_tui.screens.conversations import ConversationsScreen
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.keys_footer import KeysFooter
from localspec_tui.widgets.live_line import LiveLine
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.side_panel import SidePanel
from localspec_tui.widgets.status_line import TopLine


def told(talk):
    return [toast.message for toast in talk.app._notifications]


def test_few_at_a_time_and_none_twice(chat):
    talk = chat()

    async def story(pilot):
        for text in ("one", "two", "one", "three", "three"):
            talk.app.notify(text, markup=False)
        await until(pilot, lambda: told(talk) == ["one", "three"])
        assert len(told(talk)) == TOASTS

    talk.play(story)


def test_they_stay_with_their_screen(chat):
    talk = chat()

    async def story(pilot):
        talk.app.notify("of the chat", markup=False)
        await until(pilot, lambda: told(talk))
        await talk.app.push_screen(ModalScreen())
        assert told(talk) == []
        talk.app.notify("of the dialog", markup=False)
        await until(pilot, lambda: told(talk))
        talk.app.pop_screen()
        assert told(talk) == []

    talk.play(story)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (140, 40)])
def test_they_cover_nothing(chat, size):
    talk = chat(["One line.\n\n" * 40])

    def shown():
        return [toast for toast in talk.app.screen.query(Toast) if toast.region.height]

    async def story(pilot):
        await talked(talk, pilot, "Go on.")
        screen = talk.app.screen
        line = screen.query_one(LiveLine)
        before = talk.screen_text()
        screen.notify("It holds from the next reply on.", title="Sampling", markup=False)
        await until(pilot, lambda: shown() and not line.display)
        (toast,), others = shown(), (TopLine, ConversationView, SidePanel, Prompt, KeysFooter)
        assert toast.region.height == 1, "that of the figures"
        assert not [one for kind in others for one in screen.query(kind) if one.region.overlaps(toast.region)]
        words = [
            text.replace("Sampling: It holds from the next reply on.", "") for text in talk.screen_text().split("\n")
        ]
        assert sum(a != b for a, b in zip(words, before.split("\n"), strict=True)) == 1, "nothing else moved"
        talk.app.notify("A longer one, " * 20, markup=False)
        await until(pilot, lambda: len(shown()) == 2)
        assert not [
            one
            for kind in others
            for one in screen.query(kind)
            for toast in shown()
            if one.region.overlaps(toast.region)
        ]
        talk.app.clear_notifications()
        await until(pilot, lambda: line.display and talk.screen_text() == before)

    talk.play(story, size=size)


def test_what_is_to_be_done_stays_in_sight(chat):
    talk = chat()

    async def story(pilot):
        await talked(talk, pilot, "Go on.")
        talk.app.notify("It holds from the next reply on.", markup=False)
        await pilot.press("f2")
        await until(
            pilot, lambda: "It holds from" in talk.screen_text() and "leaves all as it is" in talk.screen_text()
        )

    talk.play(story)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (140, 40)])
def test_nor_what_stands_in_a_dialog(chat, size):
    talk = chat()

    async def story(pilot):
        await talked(talk, pilot, "Go on.")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Go on." in talk.screen_text() and talk.app.screen is not talk.app._chat)
        talk.app.notify("The download is complete.", markup=False)
        screen = talk.app.screen
        await until(pilot, lambda: screen.query(Toast) and screen.query_one(Toast).region.height)
        toast, panel, footer = screen.query_one(Toast), screen.query_one(".panel"), screen.query_one(KeysFooter)
        assert not toast.region.overlaps(panel.region) and not toast.region.overlaps(footer.region)

    talk.play(story, size=size)


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_path_of_what_was_copied_is_broken_between_its_names(chat, columns):
    talk = chat()
    path = "/home/somebody/.local/share/localspec/data/of/" + "a/long/name/" * 10 + "copied.txt"

    async def story(pilot):
        talk.app.post_message(messages.Copied(f"If nothing can be pasted, the text is in {path}"))
        await until(pilot, lambda: "copied.txt" in talk.screen_text())
        lines = [line.strip() for line in str(talk.app.screen.query_one(Toast).render()).splitlines()]
        names = lines[[line.startswith("/home") for line in lines].index(True) :]
        assert max(map(len, names)) <= talk.app.screen.query_one(Toast).content_size.width, (
            "or Textual would break them"
        )
        assert "".join(names) == path and all(name.endswith("/") for name in names[:-1]) and len(names) > 1

    talk.play(story, size=(columns, 24))


def test_what_was_about_to_be_told_of_a_key_is_not_told_above_what_it_opens(chat, monkeypatch):
    talk = chat()

    async def story() -> None:
        async with talk.app.run_test(size=(100, 30), tooltips=True) as pilot:
            await until(pilot, talk.idle)
            below = talk.app.screen
            (key,) = (one for one in below.query(FooterKey) if one.action == "conversations")
            assert key.tooltip
            monkeypatch.setattr(talk.app, "TOOLTIP_DELAY", 0.2)
            await pilot.hover(key)
            await pilot.click(key)  # which the pointer does not leave
            assert below._tooltip_timer is not None
            await until(pilot, lambda: isinstance(talk.app.screen, ConversationsScreen))
            later = asyncio.Event()
            below.set_timer(2 * talk.app.TOOLTIP_DELAY, later.set)
            await later.wait()
            assert not below.get_child_by_type(Tooltip).display

    try:
        asyncio.run(story())
    finally:
        assert talk.thread.close(PATIENCE)


@pytest.mark.slow
def test_nor_above_what_came_of_it(chat, monkeypatch):
    talk = chat()

    async def story() -> None:
        async with talk.app.run_test(size=(140, 30), tooltips=True, notifications=True) as pilot:
            await until(pilot, talk.idle)
            (key,) = (one for one in talk.app.screen.query(FooterKey) if one.action == "again")
            tooltip = talk.app.screen.get_child_by_type(Tooltip)
            monkeypatch.setattr(talk.app, "TOOLTIP_DELAY", 0.2)
            await pilot.hover(key)
            await pilot.click(key)
            await until(pilot, lambda: "Nothing was said yet." in talk.screen_text())
            later = asyncio.Event()
            talk.app.screen.set_timer(0.4, later.set)
            await later.wait()
            assert not tooltip.display

    try:
        asyncio.run(story())
    finally:
        assert talk.thread.close(PATIENCE)
