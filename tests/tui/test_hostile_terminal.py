"""Hostile text, wherever it may come from: the terminal obeys nothing of it, and all that can be seen of it is seen."""

import json
import re
import sys
from functools import partial
from typing import AnyStr

import pytest
from golden import wording

if sys.platform == "win32":
    pytest.skip("no pseudo-terminals", allow_module_level=True)

from scripted_models import scripted_model
from tui.terminal import COMMANDING, FAREWELL, LEAVE, Terminal, chat, scripted_chat

from localspec.chat.conversation import saved_conversation
from localspec.paths import Paths, private_directory
from localspec.store.store import Store
from localspec.text import safe

pytestmark = pytest.mark.slow

ESCAPE, CTRL_N, CTRL_O, CTRL_P, CTRL_Q, CTRL_R, CTRL_S = "\x1b", "\x0e", "\x0f", "\x10", "\x11", "\x12", "\x13"
UP, READY = "\x1b[A", "ready"

# What terminals obey, in the words of each: titles, the clipboard, devices, questions that are answered as if typed,
# erasing, colours that Textual never sends, modes, resets, C1 in both forms, and what reorders a line.
ATTACKS = (
    "\x1b]0;owned\x07", "\x1b]2;owned\x1b\\", "\x1b]52;c;b3duZWQ=\x07", "\x1b]52;c;?\x1b\\", "\x1b]8;;http://evil\x07",
    "\x1b]4;1;?\x07", '\x1bP$q"p\x1b\\', "\x1bP+q544e\x1b\\", "\x1b_Gi=31\x1b\\", "\x1b^pm\x1b\\", "\x1bXsos\x1b\\",
    "\x1b[6n", "\x1b[5n", "\x1b[c", "\x1b[>c", "\x1b[>q", "\x1b[18t", "\x1b[21t", "\x1b[?1$p", "\x1b[x", "\x05",
    "\x1b[2J", "\x1b[3J", "\x1b[K", "\x1b[999;999H", "\x1b[31m", "\x1b[8m", "\x1b[5m", "\x1b[?1049l", "\x1b[?25h",
    "\x1b[?1003h", "\x1b[>1u", "\x1bc", "\x1b[!p", "\x1b(0", "\x1b#8", "\x1b%G", "\x1b[4h", "\x1b[20h", "\x1b", "\x1b[",
    "\x9b31m", "\x9b6n", "\x9d0;owned\x9c", '\x90$q"p\x9c', "\x9f", "\x85", "\x84", "\x8d", "\x9b",
    "\x00", "\x07", "\x08\x08\x08", "\x0b", "\x0c", "\x0e", "\x0f", "\x11", "\x13", "\x1a", "\x7f", "\x18", "\r",
    "\u202eevil\u202c", "\u202d", "\u2066\u2069", "\u2067", "\u200e", "\u200f", "\u061c", "\u2028", "\u2029",
)  # fmt: skip
COMMANDS = "\n".join(f"before{n} {attack} behind{n}" for n, attack in enumerate(ATTACKS))
MARKUP = "[bold]x[/bold] [red]y[/] [/] [@click=app.quit]z[/] [@click=app.bell()]u[/] [link=http://evil]v[/link]"
HOSTILE = f"\x1b]0;owned\x07\x9b31m\u202e\x1b[6n{MARKUP}\x00\x7f"  # on one line
NUL = "\x00"
ARGUMENT = HOSTILE.replace(NUL, "")
NAME = ARGUMENT.replace("/", "")  # what a file may be called

# Markdown, and what a person must see of it where that is not the whole text.
CODE = "\n".join(f"line{n} = '[bold]{n}[/]'  # <b>" for n in range(400))
MARKDOWN: tuple[tuple[str, str | None], ...] = (
    ("List<int> x = new List<int>();", None),
    ("<think>plan</think>", None),
    ("<think>\nplan\n\nsecond plan\n</think>", None),
    ("<script>alert(1)</script>", None),
    ("<!-- a comment --> and <br/> <img src=x onerror=y>", None),
    ("<details><summary>sum</summary>\n\nbody\n\n</details>", None),
    (MARKUP, None),
    (f"`in code {MARKUP} \\[b]`", f"in code {MARKUP} \\[b]"),
    (f"# heading {MARKUP}", f"heading {MARKUP}"),
    (f"> quoted {MARKUP}", f"quoted {MARKUP}"),
    (f"- item {MARKUP}", f"item {MARKUP}"),
    ("entities &#27;[31m, &#x9b;32m, &#x202e;gnikcatta, &NewLine;next &#0; &#7; &Tab;tab &ZeroWidthSpace;&rlm; end",
     "entities [31m, 32m, gnikcatta, next tab end"),
    ("&#27;]0;owned&#7; &#27;]52;c;b3duZWQ=&#7; &#27;[6n &bsol;x1b", "]0;owned ]52;c;b3duZWQ= [6n \\x1b"),
    ("[click here](javascript:alert(1))", None),
    ('[linked](http://evil.example/%1b%5d0;x%07 "ti&#27;]0;x&#7;tle [bold]")', "linked"),
    ("[linked too][ref]\n\n[ref]: http://evil.example/&#27;[31m 'ti\x1b]0;x\x07tle'", "linked too"),
    ("<http://evil.example/\x1b[31m> and www.evil.example/\x9b31m", "http://evil.example/"),
    ("![picture\x1bc](http://evil.example/i.png 'title\x1b[6n')", "picture␛c"),
    ("| a[bold] | b\x1b[31m |\n|---|---|\n| [@click=app.quit]c[/] | `x` &#27;[31m |\n| <b>d</b> | [t](http://e \"[/]\") |",
     "a[bold] b␛[31m [@click=app.quit]c[/] x[31m <b>d</b>t"),
    (f"```py\x1b]0;owned\x07 [bold]\n{CODE}\n```", CODE),
    (f"~~~\n{COMMANDS}\n~~~", COMMANDS),
    (COMMANDS, None),
    ("word" + "w" * 5000 + "end", None),
    ("zero" + "\u200b\u200d\u2060\ufeff" * 500 + "width", None),
    ("flood" + "\u0301\u0322\u0489" * 100 + "of marks", None),
    ("wide 漢字" + "漢字" * 200, None),
    ("emoji 👩\u200d👩\u200d👧\u200d👦🏳\ufe0f\u200d🌈👍🏽" * 20 + " end", "emoji"),
    ("\ufff9under\ufffaover\ufffb \U000e0001\U000e0041 tags", None),
    (">" * 300 + " deep", "deep"),
    ("- " * 200 + "deeper", "deeper"),
    ("*" * 300 + "stars" + "*" * 300, "stars"),
    ("[" * 400 + "brackets" + "]" * 400, "brackets"),
    ("The end of it.", None),
)  # fmt: skip
REPLY = "\n\n".join(source for source, _ in MARKDOWN)
SLOWLY = """
from localspec.chat.figures import LiveStats
LiveStats.take = lambda live, event, real=LiveStats.take: (real(live, event), closed.wait(0.001))
"""


def plain(text: str) -> str:
    """Return the text without parts that may move, frames and blanks; the rest must be equal."""
    return re.sub("[^\x21-\x7e\u2400-\u243f\u4e00-\u9fff]", "", text)


def on_the_screen(terminal: Terminal, text: str) -> bool:
    return plain(safe(text)) in plain("".join(terminal.screen.display))


def missing(terminal: Terminal) -> list[str]:
    """Return the parts of REPLY that are not on the screen."""
    seen = plain("".join(terminal.screen.display))
    expected = (source if part is None else part for source, part in MARKDOWN)
    return [part for part in expected if plain(safe(part)) not in seen]


def split(text: AnyStr, size: int) -> list[AnyStr]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def still_answers(terminal: Terminal) -> None:
    terminal.send("answer?")
    terminal.shows("answer?")


def leaves_cleanly(terminal: Terminal) -> None:
    terminal.send(CTRL_Q)
    assert terminal.ends() == 0
    terminal.check_that_nobody_else_commands()
    terminal.check_that_it_is_whole()
    assert re.fullmatch(rf"({FAREWELL}\r\n)?", terminal.afterwards)


def test_a_hostile_reply_is_shown_and_not_obeyed(tmp_path):
    (tmp_path / "reply").write_text(repr([split(REPLY, 7), ["Well."]]))
    scripts = f"eval(open({str(tmp_path / 'reply')!r}).read())"
    with scripted_chat(tmp_path / "home", scripts, "-m", "demo", before=SLOWLY) as terminal:
        terminal.shows(READY)
        terminal.send("Go on.\r")
        terminal.shows("The end of it.")
        terminal.resize(99, 700)  # without the side panel
        terminal.until(lambda: on_the_screen(terminal, "Go on."))
        still_answers(terminal)
        assert missing(terminal) == []
        terminal.click("linked")
        terminal.shows(wording("the_link_leads_to"), "http://evil.example/␛]0;x␇")
        leaves_cleanly(terminal)


def test_the_same_from_a_real_engine_in_a_hostile_directory(tmp_path):
    parts = [COMMANDS, MARKUP, "List<int> x = <think>plan</think>", "&#x202e;gnikcatta"]
    broken = b"\n\nbytes \x9b31m \x9d0;owned\x07 \xff\xfe \xc2 \xe2\x80 end of it"
    pieces = split("\n\n".join(parts).encode() + broken, 3)
    model = scripted_model(tmp_path / f"dir{NAME}", pieces, context=10_000)
    file = tmp_path / f"file{NAME}"
    file.write_text(f"File says {ARGUMENT}", "utf-8")  # a NUL byte would be refused
    flags = ["-m", str(model.path), "-f", str(file), "-s", ARGUMENT, "--draft-max", "0"]
    with chat(tmp_path / "home", *flags, ARGUMENT, size=(99, 60)) as terminal:
        terminal.shows("❯", "end of it", "context ")
        for part in (*parts[:3], wording("the_files_of_file")):
            terminal.until(partial(on_the_screen, terminal, part))
        terminal.until(lambda: on_the_screen(terminal, "bytes 31m 0;owned␇ end of it"))
        still_answers(terminal)
        leaves_cleanly(terminal)
    with Store.open(Paths(tmp_path / "home").database, pytest.fail) as store:
        (turn,) = saved_conversation(store.history, "last").turns
    assert re.findall(COMMANDING, turn.reply.replace("\n", "")) == []  # nor is there any for a later version to obey


# The most hostile load: its stages, its notices, the engine's description of itself.
HOSTILE_LOAD = """
from types import SimpleNamespace
from localspec.events import Done
from tui.scripted_engine import statistics
words = {hostile!r}
def load(settings, card, *, store, notice, progress):
    if card.name != "demo":
        notice("noticed " + words + card.name)
        progress("loading " + card.name + words)
    engine = ScriptedEngine(
        ["Well. ", Done("stop", statistics(3, words))], [LocalspecError("refused " + words)], device="device" + words
    )
    engine.choice.dtype = "dtype" + words
    return engine
from localspec.errors import LocalspecError
loading.load = load
"""


def test_hostile_names_titles_prompts_and_errors(tmp_path):
    home = tmp_path / "home"
    with Store.open(Paths(home).database, pytest.fail) as store:
        for number in range(3):
            say = partial(store.history.say, model=f"gone{HOSTILE}", system=f"system {HOSTILE}")
            kept, turn = say(None, f"first prompt {number} {HOSTILE}\n{COMMANDS}")
            store.history.write(turn, f"kept reply {number}\n\n{COMMANDS}", "stop")
            say(kept, f"unanswered {number} {HOSTILE}")
    evil = scripted_model(tmp_path / f"evil{NAME}", [b"x"]).path
    entries = [
        f"[{json.dumps(name)}]\npath = {json.dumps(str(path))}\ndescription = {json.dumps('about ' + ARGUMENT)}\n"
        for name, path in {f"evil{ARGUMENT}": evil, "broken": tmp_path / NAME}.items()
    ]
    own = private_directory(Paths(home).user_models_file.parent) / "models.toml"
    own.write_text("".join(entries).replace("\x7f", "\\u007f"), "utf-8")
    system = json.dumps(f"system {HOSTILE}").replace("\x7f", "\\u007f")  # a new conversation has it, too
    (own.parent / "config.toml").write_text(f'model = "demo"\nsystem = {system}\n', "utf-8")
    before = HOSTILE_LOAD.format(hostile=HOSTILE)
    with scripted_chat(home, "[]", "-c", before=before, size=(270, 170)) as terminal:
        # What was kept: the model's name in a notice, a prompt and its reply, the unanswered one to be edited.
        terminal.shows("is not here", "kept reply 2", "unanswered 2", READY)
        for part in (f"gone{HOSTILE}", f"first prompt 2 {HOSTILE}", COMMANDS, f"unanswered 2 {HOSTILE}"):
            terminal.until(partial(on_the_screen, terminal, part))

        # Earlier prompts.
        terminal.send(CTRL_N)
        terminal.until(lambda: "kept reply" not in terminal.text)
        terminal.send(UP)
        terminal.until(lambda: on_the_screen(terminal, f"unanswered 2 {HOSTILE}"))

        # Their titles, and looking for them.
        terminal.send(CTRL_R)
        terminal.shows("Search", "first prompt 0", "first prompt 1", "first prompt 2")
        terminal.paste(f"unanswered 1 {HOSTILE}")
        terminal.until(lambda: "first prompt 0" not in terminal.text)
        terminal.send(ESCAPE)
        terminal.until(lambda: "esc Back" not in terminal.text)

        # The system prompt, and more of it.
        terminal.send(CTRL_S)
        terminal.until(lambda: on_the_screen(terminal, f"everything else system {HOSTILE}"))
        terminal.paste(f"and more {HOSTILE}\r\n{COMMANDS}")
        terminal.until(lambda: on_the_screen(terminal, f"and more {ARGUMENT}\n{COMMANDS.replace(NUL, '')}"))
        terminal.send(CTRL_S)
        terminal.shows("applies from")

        # Models, one of them broken, and the messages while one is loaded.
        terminal.send(CTRL_O)
        terminal.until(lambda: on_the_screen(terminal, f"evil{ARGUMENT}"))
        terminal.until(lambda: on_the_screen(terminal, wording("there_is_no_directory_2", tmp_path=tmp_path / NAME)))
        terminal.send("\x1b[B\x1b[B\r")  # behind the two that come with localspec
        terminal.until(lambda: on_the_screen(terminal, f"noticed {HOSTILE}evil{ARGUMENT}"))

        # Figures and errors.
        terminal.send("\x1bOS")  # F4, the panel of figures
        terminal.send("Go on.\r")
        terminal.until(lambda: on_the_screen(terminal, f"drafting paused: {HOSTILE}"))
        terminal.send("And on.\r")
        terminal.until(lambda: on_the_screen(terminal, f"refused {HOSTILE}"))
        still_answers(terminal)
        leaves_cleanly(terminal)


def test_hostile_pastes(tmp_path):
    keys = "\x1b\x11\x1b\r\x1b\x1b[48;1;1;1;1t\x1b[I\x1b[200~"  # Ctrl+Q, Enter, another size, and another paste
    with scripted_chat(tmp_path, '[["Well."]]', "-m", "demo", size=(150, 40)) as terminal:
        terminal.shows(READY)
        terminal.paste(f"{HOSTILE}{keys} end of it")
        terminal.until(lambda: on_the_screen(terminal, f"{ARGUMENT}␛␑␛\n␛␛[48;1;1;1;1t␛[I␛[200~ end of it"))
        assert "Well." not in terminal.text
        terminal.send("\r")
        terminal.shows("Well.")
        terminal.until(lambda: on_the_screen(terminal, f"{ARGUMENT}␛␑␛\n␛␛[48;1;1;1;1t␛[I␛[200~ end of it"))
        terminal.send(CTRL_P)
        terminal.shows("Search for commands")
        terminal.paste(f"{HOSTILE}{keys}\x9b31m")
        terminal.until(lambda: on_the_screen(terminal, f"{ARGUMENT}␛␑␛"))
        terminal.send(ESCAPE)
        terminal.until(lambda: "Say something" in terminal.text)
        terminal.send(f"as keys {NUL}\x9b31m\u202e\u2066")
        terminal.shows("as keys")
        still_answers(terminal)
        leaves_cleanly(terminal)


@pytest.mark.parametrize("flag", ["-m", "-f"])
def test_hostile_arguments_in_errors(tmp_path, flag):
    name = f"{tmp_path}/no{NAME}".encode() + b"\xff\x1b[31m"
    # so wide that no line is broken between words
    with chat(tmp_path / "home", flag, name, size=(2000, 30)) as terminal:
        assert terminal.ends() in (2, 3)
        assert "localspec: " in terminal.afterwards
        assert MARKUP.replace("/", "") in terminal.afterwards
        assert re.findall(COMMANDING, terminal.afterwards.replace("\r\n", "")) == []
        if LEAVE in terminal.sent:
            terminal.check_that_nobody_else_commands()
            terminal.check_that_it_is_whole()
