"""Where a text begins to say the same again and again: phrases find such a loop without effort, so nothing is measured
on it. Pure arithmetic."""

from collections.abc import Sequence

REPEATED, PERIOD = 3, 24  # a text goes round once a part of so many tokens at most has come so often in a row


def until_it_goes_round(tokens: Sequence[int]) -> int:
    """Return the number of tokens before a part is repeated again and again.

    Even a short repetition spoils a measurement, and tokens have no words, so `repetition` cannot judge it.
    """
    for end in range(len(tokens)):
        for period in range(1, PERIOD + 1):
            length = max(REPEATED * period, 2 * REPEATED)  # a word said three times is no loop yet
            part = tokens[end : end + length]
            if len(part) == length and part[period:] == part[:-period]:
                return end + period
    return len(tokens)
