"""The aims of the measurements, the table that says which were reached, and a list of the figures that failed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from figures import table

from gpu_stages.record import failure

# The aims of the project's issue about GPUs: how fast one row reads its weights, as a share of the speed of a copy; the
# time of 16 rows over that of one; the share of a step in which the device waits for the host.
READS = {"bf16": 0.85, "nf4": 0.6, "int8": 0.2}
SIXTEEN_ROWS = {"bf16": 1.15, "nf4": 1.3, "int8": 1.05}
HOST_SHARE = 0.05
# The best of these methods: its speedup over our recorded plain decoding, and its relative memory, at most.
METHODS = ("s3d", "medusa", "parallelspec", "semi", "ouroboros")
FASTER, LEAN = 2.0, 1.05
# The largest error of predicted peak memory: as a share of the peak, or in bytes.
NEAR, NEAR_BYTES = 0.05, 100e6
# All replies of `--exact` are the plain ones, bit for bit.
EXACT = 1.0


@dataclass(frozen=True)
class Aim:
    """A figure and its aim, a lower limit, or an upper one if `at_most`. `value` is None if nothing was measured."""

    title: str
    value: float | None
    aim: float
    at_most: bool = False

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        return "met" if (self.value <= self.aim if self.at_most else self.value >= self.aim) else "**missed**"


def aims_table(aims: Sequence[tuple[str, Aim]]) -> str:
    """Return a table of all aims, each with its stage."""
    lines = [
        [f"{stage}: {aim.title}", f"{'≤' if aim.at_most else '≥'} {aim.aim:g}", "" if aim.value is None else f"{aim.value:.2f}", aim.verdict]
        for stage, aim in aims
    ]  # fmt: skip
    return table(["stage: what was measured", "wanted", "found", "verdict"], lines)


def failed(figures: Mapping[str, Any]) -> list[str]:
    """Return a list with one text about the figures that failed, and why; [] if no figure failed."""
    lines = [f"- {name}: {why}" for name, figure in figures.items() if (why := failure(figure))]
    return ["Not measured:\n\n" + "\n".join(lines)] if lines else []


def shares(values: Iterable[bool]) -> float | None:
    """Return the share of true values; None without values."""
    known = list(values)
    return sum(known) / len(known) if known else None
