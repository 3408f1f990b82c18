"""The numbers of rows and of slots that static shapes have: few, so that texts of all lengths share recordings."""

from localspec.choosing.fit import BUCKET, STATIC_ROWS


def filled_rows(rows: int) -> int:
    """Returns how many rows up to 64 are filled up to."""
    return next(filled for filled in STATIC_ROWS if filled >= rows)


def filled_slots(slots: int) -> int:
    """Returns how many slots attention looks at: in larger steps the longer the text, at most a quarter too many."""
    step = max(BUCKET, (1 << (slots.bit_length() - 1)) // 4)
    return -(-slots // step) * step
