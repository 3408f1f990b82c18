"""Plots a training's log, losses.jsonl: the loss, and how often the first guess at each depth of a draft is right."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localspec import marks
from localspec.bench.plot import GRID, drawing, line, words

LEFT, WIDE, HIGH, GAP, TOP = 70, 640, 200, 64, 56  # pixels
COLOURS = ("#1f5fa8", "#c8591b", "#3b8a3e", "#8a3b86", "#777777", "#a88a1f", "#1fa89b", "#a81f3c")
MAX_POINTS = 400  # of a line, at most


def draw(log: Path, drawn: Path, title: str) -> None:
    """Plot the log of a training, losses.jsonl, as the SVG file `drawn`. Raises OSError."""
    lines = _read(log)
    (new := drawn.with_suffix(".new")).write_text(figure(lines, title), encoding="utf-8")
    new.replace(drawn)


def in_characters(log: Path, width: int, height: int = 8) -> list[str]:
    """Return a text plot of the loss, as lines of at most `width` columns; empty if there were no steps."""
    losses = [(line["step"], line["loss"]) for line in _read(log) if "loss" in line]
    if not losses:
        return []
    drawn = marks.means([loss for _, loss in losses], min(width - 10, 72))
    names = [f"{max(drawn):.2f}", *[""] * (height - 2), f"{min(drawn):.2f}"]
    lines = [f"{name:>6} │ {line}".rstrip() for name, line in zip(names, marks.curve(drawn, height), strict=True)]
    (first, _), (last, _) = losses[0], losses[-1]
    return ["loss (mean of neighbouring steps)", *lines, " " * 9 + f"steps {first} to {last}"]


def _read(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def figure(lines: Sequence[dict[str, Any]], title: str) -> str:
    """Return the plot of a log's lines as an SVG document."""
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    measured = [(line["step"], line["accuracy_by_depth"]) for line in lines if "accuracy_by_depth" in line]
    last_step = max([step for step, _ in losses] + [step for step, _ in measured] + [1])
    depths = max((len(table) for _, table in measured), default=0)
    chances = [[(step, table[depth][0]) for step, table in measured if depth < len(table)] for depth in range(depths)]
    parts = [
        words(LEFT, 26, title, size=17),
        *_panel(TOP, "loss (mean of neighbouring steps)", [("", _thinned(losses))], last_step),
        *_panel(
            TOP + HIGH + GAP,
            "correct first guesses on held-out text, %",
            [(f"depth {depth}", [(x, 100 * y) for x, y in line]) for depth, line in enumerate(chances, start=1)],
            last_step,
            100.0,
        ),
    ]
    return drawing(860, TOP + 2 * (HIGH + GAP), parts)


Line = Sequence[tuple[float, float]]


def _thinned(line: Line) -> Line:
    each = max(1, -(-len(line) // MAX_POINTS))
    groups = [line[start : start + each] for start in range(0, len(line), each)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _panel(top: int, name: str, lines: Sequence[tuple[str, Line]], last_step: float, upper: float = 0.0) -> list[str]:
    highest = upper or max((y for _, line in lines for _, y in line), default=1.0) or 1.0

    def place(x: float, y: float) -> str:
        return f"{LEFT + WIDE * x / last_step:.1f} {top + HIGH - HIGH * min(y, highest) / highest:.1f}"

    elements = [words(LEFT, top - 8, name, weight="bold")]
    for share in (0.0, 0.5, 1.0):
        level = share * highest
        elements.append(line(f"M{place(0, level)} h{WIDE}", GRID, width=0.7))
        elements.append(words(LEFT - 8, top + HIGH - HIGH * share + 4, f"{level:.3g}", anchor="end"))
        label = f"{last_step * share:.0f}" + (" steps" if share == 1 else "")
        elements.append(words(LEFT + WIDE * share, top + HIGH + 17, label, anchor="middle"))
    for index, (label, points) in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        if points:
            elements.append(line("M" + " L".join(place(x, y) for x, y in points), colour, width=1.8))
        if label and points:
            last = f"{label}: {points[-1][1]:.0f} %"
            elements.append(words(LEFT + WIDE + 14, top + 14 + 18 * index, last, colour=colour))
    return elements
