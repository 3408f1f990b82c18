"""Titles by rule."""

from each import each
from golden import wording

from localspec.store.conversations import LONGEST, title_of


@each(
    "prompt, title",
    [
        ("Can you please explain how quicksort works in Python?", "How quicksort works in Python?"),
        (wording("what_capital_france"), "Capital of France"),
        (wording("hello_write_short_story_about_fox"), wording("write_short_story_about_fox")),
        ("i want to know what is a monad", "A monad"),
        ("What is a secret?", "A secret"),
        ("who is that singer??", "That singer"),
        ("hi", "hi"),
        ("please", "please"),
        ("what is 2", "what is 2"),  # too little would be left
        ("1+1", "1+1"),
        ("", ""),
        ("two\nlines\tof \x1b[31mred", "two lines of ␛[31mred"),
        ("thinking", "thinking"),  # no word is cut in two
        ("So what?", "So what?"),
        ("Hi there", "Hi there"),
        ("Hello again, everyone!", "Hello again, everyone!"),
        ("Hey you, explain tides", "Tides"),
        ("What is this?", "What is this?"),
        ("Hi there, write about tides", "Write about tides"),
        ("Hi therapist", "Therapist"),
    ],
)
def test_the_first_words_without_filler(prompt, title):
    assert title_of(prompt) == title


def test_a_long_one_ends_behind_a_word():
    title = title_of("Tell me about the history of the Roman empire and its many roads across Europe and Asia")
    assert title == "History of the Roman empire and its many roads across…"
    assert title_of("x" * 100) == "x" * (LONGEST - 1) + "…"
