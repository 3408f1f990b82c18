"""The help corpus, training-data/help/: what the demo model learns about localspec is so, and nothing is left out."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from demo_data.help_corpus import HelpEntry, load_help
from program_names import all_things, exists, unknown

ENTRIES = load_help()
WORDS = 60  # of an answer: the model that learns it is tiny
FREE = ("idea ", "error ", "self ")  # about what cannot be looked up
OTHERS = (
    "git ",
    "pip ",
    "uv ",
    "make ",
    "hf ",
    "accelerate ",
    "PIP_",
    "HOURS=",
    "| head",
    "2>",
)  # what other programs read


def named(entries: list[HelpEntry]) -> list[str]:
    """How a failing test names entries: by their first question."""
    return [entry.questions[0] for entry in entries]


def wrong_names(entries: list[HelpEntry]) -> list[str]:
    """What entries are about, or name between backticks, that the program does not have."""
    return [
        f"{name!r}, in {entry.questions[0]!r}" for entry in entries if not entry.planned for name in _wrong_in(entry)
    ]


def _wrong_in(entry: HelpEntry) -> Iterator[str]:
    yield from (about for about in entry.about if not about.startswith(FREE) and not exists(about))
    for span in re.findall("`([^`]+)`", entry.answer):
        if not span.startswith(OTHERS) or "localspec " in span:
            yield from unknown(span)


def without_question(entries: list[HelpEntry]) -> list[str]:
    """What the program has, and no entry is about."""
    asked = {about for entry in entries if not entry.planned for about in entry.about}
    return [max(names, key=len) for names in all_things() if not names & asked]


def outdated(entries: list[HelpEntry]) -> list[str]:
    """Planned entries about what is there by now, or about nothing that could come; and answers that held until then."""
    late = [entry for entry in entries if any(map(exists, entry.until))]
    for entry in entries:
        things = [about for about in entry.about if not about.startswith(FREE)]
        if entry.planned and (not things or any(map(exists, things))):
            late.append(entry)
    return named(late)


def test_every_entry_has_three_phrasings_and_a_short_answer():
    assert named([entry for entry in ENTRIES if len(entry.questions) < 3]) == []
    assert named([entry for entry in ENTRIES if not 0 < len(entry.answer.split()) <= WORDS]) == []
    assert named([entry for entry in ENTRIES if "\n" in entry.answer or entry.answer.count("`") % 2]) == []
    assert named([entry for entry in ENTRIES if not entry.about]) == []


def test_no_question_has_two_answers():
    """Whatever its capitals and its last mark: the model could not tell them apart."""
    asked = Counter(question.lower().rstrip("?.!") for entry in ENTRIES for question in entry.questions)
    assert [question for question, times in asked.items() if times > 1] == []


@pytest.mark.slow
def test_what_answers_name_is_there():
    assert wrong_names(ENTRIES) == []


def test_everything_has_a_question():
    assert without_question(ENTRIES) == []


def test_what_is_planned_is_not_there_yet():
    assert outdated(ENTRIES) == []


# -- the checks above can fail -----------------------------------------------------------------------------------------

ONE = HelpEntry(["How?", "Why?", "When?"], "So.", ["run"])


@pytest.mark.parametrize("about", ["fly", "run --wings", "--wings", "/fly", "key ctrl+alt+w", "setting wings", "what"])
def test_an_entry_about_what_is_not_there_is_found(about):
    assert wrong_names([replace(ONE, about=[about])]) != []


@pytest.mark.parametrize(
    "span",
    ["localspec fly", "localspec history fly", "localspec run --wings", "localspec list --seed 1", "--wings", "wings = 1",
     "LOCALSPEC_WINGS", "/fly", "Ctrl+W+W", "-O wings=2", "git diff | localspec fly", "wingspan"],
)  # fmt: skip
def test_an_answer_that_names_what_is_not_there_is_found(span):
    assert wrong_names([replace(ONE, answer=f"Use `{span}`.")]) != []


@pytest.mark.parametrize(
    "about", ["rm", "history search", "run --json", "setting seed", "key ctrl+n", "/resume", "LOCALSPEC_HOME",
              "drafter s3d", "option s3d.skip", "model qwen3-4b", "json sources", "exit 141", "path pulled"],
)  # fmt: skip
def test_a_thing_without_a_question_is_found(about):
    flag = about.rpartition(" ")[2]
    kept = [entry for entry in ENTRIES if about not in entry.about and flag not in entry.about]
    assert without_question(kept) != []


def test_planned_entries_that_are_late_are_found():
    assert outdated([replace(ONE, planned=True)]) == ["How?"]
    assert outdated([replace(ONE, about=["idea flying"], planned=True)]) == ["How?"]
    assert outdated([replace(ONE, about=["fly"], planned=True)]) == []
    assert outdated([replace(ONE, until=["run --json"])]) == ["How?"]
    assert outdated([replace(ONE, until=["run --wings"])]) == []
