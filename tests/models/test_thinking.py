"""Thinking is separated from answers, however the text is cut into pieces, with the marks of every family."""

import random
import re
from collections.abc import Sequence

import pytest
from each import each
from golden import wording

from localspec.models.detokenize import Transcript
from localspec.models.thinking import KNOWN, Marks, Parting, Thinking, marks_of

THINK = KNOWN[0]
SHORT = Marks("<t>", "</t>", ("<r>", "</r>"))


def parted(pieces: Sequence[str], marks: Marks | None = THINK, begun: bool = False) -> tuple[str, str]:
    """Return the released pieces; none is ever taken back."""
    parting, given, found = Parting(marks, begun), 0, ["", ""]

    def take() -> None:
        nonlocal given
        assert parting.settled >= given
        for at, part in enumerate(parting.between(given, parting.settled)):
            found[at] += part
        given = parting.settled

    for piece in pieces:
        parting.add(piece)
        take()
    parting.finish()
    take()
    assert given == len("".join(pieces))
    return found[0], found[1]


def reference(text: str, marks: Marks, begun: bool) -> tuple[str, str]:
    """Return the same, looking at the whole."""
    opening, closing = re.escape(marks.opening), re.escape(marks.closing)
    start = rf"\s*(?:{opening}\s*)?" if begun else rf"\s{{0,16}}{opening}\s*"
    found = re.match(rf"(?s){start}(?P<thought>.*?)(?:\s*{closing}\s*(?P<answer>.*))?$(?![\s\S])", text)
    if not found:
        return "", text
    answer = found["answer"] or ""
    if marks.around and answer.startswith(marks.around[0]):
        inside, ended, rest = answer.removeprefix(marks.around[0]).lstrip().partition(marks.around[1])
        answer = (inside.rstrip() if ended else inside) + (rest if rest.strip() else "")
    return found["thought"].strip(), answer


PARTS = ["<t>", "</t>", "<r>", "</r>", "<", "/", "t", ">", "<t", "</", " ", "\n", "\n\n", "a", "b c", "r"]


@pytest.mark.slow
@each("begun", [False, True])
def test_any_pieces_of_any_text_are_parted_as_the_whole_is(begun: bool) -> None:
    choose, thought, answered = random.Random(3), 0, 0
    for _ in range(1200):
        pieces = [choose.choice(PARTS) for _ in range(choose.randint(0, 12))]
        if choose.random() < 0.5:
            pieces.insert(0, "<t>")
        text = "".join(pieces)
        expected = reference(text, SHORT, begun)
        assert parted([text], SHORT, begun) == expected, text
        assert parted(list(text), SHORT, begun) == expected, text
        assert parted(pieces, SHORT, begun) == expected, pieces
        thought, answered = thought + bool(expected[0]), answered + all(expected)
    assert thought > 100 and answered > 40


@each(
    "text, begun, expected",
    [
        (wording("think_think_yes"), False, ("so it is", "Yes.")),
        (wording("so_it_is_think_yes"), True, ("so it is", "Yes.")),
        (wording("think_think_yes"), True, ("so it is", "Yes.")),  # the mark once more
        ("\n\n<think>\n\n</think>\n\nYes.\n", False, ("", "Yes.\n")),
        ("Yes.", False, ("", "Yes.")),
        ("\n Yes: <think>no</think>", False, ("", "\n Yes: <think>no</think>")),  # of marks further on one speaks
        ("<think>a <think> b</think> c </think> d", False, ("a <think> b", "c </think> d")),
        ("<think>\nso it", False, ("so it", "")),
        ("<think>so it </thi", False, ("so it </thi", "")),
        ("<thi", False, ("", "<thi")),
        (" " * 17 + "<think>x</think>", False, ("", " " * 17 + "<think>x</think>")),
        ("", False, ("", "")),
        ("", True, ("", "")),
        (" \n", False, ("", " \n")),
    ],
)
def test_what_is_thinking_and_what_is_answer(text: str, begun: bool, expected: tuple[str, str]) -> None:
    assert parted([text], begun=begun) == parted(list(text), begun=begun) == expected


HARMONY = "<|channel|>analysis<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


@each(
    "text, expected",
    [
        (f"{HARMONY}so it is{FINAL}Yes.", ("so it is", "Yes.")),
        ("<|channel|>final<|message|>Yes.", ("", "Yes.")),
        (f"{HARMONY}so it", ("so it", "")),
        ("<|channel|>an", ("", "<|channel|>an")),
        ("Yes.", ("", "Yes.")),
    ],
)
def test_channels_of_gpt_oss_are_thinking_and_answer(text: str, expected: tuple[str, str]) -> None:
    marks = KNOWN[-1]
    assert marks_of("", [HARMONY]) == marks
    assert parted([text], marks) == parted(list(text), marks) == expected


def test_without_marks_all_of_it_is_the_answer_at_once() -> None:
    parting = Parting()
    parting.add(" <think>")
    assert parting.settled == 8 and parting.between(0, 8) == ("", " <think>") and not parting.thinks


def test_thinking_is_given_out_while_it_comes() -> None:
    parting = Parting(THINK)
    for text, settled in (
        ("<thi", 0),
        ("nk>\n", 8),
        ("one ", 11),
        ("two</", 15),
        ("b", 18),
        ("</", 18),
        ("think>", 26),
    ):
        parting.add(text)
        assert parting.settled == settled, text
    assert parting.between(0, parting.settled) == ("one two</b", "") and parting.thinking


@each(
    "template, tokens, marks",
    [
        ("{{ '<think>\\n\\n</think>' }}", [], THINK),
        ("{{ messages }}", ["<think>", "</think>"], THINK),
        ("{{ messages }}", ["<|end|>"], None),
        ("{{ '<|assistant|><think>' }}", [], THINK),
        ("", ["[THINK]", "[/THINK]"], Marks("[THINK]", "[/THINK]")),
        (wording("write_after_here_my_thought"), [], KNOWN[2]),
        ("<think></think> and <response></response>", [], THINK._replace(around=("<response>", "</response>"))),
    ],
)
def test_a_model_has_the_marks_that_its_template_or_its_tokens_name(
    template: str, tokens: list[str], marks: Marks | None
) -> None:
    assert marks_of(template, tokens) == marks


PIECES = ["<think>", "\n", "so", " st", "op", "</think>", "\n\n", "Yes", " st", "op", "!"]


def transcript(pieces: Sequence[str], stops: Sequence[str] = ()) -> tuple[list[tuple[str, int, str, int]], Transcript]:
    """Return the text that each token releases; pieces in angle brackets are special tokens."""
    special = {at: piece for at, piece in enumerate(pieces) if piece in THINK}
    thinking = Thinking(
        THINK,
        lambda tokens: "".join("" if token in special else pieces[token] for token in tokens),
        lambda tokens: "".join(pieces[token] for token in tokens),
        special,
    )
    script, released = Transcript(thinking.decode, stops, thinking.parting([])), []
    for token in range(len(pieces)):
        if script.add(token):
            break
        released.append(tuple(script.release()))
    else:
        script.finish()
    released.append(tuple(script.release(final=True)))
    return released, script  # type: ignore[return-value]


def test_tokens_before_the_answer_are_those_of_thinking_also_where_the_marks_are_special_tokens() -> None:
    released, script = transcript(PIECES)
    assert "".join(part for part, *_ in released) == "Yes stop!"
    assert "".join(part for _, _, part, _ in released) == "so stop"
    assert released[-1][1::2] == (11, 7) == (script.tokens, 7)
    assert [(tokens, thought) for _, tokens, _, thought in released][:8] == [
        (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 7)
    ]  # fmt: skip


def test_a_stop_string_ends_the_answer_and_not_the_thinking() -> None:
    released, script = transcript(PIECES, ["stop", "\n"])
    assert "".join(part for part, *_ in released) == "Yes "
    assert "".join(part for _, _, part, _ in released) == "so stop"
    assert script.tokens == 8 and released[-1][3] == 7


def test_a_stop_string_is_found_in_a_reply_that_could_have_begun_with_a_mark() -> None:
    released, script = transcript(["\n", "<", "b", ">"], ["\n<", "b"])
    assert "".join(part for part, *_ in released) == "" and script.tokens == 0


def test_the_end_of_a_prompt_may_have_begun_the_thinking() -> None:
    texts = {0: "<think>", 1: "\n", 2: "hm", 3: "<|end|>", 4: "</think>"}
    thinking = Thinking(THINK, lambda ids: "", lambda ids: "".join(texts[one] for one in ids), {})
    assert thinking.parting([2, 0, 1]).thinks and thinking.parting([0]).thinks
    assert not any(thinking.parting(prompt).thinks for prompt in ([0, 4, 1], [0, 3], [], [0, 2]))


def test_a_mark_that_was_cut_is_not_text():
    """A stop string may end a reply within the mark that closes the answer."""
    parting = Parting(THINK._replace(around=("<response>", "</response>")), begun=False)
    parting.add("<think>hm</think><response>Yes.</response>")
    parting.cut(parting.text.index("</response>") + 2)
    parting.finish()
    assert parting.between(0, len(parting.text)) == ("hm", "Yes.")
