"""X-ray: which drafter proposed each token, and the refused alternatives next to it."""

import threading

from golden import wording
from textual.geometry import Region
from textual.widgets import Static
from tui.drafted_replies import drafted_reply
from tui.scripted_engine import say, talked, until

from localspec.chat.trace import NO_TRACE
from localspec.marks import in_ascii
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.xray import XRayScreen
from localspec_tui.widgets.reply_view import ReplyView
from localspec_tui.widgets.xray_view import CHAT, CORRECTED, DRAFTER, MODEL, PAST, SEVERAL, XRayView, mark_of


def drafted(chat, *more, **about):
    """Return a chat whose first reply was drafted."""
    talk = chat(**about)
    talk.engine.scripts = [drafted_reply(talk.engine), *more]
    return talk


async def looked_at(talk, pilot, prompt="Say something"):
    """Return the X-ray of a new reply."""
    await talked(talk, pilot, prompt)
    await pilot.press("ctrl+t")
    return await shown(talk, pilot)


async def shown(talk, pilot):
    await until(pilot, lambda: isinstance(talk.app.screen, XRayScreen) and talk.app.screen.query(XRayView))
    view = talk.app.screen.query_one(XRayView)
    await until(pilot, lambda: view.pieces.all and told(talk))
    return view


def told(talk):
    return str(talk.app.screen.query_one("#about Static", Static).render())


def which(talk):
    return str(talk.app.screen.query_one("#which", Static).render())


async def test_ctrl_t_marks_each_token_by_who_proposed_it(chat):
    async with drafted(chat).opened(size=(100, 30)) as (talk, pilot):
        view = await looked_at(talk, pilot)
        lines = talk.screen_text().splitlines()
        assert "9 tokens in 4 steps, 2.0 tokens/step  Say something" in lines[0]
        assert lines[1].startswith(" Snow falls on the hill: é⏎")
        assert lines[2].startswith(" ·    ╺━━━━ ┅┅ ×   ·   ≡ ×")
        assert [view._mark(piece) for piece in range(6)] == [MODEL, PAST, CHAT, CORRECTED, MODEL, SEVERAL]
        page = talk.screen_text()
        for part in ("· the model 5 (56%)", "╺━ past replies 1 (11%)", "┅┅ this chat 1 (11%)", "══ Medusa 1 (11%)"):
            assert part in page
        assert "≡≡ Medusa and past replies 1 (11%)" in page
        assert wording("where_draft_refused_3") in page
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(talk.app.screen, ChatScreen))
        assert talk.app.focused is not None


async def test_the_cursor_and_other_colours_reach_lines_that_were_drawn(chat):
    talk = drafted(chat)

    def under_the_cursor(strip):
        return [segment.text for segment in strip if segment.style and segment.style.reverse]

    def first(view):
        return view.render_lines(Region(0, 0, view.size.width, 1))[0]

    async with talk.playing() as pilot:
        view = await looked_at(talk, pilot)
        for key, marked in (("end", []), ("home", ["Snow"]), ("end", [])):
            await pilot.press(key)
            assert under_the_cursor(first(view)) == marked
        before = first(view)
        talk.app.theme = "textual-light"
        await until(pilot, lambda: first(view) != before)
        assert first(view).text == before.text


async def test_the_cursor_shows_a_token_its_step_and_refused_drafts(chat):
    async with drafted(chat).opened() as (talk, pilot):
        await looked_at(talk, pilot)
        assert told(talk) == (wording("snow_token_1_9_model_came_reading"))
        await pilot.press("right", "right")
        await until(pilot, lambda: "token 3" in told(talk))
        assert told(talk) == (
            '" on"  token 3 of 9, by this chat\nstep 1 drafted 6 and gave 3 tokens: " falls on the"\n'
            'refused drafts in this place:\n  " in town"  Medusa'
        )
        await pilot.press("right")
        await until(pilot, lambda: "token 4" in told(talk))
        assert told(talk).endswith(wording("drafted_here_refused_roof_past"))
        await pilot.press("right")
        await until(pilot, lambda: "token 5" in told(talk))
        assert told(talk).endswith(wording("nothing_drafted_step"))
        await pilot.press("left", "left", "left")
        await until(pilot, lambda: "token 2" in told(talk))
        assert told(talk).endswith(wording("nothing_else_was_drafted_here"))


async def test_halves_of_a_character_are_one_thing_with_all_that_is_known_of_them(chat):
    async with drafted(chat).opened() as (talk, pilot):
        await looked_at(talk, pilot)
        await pilot.press("end", "left")
        await until(pilot, lambda: "tokens 7–8" in told(talk))
        assert told(talk).startswith('" é⏎"  tokens 7–8 of 9, by Medusa, the model')
        assert '"␛[2J"  Medusa' in told(talk)
        await pilot.press("right")
        await until(pilot, lambda: "token 9" in told(talk))
        assert told(talk).startswith('"␛]0;evil␇"')
        assert "\x1b" not in talk.screen_text()


async def test_keys_go_through_steps_lines_and_screens(chat):
    async with chat([f"word{number} " * 3 for number in range(300)]).opened(size=(80, 24)) as (talk, pilot):
        view = await looked_at(talk, pilot)

        async def press(key):
            before = view.cursor
            await pilot.press(key)
            return view.cursor - before

        assert await press("up") == 0
        line = await press("down")
        assert line > 0
        assert await press("up") == -line
        page = await press("pagedown")
        assert page > line
        assert await press("pagedown") >= page - line
        assert view.scroll_offset.y > 0
        await press("pageup")
        await press("pageup")
        assert view.cursor == 0
        assert await press("end") == 299
        assert view.is_vertical_scroll_end
        assert await press("right") == await press("down") == 0
        assert await press("home") == -299
        assert await press("left") == 0
        assert view.scroll_offset.y == 0


async def test_tab_goes_from_step_to_step_and_a_click_to_a_token(chat):
    async with drafted(chat).opened() as (talk, pilot):
        view = await looked_at(talk, pilot)
        seen = []
        for key in ["tab"] * 5 + ["shift+tab"] * 5:
            await pilot.press(key)
            seen.append(view.cursor)
        assert seen == [1, 4, 5, 7, 7, 5, 4, 1, 0, 0]
        await pilot.click(XRayView, offset=(8, 0))
        await until(pilot, lambda: "token 2" in told(talk))
        await pilot.click(XRayView, offset=(12, 1))  # its mark
        await until(pilot, lambda: "token 3" in told(talk))
        await pilot.click(XRayView, offset=(5, 15))  # an empty place
        assert view.cursor == 2


async def test_alt_and_arrows_go_from_reply_to_reply_and_the_focus_says_with_which_to_begin(chat):
    async with drafted(chat, ["Second."], ["Third."]).opened() as (talk, pilot):
        await talked(talk, pilot, "one", "two", "three")
        await pilot.press("alt+up", "alt+up", "alt+up", "ctrl+t")  # the reply to the second prompt
        await shown(talk, pilot)
        await until(pilot, lambda: "reply 2 of 3, 1 token  two" in which(talk))
        await pilot.press("alt+up", "alt+up")
        await until(pilot, lambda: "reply 1 of 3, 9 tokens" in which(talk))
        await pilot.press("alt+down", "alt+down", "alt+down")
        await until(pilot, lambda: "reply 3 of 3, 1 token" in which(talk))
        assert "Third." in talk.screen_text()


async def test_the_keys_to_other_replies_are_offered_where_there_are_some(chat):
    gate = threading.Event()
    talk = drafted(chat, ["Second."], [gate, "Third."])

    def offered():
        return [words for words in ("Reply before", "Reply after") if words in talk.screen_text()]

    async with talk.playing(size=(120, 30)) as pilot:
        await looked_at(talk, pilot, "one")
        await until(pilot, lambda: "Next step" in talk.screen_text() and not offered())
        await pilot.press("f1")
        await until(pilot, lambda: "Screenful up" in talk.screen_text())
        assert not offered()
        await pilot.press("escape", "escape")
        await until(pilot, lambda: isinstance(talk.app.screen, ChatScreen))
        await looked_at(talk, pilot, "two")
        await until(pilot, lambda: offered() == ["Reply before"])
        await pilot.press("alt+up")
        await until(pilot, lambda: offered() == ["Reply after"])
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(talk.app.screen, ChatScreen))
        await say(pilot, "three")
        await pilot.press("alt+up", "alt+up", "ctrl+t")  # the reply to the second prompt, while the third is awaited
        await until(pilot, lambda: "reply 2 of 2" in which(talk) and offered() == ["Reply before"])
        gate.set()
        await until(pilot, lambda: offered() == ["Reply before", "Reply after"])


async def test_the_reply_under_way_is_followed_until_one_looks_elsewhere(chat):
    gate, other = threading.Event(), threading.Event()
    async with chat([*"abc", gate, *"def", other, *"ghi"]).opened() as (talk, pilot):
        await say(pilot, "go")
        await until(pilot, lambda: talk.replies() == ["abc"])
        await pilot.press("ctrl+t")
        view = await shown(talk, pilot)
        assert (view.cursor, " so far" in which(talk)) == (2, True)
        gate.set()
        await until(pilot, lambda: view.cursor == 5)
        await pilot.press("home")
        other.set()
        await until(pilot, lambda: len(view.pieces.all) == 9 and talk.idle())
        await until(pilot, lambda: "9 tokens" in which(talk) and " so far" not in which(talk))
        assert view.cursor == 0


async def test_it_is_opened_before_the_first_token_and_what_nobody_sees_is_not_drawn_meanwhile(chat):
    first, gate, other = (threading.Event() for _ in range(3))
    async with chat([first, "a", gate, "b", other, "c"]).opened() as (talk, pilot):
        await say(pilot, "go")
        await pilot.press("ctrl+t")
        await until(pilot, lambda: wording("there_reply_look_yet") in talk.screen_text())
        first.set()
        view = await shown(talk, pilot)
        await pilot.press("ctrl+t")
        await until(pilot, lambda: talk.replies() == ["a"])
        await pilot.press("ctrl+t")
        view = await shown(talk, pilot)
        gate.set()
        await until(pilot, lambda: len(view.pieces.all) == 2)
        assert [reply.source for reply in talk.app.screen_stack[0].query(ReplyView)] == ["a"]
        await pilot.press("escape")
        await until(pilot, lambda: talk.replies() == ["ab"])
        other.set()
        await until(pilot, lambda: talk.replies() == ["abc"])


async def test_replies_of_this_session_are_known_and_those_of_earlier_ones_are_not(chat):
    async with drafted(chat).opened() as (talk, pilot):
        await talked(talk, pilot, "first")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [])
        await say(pilot, "/resume 1")
        await until(pilot, lambda: talk.prompts() == ["first"])
        await say(pilot, "/xray")
        await shown(talk, pilot)
        assert "9 tokens" in which(talk)
    again = chat(["New."])
    again.resumed = 1
    async with again.playing() as pilot:
        await pilot.press("ctrl+t")
        await until(pilot, lambda: NO_TRACE in which(again))
        assert "Next step" not in again.screen_text()
        await pilot.press("alt+up", "escape")
        await talked(again, pilot, "second")
        await pilot.press("alt+up", "alt+up", "alt+up", "ctrl+t")  # the reply of the first session
        await until(pilot, lambda: NO_TRACE in which(again))
        await pilot.press("alt+down")
        await until(pilot, lambda: "New." in again.screen_text())


async def test_another_width_breaks_the_lines_again(chat):
    async with chat(["one two three four five six seven eight nine ten " * 5]).opened(size=(90, 24)) as (talk, pilot):
        view = await looked_at(talk, pilot, "Say something long. " * 5)
        before = view.virtual_size
        title = which(talk)
        await pilot.resize_terminal(40, 20)
        await until(pilot, lambda: view.virtual_size.width < before.width and view.virtual_size.height > before.height)
        assert "one two three" in talk.screen_text()
        await until(pilot, lambda: len(which(talk)) < len(title))
        await pilot.resize_terminal(90, 24)
        await until(pilot, lambda: which(talk) == title)


def test_each_source_has_a_shape_and_not_only_a_colour():
    sources = {"target": MODEL, "phrases": PAST, "prompt": CHAT, "s3d": DRAFTER, "s3d+phrases": SEVERAL}
    assert all(mark_of(source) is mark for source, mark in sources.items())
    marks = {*sources.values(), CORRECTED}
    assert len({mark.first for mark in marks}) == len({in_ascii(mark.first) for mark in marks}) == len(marks) == 6
