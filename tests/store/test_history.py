"""Every finished turn is saved and found by its words, and no file contains removed text."""

import contextlib
import os
import random
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clocks import PATIENCE
from database_files import answers, damage_root, integrity, killed_lives, only_readable, open_directory
from deleted_text import MARKER, bytes_on_disk, index_is_whole, talk, traces
from each import each
from golden import matching, wording

from localspec.store import cleaning, opening, salvage
from localspec.store import history as history_module
from localspec.store import store as store_module
from localspec.store.conversations import INFO, SOURCES, Found, Turn
from localspec.store.database import StoreTrouble
from localspec.store.history import CANDIDATES, NEWEST_FIRST, WHOLE, History
from localspec.store.store import Store

HOSTILE = (
    "\x1b[2J\x1b]52;c;aGk=\x07 \x9b31m \u202egnp.exe\u2066 [red]x[/] <b>&#27;</b> \ufeff \U0010ffff \r\n\t e\u0301"
)


@pytest.fixture
def history(store: Store) -> History:
    return store.history


def said(
    history: History,
    prompt: str,
    reply: str = "",
    reason: str | None = "stop",
    conversation: int | None = None,
    instead: int | None = None,
) -> tuple[int, int]:
    """Return a turn as a chat makes it: its conversation and its id."""
    number, turn = history.say(conversation, prompt, model="demo", system=None, instead=instead)
    if reply or reason != "stop":
        history.write(turn, reply[: len(reply) // 2])
        history.write(turn, reply, reason)
    return number, turn


def texts(history: History, conversation: int) -> list[tuple[str, str, str | None]]:
    saved = history.read(conversation)
    assert saved is not None
    return [(turn.prompt, turn.reply, turn.reason) for turn in saved.turns]


def found(history: History, words: str) -> list[int]:
    return [hit.turn for hit in history.search(words)]


def raw(store: Store, query: str, *values: Any) -> list[Any]:
    return store._database._connection.execute(query, values).fetchall()


# -- what goes in comes out --


def test_a_conversation_comes_out_as_it_was_said(path: Path, notices: list[str]) -> None:
    start = time.time()
    with Store.open(path, notices.append) as store:
        history = store.history
        number, first = history.say(None, "Hello?\nYou", model="demo", system="Be brief.")
        history.write(first, "Hel")
        assert texts(history, number) == [("Hello?\nYou", "Hel", None)]
        history.write(first, "Hello.", "stop", {"tokens_per_second": 1.5, "sources": {"target": 2}})
        assert history.say(number, "And?", model="other", system=None) == (number, first + 1)
        end = time.time()
        history.write(first + 1, "And so", "length")
    with Store.open(path, notices.append) as store:
        saved = store.history.read(number)
    assert saved is not None and saved.system is None
    assert saved.turns == (
        Turn(
            first,
            "Hello?\nYou",
            "Hello.",
            "stop",
            {"tokens_per_second": 1.5, "sources": {"target": 2}},
            saved.turns[0].asked,
        ),
        Turn(first + 1, "And?", "And so", "length", {}, saved.turns[1].asked),
    )
    info = saved.info
    assert info[:3] == (number, "Hello? You", "other") and info.turns == 2
    assert start <= info.created <= saved.turns[0].asked <= saved.turns[1].asked <= end <= info.used <= time.time()
    assert notices == []


def test_the_model_and_system_prompt_are_those_of_the_last_turn(history: History) -> None:
    number, _ = history.say(None, "a", model="one", system="first")
    history.say(number, "b", model="two", system="second")
    saved = history.read(number)
    assert saved is not None and (saved.info.model, saved.system) == ("two", "second")


def test_an_unanswered_turn_gives_way_to_the_next(history: History) -> None:
    number, first = said(history, "first", "reply")
    other, _ = said(history, "another conversation")
    _, lost = said(history, "taken back", conversation=number)
    _, stopped = said(history, "stopped at once", "", "interrupted", conversation=number, instead=lost)
    assert texts(history, number) == [("first", "reply", "stop"), ("stopped at once", "", "interrupted")]
    _, killed = said(history, "killed", "half", None, conversation=number, instead=stopped)
    said(history, "last", conversation=number, instead=killed)  # it has a reply
    said(history, "further", conversation=other, instead=first)
    assert texts(history, number) == [("first", "reply", "stop"), ("killed", "half", None), ("last", "", None)]
    assert texts(history, other) == [("another conversation", "", None), ("further", "", None)]


def test_a_turn_that_another_process_is_about_to_answer_stays(history: History) -> None:
    number, theirs = said(history, "theirs")
    _, ours = said(history, "ours", conversation=number)
    assert history.write(theirs, "reply", "stop") and history.write(ours, "reply", "stop")
    assert texts(history, number) == [("theirs", "reply", "stop"), ("ours", "reply", "stop")]


def test_what_is_said_in_a_conversation_that_is_gone_begins_a_new_one(history: History) -> None:
    first, turn = said(history, "first", "reply")
    history.remove([first])
    assert not history.write(turn, "too late", "stop")
    assert history.conversations() == [] and history.read(first) is None
    second, later = said(history, "second", "reply", conversation=first)
    assert second > first and later > turn, "an id never means something else"
    assert texts(history, second) == [("second", "reply", "stop")]
    assert said(history, "third", conversation=10**15)[0] == second + 1


@each("number", [0, -1, 2**63, -(2**70), 10**30])
def test_a_number_that_is_no_id_is_no_conversation(history: History, number: int) -> None:
    said(history, "first", "reply")
    assert history.read(number) is None


def test_the_most_recently_used_come_first_whatever_the_clock_says(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert history.latest() is None and history.conversations() == []
    seconds = iter(range(1000, 0, -1))
    monkeypatch.setattr(history_module.time, "time", lambda: next(seconds))  # a clock that runs backwards
    numbers = [said(history, f"prompt {n}", "reply")[0] for n in range(4)]
    said(history, "again", "reply", conversation=numbers[1])
    order = [numbers[1], numbers[3], numbers[2], numbers[0]]
    assert [info.id for info in history.conversations()] == order and history.latest() == numbers[1]
    assert [info.id for info in history.conversations(2)] == order[:2] and history.conversations(0) == []
    assert [info.turns for info in history.conversations()] == [2, 1, 1, 1]
    assert [info.title for info in history.conversations(2)] == ["prompt 1", "prompt 3"]


def test_a_list_says_the_same_as_each_conversation(history: History) -> None:
    for n in range(3):
        number, _ = said(history, f"prompt {n}\n" * 50, "reply")
        said(history, "more", "reply", conversation=number)
    for info in history.conversations():
        saved = history.read(info.id)
        assert saved is not None and saved.info == info


def test_a_title_is_safe_and_short(history: History) -> None:
    for prompt, title in (
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("x" * 100_000, "x" * 59 + "…"),
        ("\n\n  two\n\tlines\x1b[2J\u202e ", "two lines␛[2J"),
        (" \n", ""),
    ):
        said(history, prompt, "reply")
        assert history.conversations(1)[0].title == title


def test_prompts_are_the_newest_distinct_ones(history: History) -> None:
    assert history.prompts(5) == []
    for prompt in ("a", "b", "a", "c", "b", "d\n"):
        said(history, prompt, "reply")
    said(history, "unanswered")
    assert history.prompts(10) == ["unanswered", "d\n", "b", "c", "a"]
    assert history.prompts(3) == ["unanswered", "d\n", "b"] and history.prompts(0) == []


@each("text", [HOSTILE, MARKER, "'; DROP TABLE turn; --", "%_\\", '"', "\U0001f469\u200d\U0001f680"])
def test_hostile_text_is_kept_as_it_is(history: History, text: str) -> None:
    number, turn = history.say(None, text, model=text, system=text)
    history.write(turn, text, "stop", {text: text})
    saved = history.read(number)
    assert saved is not None and (saved.info.model, saved.system) == (text, text)
    assert saved.turns[0] == Turn(turn, text, text, "stop", {text: text}, saved.turns[0].asked)
    assert history.prompts(1) == [text]


def test_what_the_database_cannot_hold_is_replaced(store: Store, history: History) -> None:
    bad = "before\0 \ud800middle\udcff after"
    number, turn = history.say(None, bad, model=bad, system=bad)
    history.write(turn, bad)
    history.write(turn, bad, "stop", {bad: bad})
    good = "before␀ \ufffdmiddle\ufffd after"
    saved = history.read(number)
    assert saved is not None and (saved.info.model, saved.system) == (good, good)
    assert (saved.turns[0].prompt, saved.turns[0].reply) == (good, good)
    assert saved.turns[0].figures == {bad: bad}
    assert found(history, "after") == found(history, bad) == found(history, "\ud800m") == [turn]
    assert index_is_whole(store)


@each("damaged", ["", "{", "[1]", "1", "\x00", b"\xff\xfe", "[" * 100_000])
def test_damaged_figures_are_ignored(store: Store, history: History, damaged: object) -> None:
    number, _ = said(history, "prompt", "reply")
    raw(store, "UPDATE turn SET figures = ?", damaged)
    saved = history.read(number)
    assert saved is not None and saved.turns[0].figures == {}


def test_whether_anything_was_ever_kept(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append) as store:
        assert not store.history.ever_saved
        store.phrases.pool("demo", "hash")
        assert not store.history.ever_saved
        number, _ = said(store.history, "prompt")
        assert store.history.ever_saved
        store.history.remove([number])
        assert store.history.ever_saved
    with Store.open(path, notices.append) as store:
        assert store.history.ever_saved and store.history.conversations() == []


# -- searching --


@pytest.mark.slow
@each(
    "words, text",
    [
        ("quick", wording("the_quick_brown_fox")),
        ("uic", wording("the_quick_brown_fox")),
        ("QUICK bRown", wording("the_quick_brown_fox")),
        ("fox quick", wording("the_quick_brown_fox")),
        ("straße ÄÖÜ", "die STRAßE hat äöüßen"),
        ("привет", "ПРИВЕТ, мир"),
        ("漢字", "日本の漢字です"),
        ("字", "日本の漢字です"),
        ("日本の漢", "日本の漢字です"),
        ("ab", "xaby"),
        ("Ä", "bär"),
        ("q", "Quick"),
        ("q uick", "quick"),
        ('"quoted"', 'a "quoted" word'),
        ('a"b', 'xa"by'),
        ("*", "2 * 3"),
        ("f*", "f*o"),
        ("foo*", "x = foo*bar"),
        ("AND", "this AND that"),
        ("a AND b NEAR OR NOT", "a and b or not near"),
        ("NEAR(x,", "f = NEAR(x, y)"),
        ("-", "a - b"),
        ("-foo", "rm -foo"),
        ("a:b:c", "see a:b:c"),
        ("prompt:", "prompt: x"),
        ("(((", "a((((b"),
        (")", "a)"),
        ("{x}", "{x} + 1"),
        ("^abc", "^abc"),
        ("a+b", "a+bc"),
        ("%", "100 %"),
        ("_", "a_b"),
        ("a%c", "a%c"),
        ("[a-z]", "re [a-z]"),
        ("\\d+", "\\d+ \\w"),
        (".", "end."),
        ("'", "it's"),
        ("don't", "I don't"),
        ("; --", "x; -- y"),
        ("\x1b[2J", "clear \x1b[2J now"),
        ("👩‍🚀", "an 👩‍🚀 flies"),
        ("x" * 500, "x" * 600),
        (" ".join(f"word{n}" for n in range(500)), " ".join(f"Word{n}" for n in range(500))),
    ],
)
@each("where", ["prompt", "reply", "unfinished"])
def test_words_are_found_whatever_they_are_made_of(history: History, words: str, text: str, where: str) -> None:
    said(history, "something", "else")
    number, turn = said(
        history,
        text if where == "prompt" else "nothing",
        "nothing" if where == "prompt" else text,
        None if where == "unfinished" else "stop",
    )
    said(history, "thing", "more")
    assert found(history, words) == [turn]
    history.remove([number])


@each("words", ["a*c", "a_c", "a%c", "a.c", "abc OR def", "x q", '"abc', "abcd", "NOT abc", "zz"])
def test_no_character_stands_for_others(history: History, words: str) -> None:
    said(history, "abc", "xyz abc")
    assert found(history, words) == []


@each("words", ["", " ", "\n\t \u3000"])
def test_no_words_find_nothing(history: History, words: str) -> None:
    said(history, "abc", "xyz")
    assert history.search(words) == []


def test_all_words_must_stand_in_one_turn_on_either_side(history: History) -> None:
    number, first = said(history, "alpha of", "beta to")
    _, second = said(history, "gamma", "delta", conversation=number)
    assert found(history, "alpha beta") == found(history, "of to") == found(history, "beta of") == [first]
    assert found(history, "gamma delta") == [second]
    assert found(history, "alpha gamma") == found(history, "of gamma") == []


def test_a_conversation_is_found_once_by_its_newest_turn(history: History) -> None:
    one, _ = said(history, "needle", "first")
    two, middle = said(history, "other", "needle")
    _, last = said(history, "third", "needle", conversation=one)
    said(history, "no such thing", "here", conversation=two)
    hits = history.search("needle")
    assert [(hit.info.id, hit.turn) for hit in hits] == [(one, last), (two, middle)]
    assert [hit.info for hit in hits] == [
        info for number in (one, two) for info in history.conversations() if info.id == number
    ]
    assert [hit.turn for hit in history.search("needle", 1)] == [last] and history.search("needle", 0) == []


def test_unanswered_and_unfinished_turns_are_found_too(history: History) -> None:
    _, killed = said(history, "needle one", "half", None)
    _, stopped = said(history, "needle two", "", "interrupted")
    _, waiting = said(history, "needle three")
    assert found(history, "needle") == found(history, "ne") == [waiting, stopped, killed]
    history.write(killed, "half and half", "stop")
    assert found(history, "needle half") == [killed]


def test_an_excerpt_is_one_safe_line_around_the_word(history: History) -> None:
    cases = (
        (("short\nneedle", "reply"), "needle", "short needle"),
        (("prompt", "a " * 500 + "NEEDLE" + " b" * 500), "needle", f"…{'a ' * 15}NEEDLE{' b' * 32}…"),
        (("needle" + "x" * 200, ""), "needle", "needle" + "x" * 94 + "…"),
        (("needle" + "x" * 94, ""), "needle", "needle" + "x" * 94),
        (("\x1b[2Jneedle\u202e\r\n\n", "r"), "needle", "␛[2Jneedle"),
        (("prompt with beta", "reply with alpha"), "alpha beta", "reply with alpha"),
    )
    for (prompt, reply), words, excerpt in cases:
        number, _ = said(history, prompt, reply)
        hits = history.search(words)
        assert [(type(hit), hit.excerpt) for hit in hits] == [(Found, excerpt)]
        history.remove([number])


def test_a_title_that_was_given_is_searched_too(history: History) -> None:
    """Given titles are searched as well as messages, newest first; a title made of a prompt is found by the prompt."""
    first, _ = history.say(None, "about cats", model="demo", system=None)
    other, turn = history.say(None, "a zebra", model="demo", system=None)
    last, newest = history.say(None, "nothing", model="demo", system=None)
    assert history.search("stripes") == []
    history.rename(first, "Stripes and Zebras")
    history.rename(last, "zebra, again")
    assert [(found.info.id, found.excerpt) for found in history.search("STRIPES zebra")] == [
        (first, "Stripes and Zebras")
    ]
    assert [found.info.id for found in history.search("zebra")] == [last, other, first]
    assert [found.turn for found in history.search("zebra", limit=2)] == [newest, turn]
    history.rename(first, "")
    assert history.search("stripes") == []


@pytest.mark.slow
def test_searching_agrees_with_looking_at_everything(store: Store, history: History) -> None:
    chance = random.Random(5)
    alphabet = [*"ab\"*-:()ÄäéЖж漢字 \n'%_^", "AND", " NEAR "]
    turns: dict[int, tuple[int, str]] = {}
    conversation: int | None = None
    for n in range(200):
        prompt, reply = ("".join(chance.choices(alphabet, k=chance.randint(1, 30))) for _ in range(2))
        # An answer that the next turn replaces would have to leave `turns`.
        reason = chance.choice(["stop", "length", "interrupted", None])
        conversation, turn = said(history, prompt, reply, reason, conversation if n % 4 else None)
        turns[turn] = (conversation, f"{prompt}\0{reply}".lower())
    hits = 0
    for _ in range(300):
        source = chance.choice(list(turns.values()))[1].replace("\0", " ")
        start = chance.randrange(len(source))
        words = source[start : start + chance.randint(1, 12)]
        newest: dict[int, int] = {}
        for turn, (number, text) in sorted(turns.items(), reverse=True):
            if words.split() and all(word in text for word in words.split()):
                newest.setdefault(number, turn)
        assert found(history, words) == list(newest.values())[:50], words
        hits += len(newest)
    assert hits > 1000 and index_is_whole(store)


def test_no_conversation_is_inspected_that_is_not_requested(store: Store, history: History) -> None:
    """What a start reads: of 100,000 conversations it took three seconds."""
    for query, values in ((NEWEST_FIRST, ()), (INFO, (1,)), (WHOLE, (1,))):
        plan = "; ".join(row[3] for row in raw(store, f"EXPLAIN QUERY PLAN {query}", *values))
        # The index begins with the last conversation, and nothing is read beyond it; nothing is read for sorting.
        looked_through = plan.replace("SCAN conversation USING COVERING INDEX conversation_by_newest", "")
        assert "SCAN" not in looked_through and "TEMP B-TREE" not in plan, plan
        assert query == NEWEST_FIRST or "conversation=?" in plan, plan


def test_the_newest_are_the_first_of_all(history: History) -> None:
    for number in range(6):
        said(history, f"prompt {number}", "reply")
    _, turn = history.say(2, "more", model="demo", system=None)
    history.write(turn, "reply", "stop")
    history.say(4, "unanswered", model="demo", system=None)
    history.remove([6])
    everything = history.conversations()
    assert [info.id for info in everything] == [4, 2, 5, 3, 1] and [info.turns for info in everything[:2]] == [2, 2]
    for limit in range(1, 8):
        assert history.conversations(limit) == everything[:limit]
    assert history.latest() == 4


def test_the_index_is_used_and_unfinished_turns_are_not_in_it(store: Store, history: History) -> None:
    plan = "; ".join(row[3] for row in raw(store, f"EXPLAIN QUERY PLAN {CANDIDATES}", '"abc"'))
    assert "trigram VIRTUAL TABLE" in plan and "turn_not_indexed" in plan and "SCAN turn;" not in f"{plan};"
    said(history, "before", "finished")
    before = raw(store, "SELECT * FROM trigram_data")
    number, turn = history.say(None, "prompt", model="demo", system=None)
    for length in range(1, 50):
        history.write(turn, "needle " * length)
    history.write(turn, "", "interrupted")
    history.say(number, "instead", model="demo", system=None)
    assert raw(store, "SELECT * FROM trigram_data") == before and index_is_whole(store)
    history.write(turn + 1, "needle", "stop")
    assert raw(store, "SELECT * FROM trigram_data") != before and index_is_whole(store)


@pytest.mark.slow
def test_the_index_follows_every_change(store: Store, history: History) -> None:
    chance = random.Random(6)
    turns: list[int] = []
    for _ in range(300):
        numbers = [info.id for info in history.conversations()]
        match chance.randrange(8):
            case 0 | 1 | 2:
                number = chance.choice([None, *numbers])
                turns.append(history.say(number, f"prompt {chance.random()}", model="demo", system=None)[1])
            case 3 | 4 | 5 if turns:
                reason = chance.choice([None, "stop", "interrupted"])
                history.write(chance.choice(turns), chance.choice(["", "reply", MARKER]) * 3, reason)
            case 6 if numbers:
                history.remove([chance.choice(numbers)])
            case _:
                history.search(chance.choice(["prompt", "reply"]))
        assert index_is_whole(store)
    assert len(turns) > 50


def test_the_index_follows_what_another_program_does_to_the_turns(store: Store, history: History) -> None:
    number, turn = said(history, "prompt", "reply")
    raw(
        store,
        """INSERT INTO turn (conversation, prompt, reply, reason, figures, asked)
        VALUES (?, 'imported', 'finished', 'stop', '{}', 0), (?, 'imported', 'half', NULL, '{}', 0)""",
        number,
        number,
    )
    assert found(history, "finished") == [turn + 1] and found(history, "half") == [turn + 2] and index_is_whole(store)
    raw(store, "DELETE FROM turn WHERE id <= ?", turn + 1)
    assert found(history, "imported") == [turn + 2] and index_is_whole(store)


# -- deleting --


ANOTHER_PROCESS = """
import sys
from pathlib import Path
from localspec.store.store import Store
store = Store.open(Path(sys.argv[1]), lambda sentence: sys.exit("notice: " + sentence))
print(len(store.history.conversations()), store.history.say(None, "of another process", model="demo", system=None)[1])
sys.stdout.flush()
sys.stdin.readline()
store.history.write(int(sys.argv[2]), "too late", "stop")
print(len(store.history.conversations()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("everything", [True, False])
def test_what_was_removed_is_in_no_file(path: Path, notices: list[str], everything: bool) -> None:
    chance = random.Random(7)
    with Store.open(path, notices.append) as store, Store.open(path, notices.append) as another:
        kept, _ = said(store.history, "what stays", "a reply that stays")
        gone = [talk(store.history, chance), talk(another.history, chance)]
        assert traces(path) == set(MARKER)
        blocks = b"".join(row[0] for row in raw(store, "SELECT block FROM trigram_data"))
        assert sum(character.encode() in blocks for character in MARKER) == len(MARKER), "this test sees trigrams"
        assert store.history.remove([kept, *gone] if everything else gone) == (3 if everything else 2)
        assert traces(path) == set()
        assert (b"a reply that stays" in bytes_on_disk(path)) is not everything
        assert len(another.history.conversations()) == (0 if everything else 1)
        assert another.history.search(MARKER[:3]) == another.history.search(MARKER[0]) == []
        assert len(store.history.search("that stays")) == (0 if everything else 1)
        assert index_is_whole(store) and index_is_whole(another)
    assert traces(path) == set() and integrity(path) == "ok" and notices == []


@pytest.mark.slow
def test_what_was_removed_is_in_no_file_while_another_process_has_them_open(path: Path, notices: list[str]) -> None:
    with Store.open(path, notices.append) as store:
        gone = talk(store.history, random.Random(8))
        saved = store.history.read(gone)
        assert saved is not None
        turn = saved.turns[-1].id
        process = subprocess.Popen(
            [sys.executable, "-c", ANOTHER_PROCESS, str(path), str(turn)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"1 {turn + 1}\n", process.communicate()[1]
        assert store.history.remove([gone]) == 1
        assert traces(path) == set()
        rest, errors = process.communicate("go on\n", timeout=PATIENCE)
        assert (rest, process.returncode) == ("1\n", 0), errors
        assert traces(path) == set() and b"too late" not in bytes_on_disk(path)
        assert store.history.prompts(5) == ["of another process"]
    assert notices == []


@pytest.mark.slow
@pytest.mark.parametrize("large", [True, False])
def test_a_large_database_is_shrunk_without_memory_for_all_of_it(path, store, monkeypatch, large):
    """SQLite's temporary data are in a file in the private directory, and nowhere else."""
    monkeypatch.setattr(cleaning, "MOST_IN_MEMORY", 0 if large else 2**30)
    gone = talk(store.history, random.Random(9))
    asked: list[str] = []
    store._database._connection.set_trace_callback(asked.append)
    assert store.history.remove([gone]) == 1
    store._database._connection.set_trace_callback(None)
    around = "; ".join(asked[asked.index("VACUUM") - 3 : asked.index("VACUUM") + 3])
    assert (f"temp_store_directory = '{path.parent}'" in around and "temp_store = FILE; VACUUM" in around) == large
    assert raw(store, "PRAGMA temp_store") == [(2,)] and not any(raw(store, "PRAGMA temp_store_directory"))
    assert traces(path) == set()


def test_removing_counts_what_was_there_and_leaves_the_rest(store: Store, history: History) -> None:
    pool = store.phrases.pool("demo", "hash")
    assert pool is not None
    store.phrases.learn(pool, [(1, b"", b"1234")])
    store.measurements.remember("costs", "demo", [1])
    numbers = [said(history, f"prompt {n}", "reply")[0] for n in range(5)]
    assert history.remove([numbers[0], numbers[3], numbers[0], 999]) == 2
    assert history.remove([]) == history.remove([numbers[0]]) == 0
    assert sorted(info.id for info in history.conversations()) == [numbers[1], numbers[2], numbers[4]]
    assert len(history.search("prompt")) == 3 and texts(history, numbers[1]) == [("prompt 1", "reply", "stop")]
    assert len(store.phrases.look_up(pool, [1])) == 1 and store.measurements.recall("costs", "demo") == [1]
    store.phrases.delete()
    assert len(history.conversations()) == 3


@pytest.mark.slow
def test_removing_says_so_when_another_process_keeps_the_bytes(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.05)
    with Store.open(path, notices.append) as store:
        gone = talk(store.history, random.Random(10))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM turn").fetchall()
            with pytest.raises(StoreTrouble, match=matching("n1_conversation_removed_but_deleted")):
                store.history.remove([gone])
            assert store.history.conversations() == []
    with Store.open(path, notices.append):
        assert traces(path) == set(), "as the sentence promises"


# -- two processes, two threads, sudden ends --


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_processes_lose_nothing(path: Path, notices: list[str]) -> None:
    """Both make, migrate and open the file at the same time."""

    def live(name: str, pipe: int) -> None:
        history = Store.open(path, notices.append).history
        number = None
        for n in range(60):
            number, turn = history.say(number, f"{name} {n}", model=name, system=None)
            for part in range(3):
                history.write(turn, f"reply {name} {n} " * part)
            history.write(turn, f"reply {name} {n}", "stop", {"n": n})
            if n % 10 == 0:
                assert history.search(f"{name} {n}") and history.latest() and history.prompts(3)
                history.remove([history.say(None, "short lived", model=name, system=None)[0]])
        os.write(pipe, b"told" if notices else b"quiet")

    names = ("anna", "berta")
    assert answers(*(partial(live, name) for name in names)) == [b"quiet"] * 2
    with Store.open(path, notices.append) as store:
        numbers = {info.model: info.id for info in store.history.conversations()}
        assert numbers.keys() == {*names} and len(store.history.conversations()) == 2
        for name, number in numbers.items():
            assert texts(store.history, number) == [(f"{name} {n}", f"reply {name} {n}", "stop") for n in range(60)]
        assert index_is_whole(store)
    assert integrity(path) == "ok" and notices == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_killed_process_loses_no_finished_turn(path: Path, notices: list[str]) -> None:
    def live(life: int, pipe: int) -> None:
        history = Store.open(path, notices.append).history
        conversation: int | None = None
        for n in range(100_000):
            conversation, turn = history.say(conversation, f"prompt {life} {n}", model="demo", system=None)
            for end in range(1, 4):
                history.write(turn, "word " * 300 * end)
            history.write(turn, "word " * 1200, "stop")
            os.write(pipe, f"{turn}\n".encode())

    for life, finished in enumerate(killed_lives(20, live)):
        with Store.open(path, notices.append) as store:
            turns = raw(store, "SELECT id, length(reply), reason FROM turn")
            if life % 5 == 4:
                assert index_is_whole(store)
        whole = {turn for turn, length, reason in turns if (length, reason) == (6000, "stop")}
        assert finished <= whole and len(whole - finished) <= life + 1
        assert {(length, reason) for turn, length, reason in turns if turn not in whole} <= {
            (length, None) for length in (0, 1500, 3000, 4500)
        }
    assert len(finished) > 30 and notices == [] and integrity(path) == "ok"


@pytest.mark.slow
def test_threads_may_share_a_history(store: Store, history: History) -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(3)
    numbers: dict[str, int] = {}

    def work(name: str) -> None:
        try:
            start.wait()
            conversation: int | None = None
            for n in range(40):
                conversation, _ = said(history, f"{name} {n}", "reply", conversation=conversation)
                numbers[name] = conversation
                assert len(history.search(f"{name} {n}")) == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("anna", "berta", "carla")]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    for name, number in numbers.items():
        assert texts(history, number) == [(f"{name} {n}", "reply", "stop") for n in range(40)]
    assert index_is_whole(store)


# -- old, broken and read-only files --


def test_where_a_conversation_was_said_is_kept(store: Store) -> None:
    history = store.history
    numbers = [history.say(None, source, model="demo", system=None, source=source)[0] for source in SOURCES]
    assert [info.source for info in history.conversations()] == ["pipe", "run", "chat"]
    assert [history.latest(lambda info: info.for_a_chat), history.latest(lambda info: info.by_run)] == numbers[1:]
    assert history.latest(lambda info: info.by_chat) == numbers[0]
    assert [info.id for info in history.conversations(1, lambda info: info.source == "chat")] == numbers[:1]
    for number in numbers:  # a turn from a pipe does not hide it, and a turn of a chat shows it
        history.say(number, "more", model="demo", system=None, source="pipe")
    assert [info.source for info in history.conversations()] == ["pipe", "run", "chat"]
    for number in numbers:
        history.say(number, "more", model="demo", system=None)
    assert [info.source for info in history.conversations()] == [None, None, "chat"]
    assert history.latest(lambda info: info.by_chat) == history.latest(lambda info: info.by_run) == numbers[2]
    turns = history.read(numbers[0])
    assert turns is not None
    number, _ = history.branch(numbers[0], turns.turns, model="demo", system=None, source="pipe")
    saved = history.read(number)
    assert saved is not None and saved.info.source == "pipe"


def test_what_was_thought_is_kept_with_its_turn_and_goes_with_a_branch(store: Store) -> None:
    history = store.history
    number, turn = history.say(None, "prompt", model="demo", system=None)
    assert history.write(turn, "", reasoning="half a tho")
    assert history.write(turn, "", "interrupted", reasoning="half a thought\0")
    saved = history.read(number)
    assert saved is not None and saved.turns[0].reasoning == "half a thought\N{SYMBOL FOR NULL}"
    assert not saved.turns[0].unanswered
    # A turn that has only thoughts is not an unanswered prompt: it is not taken back.
    number, _ = history.say(number, "next", instead=turn, newest=turn, model="demo", system=None)
    assert texts(history, number) == [("prompt", "", "interrupted"), ("next", "", None)]
    other, _ = history.branch(number, saved.turns, model="demo", system=None)
    branched = history.read(other)
    assert branched is not None and branched.turns[0].reasoning == saved.turns[0].reasoning
    assert history.remove([number, other]) == 2


def filled(path: Path, conversations: int = 3) -> None:
    chance = random.Random(12)
    with Store.open(path, lambda sentence: pytest.fail(sentence)) as store:
        for n in range(conversations):
            words = " ".join(str(chance.random()) for _ in range(200))
            number, _ = said(store.history, f"prompt {n}", words)
            said(store.history, "unfinished", "half", None, number)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the file of ten conversations."""
    path = tmp_path_factory.mktemp("whole") / "localspec.db"
    filled(path, 10)
    return path.read_bytes()


@pytest.mark.slow
@each(
    "name",
    ["conversation", "turn", "sqlite_sequence", "trigram_data", "phrase", "pool", "draft", "measurement", "deletion"],
)
def test_damage_at_the_root_of_a_table_is_found_at_opening(tmp_path: Path, whole: bytes, name: str) -> None:
    path, notices = tmp_path / "localspec.db", list[str]()
    path.write_bytes(whole)
    damage_root(path, name)
    with Store.open(path, notices.append) as store:
        assert len(notices) == 1 and "is broken (" in notices[0]
        said(store.history, "prompt", "reply")
        assert store.path == path and path.with_name("localspec.db.broken-1").exists()


@pytest.mark.slow
@each("part", ["conversation", "turn", "trigram", "phrase", "deletion"])
def test_a_part_that_is_missing_is_found_at_opening(tmp_path: Path, whole: bytes, part: str) -> None:
    path, notices = tmp_path / "localspec.db", list[str]()
    path.write_bytes(whole)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"DROP TABLE {part}")
    with Store.open(path, notices.append) as store:
        assert len(notices) == 1 and "is broken (no such" in notices[0]
        said(store.history, "prompt", "reply")


def damage_tables(path: Path) -> bytes:
    """Overwrite the page type of every leaf of the tables with text; return the bytes of the file."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        deletion = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'deletion'").fetchone()[0]
    content = bytearray(path.read_bytes())
    # The pages that opening reads: the schema, whose root has pages below it, and what a stopped deletion left.
    cells = (struct.unpack_from(">H", content, 112 + 2 * n)[0] for n in range(int.from_bytes(content[103:105], "big")))
    below = (struct.unpack_from(">I", content, place)[0] for place in (108, *cells))
    spared = {deletion, *(below if content[100] == 5 else ())}
    for start in range(size, len(content), size):
        if content[start] == 13 and start // size + 1 not in spared:
            content[start] = 0xFF
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.slow
@each("how", ["say", "write", "conversations", "latest", "read", "search", "short", "prompts", "remove", "ever_saved"])
def test_damage_found_at_work_sets_the_file_aside_and_the_session_continues(
    tmp_path: Path, whole: bytes, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, notices = tmp_path / "localspec.db", list[str]()
    path.write_bytes(whole)
    content = damage_tables(path)
    monkeypatch.setattr(store_module, "PROBES", ())  # as if opening did not read the damaged page
    monkeypatch.setattr(salvage, "MOST_HALVINGS", 100)  # more find nothing more here
    with Store.open(path, notices.append) as store:
        history = store.history
        assert notices == []
        if how == "remove":
            with pytest.raises(StoreTrouble, match=matching("is_damaged_and_may_still_hold_it")):
                history.remove([1])
        else:
            works: dict[str, tuple[Callable[[], object], object]] = {
                "say": (lambda: history.say(3, "prompt", model="demo", system=None), (1, 1)),
                "write": (lambda: history.write(6, "reply", "stop"), False),
                "conversations": (history.conversations, []),
                "latest": (history.latest, None),
                "read": (lambda: history.read(1), None),
                "search": (lambda: history.search("unfinished"), []),
                "short": (lambda: history.search("un"), []),
                "prompts": (lambda: history.prompts(5), []),
                "ever_saved": (lambda: history.ever_saved, False),
            }
            work, result = works[how]
            assert work() == result
        assert len(notices) == 1 and "localspec.db.broken-1" in notices[0] and "is broken" in notices[0]
        assert path.with_name("localspec.db.broken-1").read_bytes() == content
        assert store.path == path
        number, turn = said(history, "after", "all", conversation=3)
        assert texts(history, number)[-1] == ("after", "all", "stop") and found(history, "after") == [turn]
        path.with_name("localspec.db.broken-1").unlink()
        assert history.remove([number]) == 1


@pytest.mark.slow
def test_a_reply_continues_where_the_file_is_replaced_in_the_midst_of_it(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path, 10)
    with Store.open(path, notices.append) as store:
        history = store.history
        number, turn = history.say(None, "prompt", model="demo", system=None)
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        store._database._leave_broken_file(error)
        history.write(turn, "reply")
        history.write(turn, "reply and all", "stop", {})
        assert len(history.conversations()) == 11
        assert history.say(number, "next", model="demo", system=None)[0] == number
        assert texts(history, number) == [("prompt", "reply and all", "stop"), ("next", "", None)]
    assert len(notices) == 1


def test_what_can_only_be_read_is_read(notices: list[str]) -> None:
    with open_directory() as directory:
        path = directory / "data" / "localspec.db"
        filled(path)
        with only_readable(path, directory_too=True), Store.open(path, notices.append) as store:
            history = store.history
            assert store.read_only and store.path == path and len(notices) == 1
            assert len(history.conversations()) == 3 and history.ever_saved
            assert len(history.search("unfinished")) == 3 and texts(history, 1)[1] == ("unfinished", "half", None)
            changes: list[Callable[[], object]] = [
                lambda: history.say(1, "prompt", model="demo", system=None),
                lambda: history.write(1, "reply"),
                lambda: history.remove([1]),
            ]
            why = matching("make_it_and_its_directory_writable")
            for change in changes:
                with pytest.raises(StoreTrouble, match=why):
                    change()
            assert texts(history, 1)[1] == ("unfinished", "half", None)


# -- trouble while working --


def test_a_long_lock_is_reported_and_reading_continues(
    path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.05)
    with Store.open(path, notices.append) as store:
        number, turn = said(store.history, "prompt", "reply")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            changes: list[Callable[[], object]] = [
                lambda: store.history.say(number, "more", model="demo", system=None),
                lambda: store.history.write(turn, "more"),
                lambda: store.history.remove([number]),
            ]
            for change in changes:
                with pytest.raises(StoreTrouble, match=matching("in_use_by_another_process")):
                    change()
            assert texts(store.history, number) == [("prompt", "reply", "stop")]
            assert found(store.history, "prompt") == [turn]


@each("how", ["conversations", "latest", "read", "search", "prompts", "ever_saved"])
def test_what_cannot_be_read_is_reported(store: Store, history: History, how: str) -> None:
    number, _ = said(history, "prompt", "reply")
    works: dict[str, Callable[[], object]] = {
        "conversations": history.conversations,
        "latest": history.latest,
        "read": lambda: history.read(number),
        "search": lambda: history.search("prompt"),
        "prompts": lambda: history.prompts(1),
        "ever_saved": lambda: history.ever_saved,
    }
    store._database._connection.set_authorizer(lambda *question: sqlite3.SQLITE_DENY)
    with pytest.raises(StoreTrouble, match=matching("cannot_be_used_now")):
        works[how]()
    store._database._connection.set_authorizer(None)
    works[how]()


def test_removing_gives_the_space_back(path: Path, store: Store) -> None:
    numbers = [talk(store.history, random.Random(n)) for n in range(3)]
    store.history.remove(numbers[:1])
    size = path.stat().st_size
    assert store.history.remove(numbers[1:]) == 2
    assert path.stat().st_size < size / 2


def test_without_a_file_the_session_works_in_memory(path: Path, notices: list[str]) -> None:
    path.mkdir(parents=True)
    with Store.open(path, notices.append) as store:
        assert len(notices) == 1 and store.path is None
        number, turn = said(store.history, "prompt", "reply")
        assert found(store.history, "prompt") == [turn] and store.history.remove([number]) == 1
