"""Where a reply ends."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Where a reply ends at the latest: after so many tokens, or before one of these strings in its answer.

    With a `loop_prompt` it ends also where it repeats one phrase without end; what that prompt holds may stand longer.
    """

    max_tokens: int | None = None
    stop: Sequence[str] = ()
    loop_prompt: str | None = None
