"""Which rows see which, where a drafter's own layer attends to rows that stand anywhere in a tree."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def rows_seen(
    first: int, rows: int, seen: Sequence[Sequence[int]] | None = None, window: int | None = None
) -> npt.NDArray[np.bool_]:
    """Returns [rows, first + rows]: what each of the rows behind the `first` ones sees, as `RowAttention` has it."""
    if seen is None:
        visible = np.tri(rows, first + rows, first, np.bool_)
    else:
        visible = np.zeros((rows, first + rows), np.bool_)
        for row, (before, *others) in enumerate(seen):
            visible[row, :before] = True
            visible[row, [*others, first + row]] = True
    return visible if window is None else np.triu(visible, first - window + 1)
