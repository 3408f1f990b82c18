"""The chat as a user has it: a separate process on a terminal, most of it with the demo model."""

import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from each import each
from golden import wording

if sys.platform == "win32":
    pytest.skip("no pseudo-terminals", allow_module_level=True)

from command import localspec
from tui.terminal import FAREWELL, LEAVE, Terminal, chat, scripted_chat

from localspec.chat.conversation import saved_conversation
from localspec.paths import Paths
from localspec.store.conversations import Turn, title_of
from localspec.store.store import Store

pytestmark = pytest.mark.slow

ESCAPE, CTRL_C, CTRL_N, CTRL_Q, CTRL_R, CTRL_T = "\x1b", "\x03", "\x0e", "\x11", "\x12", "\x14"
F4 = "\x1bOS"
SECRET = "quetzalcoatl"  # files that only the store may keep

# The import of torch waits until a test makes the file `torch`, and another file names the thread that wanted it.
GATE = """
import sys, threading, time
from importlib.machinery import PathFinder
from pathlib import Path
class Gate:
    def find_spec(self, name, path=None, target=None):
        if name != "localspec.native.target":
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module
        def wait_and_execute(module):
            Path({place!r}, "asked by " + threading.current_thread().name).touch()
            while not Path({place!r}, "engine").exists():
                time.sleep(0.01)
            execute(module)
        spec.loader.exec_module = wait_and_execute
        return spec
sys.meta_path.insert(0, Gate())
"""

# A reply waits where it has as many tokens as the file `allowed` says; and a library chatters meanwhile.
BRAKE = """
import os, time
from pathlib import Path
from localspec.events import Text
from localspec.chat.figures import LiveStats
def take(live, event, real=LiveStats.take):
    real(live, event)
    os.write(1, b"native words to 1\\x1b[31m\\n")
    os.write(2, b"native words to 2\\x1b[31m\\n")
    while isinstance(event, Text) and live._tokens > int(Path({place!r}, "allowed").read_text() or 0):
        time.sleep(0.01)
LiveStats.take = take
"""
ALL = 10**6


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """Return a home without conversations, in which all one-time measurements are done."""
    home: Path = tmp_path_factory.mktemp("measured")
    with Store.open(Paths(home).database, pytest.fail):
        pass
    result = localspec(home, "run", "Hello", "-m", "demo", "-n", "2", "--no-log")
    assert result.returncode == 0, result.stderr
    return home


@pytest.fixture
def home(measured, tmp_path) -> Path:
    return Path(shutil.copytree(measured, tmp_path / "home"))


def said(home: Path) -> Sequence[Turn]:
    """Return the turns of the conversation used last."""
    with Store.open(Paths(home).database, pytest.fail) as store:
        latest = store.history.latest()
        return () if latest is None else saved_conversation(store.history, latest).turns


TOOK = re.compile(r"(\d+\.\d|\d+|\d+ min \d+)\s+s\s+·\s+[\d,]+\s+tokens?(\s+·\s+[\d.]+(×|\s+%)\s+(faster|slower))?")


def letters(text: str) -> str:
    """Return a text without layout and Markdown marks."""
    return re.sub(r"\W+", "", text)


def files_with(home: Path, *words: str) -> set[str]:
    """Return the names of files below `home` that hold one of the words, in any of the usual encodings."""
    needles = [word.encode(encoding) for word in words for encoding in ("utf-8", "utf-16-le")]
    files = [file for file in home.rglob("*") if file.is_file()]
    assert files
    return {file.name for file in files if any(needle in file.read_bytes() for needle in needles)}


def allow(home: Path, tokens: int) -> None:
    (home / "allowed").write_text(str(tokens))


def reply_on(terminal: Terminal, prompt: str) -> str:
    """Return the letters between the last `prompt` and the live line, without the figures of the reply."""
    shown = (line for line in terminal.screen.display[1:-3] if "esc skips" not in line)  # of what is measured meanwhile
    said = TOOK.sub("", "".join(shown))
    _, found, reply = letters(said).rpartition(letters(prompt))
    return reply if found else ""


def looks_into_the_second_reply(terminal: Terminal) -> None:
    """Open the X-ray of the second reply step by step, then the saved phrases, then the conversation again."""
    terminal.send(CTRL_T)
    terminal.shows("reply 2 of 2", "this chat", "token 1 of")
    terminal.send("\t")
    terminal.shows("step 1 drafted")
    terminal.send(ESCAPE)
    terminal.until(lambda: "step 1 drafted" not in terminal.text)
    terminal.send("/phrases\r")
    terminal.shows("phrases from past replies", "last in “Speculative decoding”")
    terminal.send(ESCAPE)
    terminal.until(lambda: "phrases from past replies" not in terminal.text)


def leaves_cleanly(terminal: Terminal, code: int = 0, says: str = f"({FAREWELL})?") -> None:
    assert terminal.ends() == code, terminal.afterwards[-2000:]
    assert re.fullmatch(says, terminal.afterwards.strip())
    terminal.check_that_it_is_whole()


# -- the demo model ---------------------------------------------------------------------------------------------------


def test_a_conversation_from_the_first_paint_to_the_last_key(home):
    gate, brake = GATE.format(place=str(home)), BRAKE.format(place=str(home))
    dog, cat = "Tell me a story about a dog.", "Tell me another one, about a cat and its twenty mice."
    sea = "Write a poem about the sea."
    allow(home, 3)
    with chat(home, "-m", "demo", "--temp", "0", "-n", "60", before=gate + brake, size=(90, 40)) as terminal:
        # It is there before the engine, says what is kept, and one can type.
        terminal.shows("❯", "loading demo", wording("kept_on_this_machine_alone"), "--no-log")
        terminal.until((home / "asked by engine").exists)
        terminal.send("Tell me a story")
        terminal.shows("❯ Tell me a story")
        terminal.send(" about a dog.\r")
        terminal.shows("waiting (", dog)
        (home / "engine").touch()

        # A reply is seen while it is made.
        terminal.until(lambda: reply_on(terminal, dog))
        some = reply_on(terminal, dog)
        allow(home, 12)
        terminal.until(lambda: len(reply_on(terminal, dog)) > len(some))
        assert said(home)[0].reason is None

        # Escape stops it, and the text so far stays.
        terminal.send(ESCAPE)
        terminal.shows("stopping")
        allow(home, ALL)
        terminal.shows("(stopped)")
        (stopped,) = said(home)
        assert stopped.reason == "interrupted"
        assert letters(stopped.reply + "stopped") == reply_on(terminal, dog)

        # The conversation goes on, through other sizes.
        allow(home, 3)
        terminal.send(cat + "\r")
        terminal.until(lambda: reply_on(terminal, cat))
        for tokens, size in ((6, (42, 14)), (12, (130, 45))):
            some = reply_on(terminal, cat)
            terminal.resize(*size)
            terminal.until(lambda some=some: reply_on(terminal, cat) == some)
            terminal.shows("❯ Say something", "localspec · demo", "context ")
            allow(home, tokens)
            terminal.until(lambda some=some: len(reply_on(terminal, cat)) > len(some))
        allow(home, ALL)
        # how it ends is the model's: where the first reply was stopped decides it, and that is a matter of time
        terminal.until(lambda: said(home)[1].reason in {"length", "stop"})
        told = said(home)[1]
        terminal.until(lambda: reply_on(terminal, cat).startswith(letters(told.reply)))
        terminal.until(lambda: letters(stopped.reply + "stopped") in letters(terminal.text))

        # A new one begins with nothing; the older one can be taken up again.
        terminal.send(CTRL_N)
        terminal.until(lambda: "(stopped)" not in terminal.text)
        terminal.send(sea + "\r")
        terminal.until(lambda: [(turn.prompt, turn.reason) for turn in said(home)] == [(sea, "stop")])
        terminal.send(CTRL_R)
        terminal.shows(wording("search_in_what_was_said"), sea, title_of(dog))
        terminal.send("twenty")
        terminal.until(lambda: sea not in terminal.text.partition("Search")[2])
        terminal.send("\r")
        terminal.until(lambda: letters(told.reply) in reply_on(terminal, cat))
        terminal.until(lambda: letters(stopped.reply + "stopped") in letters(terminal.text))  # the list is gone

        # Ctrl+Q in the middle of a reply.
        allow(home, 1)
        terminal.send("Once more.\r")
        terminal.until(lambda: reply_on(terminal, "Once more."))
        terminal.send(CTRL_Q)
        terminal.until(lambda: LEAVE in terminal.sent)
        allow(home, ALL)
        leaves_cleanly(terminal)
        assert b"native words" not in terminal.raw
    turns = said(home)
    assert turns[:2] == (stopped, told)
    # a short reply may have been whole in the step that was waited for
    assert turns[2].prompt == "Once more." and turns[2].reply and turns[2].reason in {"interrupted", "stop", "length"}
    log = Paths(home).logs / "native.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert all(f"native words to {number}" in log.read_text() for number in (1, 2))

    # Another day, and gone again before the engine came.
    (home / "engine").unlink()
    with chat(home, "-c", before=gate, size=(90, 60)) as terminal:
        terminal.shows("❯", "loading demo", "Once more.")
        for turn in turns:
            terminal.until(lambda turn=turn: letters(turn.prompt + turn.reply) in letters(terminal.text))
        terminal.send(CTRL_Q)
        leaves_cleanly(terminal)


def test_one_sees_speculation_at_work(home):
    drafting = ("--drafter", "phrases", "--draft-max", "8")
    with chat(home, "-m", "demo", "--temp", "0", "-n", "40", *drafting, size=(110, 36)) as terminal:
        for number in (1, 2):  # the second reply is drafted from the first
            terminal.shows("demo", "❯")
            terminal.send("What is speculative decoding?\r")
            terminal.until(lambda number=number: len(said(home)) == number and said(home)[-1].reason is not None)
        terminal.send(F4)
        terminal.shows("tokens proposed by", "this chat")
        looks_into_the_second_reply(terminal)
        terminal.send("/race Tell me about the sea.\r")
        terminal.shows("Race: Tell me about the sea.", wording("both_texts_are_the_same_2"))
        terminal.send(ESCAPE)
        terminal.shows("Say something")
        terminal.send(CTRL_Q)
        leaves_cleanly(terminal)
    assert len(said(home)) == 2


def test_leaving_while_the_model_loads(home):
    with chat(home, "-m", "demo") as terminal:
        terminal.shows("❯")  # which is there before the model
        terminal.send(CTRL_Q)
        leaves_cleanly(terminal)


def test_without_a_log_nothing_that_was_said_is_in_any_file(home):
    prompt = f"Tell me a story about {SECRET} and a dog."
    with chat(home, "-m", "demo", "--temp", "0", "-n", "40", "--no-log") as terminal:
        terminal.shows("❯", "nothing is saved")
        terminal.send(prompt + "\r")
        terminal.shows("token limit")
        lines = terminal.text.rpartition(prompt)[2].partition("(the reply")[0].splitlines()
        terminal.send(CTRL_Q)
        leaves_cleanly(terminal)
    pieces = [" ".join(line.split()[:3]) for line in lines if len(line.split()) > 3]
    assert pieces
    assert files_with(home, SECRET, *pieces) == set()


# -- ways to end ------------------------------------------------------------------------------------------------------


def end(terminal: Terminal, how: str | signal.Signals) -> None:
    if isinstance(how, str):
        terminal.send(how)
    else:
        os.kill(terminal.process.pid, how)


READY = "ready"
STORY = '[["Once upon a time ", *["and "] * 10_000]]'
SLOWLY = """
from localspec.chat.figures import LiveStats
LiveStats.take = lambda live, event, real=LiveStats.take: (real(live, event), closed.wait(0.05))
"""


@pytest.mark.slow
@each(
    "how, code",
    [(CTRL_Q, 0), (signal.SIGINT, 130), (signal.SIGTERM, 143), (None, 129)],
)
def test_leaving_in_the_middle_of_a_reply(tmp_path, how, code):
    with scripted_chat(tmp_path, STORY, "-m", "demo", before=SLOWLY) as terminal:
        terminal.shows(READY)
        terminal.send("Go on.\r")
        terminal.shows("Once upon a time and")
        if how is None:  # the window is closed
            terminal.hang_up()
            assert terminal.ends() == code, terminal.afterwards[-2000:]
        else:
            end(terminal, how)
            leaves_cleanly(terminal, code, says=FAREWELL)
    (turn,) = said(tmp_path)
    assert turn.reply.startswith(wording("once_upon_a_time_and")) and turn.reason == "interrupted"


def test_bytes_that_are_no_text_end_no_chat(tmp_path):
    """A terminal of another encoding sends them, and so does many a paste."""
    with scripted_chat(tmp_path, STORY, "-m", "demo") as terminal:
        terminal.shows(READY)
        terminal.send(b"caf\xe9 \xff\xfe, caf\xc3")
        terminal.send(b"\xa9.")
        terminal.shows("caf\ufffd \ufffd\ufffd, café.")
        end(terminal, CTRL_Q)
        leaves_cleanly(terminal, 0)


def test_an_engine_that_does_not_stop_is_left_behind(tmp_path):
    with scripted_chat(tmp_path, '[["Once upon a time. ", closed]]', "-m", "demo") as terminal:
        terminal.shows(READY)
        terminal.send("Go on.\r")
        terminal.shows("Once upon a time.")
        end(terminal, signal.SIGTERM)
        leaves_cleanly(terminal, 143, says=FAREWELL)
    (turn,) = said(tmp_path)
    assert turn.prompt == "Go on."


# What goes wrong, each where the prompt is at hand: in a handler, a timer, a drawing widget, the thread of the keys and
# the engine's own.
FAULTS = {
    "handler": """
from localspec_tui.screens.chat import ChatScreen
async def on_prompt_sent(screen, sent):
    words = sent.text
    raise OverflowError(WORD)
ChatScreen.on_prompt_sent = on_prompt_sent
""",
    "timer": """
from localspec_tui.turns import Turns
async def follow(turns):
    words = turns._chat.outbox
    raise OverflowError(WORD)
Turns._follow = follow
""",
    "drawing": """
from localspec_tui.widgets.message_view import PromptView
def render_lines(view, crop):
    words = view.source
    raise OverflowError(WORD)
PromptView.render_lines = render_lines
""",
    "keys": """
from textual._xterm_parser import XTermParser
def key(parser, words, alt=False, real=XTermParser._sequence_to_key_events):
    if words == "\\r":
        raise OverflowError(WORD)
    return real(parser, words, alt)
XTermParser._sequence_to_key_events = key
""",
    "engine": """
from localspec.chat.figures import LiveStats
def take(live, event):
    words = event
    raise OverflowError(WORD)
LiveStats.take = take
""",
}


@pytest.mark.slow
# Each fault once; of the engine's, which has the prompt by then, both.
@each("fault, kept", [*zip(FAULTS, (False, True, True, False, True), strict=True), ("engine", False)])
def test_a_fault_leaves_the_terminal_whole_and_shows_no_conversation(tmp_path, fault, kept):
    prompt, word = f"My secret is {SECRET}.", "xolotl"  # the word is in the fault's own message too
    scripts, before = f'[["Well.", " {SECRET} "]]', f"WORD = {word!r}\n" + FAULTS[fault]
    flags = ["-m", "demo", *([] if kept else ["--no-log"])]
    wide = (300, 30)  # so wide that no line is broken between words
    with scripted_chat(tmp_path, scripts, *flags, before=before, size=wide) as terminal:
        terminal.shows(READY)
        terminal.send(prompt)
        terminal.shows(prompt)
        terminal.send("\r")
        assert terminal.ends(8) == 1
        terminal.check_that_it_is_whole()
        sentence = terminal.afterwards.strip()
    assert sentence.startswith("localspec: ") and "\n" not in sentence, sentence
    assert SECRET not in sentence and "Traceback" not in terminal.sent
    assert files_with(tmp_path, word) == set()
    assert files_with(tmp_path, SECRET) <= ({"localspec.db", "localspec.db-wal"} if kept else set())
    (trace,) = Paths(tmp_path).logs.glob("last-error.log")
    assert trace.stat().st_mode & 0o777 == 0o600
    if fault != "keys":  # Textual keeps no more of that one than its values
        assert "OverflowError" in sentence and "OverflowError" in trace.read_text()
    if kept and fault in ("timer", "drawing"):  # the engine had it by then
        assert [turn.prompt for turn in said(tmp_path)] == [prompt]


# -- an editor of one's own, and the last line ---------------------------------------------------------------------------

EDITOR = """
import sys, tty
from pathlib import Path
print("\\x1b[2Jthe editor has the terminal")
answer = sys.stdin.readline().strip()
assert sys.stdout.isatty() and sys.stderr.isatty()
file = Path(sys.argv[-1])
file.write_text(file.read_text() + " " + answer)
sys.exit(3 if answer == "fail" else 0)
"""


def test_an_editor_has_the_terminal_and_gives_it_back(tmp_path):
    (tmp_path / "editor.py").write_text(EDITOR)
    named = f"{sys.executable} {tmp_path / 'editor.py'}"
    with scripted_chat(tmp_path / "home", '["Well said."]', "-m", "demo", EDITOR=named, VISUAL="") as terminal:
        terminal.shows("❯ Say something", "ready")
        terminal.send("hello\x07")
        terminal.shows("the editor has the terminal")
        terminal.send("\x03")  # Ctrl+C ends an editor that does not see to it itself, and nothing else
        terminal.shows("❯ hello", wording("was_ended_by_signal_2"))
        terminal.send("\x07")
        terminal.shows("the editor has the terminal")
        terminal.send("world\n")
        terminal.shows("❯ hello world")
        terminal.send("!\r")
        terminal.shows("Well said.", "❯ Say something")
        terminal.send(CTRL_Q)
        assert terminal.ends() == 0
        assert terminal.afterwards.strip() == wording("world_kept_go_localspec_chat")
        terminal.check_that_it_is_whole()
    assert [turn.prompt for turn in said(tmp_path / "home")] == ["hello world!"]
