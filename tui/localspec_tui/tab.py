"""Runs the chat in a browser tab in place of a terminal, through pipes to `localspec serve --ui`."""

from typing import Any, cast

from textual.app import App
from textual.drivers.web_driver import WebDriver

from localspec_tui.app import ChatApp
from localspec_tui.terminal import HANGUP


class TabDriver(WebDriver):
    """Textual's driver for browsers, which also ends the chat when the tab or the server is gone."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self.application = cast("ChatApp", app)

    def run_input_thread(self) -> None:
        """Read keys until the connection ends."""
        super().run_input_thread()
        if not self.exit_event.is_set():
            self.application.leave(HANGUP)
