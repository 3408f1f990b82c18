from collections.abc import Generator
from importlib import import_module

import pytest
from command import ROOT
from reply_statistics import said

from localspec import Done, Event, Prefill, Text


class Machine:
    """A machine on which time passes only while a run works; it records which run worked."""

    def __init__(self) -> None:
        self.now, self.worked = 0.0, list[str]()
        self.side_by_side = import_module("side_by_side").side_by_side

    def reply(self, name: str, step: float, tokens: int, most: int) -> Generator[Event, None, None]:
        """Yield the events of a reply of `most` tokens, `tokens` of them a step."""
        self.now += 2.5  # for the prompt
        yield Prefill(5, 5)
        for _ in range(0, most, tokens):
            self.now += step
            self.worked.append(name)
            yield Text("a" * tokens, (1,) * tokens, ("target",) * tokens, self.now, 1)
        yield Done("length", said((1,) * most))


@pytest.fixture
def machine(monkeypatch) -> Machine:
    monkeypatch.syspath_prepend(ROOT / "research")
    made = Machine()
    monkeypatch.setattr("side_by_side.time.perf_counter", lambda: made.now)
    return made


def test_who_has_the_fewest_tokens_works_next(machine):
    replies = {"plain": machine.reply("plain", 1.0, 1, 8), "fast": machine.reply("fast", 1.5, 4, 8)}
    measured = machine.side_by_side(replies, turn=1.0)
    assert "".join(name[0] for name in machine.worked) == "pf" + "pppp" + "f" + "ppp"
    assert {name: len(one.token_ids) for name, one in measured.items()} == {"plain": 8, "fast": 8}


def test_a_turn_lasts_until_its_time_is_over(machine):
    machine.side_by_side({"a": machine.reply("a", 1.0, 1, 6), "b": machine.reply("b", 1.0, 1, 6)}, turn=3.0)
    assert "".join(machine.worked) == "a" + "b" + "aaa" + "bbb" + "aa" + "bb"
