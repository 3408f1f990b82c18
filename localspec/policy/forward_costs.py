"""What a forward of a model costs on this machine, by its rows and the text before them."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class ForwardCostModel(Protocol):
    """What a forward of a model costs on a machine, measured or predicted."""

    def at(self, rows: int, context: int) -> float:
        """Seconds of one forward of so many rows after so many committed tokens."""


@dataclass(frozen=True)
class ForwardCosts:
    """Seconds of one target forward, by rows (new tokens) and by the committed tokens before them.

    `seconds` has a line for each of `contexts`, with a figure for each of `rows`; both ascend.
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def at(self, rows: int, context: int) -> float:
        """Seconds of a forward of so many rows after so many tokens: linear between what was measured and beyond it.

        Below what was measured, it is the nearest figure.
        """
        return linear(self.contexts, [linear(self.rows, line, rows) for line in self.seconds], context)

    def as_list(self) -> list[object]:
        """Lists and numbers that `from_list` reads."""
        return [list(self.rows), list(self.contexts), [list(line) for line in self.seconds]]

    @classmethod
    def from_list(cls, value: Any) -> "ForwardCosts | None":
        """The costs that `as_list` wrote; None for anything else, since costs can be measured again."""
        try:
            rows, contexts, seconds = value
            costs = cls(tuple(map(int, rows)), tuple(map(int, contexts)), tuple(tuple(map(float, s)) for s in seconds))
        except (TypeError, ValueError, OverflowError):
            return None
        ascending = all(points and sorted({*points}) == [*points] for points in (costs.rows, costs.contexts))
        whole = [len(line) for line in costs.seconds] == [len(costs.rows)] * len(costs.contexts)
        positive = all(1e-9 < figure < 1e4 for line in costs.seconds for figure in line)  # what seconds can be
        return costs if ascending and whole and positive else None


@dataclass
class CurrentCosts:
    """A shared holder of the costs of forwards: estimated at first, later replaced by the `timed` ones."""

    model: ForwardCostModel
    timed: bool

    def at(self, rows: int, context: int) -> float:
        return self.model.at(rows, context)

    def take(self, model: ForwardCostModel, timed: bool) -> None:
        """Replace the costs."""
        self.model, self.timed = model, timed


def linear(points: Sequence[int], values: Sequence[float], at: int) -> float:
    """The value at `at` of the line through these points; it goes on beyond the last, and is level before the first."""
    if len(points) == 1 or at <= points[0]:
        return values[0]
    right = min(bisect_left(points, at), len(points) - 1)
    share = (at - points[right - 1]) / (points[right] - points[right - 1])
    return values[right - 1] * (1 - share) + values[right] * share  # written so, it is exact at the points
