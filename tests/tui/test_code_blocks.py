"""Copy a single block of code."""

from each import each
from golden import wording
from textual.events import Key
from tui.scripted_engine import talked, until

from localspec_tui import block_view
from localspec_tui.clipboard import CodeBlock, CodeCopies, code_blocks
from localspec_tui.widgets.reply_view import ReplyMarkdown

TWO = "First:\n\n```python\nprint(1)\n\tx = 2\n```\n\nthen\n\n- in a list\n\n  ```sh\n  ls -l\n  rm x\n  ```\n\nDone."


@each(
    "source, found",
    [
        ("", []),
        ("no `code` here", []),
        (TWO, [CodeBlock("python", "print(1)\n\tx = 2"), CodeBlock("sh", "ls -l\nrm x")]),
        ("~~~\na\n\n~~~", [CodeBlock("", "a\n")]),
        ("```c\nstill coming", [CodeBlock("c", "still coming")]),
        ("text\n\n    indented\n", [CodeBlock("", "indented")]),
        ("> ```\n> quoted\n> ```", [CodeBlock("", "quoted")]),
    ],
)
def test_code_is_found_without_its_fences(source, found):
    assert code_blocks(source) == found


def test_the_last_first_then_the_one_before_round_and_round():
    copies = CodeCopies()
    assert [copies.next(TWO)[0].language for _ in range(3)] == ["sh", "python", "sh"]
    assert copies.next("```\nx\n```") == (CodeBlock("", "x"), "code")
    assert copies.next(TWO) == (CodeBlock("sh", "ls -l\nrm x"), wording("sh_block_2_2_once_more_one_before"))
    assert copies.next("none") is None


async def test_alt_c_copies_code_of_the_last_reply_or_of_the_message_in_focus(chat, clipboard):
    async with chat([TWO], ["```\nlater\n```"]).opened() as (talk, pilot):
        await talked(talk, pilot, "one")
        await talked(talk, pilot, "two")
        await pilot.press("alt+c")
        await until(pilot, lambda: clipboard == ["later"] and "Copied to the clipboard." in talk.screen_text())
        await pilot.press("alt+up", "alt+up", "alt+up", "alt+c")
        await until(pilot, lambda: clipboard[1:] == ["ls -l\nrm x"])
        await until(pilot, lambda: "sh, block 2 of 2" in talk.screen_text())
        talk.app.post_message(Key("alt+c", "c"))  # as most terminals send it
        await until(pilot, lambda: clipboard[2:] == ["print(1)\n\tx = 2"])
        talk.app.post_message(Key("alt+x", "x"))  # which means nothing
        await until(pilot, lambda: talk.typed == "x")


async def test_where_there_is_no_code_it_is_reported(chat, clipboard):
    async with chat(["None."]).opened() as (talk, pilot):
        await pilot.press("alt+c")
        await until(pilot, lambda: wording("there_code_copy_here") in talk.screen_text())
    assert clipboard == []


async def test_a_click_on_copy_copies_the_code_below_it(chat, clipboard):
    async with chat(["Two:\n\n```sh\nls -l\n```\n\nor\n\n```\nfirst [red]\n\tsecond\n```\n"]).opened() as (talk, pilot):
        await talked(talk, pilot, "How?")
        reply = talk.app.query_one(ReplyMarkdown)
        column = reply.size.width - 4
        first, second = (y for y in range(reply.size.height) if "copy" in reply.render_line(y).text)
        for row, said in ((first, "sh"), (second, "code")):
            await pilot.click(reply, offset=(column, row))
            await until(pilot, lambda said=said: f"Copied to the clipboard. ({said})" in talk.screen_text())
        assert clipboard == ["ls -l", "first [red]\n\tsecond"], "with its tab"
        await pilot.click(reply, offset=(4, first))
        await pilot.pause()
        assert len(clipboard) == 2, "a click next to the word copies nothing"


def test_colouring_ends_when_its_time_is_up(monkeypatch):
    # C# with 4,000 lines of one letter takes pygments' lexer many seconds.
    code = "int a = 1;\n" * 50
    monkeypatch.setattr(block_view, "COLOUR_SECONDS", 60.0)
    whole = block_view.highlighted(code, "c", False, True)
    monkeypatch.setattr(block_view, "COLOUR_SECONDS", 0.0)
    block_view.highlighted.cache_clear()
    begun = block_view.highlighted(code, "c", False, True)
    assert begun == whole[: len(begun)]
    assert len(begun) < 10 < len(whole)
