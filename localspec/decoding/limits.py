"""The limits that end a reply. Clients of a warm server import this file, so it does not import numpy."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of a reply: a number of tokens, and strings before which its answer ends.

    With a `loop_prompt` the reply also ends when it repeats one phrase without end. A phrase whose words come from that
    prompt may be repeated more often.
    """

    max_tokens: int | None = None
    stop: Sequence[str] = ()
    loop_prompt: str | None = None
