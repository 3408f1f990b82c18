"""The record of a reply: which drafter proposed each token, and which alternatives were refused."""

import tracemalloc
from collections.abc import Sequence

from localspec.chat.trace import Piece, Pieces, RefusedDraft, TokenPlace, Trace
from localspec.events import Draft, Prefill, Text

BYTES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
EURO = {20: b"\xe2", 21: b"\x82", 22: b"\xac"}


def decode(tokens: Sequence[int]) -> str:
    """Words by number, and a character in three tokens."""
    raw = b"".join(EURO.get(token) or f" {BYTES[token % 10]}".encode() for token in tokens)
    return raw.decode("utf-8", "replace")


#                    root  accepted ─ accepted;  next to them the refused nodes
#   tree:  9 ─ 1 ─ 2 ─ 3 ─ 4      path 0 1 2
#          │   └ 5 ─ 6            5 6 next to 2
#          └ 7                    7 next to 1; 3 4 where the bonus token came
DRAFT = Draft(
    [9, 1, 2, 3, 4, 5, 6, 7], [-1, 0, 1, 2, 3, 1, 5, 0], ["", "a", "a", "b", "b", "b", "a+b", "c"], None, [0, 1, 2]
)


def trace(*events: Text) -> Trace:
    found = Trace("Count", decode)
    for event in events:
        found.take(event)
    return found


FIRST = Text(" nine", (9,), ("target",), 0.1, 0)
SECOND = Text(" one two eight", (1, 2, 8), ("a", "a", "target"), 0.2, 1, (DRAFT,))


def test_a_place_lists_the_nodes_next_to_it():
    found = trace(FIRST, SECOND)
    assert found.place(0) == TokenPlace(0, "target", 0, 0, 1, 0, ())
    assert found.place(1) == TokenPlace(1, "a", 1, 1, 4, 7, (RefusedDraft((7,), ("c",), 1),))
    assert found.place(2).refused == (RefusedDraft((5, 6), ("b", "a+b"), 2),)
    assert found.place(3).refused == (RefusedDraft((3, 4), ("b", "b"), 2),)
    assert found.place(3).source == "target"
    assert [found.corrected(token) for token in range(4)] == [False, False, False, True]
    assert found.texts(3, (3, 4)) == [" three", " four"]


def test_tokens_are_counted_by_who_proposed_them():
    found = trace(FIRST, SECOND)
    found.take(Prefill(3, 3))  # is no text
    assert found.counts() == {"target": 2, "a": 2}
    assert (found.steps, len(found.tokens), found.corrections) == (1, 4, 1)


def test_steps_without_text_of_their_own_keep_their_tokens():
    """Two steps came in one event, and a part of the second one's tokens is still held back."""
    other = Draft((8, 4), range(-1, 1), ["", "b"], None, (0, 1))
    found = trace(FIRST, Text(" one two eight four", (1, 2, 8, 4), ("a", "a", "target", "b"), 0.2, 2, (DRAFT, other)))
    assert (found.place(4).step, found.place(4).first, found.place(4).after) == (2, 4, 5)
    found.take(Text(" five", (5,), ("target",), 0.3, 2))
    assert (found.place(5).step, found.place(5).after) == (2, 6)
    assert found.place(5).refused == ()
    assert not found.corrected(5)


def test_plain_steps_and_probes_propose_nothing():
    alone = Draft((9,), (-1,), None, None, (0,))
    probed = Draft((1, 2, 3), (-1, 0, 1), ("", "a", "a"), (False, False, True), (0,))
    found = trace(FIRST, Text(" one", (1,), ("target",), 0.2, 1, (alone,)))
    found.take(Text(" four", (4,), ("target",), 0.3, 2, (probed,)))
    assert (found.place(1).drafted, found.place(1).refused) == (0, ())
    assert (found.place(2).drafted, found.place(2).refused) == (1, (RefusedDraft((2,), ("a",), 1),))


def test_equal_siblings_of_the_accepted_node_were_not_refused():
    draft = Draft((9, 1, 1, 5), (-1, 0, 0, 0), ("", "a", "a", "a"), None, (0, 1))
    found = trace(FIRST, Text(" one two", (1, 2), ("a", "target"), 0.2, 1, (draft,)))
    assert [one.tokens for one in found.place(1).refused] == [(5,)]


def test_events_that_say_nothing_of_drafts():
    found = trace(FIRST, Text(" one", (1,), ("target",), 0.2, 1))
    assert found.place(1) == TokenPlace(1, "target", 1, 1, 2, 0, ())


def test_halves_of_characters_are_one_piece():
    found = trace(FIRST, Text(" €", (1, 20, 21, 22, 2), ("target",) * 5, 0.2, 0))
    pieces = Pieces(found)
    assert pieces.grow() == 4
    assert pieces.all == [Piece(0, 1, " nine"), Piece(1, 2, " one"), Piece(2, 5, "€"), Piece(5, 6, " two")]
    found.take(Text("", (20,), ("target",), 0.3, 0))
    assert pieces.grow() == 0  # more of it may come
    found.ended = True
    assert pieces.grow() == 1
    assert pieces.all[-1] == Piece(6, 7, "\ufffd")
    assert pieces.grow() == 0
    assert sum(piece.after - piece.first for piece in pieces.all) == len(found.tokens)


def test_drafts_of_a_long_chat_take_little_memory():
    found, nodes = Trace(), 17
    tracemalloc.start()
    try:
        for step in range(1000):
            tokens = [1000 * step + node for node in range(nodes)]
            draft = Draft(tokens, [-1, *range(nodes - 1)], ["", *["a"] * (nodes - 1)], None, [0])
            found.take(Text("", (step,), ("target",), 0.1, step, (draft,)))
        assert tracemalloc.get_traced_memory()[0] < 650 * found.steps
    finally:
        tracemalloc.stop()
