"""The places of tokens in lines."""

import random

from each import each
from rich.cells import cell_len

from localspec_tui.widgets.xray_view import Layout


def laid_out(width, *pieces):
    layout = Layout(width)
    for piece in pieces:
        layout.add(piece)
    return layout


def texts(layout):
    return ["".join(run.text for run in layout.line(number)) for number in range(layout.height)]


def test_words_are_kept_whole_and_line_breaks_are_seen():
    layout = laid_out(10, "One", " two", " th", "ree", ",\n", "\n", "four\tfive")
    assert texts(layout) == ["One two ", "three,⏎", "⏎", "four⇥five"]
    assert [run.piece for run in layout.line(1)] == [2, 3, 4]


def test_a_word_longer_than_a_line_is_cut():
    layout = laid_out(4, "abc", "defg", "hi")
    assert texts(layout) == ["abcd", "efgh", "i"]
    assert [layout.line_of(piece) for piece in range(3)] == [0, 0, 1]


def test_a_piece_of_several_lines_begins_in_the_first():
    layout = laid_out(3, "a", "bcdefghijkl", "m")
    assert texts(layout) == ["abc", "def", "ghi", "jkl", "m"]
    assert (layout.line_of(1), layout.column_of(1)) == (0, 1)
    assert (layout.piece_at(2, 0), layout.piece_at(0, 0), layout.piece_at(4, 9), layout.piece_at(5, 0)) == (
        1,
        0,
        2,
        None,
    )


def test_what_has_no_text_is_seen_and_nothing_is_obeyed():
    layout = laid_out(20, "a", "\u202e", "\x1b[31m")
    assert texts(layout) == ["a∅␛[31m"]


@each("width", [2, 3, 10, 57])
def test_no_line_is_too_long_and_every_piece_has_its_place(width):
    chance = random.Random(width)
    pieces = ["".join(chance.choices("ab cé日😀\n\t ", k=chance.randint(0, 7))) for _ in range(400)]
    layout = laid_out(width, *pieces)
    assert max(map(cell_len, texts(layout))) <= width
    seen = [run.piece for number in range(layout.height) for run in layout.line(number)]
    assert seen == sorted(seen)
    assert {*seen} == {*range(len(pieces))}
    for piece in range(len(pieces)):
        line = layout.line_of(piece)
        assert piece in {run.piece for run in layout.line(line)}
        assert line == 0 or piece not in {run.piece for run in layout.line(line - 1)}
        assert layout.piece_at(line, layout.column_of(piece)) == piece
    whole = "".join(texts(layout)).replace("⏎", "\n").replace("⇥", "\t").replace("∅", "")
    assert whole.replace(" ", "") == "".join(pieces).replace(" ", "")
