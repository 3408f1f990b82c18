"""The line about a download of a model, with methods that start and stop the download."""

import time
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widget import Widget

from localspec.text import one_line
from localspec_tui import messages
from localspec_tui.widgets.status_line import fitting

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.timer import Timer

    from localspec.config import Settings
    from localspec_tui.fetch_thread import FetchThread
    from localspec_tui.screens.download import DownloadScreen

LOOK_SECONDS = 0.25


class DownloadLine(Widget):
    """The line about a download, invisible without a download. `question` makes the dialog that asks the user."""

    def __init__(self, settings: "Settings", question: "Callable[[str], DownloadScreen]") -> None:
        super().__init__()
        self.display = False
        self.ended = 0  # downloads so far
        self._settings, self._new_question = settings, question
        self._thread: FetchThread | None = None
        self._question: DownloadScreen | None = None
        self._follower: Timer | None = None
        self._parts: list[str] = []

    @property
    def model(self) -> str:
        """Return the model that is being fetched; empty without a download, and before the user has agreed."""
        return self._thread.model if self._thread is not None and self.display else ""

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the progress of the download in words, the most important part first."""
        return tuple(self._parts)

    def offer(self, model: str) -> None:
        """Ask the hub for the size of a model, ask the user, and fetch the model."""
        if self._thread is not None:
            name, stopping = self._thread.model, self._thread.given_up
            self.notify(
                f"The download of {one_line(name)} is still stopping. Try again in a moment."
                if stopping
                else f"The download of {one_line(name)} is running; only one download runs at a time.",
                markup=False,
            )
            return
        from localspec_tui.fetch_thread import FetchThread

        self._thread = FetchThread(model, self._settings, self.post_message)
        self._question = self._new_question(model)
        self.app.push_screen(self._question, self._answered)
        self._thread.start()

    def give_up(self) -> None:
        """Stop the download. Complete files are kept."""
        if self._thread is not None:
            self._thread.give_up()
            self._show("stopping")

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the end of a stopped download."""
        if self._thread is not None:
            self._thread.join(seconds)

    def on_unmount(self) -> None:
        self.give_up()

    # -- progress -----------------------------------------------------------------------------------------------------

    def on_fetch_planned(self, plan: messages.FetchPlanned) -> None:
        plan.stop()
        if self._question is not None:
            self._question.ask(plan.planned)

    def _answered(self, agreed: bool | None) -> None:
        self._question = None
        if self._thread is None:  # it has ended meanwhile
            return
        if not agreed:
            self._thread.give_up()
            return
        from localspec.quantities import Arrival

        arrival, self.display = Arrival(), True
        self._show("beginning")
        self._thread.agree()

        def follow() -> None:
            thread = self._thread
            if thread is None or thread.given_up:
                return
            if thread.bytes is not None and not thread.stage:
                self._show(*arrival.parts(*thread.bytes, time.monotonic()))
            elif thread.bytes is not None:
                self._show(f"{thread.stage} …")

        self._follower = self.set_interval(LOOK_SECONDS, follow)

    def on_fetch_ended(self, ended: messages.FetchEnded) -> None:
        """Show in the conversation how the download ended, except if the user answered no."""
        ended.stop()
        was_shown = self.display
        self._thread, self.display = None, False
        self.ended += 1
        if self._follower is not None:
            self._follower.stop()
        if self._question is not None:
            self._question.pop_until_active()  # the palette may be open above it
            self._question.dismiss(None)
        elif not was_shown and not ended.trouble:
            return
        self.post_message(messages.Noticed(ended.sentence, ended.trouble))

    def _show(self, *parts: str) -> None:
        self._parts = [one_line(part) for part in parts]
        self.refresh()

    def render(self) -> Content:
        return Content(fitting((f"↓ {one_line(self.model)}", *self._parts), self.size.width))
