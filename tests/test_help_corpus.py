"""The help corpus, training-data/help/: what the demo model learns about localspec."""

from collections import Counter

from demo_data.help_corpus import HelpEntry, load_help

ENTRIES = load_help()
WORDS = 60  # of an answer: the model that learns it is tiny


def named(entries: list[HelpEntry]) -> list[str]:
    """How a failing test names entries: by their first question."""
    return [entry.questions[0] for entry in entries]


def test_every_entry_has_three_phrasings_and_a_short_answer():
    assert named([entry for entry in ENTRIES if len(entry.questions) < 3]) == []
    assert named([entry for entry in ENTRIES if not 0 < len(entry.answer.split()) <= WORDS]) == []
    assert named([entry for entry in ENTRIES if "\n" in entry.answer]) == []
    assert named([entry for entry in ENTRIES if not entry.about]) == []


def test_no_question_has_two_answers():
    """Whatever its capitals and its last mark: the model could not tell them apart."""
    asked = Counter(question.lower().rstrip("?.!") for entry in ENTRIES for question in entry.questions)
    assert [question for question, times in asked.items() if times > 1] == []
