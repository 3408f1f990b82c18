"""Short notices: in the title of the chat, or in separate lines."""

import pytest
from golden import wording
from textual.screen import ModalScreen
from tui.scripted_engine import say, talked, until

from localspec_tui import messages
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.keys_panel import KeysFooter


def told(talk):
    return [toast.message for toast in talk.app.toasts]


async def test_one_at_a_time(chat):
    async with chat().opened() as (talk, pilot):
        for text in ("one", "two", "one", "three", "three"):
            talk.app.notify(text, markup=False)
        await until(pilot, lambda: told(talk) == ["three"])


async def test_they_stay_with_their_screen(chat):
    async with chat().opened() as (talk, pilot):
        talk.app.notify("of the chat", markup=False)
        await until(pilot, lambda: told(talk))
        await talk.app.push_screen(ModalScreen())
        await until(pilot, lambda: told(talk) == [])
        talk.app.notify("of the dialog", markup=False)
        await until(pilot, lambda: told(talk))
        talk.app.pop_screen()
        await until(pilot, lambda: told(talk) == [])


@pytest.mark.parametrize("size", [(60, 20), (140, 40)])
async def test_they_lie_on_the_title_and_move_nothing(chat, size):
    talk = chat(["One line.\n\n" * 40])

    def shown():
        return [toast for toast in talk.app.screen.query("Toast") if toast.region.height]

    async with talk.playing(size=size) as pilot:
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
        assert len(shown()) == 1
        assert sum(toast.region.height for toast in shown()) <= 4
        below = screen.query_one(ConversationView).region.bottom
        assert talk.screen_text().split("\n")[below:] == before[below:], "the figures and the prompt stay"
        assert max(toast.region.bottom for toast in shown()) < below / 2
        talk.app.clear_notifications()
        await until(pilot, lambda: talk.screen_text().split("\n") == before)


async def test_what_is_to_be_done_stays_in_sight(chat):
    async with chat().opened() as (talk, pilot):
        await talked(talk, pilot, "Go on.")
        talk.app.notify(wording("holds_from_next_reply"), markup=False)
        await pilot.press("f2")
        await until(
            pilot, lambda: "applies from" in talk.screen_text() and wording("leaves_all_as_it_is") in talk.screen_text()
        )


async def test_where_the_earlier_branch_stays_is_reported_once_and_by_itself(chat):
    async with chat(*([f"Reply {number}."] for number in range(4))).opened() as (talk, pilot):
        await talked(talk, pilot, "one")
        await pilot.press("f5")
        await until(pilot, lambda: talk.replies() == ["Reply 1."] and talk.idle())
        assert [sentence[:16] for sentence in told(talk)] == ["At temperature 0"]
        talk.app.clear_notifications()
        for number, sentences in ((2, ["The conversation so far stays in conversation 2 (ctrl+r)."]), (3, [])):
            await say(pilot, f"/edit {number}")
            await until(pilot, lambda number=number: talk.replies() == [f"Reply {number}."] and talk.idle())
            assert told(talk) == sentences
            talk.app.clear_notifications()


async def test_nor_what_stands_in_a_dialog(chat):
    async with chat().opened(size=(60, 20)) as (talk, pilot):
        await talked(talk, pilot, "Go on.")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Go on (open)" in talk.screen_text() and talk.app.screen is not talk.app._chat)
        talk.app.notify("The download is complete.", markup=False)
        screen = talk.app.screen
        await until(pilot, lambda: screen.query("Toast") and screen.query_one("Toast").region.height)
        toast, panel, footer = screen.query_one("Toast"), screen.query_one(".panel"), screen.query_one(KeysFooter)
        for size in ((60, 20), (140, 40)):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda size=size: screen.size == size)
            assert not toast.region.overlaps(panel.region) and not toast.region.overlaps(footer.region)


@pytest.mark.parametrize("columns", [60, 140])
async def test_the_path_of_what_was_copied_is_broken_between_its_names(chat, columns):
    talk = chat()
    path = "/home/somebody/.local/share/localspec/data/of/" + "a/long/name/" * 10 + "copied.txt"
    async with talk.playing(size=(columns, 24)) as pilot:
        talk.app.post_message(messages.Copied(wording("if_nothing_can_pasted_text", path=path)))
        await until(pilot, lambda: "copied.txt" in talk.screen_text())
        lines = [line.strip() for line in str(talk.app.screen.query_one("Toast").render()).splitlines()]
        names = lines[[line.startswith("/home") for line in lines].index(True) :]
        assert max(map(len, names)) <= talk.app.screen.query_one("Toast").content_size.width, (
            "or Textual would break them"
        )
        assert "".join(names) == path and all(name.endswith("/") for name in names[:-1]) and len(names) > 1
