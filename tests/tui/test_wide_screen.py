"""A terminal of 200 columns and 50 lines: text lines stay readable, and small parts stay small."""

from textual.containers import Vertical
from textual.widgets import OptionList, Static
from tui.scripted_engine import talked, until
from tui.test_conversations import keep
from tui.test_snapshots import REPLY, registered

from localspec_tui.screens.palette import Palette
from localspec_tui.widgets.message_view import MessageView, NoticeView
from localspec_tui.widgets.xray_view import XRayView

SIZE = (200, 50)
TEXT, DIALOG = 100, 90  # columns
AROUND = 2  # lines of a dialog below its content


async def test_no_line_of_text_is_longer_than_100_columns(chat):
    async with chat([REPLY + "\n\n" + "word and " * 60]).opened(size=SIZE) as (talk, pilot):
        prompts = [line for line in talk.screen_text().splitlines() if line.lstrip()[:2] in ("1 ", "2 ", "3 ")]
        assert len(prompts) == 3
        await talked(talk, pilot, "Write " + "a quicksort " * 30)
        await talk.app._chat.view.tell("A sentence of localspec's own. " * 12)
        await pilot.pause()
        for view in talk.app.query(MessageView):
            assert all(text.content_size.width <= TEXT for text in view.query(Static)), view
        assert talk.app.query_one(NoticeView).content_size.width <= TEXT
        await pilot.press("ctrl+t")
        await until(pilot, lambda: talk.app.screen.query(XRayView))
        await until(pilot, lambda: 0 < talk.app.screen.query_one(XRayView)._columns <= TEXT)


async def test_a_dialog_is_as_large_as_what_it_holds(chat, models):
    talk = chat()
    keep(talk, "Write a quicksort in Python", "please tell me about the sea", days=12)
    models("scripted", "broken", "other", broken=["broken"], elsewhere=list(registered()))
    dialogs = {"ctrl+r": "The sea", "ctrl+o": "Does not fit", "ctrl+s": "System", "f3": "seed", "f8": "No phrases"}
    async with talk.playing(size=SIZE) as pilot:
        for key, shown in dialogs.items():
            await pilot.press(key)
            await until(pilot, lambda shown=shown: shown in talk.screen_text())
            panel = talk.app.screen.query_one(".panel")
            last = max(child.region.bottom for child in panel.children if child.display)
            assert panel.region.width <= DIALOG and panel.region.bottom - last <= AROUND, key
            for options in panel.query(OptionList):
                assert 0 <= options.size.height - options.virtual_size.height <= 1, key
            if key == "ctrl+o":
                height = panel.region.height
                await pilot.press(*"phi")
                await until(pilot, lambda: "Does not fit" not in talk.screen_text())
                assert panel.region.height == height, "it jumps while one searches"
            await pilot.press("escape")
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(talk.app.screen, Palette) and "Leave the chat" in talk.screen_text())
        assert talk.app.screen.query_one(Vertical).region.width <= DIALOG
