"""What is told for a moment, above the conversation."""

from textual.screen import ModalScreen
from textual.widgets._toast import Toast
from tui.scripted_engine import until

from localspec_tui.app import TOASTS
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
