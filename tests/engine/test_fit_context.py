"""How much of a conversation fits: in the context of the model, and in a memory that holds less."""

from collections.abc import Callable
from typing import Any

import pytest
from golden import matching

from localspec.decoding.session import Limits
from localspec.engine.fit_context import LONGEST_TOKEN, Overlong, Unwanted, fit_conversation
from localspec.errors import DoesNotFit, UsageMistake

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


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 700, 2998, 2999])
def test_of_thousands_of_turns_the_most_that_fit_are_found_by_rendering_a_few_times(kept: int) -> None:
    class Counted:
        context = 2**15
        renders = 0

        def encode(self, messages, think):
            self.renders += 1
            return [0] * sum(3 + len(message["content"]) for message in messages)

    long, target, limits = turns(3000), Counted(), Limits(1)
    room = len(target.encode([long[0], *long[-1 - 2 * kept :]], None)) + 1
    target.renders = 0
    prompt, dropped, _ = fit_conversation(target, long, limits, room)  # type: ignore[arg-type]
    assert (len(prompt), dropped) == (room - 1, 3000 - kept) and target.renders <= 26


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
        fit_conversation(target, turns(20), Limits(), 12, wanted=lambda: next(asked))
    assert len(read) == 2
