"""A tab of a browser in the place of a terminal: pipes to `localspec serve --ui`, which has it open."""

from typing import cast

from textual.drivers.web_driver import WebDriver

from localspec_tui.app import ChatApp
from localspec_tui.terminal import HANGUP


class TabDriver(WebDriver):
    """Textual's own for browsers; it also ends the chat where the tab or the server is gone."""

    def run_input_thread(self) -> None:
        """Reads keys until there is nobody who could send any."""
        super().run_input_thread()
        if not self.exit_event.is_set():
            cast(ChatApp, self._app).leave(HANGUP)
