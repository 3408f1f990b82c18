"""A buffer between threads: the engine's thread adds text and figures, and the screen takes them at its own pace."""

import time
from collections import deque
from typing import TYPE_CHECKING

from localspec.chat.figures import Figures
from localspec.events import Event, Prefill, Text
from localspec.text import safe

if TYPE_CHECKING:
    from localspec.chat.figures import LiveStats

FIGURES_SECONDS = 0.1  # between two updates; more often would not be visible


class ReplyBuffer:
    """The current reply: text that is not displayed yet, and its figures. One thread adds, another takes."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()
        self._thoughts: deque[str] = deque()
        self._figured_at = 0.0
        self.figures: Figures | None = None  # None while nothing is known of the reply
        self.accepted = False  # whether the engine has accepted the prompt

    def begin(self) -> None:
        """Discard the previous reply. Call this only while no thread adds anything."""
        self._texts.clear()
        self._thoughts.clear()
        self.figures, self.accepted = None, False

    def put(self, event: Event, live: "LiveStats") -> None:
        """Add an event, which `live` has counted already."""
        self.accepted = True
        match event:
            case Prefill(done, total, _) if done < total:
                self.figures = live.figures()
            case Text(text):
                if event.reasoning:
                    self._thoughts.append(safe(event.reasoning))
                self._texts.append(safe(text))
                now = time.monotonic()
                if now - self._figured_at >= FIGURES_SECONDS:
                    self.figures, self._figured_at = live.figures(), now

    def end(self, live: "LiveStats") -> None:
        """Set the final figures of the reply."""
        self.figures, self._figured_at = live.figures(), 0.0

    def take(self) -> str:
        """Return the text since the last call."""
        return _all_of(self._texts)

    def take_thoughts(self) -> str:
        """Return the thoughts since the last call. Call this before `take`, because the text follows the thoughts."""
        return _all_of(self._thoughts)


def _all_of(parts: deque[str]) -> str:
    return "".join(parts.popleft() for _ in range(len(parts)))


SHORTEST, LONGEST = 0.1, 0.5  # seconds
SHARE = 0.03  # of a core, of which the model loses a part: one of its threads rests meanwhile, and the others continue


class Pace:
    """A clock that decides when the screen takes new text, by the CPU time that the previous text took."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start the clock for a new reply, with the shortest wait."""
        self.period = SHORTEST
        self._spent = time.thread_time()

    def next(self) -> float:
        """Return the seconds to wait until new text is taken, so that this work takes a fixed share of the time.

        The work includes drawing. The result has limits, so that text neither flickers nor stutters.
        """
        spent = time.thread_time()
        self.period = min(max((spent - self._spent) / SHARE, SHORTEST), LONGEST)
        self._spent = spent
        return self.period
