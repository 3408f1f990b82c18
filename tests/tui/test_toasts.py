"""What is told for a moment, above the conversation."""

import asyncio

import pytest
from clocks import PATIENCE
from textual.screen import ModalScreen
from textual.widgets import Tooltip
from textual.widgets._footer import FooterKey
from textual.widgets._toast import Toast
from tui.scripted_engine import until

from localspec_tui import messages
from localspec_tui.app import TOASTS
from localspec_tui.screens.conversations import ConversationsScreen
from localspec_tui.widgets.side_panel import SidePanel


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


def test_they_do_not_cover_the_figures_of_the_panel(chat):
    talk = chat()

    async def story(pilot):
        panel = talk.app._chat.query_one(SidePanel)
        await until(pilot, lambda: panel.display and panel.region.width)
        talk.app.notify("It holds from the next reply on.", markup=False)
        await until(pilot, lambda: talk.app.screen.query(Toast) and talk.app.screen.query_one(Toast).region.width)
        assert not talk.app.screen.query_one(Toast).region.overlaps(panel.region)

    talk.play(story)


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_path_of_what_was_copied_is_broken_between_its_names(chat, columns):
    talk = chat()
    path = "/home/somebody/.local/share/localspec/data/of/a/long/name/copied.txt"

    async def story(pilot):
        talk.app.post_message(messages.Copied(f"If it took nothing, the text is in {path}"))
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
