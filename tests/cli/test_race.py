"""`localspec race` as a command: its messages, pictures and recordings, and the arguments that it refuses."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest
from clocks import PATIENCE
from command import called, environment, reaching
from golden import wording
from scripted_models import scripted_model

from localspec.bench.race import LIVE, REPLAY, REPLAYED
from localspec.cli import race as module
from localspec.decoding.session import Session

pytestmark = pytest.mark.slow

pty = pytest.importorskip("pty")
fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")


@pytest.fixture(scope="session")
def words(tmp_path_factory) -> Path:
    """Return a model that repeats itself without end, so that phrases of its reply are right."""
    pieces = [f"{word} ".encode() for word in ("one", "two", "three", "four")]
    return scripted_model(tmp_path_factory.mktemp("race") / "words", pieces, again=0, context=2000).path


DOES_NOT_PAY = wording("drafts_do_pay_here_checking_them")
FIGURES = (
    r"(?:[\d.]+× faster|\d+ % (?:faster|slower)|as fast) with phrases "
    r"\([\d.]+ tokens/s after the first token instead of [\d.]+\)"
)
AS_FAST = wording("drafts_cost_much_time_they_save")


def race(home: Path, words: Path, *arguments: object):
    return called(home, "race", "Count!", "-m", str(words), "-n", "24", "--drafter", "phrases", *map(str, arguments))


def test_without_a_terminal_the_result_is_printed(tmp_path, words):
    done = race(tmp_path, words, "--draft-max", 4)
    assert done.returncode == 0 and done.stderr == ""
    first, *why, last = done.stdout.splitlines()
    assert re.match(FIGURES, first) and last == wording("both_texts_are_the_same")
    assert why in ([], [DOES_NOT_PAY], [AS_FAST])  # which sentence depends on the machine
    assert not (tmp_path / "data").exists(), "a race keeps nothing"


def test_json_has_both_sides_and_they_are_those_of_run(tmp_path, words):
    told = json.loads(race(tmp_path, words, "--draft-max", 4, "--json").stdout)
    plain, fast = told["plain"], told["speculative"]
    assert told["identical"] is True and plain["token_ids"] == fast["token_ids"] and len(plain["token_ids"]) == 24
    assert plain["text"] == fast["text"] == ("one two three four " * 6)
    assert plain["acceptance_length"] == 1.0 and plain["steps"] == 23 and plain["sources"] == {"target": 24}
    assert (told["drafter"], told["exactness"]) == ("phrases", "unchecked") and told["speedup"] > 0
    alone = called(
        tmp_path, "run", "Count!", "-m", str(words), "-n", "24", "--drafter", "phrases", "--draft-max", "4", "--pool",
        "off", "--no-log", "--json",
    )  # fmt: skip
    expected = json.loads(alone.stdout)
    assert fast["token_ids"] == expected["token_ids"], "taking turns changes nothing of what is drafted"
    assert fast["acceptance_length"] == expected["speculation"]["acceptance_length"] > 1.5


def test_different_texts_are_reported(tmp_path, words, monkeypatch):
    honest = Session.generate

    def generate(session, prompt, sampling, limits=None):
        for event in honest(session, prompt, sampling, limits):
            if (statistics := getattr(event, "statistics", None)) and session.budget.nodes:
                ids = list(statistics.token_ids)
                ids[7] += 1
                object.__setattr__(statistics, "token_ids", tuple(ids))
            yield event

    monkeypatch.setattr(Session, "generate", generate)
    done = race(tmp_path, words, "--draft-max", 4)
    assert "✓" not in done.stdout and wording("texts_differ_from_token_8") in done.stdout


def test_a_recording_can_be_played(tmp_path, words):
    file = tmp_path / "race.cast"
    done = race(tmp_path, words, "--cast", file)
    assert done.returncode == 0 and str(file) in done.stderr
    head, *events = map(json.loads, file.read_text("utf-8").splitlines())
    assert head["version"] == 2 and (head["width"], head["height"]) == (80, 24) and "Count!" in head["title"]
    shown = "".join(data for _, _, data in events)
    assert "plain decoding" in shown and "with phrases" in shown and wording("both_texts_are_the_same") in shown


def test_where_drafting_does_not_pay_phrases_race(tmp_path, words, monkeypatch):
    from localspec import Engine

    honest = Engine.open.__func__

    def without(cls, settings, card, **named):
        return honest(cls, module.replace(settings, drafter="none"), card, **named)

    monkeypatch.setattr(Engine, "open", classmethod(without))
    done = called(tmp_path, "race", "Count!", "-m", str(words), "-n", "24", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["drafter"] == "phrases" and told["identical"] is True
    assert told["speculative"]["acceptance_length"] >= 1.0 == told["plain"]["acceptance_length"]


@pytest.mark.parametrize(("columns", "lines"), [(60, 20), (100, 30)])
def test_on_a_terminal_it_is_seen_live_and_again(tmp_path, words, columns, lines):
    code, sent = at_terminal(tmp_path, columns, lines, "-m", words, "-n", 24, "--drafter", "phrases", "--draft-max", 4)
    assert code == 0
    assert sent.index(LIVE) < sent.index(REPLAY), "first as it happens, then at true speed"
    before, watched, after = re.split(r"\x1b\[\?1049[hl]", sent)
    assert LIVE in watched and REPLAY in watched and "\x1b[?25l" in watched, "on the alternate screen"
    assert after.startswith("\x1b[?25h") and LIVE not in before + after
    screen = pyte.Screen(columns, lines + 4)  # long figures may take the last sentences another line, and scroll
    pyte.Stream(screen).feed(sent)
    shown = [line.rstrip() for line in screen.display if line.strip()]
    # If drafts do not pay here, a sentence says so. In 60 columns it and the figures are broken between words.
    assert re.search(FIGURES, " ".join(shown))
    assert shown[0] == REPLAYED and shown[1].split(" │ ")[1].strip() == "with phrases"
    assert shown[-1] == wording("both_texts_are_the_same") and [
        line for line in shown[-5:] if " with phrases (" in line
    ]
    left, right = zip(*(line.split("│") for line in shown if line.count("│") == 1), strict=True)
    assert " ".join(left).count("one two three") == " ".join(right).count("one two three") > 0


LONG = ["-n", 1500, "--drafter", "phrases", "--draft-max", 4]


def rules(drawn: str) -> set[int]:
    """Return the widths of the pictures."""
    return {len(line.removeprefix("\x1b[K")) for line in drawn.splitlines() if "┼" in line}


def test_of_a_terminal_that_is_resized_nothing_is_left_on_the_screen_before(tmp_path, words):
    def resize(process: subprocess.Popen[bytes], terminal: int) -> None:
        sized(terminal, 60, 20)
        process.send_signal(signal.SIGWINCH)

    code, sent = at_terminal(tmp_path, 100, 30, "-m", words, *LONG, live=resize)
    _, watched, after = re.split(r"\x1b\[\?1049[hl]", sent)
    assert code == 0 and rules(watched) == {99, 59}
    assert rules(after) == {59} and after.count(REPLAYED) == after.count("plain decoding") == 1


def test_one_that_is_ended_leaves_the_screen_as_it_was(tmp_path, words):
    code, sent = at_terminal(tmp_path, 100, 30, "-m", words, *LONG, live=lambda process, _: process.terminate())
    assert code == -signal.SIGTERM and sent.endswith("\x1b[?1049l\x1b[?25h")


@pytest.mark.parametrize(("size", "variables"), [((100, 9), {}), ((20, 30), {}), ((100, 30), {"TERM": "dumb"})])
def test_a_terminal_that_cannot_show_it_gets_only_the_result(tmp_path, words, size, variables):
    code, sent = at_terminal(tmp_path, *size, "-m", words, "-n", 8, "--drafter", "phrases", **variables)
    assert code == 0 and wording("both_texts_are_the_same") in " ".join(sent.split())
    assert LIVE not in sent and "\x1b[?25l" not in sent


def at_terminal(
    home: Path,
    columns: int,
    lines: int,
    *arguments: object,
    live: Callable[[subprocess.Popen[bytes], int], None] | None = None,
    **variables: str,
) -> tuple[int, str]:
    """Run a race with a terminal of this size as its standard output: exit code, and what reached it.

    With the first picture `live` is called, with the process and the terminal.
    """
    ours, theirs = pty.openpty()
    sized(ours, columns, lines)
    process = subprocess.Popen(
        [sys.executable, "-m", "localspec", "race", "Count!", *map(str, arguments)],
        env=environment(home, **{"TERM": "xterm", **variables}),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    sent = b""
    for piece in reaching(ours):
        sent += piece
        if live is not None and LIVE.encode() in sent:
            live(process, ours)
            live = None
    return process.wait(PATIENCE), sent.decode()


def sized(terminal: int, columns: int, lines: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
