"""What is told for a moment: on the title of the chat, or in lines of its own."""

import asyncio

import pytest
from clocks import PATIENCE
from golden import wording
from textual.screen import ModalScreen
from textual.widgets import Tooltip
from textual.widgets._footer import FooterKey
from textual.widgets._toast import Toast
from tui.scripted_engine import say, talked, until

from localspec_tui import messages
from localspec_tui.app import SMALL, TOASTS
from localspec_tui.screens.conversations import ConversationsScreen
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.keys_footer import KeysFooter


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
def test_they_lie_on_the_title_and_move_nothing(chat, size):
    talk = chat(["One line.\n\n" * 40])

    def shown():
        return [toast for toast in talk.app.screen.query(Toast) if toast.region.height]

    async def story(pilot):
        await talked(talk, pilot, "Go on.")
        screen = talk.app.screen
        before = talk.screen_text().split("\n")
        screen.notify(wording("holds_from_next_reply"), title="Sampling", markup=False)
        await until(pilot, shown)
        (toast,) = shown()
        assert (toast.region.height, toast.region.y, toast.region.right) == (1, 0, size[0])
        after = talk.screen_text().split("\n")
        assert wording("sampling_holds_from_next_reply") in after[0]
        assert after[1:] == before[1:], "nothing but the title is covered, and nothing moves"
        talk.app.notify("A longer one, " * 12, markup=False)
        await until(pilot, lambda: "A longer one" in talk.screen_text())
        assert min(toast.region.y for toast in shown()) == 0
        one = size[0] < SMALL[0]
        assert len(shown()) == (1 if one else 2)
        assert sum(toast.region.height for toast in shown()) <= 4
        below = screen.query_one(ConversationView).region.bottom
        assert talk.screen_text().split("\n")[below:] == before[below:], "the figures and the prompt stay"
        assert max(toast.region.bottom for toast in shown()) < below / 2
        talk.app.clear_notifications()
        await until(pilot, lambda: talk.screen_text().split("\n") == before)

    talk.play(story, size=size)


def test_what_is_to_be_done_stays_in_sight(chat):
    talk = chat()

    async def story(pilot):
        await talked(talk, pilot, "Go on.")
        talk.app.notify(wording("holds_from_next_reply"), markup=False)
        await pilot.press("f2")
        await until(
            pilot,
            lambda: "It holds from" in talk.screen_text() and wording("leaves_all_as_it_is") in talk.screen_text(),
        )

    talk.play(story)


def test_where_another_way_is_kept_is_told_once_and_alone(chat):
    talk = chat(*([f"Reply {number}."] for number in range(4)))

    async def story(pilot):
        await talked(talk, pilot, "one")
        await pilot.press("f5")
        await until(pilot, lambda: talk.replies() == ["Reply 1."] and talk.idle())
        assert [sentence[:16] for sentence in told(talk)] == ["At temperature 0"]
        talk.app.clear_notifications()
        for number, sentences in ((2, ["What was said before stays in conversation 2 (ctrl+r)."]), (3, [])):
            await say(pilot, f"/edit {number}")
            await until(pilot, lambda number=number: talk.replies() == [f"Reply {number}."] and talk.idle())
            assert told(talk) == sentences
            talk.app.clear_notifications()

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
        talk.app.post_message(messages.Copied(wording("if_nothing_can_pasted_text", path=path)))
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
            await until(pilot, lambda: wording("nothing_was_said_yet") in talk.screen_text())
            later = asyncio.Event()
            talk.app.screen.set_timer(0.4, later.set)
            await later.wait()
            assert not tooltip.display

    try:
        asyncio.run(story())
    finally:
        assert talk.thread.close(PATIENCE)
