"""Bars and curves of characters, for a terminal."""

from collections.abc import Sequence

EIGHTHS = " ▁▂▃▄▅▆▇█"
PARTS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int) -> str:
    """A bar of `share`, 0 to 1, of so many columns; anything above nothing is seen."""
    eighths = max(round(8 * width * min(share, 1.0)), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + PARTS[eighths % 8].strip()


def no_room(heads: Sequence[str]) -> str:
    """What is said below a table of which these columns were left out."""
    return f"no room for {', '.join(heads)}, which --json has"


def means(values: Sequence[float], most: int) -> list[float]:
    """At most so many values: the means of neighbours where there are more."""
    groups = [values[len(values) * at // most : len(values) * (at + 1) // most] for at in range(most)]
    return [sum(group) / len(group) for group in groups if group]


def curve(values: Sequence[float], height: int) -> list[str]:
    """Lines, from the top: a column a value, each as high as it is above the least."""
    low, high = min(values), max(values)
    levels = [1 + round((8 * height - 1) * (value - low) / (high - low)) if high > low else 1 for value in values]
    return [
        "".join(EIGHTHS[max(0, min(8, level - 8 * row))] for level in levels).rstrip()
        for row in reversed(range(height))
    ]
