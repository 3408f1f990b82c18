"""Draw which sizes of draft trees the node budget chooses on texts with a given acceptance: docs/figures/budget.svg.

    python research/plot_budget.py

Nothing is measured: forwards have the costs of two example machines, in units of a forward of one row.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise

import checkout
from budget_simulation import CARD, MOST, PROCESSOR, RIGHT, WRONG, best_fixed, simulate, throughput

from localspec.bench.plot import drawing, line, words
from localspec.decoding.budget import Budget

DRAWN = checkout.ROOT / "docs" / "figures" / "budget.svg"
TEXTS: dict[str, list[int]] = {
    "every guess is right": [RIGHT] * 400,
    "no guess is right": [WRONG] * 400,
    "right and wrong in turns of 40 tokens": ([RIGHT] * 40 + [WRONG] * 40) * 5,
    "suddenly right, suddenly wrong": [WRONG] * 140 + [RIGHT] * 120 + [WRONG] * 140,
}

# -- the drawing -------------------------------------------------------------------------------------------------------

LEFT, TOP, WIDE, HIGH, GAP = 60, 78, 640, 96, 54  # of the panels, in pixels
MACHINES = (("processor", PROCESSOR, "#1f5fa8", ""), ("graphics card", CARD, "#c8591b", "6 3"))


def figure() -> str:
    """Return the drawing as SVG: a panel for each text, with a line for each machine."""
    height = TOP + len(TEXTS) * (HIGH + GAP) + 6
    parts = [
        words(LEFT, 26, "Nodes verified in each step, where a draft may have eight", size=17),
        '<rect x="60" y="42" width="22" height="12" fill="#dcefdc"/>'
        + words(88, 53, "the drafter's guesses are right"),
    ]
    for (name, _, colour, dashes), x in zip(MACHINES, (320, 440), strict=True):
        parts.append(line(f"M{x} 48 h26", colour, dashes) + words(x + 32, 53, name))
    for row, (name, text) in enumerate(TEXTS.items()):
        parts += _panel(TOP + 22 + row * (HIGH + GAP), name, text)
    return drawing(960, height, parts)


def _panel(top: int, name: str, text: Sequence[int]) -> list[str]:
    def across(position: int) -> str:
        return f"{LEFT + WIDE * position / len(text):.1f}"

    def up(nodes: int) -> str:
        return f"{top + HIGH - HIGH * nodes / MOST:.1f}"

    parts = [words(LEFT, top - 8, name, weight="bold")]
    edges = [0, *(at for at in range(1, len(text)) if text[at] != text[at - 1]), len(text)]
    for start, end in pairwise(edges):
        if text[start] == RIGHT:
            width = float(across(end)) - float(across(start))
            parts.append(f'<rect x="{across(start)}" y="{top}" width="{width:.1f}" height="{HIGH}" fill="#dcefdc"/>')
    for nodes in (0, MOST // 2, MOST):
        parts.append(line(f"M{LEFT} {up(nodes)} h{WIDE}", "#bbbbbb", "", 0.7))
        parts.append(words(LEFT - 8, float(up(nodes)) + 4, str(nodes), anchor="end"))
    for position in range(0, len(text) + 1, 100):
        label = f"{position} tokens" if position == len(text) else str(position)
        parts.append(words(float(across(position)), top + HIGH + 17, label, anchor="middle"))
    for row, (machine, costs, colour, dashes) in enumerate(MACHINES):
        steps = simulate(Budget(MOST, costs), text, costs)
        path = f"M{across(0)} {up(steps[0].nodes)}"
        for before, step in pairwise(steps):
            if step.nodes != before.nodes:
                path += f" H{across(step.position)} V{up(step.nodes)}"
        parts.append(line(f"{path} H{across(len(text))}", colour, dashes))
        reached, (fixed, size) = throughput(steps, text), best_fixed(text, costs)
        y = top + 20 + 44 * row
        parts.append(words(LEFT + WIDE + 16, y, f"{machine}: {reached:.2f} × plain", colour=colour, weight="bold"))
        parts.append(words(LEFT + WIDE + 16, y + 17, f"best fixed size, {-size} nodes: {fixed:.2f} ×", colour=colour))
    return parts


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    DRAWN.write_text(figure(), encoding="utf-8")
