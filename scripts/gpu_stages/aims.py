"""What was hoped for, and whether it came true; and what failed, in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from figures import table

from gpu_stages.record import failure


@dataclass(frozen=True)
class Aim:
    """A figure that should be `aim` at least, or at most; None where nothing was measured."""

    what: str
    found: float | None
    aim: float
    at_most: bool = False

    @property
    def verdict(self) -> str:
        if self.found is None:
            return "not measured"
        return "met" if (self.found <= self.aim if self.at_most else self.found >= self.aim) else "**missed**"


def aims_table(aims: Sequence[tuple[str, Aim]]) -> str:
    """All of them, each with its stage."""
    lines = [
        [f"{stage}: {aim.what}", f"{'≤' if aim.at_most else '≥'} {aim.aim:g}", "" if aim.found is None else f"{aim.found:.2f}", aim.verdict]
        for stage, aim in aims
    ]  # fmt: skip
    return table(["aim", "wanted", "found", "verdict"], lines)


def failed(figures: Mapping[str, Any]) -> list[str]:
    """A list of what failed and why; nothing where nothing did."""
    lines = [f"- {name}: {why}" for name, figure in figures.items() if (why := failure(figure))]
    return ["Not measured:\n\n" + "\n".join(lines)] if lines else []


def shares(values: Iterable[bool]) -> float | None:
    """How many of these are so; None of none."""
    known = list(values)
    return sum(known) / len(known) if known else None
