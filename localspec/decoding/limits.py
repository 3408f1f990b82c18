"""Where a reply ends."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Where a reply ends at the latest: after so many tokens, or before one of these strings in its answer."""

    max_tokens: int | None = None
    stop: Sequence[str] = ()
