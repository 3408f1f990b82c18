"""A tab of a browser in the place of a terminal: pipes to `localspec serve --ui`, which has it open."""

import os
from contextlib import suppress
from typing import Any, cast

from textual.drivers.web_driver import WebDriver

from localspec_tui.app import ChatApp
from localspec_tui.terminal import HANGUP


class TabDriver(WebDriver):
    """Textual's own for browsers; it also ends the chat where the tab or the server is gone."""

    def __init__(self, app: ChatApp, **how: Any) -> None:
        super().__init__(app, **how)
        self._gone = False
        self._write = self._sent  # type: ignore[assignment]  # which would write a part, or raise where nobody reads

    def run_input_thread(self) -> None:
        """Reads keys until there is nobody who could send any."""
        super().run_input_thread()
        if not self.exit_event.is_set():
            self._leave()

    def _sent(self, data: bytes) -> int:
        left = memoryview(data)
        while left and not self._gone:
            try:
                left = left[os.write(self.fileno, left) :]
            except OSError:
                self._leave()
        return len(data)

    def _leave(self) -> None:
        self._gone = True
        with suppress(RuntimeError):  # it has ended
            cast(ChatApp, self._app).leave(HANGUP)
