"""Bars and curves of characters, for a terminal."""

from collections.abc import Sequence

EIGHTHS = " ▁▂▃▄▅▆▇█"
PARTS = " ▏▎▍▌▋▊▉█"
_ASCII = str.maketrans(EIGHTHS + PARTS + "×·–…τ✓│─┼", " ...#####" + "    #####" + "x|-.tv|-+")


def bar(share: float, width: int) -> str:
    """A bar of `share`, 0 to 1, of so many columns; anything above nothing is seen."""
    eighths = max(round(8 * width * min(share, 1.0)), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + PARTS[eighths % 8].strip()


def curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """Lines, from the top: a column a value, or the mean of neighbours where there are more, above their least."""
    groups = [values[len(values) * at // width : len(values) * (at + 1) // width] for at in range(width)]
    means = [sum(group) / len(group) for group in groups if group]
    low, high = min(means), max(means)
    levels = [1 + round((8 * height - 1) * (mean - low) / (high - low)) if high > low else 1 for mean in means]
    return [
        "".join(EIGHTHS[max(0, min(8, level - 8 * row))] for level in levels).rstrip()
        for row in reversed(range(height))
    ]


def in_ascii(text: str) -> str:
    """The same in ASCII, for a terminal that has no blocks."""
    return text.translate(_ASCII)
