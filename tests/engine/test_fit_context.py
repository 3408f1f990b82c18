"""How much of a conversation fits: in the context of the model, and in a smaller memory."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from each import each
from golden import matching

from localspec.decoding.limits import Limits
from localspec.engine.fit_context import FRAME, LONGEST_TOKEN, Overlong, Unwanted, fit_conversation
from localspec.errors import DoesNotFit, UsageMistake
from localspec.models.messages import turns_left_out

NAME = "llama-grouped-dynamic"


def turns(count: int) -> list[dict[str, str]]:
    said = [{"role": "system", "content": "brief"}]
    for number in range(count):
        said += [{"role": "user", "content": f"n{number}"}, {"role": "assistant", "content": "yes"}]
    return [*said, {"role": "user", "content": "last"}]


@pytest.fixture(scope="module")
def target(tiny: Callable[[str], Any]) -> Any:
    return tiny(NAME).target


def test_what_fits_is_read_whole_and_ends_where_it_was_asked_to(target) -> None:
    prompt, dropped, limits = fit_conversation(target, turns(2), Limits(5), target.context)
    assert (prompt, dropped, limits) == (target.encode(turns(2)), 0, Limits(5))


def test_a_memory_that_holds_less_drops_the_oldest_turns_and_ends_the_reply(target) -> None:
    whole = len(target.encode(turns(6)))
    holds = whole - 4
    prompt, dropped, limits = fit_conversation(target, turns(6), Limits(), holds)
    assert dropped > 0 and len(prompt) < whole and limits.max_tokens == holds - len(prompt) > 0
    assert target.decode(prompt).count("brief") == 1 and "last" in target.decode(prompt)


def test_a_short_reply_is_not_cut_where_there_is_room_for_it(target) -> None:
    prompt = target.encode(turns(0))
    assert fit_conversation(target, turns(0), Limits(3), len(prompt) + 3) == (prompt, 0, Limits(3))
    assert fit_conversation(target, turns(0), Limits(4), len(prompt) + 3)[2] == Limits(3)


def test_a_prompt_that_no_memory_holds_is_refused(target) -> None:
    prompt = target.encode(turns(0))
    with pytest.raises(DoesNotFit, match=matching("tokens_long_memory_cpu_holds_now", prompt=len(prompt))):
        fit_conversation(target, turns(0), Limits(), len(prompt))


def test_turns_that_cannot_fit_are_not_tokenized_to_know_it(target, monkeypatch) -> None:
    longest = LONGEST_TOKEN * target.context
    huge = [{"role": "user", "content": "x" * longest}, {"role": "assistant", "content": "yes"}]
    read: list[int] = []
    encode = target.encode
    monkeypatch.setattr(
        target, "encode", lambda messages, _: read.append(len(messages)) or encode(messages), raising=False
    )
    system, *said = turns(1)
    prompt, dropped, _ = fit_conversation(target, [system, *huge, *huge, *said], Limits(), target.context)
    assert (prompt, dropped, max(read)) == (encode(turns(1)), 2, len(turns(1)))
    with pytest.raises(UsageMistake, match=matching("characters_long")):
        fit_conversation(target, [{"role": "system", "content": "x" * longest}, *said], Limits(), target.context)
    assert len(read) == 1


class Counted:
    """A target whose tokens are characters, with a template that puts `frame` of them around a message."""

    def __init__(self, frame: int = FRAME) -> None:
        self.context, self.frame, self.renders, self.chat = 2**15, frame, 0, self

    def count(self, text: str) -> int:
        return len(text)

    def encode(self, messages, think):
        self.renders += 1
        return [ord(letter) for message in messages for letter in "<" * self.frame + message["content"]]


@pytest.mark.slow
@each("frame", [3, FRAME, 40])
@each("system", [[], [{"role": "system", "content": "be brief"}]])
def test_once_the_context_is_full_few_turns_read_it_again_and_the_others_continue(system, frame: int) -> None:
    chance, target, room = random.Random(7), Counted(frame), 6000
    said, before, dropped_before, anew, most = [*system], [0], 0, 0, 0
    for turn in range(100):
        said.append({"role": "user", "content": chr(48 + turn) * chance.randrange(5, 300)})
        prompt, dropped, _ = fit_conversation(target, said, Limits(400), room)  # type: ignore[arg-type]
        assert len(prompt) <= room - 400 and dropped >= dropped_before
        assert (prompt, dropped) == fit_conversation(Counted(frame), said, Limits(400), room)[:2]  # type: ignore[arg-type]
        most = max(most, len(prompt))
        if prompt[: len(before)] != before and turn:
            anew += 1
            assert dropped > dropped_before and len(prompt) < 0.6 * room
        before, dropped_before = prompt, dropped
        said.append({"role": "assistant", "content": chr(48 + turn) * chance.randrange(5, 300)})
    assert 3 <= anew <= 20 and most > 0.75 * (room - 400), "the room is used"
    assert target.renders < 2 * 100 + 8 * anew


def test_another_question_moves_no_cut_and_a_little_less_memory_neither() -> None:
    said = turns(200)
    found = [fit_conversation(Counted(), said, Limits(40), room)[1] for room in (4096 + 40, 4096 + 80)]  # type: ignore[arg-type]
    assert found[0] == found[1] > 0
    said[-1] = {"role": "user", "content": "another question"}
    assert fit_conversation(Counted(), said, Limits(40), 4096 + 40)[1] == found[0]  # type: ignore[arg-type]


def test_a_message_that_fills_the_room_is_left_out_with_all_before_it() -> None:
    sizes = [10, 10] * 3 + [900, 10] + [10, 10] * 2 + [10]
    assert turns_left_out(0, sizes, 6, 100) == 4
    assert [turns_left_out(0, [40, 40] * count + [40], count, 200) for count in range(8)] == [0, 0, 0, 3, 3, 3, 6, 6]
    assert turns_left_out(500, [10, 10, 10], 1, 100) == 1


def test_where_nothing_may_be_left_out_a_long_conversation_is_refused_at_once(target) -> None:
    holds = len(target.encode(turns(6))) - 4
    with pytest.raises(Overlong, match=matching("longer_than_model_s_context")):
        fit_conversation(target, turns(6), Limits(), holds, whole=True)
    assert fit_conversation(target, turns(0), Limits(), holds, whole=True)[1] == 0


def test_nothing_is_rendered_for_who_has_left(target, monkeypatch) -> None:
    asked = iter([True, True, False])
    read: list[int] = []
    monkeypatch.setattr(target, "encode", lambda messages, _: read.append(1) or [0] * 10**6, raising=False)
    with pytest.raises(Unwanted):
        fit_conversation(target, turns(0), Limits(), 10, wanted=lambda: False)
    monkeypatch.setattr(target, "encode", lambda m, _: read.append(1) or [0] * (9 if len(m) < 4 else 99), raising=False)
    with pytest.raises(Unwanted):
        fit_conversation(target, turns(20), Limits(), 40, wanted=lambda: next(asked))
    assert len(read) == 1
