"""Text increments: never half a character, never a piece of a stop string, and all of the text in the end."""

import random
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest
from each import each
from tiny_models import byte_tokenizer
from tokenizers import Tokenizer, decoders, models

from localspec.models.detokenize import Detokenizer, Transcript

Decode = Callable[[Sequence[int]], str]


def pieces_decoder(pieces: Sequence[bytes]) -> Decode:
    """Return a byte-level vocabulary of these pieces: a token is the index of one."""
    return lambda tokens: b"".join(pieces[token] for token in tokens).decode("utf-8", "replace")


def splits(content: bytes) -> list[list[bytes]]:
    """Yield every way to cut bytes into pieces."""
    places = range(1, len(content))
    return [
        [content[a:b] for a, b in zip((0, *cuts), (*cuts, len(content)), strict=True)]
        for count in range(len(content))
        for cuts in combinations(places, count)
    ]


@each("text", ["a😀b", "字é😀", "😀🏽!", "né 字\n", " a  b"])
def test_however_characters_are_split_over_tokens_the_increments_are_whole_and_make_the_text(text: str) -> None:
    for pieces in splits(text.encode()):
        detokenizer = Detokenizer(pieces_decoder(pieces))
        given = [detokenizer.add(token) for token in range(len(pieces))]
        assert "".join(given) == text, pieces
        assert "\ufffd" not in "".join(given)
        assert detokenizer.flush() == ""


def test_a_complete_character_is_not_held_back() -> None:
    detokenizer = Detokenizer(pieces_decoder(["字".encode(), b"\xf0\x9f", b"\x98\x80", b"a"]))
    assert [detokenizer.add(token) for token in range(4)] == ["字", "", "😀", "a"]


def test_half_a_character_at_the_end_is_flushed_as_the_replacement_character() -> None:
    detokenizer = Detokenizer(pieces_decoder([b"a", b"\xf0\x9f"]))
    assert detokenizer.add(0) == "a"
    assert detokenizer.add(1) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def sentencepiece_decoder() -> tuple[Decode, dict[str, int]]:
    """Return a decoder as in Llama 2 and Phi-3: byte tokens for rare characters, ▁ for spaces, no first space."""
    words = ["▁the", "▁cat", "s", "▁", "▁,", "字", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer.decode, vocabulary


@each(
    "words",
    [
        ["▁the", "▁cat", "s"],
        ["▁", "▁the", "▁", "▁cat"],
        ["▁the", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁cat"],
        ["<0xC3>", "<0xA9>", "<0xE5>", "<0xAD>", "<0x97>", "s"],
        ["字", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xF0>", "<0x9F>", "<0x8F>", "<0xBD>", "字"],
    ],
)
def test_a_sentencepiece_vocabulary_loses_no_blank_and_no_character(words: list[str]) -> None:
    decode, vocabulary = sentencepiece_decoder()
    tokens = [vocabulary[word] for word in words]
    detokenizer = Detokenizer(decode)
    given = "".join(map(detokenizer.add, tokens)) + detokenizer.flush()
    assert given == decode(tokens)


def test_increments_are_the_text_of_all_tokens_for_any_words_of_a_real_tokenizer() -> None:
    tokenizer = byte_tokenizer()
    for text in (
        "the cat sat on 字幕 😀🏽 über\tallen\n\nGipfeln",
        "👩‍👩‍👧 zero width joiners",
        "\u0000\u007f",
        "e\u0301",
    ):
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        detokenizer = Detokenizer(tokenizer.decode)
        assert "".join(map(detokenizer.add, tokens)) + detokenizer.flush() == text


def test_bytes_that_are_no_text_are_shown_and_do_not_stop_the_stream() -> None:
    """Broken bytes are shown as such, a few tokens late at most, and the text after them is correct."""
    pieces = [b"\x80"] * 20 + ["字!".encode()]
    detokenizer = Detokenizer(pieces_decoder(pieces))
    given = [detokenizer.add(token) for token in range(21)]
    assert any(given[:10])
    assert "".join(given).endswith("字!")


@pytest.mark.slow
def test_any_bytes_at_all_come_out_as_they_would_all_at_once() -> None:
    """Random tokens of one to four bytes, almost never text: not one replacement character too many or too few."""
    choose = random.Random(2)
    for _ in range(100):
        pieces = [
            bytes(choose.choice(b"ab\x80\xbf\xc3\xe5\xf0\x9f\x98") for _ in range(choose.randint(0, 4)))
            for _ in range(90)
        ]
        detokenizer = Detokenizer(pieces_decoder(pieces))
        given = "".join(map(detokenizer.add, range(90))) + detokenizer.flush()
        assert given == pieces_decoder(pieces)(range(90))


def test_what_is_decoded_for_one_token_does_not_grow_with_the_text() -> None:
    longest = 0

    def decode(tokens: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return bytes(tokens).decode("utf-8", "replace")

    for byte in (0x61, 0x80, 0xF0):
        detokenizer = Detokenizer(decode)
        for _ in range(500):
            detokenizer.add(byte)
    assert longest < 100


def run(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[list[tuple[str, int]], Transcript, bool]:
    """Return the text released after each token; the last time with all that is held back."""
    transcript, released, stopped = Transcript(pieces_decoder(pieces), stops), [], False
    for token in range(len(pieces)):
        stopped = transcript.add(token)
        if stopped:
            break
        released.append(transcript.release()[:2])
    if not stopped:
        stopped = transcript.finish()
    released.append(transcript.release(final=True)[:2])
    return released, transcript, stopped


def reference(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[str, int, bool]:
    """(text, tokens whole within it, whether it stopped), looking at everything again after each token."""
    for count in range(1, len(pieces) + 1):
        text = b"".join(pieces[:count]).decode()
        places = [text.index(stop) for stop in stops if stop in text]
        if places:
            ends = [len(b"".join(pieces[: token + 1]).decode()) for token in range(count)]
            return text[: min(places)], sum(end <= min(places) for end in ends), True
    return b"".join(pieces).decode(), len(pieces), False


STOPS = [
    ("b",),
    ("ab",),
    ("abc", "b"),
    ("aab",),
    ("ca", "bb", "acb"),
    ("字a",),
    ("abab", "ba字"),
    ("aaaaa",),
    ("c",) * 2,
]


def test_text_ends_before_the_first_stop_string_and_tokens_end_with_it() -> None:
    choose, stopped_inside = random.Random(0), 0
    for stops in STOPS * 60:
        pieces = [
            "".join(choose.choice("aaabbc字") for _ in range(choose.choice((1, 1, 2, 3)))).encode() for _ in range(9)
        ]
        released, transcript, stopped = run(pieces, stops)
        text, tokens, expected = reference(pieces, stops)
        assert "".join(part for part, _ in released) == text, (pieces, stops)
        assert (transcript.tokens, stopped) == (tokens, expected), (pieces, stops)
        assert released[-1][1] == tokens
        stopped_inside += 0 < tokens < 9
    assert stopped_inside > 200


def test_nothing_is_released_that_a_stop_string_takes_back() -> None:
    """Text that could be the beginning of a stop string is never released, nor a token with such text."""
    choose = random.Random(1)
    for stops in STOPS * 40:
        pieces = [choose.choice(("a", "b", "c", "字", "ab", "aab")).encode() for _ in range(9)]
        released, _, _ = run(pieces, stops)
        final, _, _ = reference(pieces, stops)
        out, before = "", 0
        for part, tokens in released:
            out += part
            assert final.startswith(out)
            assert tokens >= before, "a token was given and taken back"
            assert len(b"".join(pieces[:tokens]).decode()) <= len(out)
            before = tokens


def test_text_is_held_back_only_while_it_may_begin_a_stop_string() -> None:
    transcript = Transcript(pieces_decoder([b"one s", b"t", b"umble ", b"st", b"o", b"p it"]), ["stop", "sto!"])
    released = []
    for token in range(6):
        stopped = transcript.add(token)
        released.append(transcript.release(final=stopped)[:2])
    assert released == [("one ", 0), ("", 0), ("stumble ", 3), ("", 3), ("", 3), ("", 3)]
    assert stopped


@each("stop", ["😀", "b", "a😀", "😀b", "x"])
def test_a_stop_string_within_split_characters_cuts_text_and_tokens_at_one_place(stop: str) -> None:
    for pieces in splits("a😀b".encode()):
        released, transcript, stopped = run(pieces, [stop])
        text = "a😀b".partition(stop)[0]
        assert "".join(part for part, _ in released) == text, pieces
        assert stopped == (stop != "x")
        counts = [tokens for _, tokens in released]
        assert counts == sorted(counts) and counts[-1] == transcript.tokens
        # Tokens count up to the last one with which text within the cut is whole.
        whole = [len("a😀b"[:end].encode()) for end in range(len(text) + 1)]
        inside = [count for count in range(len(pieces) + 1) if len(b"".join(pieces[:count])) in whole]
        assert transcript.tokens == max(inside), pieces


def test_a_stop_string_that_only_the_flush_completes_is_found() -> None:
    released, transcript, stopped = run([b"a", b"\xf0\x9f"], ["\ufffd"])
    assert stopped
    assert "".join(part for part, _ in released) == "a"
    assert transcript.tokens == 1
