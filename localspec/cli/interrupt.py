"""What Ctrl+C does while a reply comes."""

import signal
from typing import Self


class Interrupt:
    """Ctrl+C while text comes: the step under way is finished, so that text and tokens agree. Again: at once."""

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
        first, self.asked = not self.asked, True  # kept, for a library that is being imported may swallow the exception
        if not first or not self.wait_for_step:
            raise KeyboardInterrupt
