"""The drawings of docs/figures/benchmarks.md: lines over a doubling axis, and bars."""

import math
from collections.abc import Mapping, Sequence

from localspec.bench.plot import GRID, box, drawing, line, words

COLOURS = {  # and dashes
    "localspec int8": ("#1f5fa8", ""),
    "localspec int4": ("#2a9d8f", ""),
    "llama.cpp Q8_0": ("#c8591b", "7 3"),
    "llama.cpp Q4_0": ("#d9a404", "7 3"),
    "llama.cpp Q4_K_M": ("#8a5a00", "7 3"),
    "transformers bf16": ("#777777", "2 3"),
}
LEFT, TOP, WIDE, HIGH, RIGHT = 70, 56, 520, 300, 210  # in pixels

Points = Sequence[tuple[float, float]]


def lines(title: str, below: str, series: Mapping[str, Points]) -> str:
    """One line for each contender; both axes double from mark to mark."""
    xs = sorted({x for points in series.values() for x, _ in points})
    ys = [y for points in series.values() for _, y in points]
    low, high = math.floor(math.log2(min(ys))), math.ceil(math.log2(max(ys)) + 0.01)

    def across(x: float) -> float:
        span = math.log2(xs[-1] / xs[0]) or 1
        return LEFT + WIDE * math.log2(x / xs[0]) / span

    def up(y: float) -> float:
        return TOP + HIGH * (high - math.log2(y)) / (high - low)

    parts = [words(LEFT, 26, title, size=16)]
    for power in range(low, high + 1):
        parts.append(line(f"M{LEFT} {up(2.0**power):.1f} h{WIDE}", GRID, width=0.7))
        parts.append(words(LEFT - 8, up(2.0**power) + 4, f"{2.0**power:g} ms", anchor="end"))
    parts += [words(across(x), TOP + HIGH + 20, f"{x:,g}", anchor="middle") for x in xs]
    parts.append(words(LEFT + WIDE / 2, TOP + HIGH + 42, below, anchor="middle"))
    for place, (name, points) in enumerate(series.items()):
        colour, dashes = COLOURS[name]
        path = " L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in points)
        parts.append(line(f"M{path}", colour, dashes))
        y = TOP + 12 + 24 * place
        parts.append(line(f"M{LEFT + WIDE + 16} {y - 4} h30", colour, dashes))
        parts.append(words(LEFT + WIDE + 54, y, name))
    return drawing(LEFT + WIDE + RIGHT, TOP + HIGH + 58, parts)


def bars(title: str, unit: str, values: Sequence[tuple[str, str, float]]) -> str:
    """Return a bar for each (contender, label, value)."""
    left, thick, gap = 250, 16, 8
    longest = max(value for _, _, value in values)
    parts = [words(20, 26, title, size=16)]
    for place, (contender, label, value) in enumerate(values):
        y, width = TOP + place * (thick + gap), WIDE * value / longest
        parts.append(words(left - 10, y + 13, label, anchor="end"))
        parts.append(box(left, y, width, thick, COLOURS[contender][0]))
        parts.append(words(left + width + 8, y + 13, f"{value:.1f} {unit}" if not place else f"{value:.1f}"))
    return drawing(left + WIDE + 130, TOP + len(values) * (thick + gap) + 14, parts)
