"""What Ctrl+C does while a reply is being written."""

import signal
from typing import Self


class Interrupt:
    """The first Ctrl+C lets the step under way finish, so that text and tokens agree; the second one stops at once."""

    def __init__(self) -> None:
        self.asked = self.wait_for_step = False

    def __enter__(self) -> Self:
        self._ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nohup and the like ignore it
        if self._ours:
            signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _ask(self, *_: object) -> None:
        # It is remembered, for a library that is being imported may swallow the exception.
        first, self.asked = not self.asked, True
        if not first or not self.wait_for_step:
            raise KeyboardInterrupt
