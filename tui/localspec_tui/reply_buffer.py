"""Where the engine's thread puts what the screen shows, and from where the screen takes it at its own pace."""

import time
from collections import deque
from typing import TYPE_CHECKING

from localspec.chat.figures import Figures
from localspec.events import Event, Prefill, Text
from localspec.text import safe

if TYPE_CHECKING:
    from localspec.chat.figures import LiveStats

FIGURES_SECONDS = 0.1  # no eye follows more


class ReplyBuffer:
    """The reply under way: text not yet shown, and its figures. One thread puts, another takes."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()
        self._thoughts: deque[str] = deque()
        self._figured_at = 0.0
        self.figures: Figures | None = None  # None while nothing is known of the reply
        self.begun = False  # whether the engine has taken the prompt

    def begin(self) -> None:
        """Forgets what the reply before left. Only while nothing is put."""
        self._texts.clear()
        self._thoughts.clear()
        self.figures, self.begun = None, False

    def put(self, event: Event, live: "LiveStats") -> None:
        """One event, which `live` has counted."""
        self.begun = True
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
        """Set the final figures."""
        self.figures, self._figured_at = live.figures(), 0.0

    def take(self) -> str:
        """Return the text since the last call."""
        return _all_of(self._texts)

    def take_thoughts(self) -> str:
        """Return the thoughts since the last call. Call this before `take`, because the text comes after them."""
        return _all_of(self._thoughts)


def _all_of(parts: deque[str]) -> str:
    return "".join(parts.popleft() for _ in range(len(parts)))


SHORTEST, LONGEST = 0.1, 0.5  # seconds
SHARE = 0.03  # of a core, of which the model misses a part: one of its threads rests meanwhile, and the others go on


class Pace:
    """The seconds until the next look, by what the last one cost this thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a reply."""
        self.period = SHORTEST
        self._spent = time.thread_time()

    def next(self) -> float:
        """As long as makes its share of what was spent since the last call, drawing and all; as far as eyes bear it."""
        spent = time.thread_time()
        self.period = min(max((spent - self._spent) / SHARE, SHORTEST), LONGEST)
        self._spent = spent
        return self.period
