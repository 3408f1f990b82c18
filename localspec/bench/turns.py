"""Who comes when: what is compared takes turns, so that whatever else happens on the machine happens to all."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turns(contenders: Sequence[T], turns: int) -> Iterator[tuple[int, T]]:
    """Every contender once a turn; who comes first changes from turn to turn."""
    for turn in range(turns):
        first = turn % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            yield turn, contender


def left_words(seconds: float) -> str:
    """How long it will still take."""
    return f"{seconds:.0f} s left" if seconds <= 90 else f"{seconds / 60:.0f} min left"
