"""Reads the values of a row.

An invalid value, whichever program wrote it, is replaced by a default and raises no error.
"""

import math

_LATEST = 253_000_000_000.0  # seconds since 1970: the year 9987, after which calendars end


def text(value: object) -> str:
    """Return the text in a column. Bytes are decoded, NULL is empty."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def moment(value: object) -> float:
    """Return a time in seconds since 1970; 0 for an invalid one."""
    sound = isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= _LATEST
    return float(value) if sound and isinstance(value, int | float) else 0.0


def count(value: object) -> int:
    """Return a count; 0 for an invalid one."""
    return value if isinstance(value, int) and value >= 0 else 0
