"""The cost of a growing reply for the screen: one layout and one picture."""

import threading

from clocks import PATIENCE
from tui.scripted_engine import say, until

from localspec_tui.growing_document import GrowingDocument
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.reply_view import ReplyMarkdown


async def test_a_reply_that_grows_is_laid_out_and_drawn_once(chat, monkeypatch):
    more, end = threading.Event(), threading.Event()
    talk = chat(["One. " * 600, more, f"{'Two. ' * 60}\n\n{'Two. ' * 20}", end])
    async with talk.playing(size=(120, 30)) as pilot:
        talk.app._chat.query_one(Prompt).cursor_blink = False
        await say(pilot, "Hi")
        await until(pilot, lambda: talk.replies() == ["One. " * 600])
        layouts, pictures = [], [1]
        talk.app.screen.screen_layout_refresh_signal.subscribe(talk.app.screen, lambda _: layouts.append(1))
        monkeypatch.setattr(talk.app, "post_display_hook", lambda: pictures.append(1))
        while pictures:  # of the first part, which a busy machine draws late
            pictures.clear()
            await pilot.pause(0.2)
        layouts.clear()
        view = talk.app._chat.query_one(ConversationView)
        assert view.show_vertical_scrollbar, "or it would come now, and all be laid out once more"
        more.set()
        await until(pilot, lambda: talk.replies() and talk.replies()[0].endswith("Two. "))
        await pilot.pause(0.2)
        assert len(layouts) == 1 and len(pictures) <= 2, "also where a paragraph begins"
        assert view.is_vertical_scroll_end and "Two." in talk.screen_text() and "tok/s" in talk.screen_text()
        end.set()


async def test_keys_and_text_do_not_wait_while_a_long_table_is_parsed(chat, monkeypatch):
    more, end, parsed, parsing = (threading.Event() for _ in range(4))
    read = GrowingDocument.read

    def slowly(document):
        if document.is_slow:
            parsing.set()
            assert parsed.wait(PATIENCE)
        return read(document)

    monkeypatch.setattr(GrowingDocument, "read", slowly)
    rows = [f"| {number} | word |\n" for number in range(600)]
    talk = chat(["| n | w |\n|---|---|\n", *rows[:400], more, *rows[400:500], more, *rows[500:], end])
    async with talk.playing(size=(80, 24)) as pilot:
        view = talk.app._chat.query_one(ConversationView)
        await say(pilot, "Hi")
        await until(pilot, lambda: view.is_vertical_scroll_end and "399" in talk.screen_text())
        more.set()
        await until(pilot, lambda: parsing.is_set() and "| 599 | word |" in talk.screen_text())
        await pilot.press("pageup")
        assert not view.is_vertical_scroll_end
        parsed.set()
        reply = talk.app._chat.query_one(ReplyMarkdown)
        await until(pilot, lambda: [block.kind for block in reply.blocks] == ["table", "plain"])
        end.set()
        await until(pilot, lambda: talk.idle() and [block.kind for block in reply.blocks] == ["table"])
        assert len(reply.blocks[0].cells) == 601
