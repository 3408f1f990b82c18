"""Words are found in a conversation as they are in all of them."""

import pytest
from each import each

from localspec.store.searched_words import Hit, hits, places
from localspec.store.store import Store

MESSAGES = [
    ("Tell me of the Sea", "The sea is deep; café and cafe differ."),
    ("And of hills?", "Hills are by the SEA, where 1+1 is (two)."),
    ("Thanks", "Straße."),
]
ACCENTS = [*MESSAGES, ("Im Cafe\u0301", "GROSSE Männer, Ma\u0308dchen")]


@each(
    "words, found",
    [
        ("sea", [Hit(1, True), Hit(0, True), Hit(0, False)]),
        ("SEA deep", [Hit(0, True)]),
        ("of the", [Hit(1, False), Hit(0, False)]),
        ("hills two", [Hit(1, True)]),
        ("hills? two", [Hit(1, False)]),
        ("two hills?", [Hit(1, True)]),
        ("1+1 (", [Hit(1, True)]),
        ("café", [Hit(0, True)]),
        ("CAFÉ", [Hit(0, True)]),
        ("STRASSE", [Hit(2, True)]),
        ("CAFE\u0301", [Hit(0, True)]),
        ("cafe differ", [Hit(0, True)]),
        ("café.", []),
        ("nowhere", []),
        ("", []),
        ("  ", []),
    ],
)
def test_the_newest_message_first(words, found):
    assert hits(MESSAGES, words) == found


@each(
    "words",
    [
        "SEA deep",
        "two hills?",
        "cafe",
        "strasse",
        "THANKS straße",
        "sea hills",
        "café thanks",
        "STRASSE",
        "im café",
        "große",
        "Mädchen ma\u0308nner",
        "grosse strasse",
        "mad",
    ],
)
def test_what_the_search_of_conversations_finds_is_found_in_it_and_nothing_else(tmp_path, words):
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        number = None
        for prompt, reply in ACCENTS:
            number, turn = store.history.say(number, prompt, model="demo", system=None)
            store.history.write(turn, reply, "stop")
        assert bool(store.history.search(words)) == bool(hits(ACCENTS, words))


def test_every_occurrence_of_the_first_word_is_a_place():
    messages = [("A fox?", "Fox, foxes and FOX."), ("And?", "No more.")]
    assert places(messages, "fox") == [Hit(0, True, 2), Hit(0, True, 1), Hit(0, True, 0), Hit(0, False)]
    assert places(messages, "and fox")[0] == Hit(0, True)
    assert places(messages, "wolf") == []
