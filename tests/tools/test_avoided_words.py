"""`make lint` names each avoided word in a text with its line, and no code."""

from avoided_words import avoided


def test_avoided_words_are_found_in_docstrings_comments_and_messages_but_not_in_code(tmp_path):
    source = tmp_path / "source.py"
    source.write_text(
        '"""Return what is\n\ntold."""\n\ntold = alone = None  # anew\nprint(f"{told} beside", told is None)\n# `told` is None\n'
    )
    assert sorted(avoided(source)) == [(3, "told"), (5, "anew"), (6, "beside")]


def test_words_on_both_sides_of_a_join_of_literals_are_one_phrase(tmp_path):
    source = tmp_path / "source.py"
    source.write_text('print("It is so " "many, and is "\n      f"none.")\n')
    assert avoided(source) == [(1, "so many"), (1, "is none")]


def test_every_line_of_a_page_is_searched(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Alike\n\n`alone` says `told`.\nSo many words.\n")
    assert avoided(page) == [(1, "alike"), (4, "so many")]
