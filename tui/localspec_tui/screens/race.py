"""A race: answers to one prompt with and without speculation, live, and then replayed at true speed."""

import time
from collections.abc import Sequence
from os import terminal_size
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input, Static

from localspec.bench.race import AROUND, PAUSE, Lane, ends, frame
from localspec.text import one_line
from localspec_tui.engine_thread import EngineThread
from localspec_tui.messages import RaceEnded, RaceStarted
from localspec_tui.screens.dialogs import DIALOG_KEYS, ClosesOnce
from localspec_tui.widgets.keys_panel import KeysFooter
from localspec_tui.widgets.typed_text import OneLine

LEFT = 5  # lines of the screen outside of the frame


class _Question(OneLine):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Begin", id="race.begin")]


class RaceScreen(ClosesOnce, Screen[None]):
    """A screen that starts a race with `prompt`. If `prompt` is empty, it asks for one, and suggests `proposed`."""

    AUTO_FOCUS = ""  # with a given prompt, the field for it is hidden
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="race.stop"),
        Binding("escape", "result", "Back", id="race.result"),
        Binding("escape", "dismiss", "Back", id="race.back"),
        Binding("f5", "replay", "Play again", id="race.replay"),
        Binding("f9", "another", "Another prompt", id="race.another"),
        DIALOG_KEYS,
    ]

    def __init__(self, engine: EngineThread, prompt: str, proposed: str) -> None:
        super().__init__()
        self._engine, self._prompt = engine, prompt.strip()
        self._field = _Question(one_line(proposed), placeholder="Type the prompt of the race", compact=True)
        self._lanes: Sequence[Lane] = ()
        self._drawn: float | None = None  # seconds of the replay that are shown; None while live
        self._verdict: Sequence[str] = ()
        self._racing = self._over = False
        self._began = 0.0  # the start of the replay
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="question", markup=False)
        yield self._field
        yield Static("", id="course", markup=False)
        yield Static("", id="verdict", markup=False)
        yield KeysFooter(show_command_palette=False)

    def on_mount(self) -> None:
        if self._prompt:
            self._begin(self._prompt)
        else:
            self.query_one("#question", Static).update(
                "One prompt, answered without drafts and with them. Press Enter to begin."
            )
            self._field.focus()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        if submitted.value.strip():
            self._begin(submitted.value.strip())

    def action_another(self) -> None:
        """Ask for another prompt in place of the last one. The result stays visible."""
        self.query_one("#question").display, self._field.display = False, True
        self._field.focus()
        self.refresh_bindings()

    def action_result(self) -> None:
        """Close the field, and show the last race's prompt again above its result."""
        self._close_field()
        self.refresh_bindings()

    def _close_field(self) -> None:
        self.query_one("#question").display, self._field.display = True, False
        self.set_focus(None)

    def _begin(self, prompt: str) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._lanes = ()
        self._field.value = one_line(prompt)
        self._close_field()
        self.query_one("#question", Static).update(Content.assemble(("Race: ", "bold"), one_line(prompt)))
        self.query_one("#verdict", Static).update("")
        self.query_one("#course", Static).update("Loading a second engine for the race, and warming both up …")
        self._racing = True
        self.refresh_bindings()
        self._engine.race(prompt, self.post_message)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False for a key that would have no effect now, so that the footer does not show it."""
        if action == "replay":
            return self._over and not self._racing
        if action == "another":
            return not self._racing and not self._field.display
        escape = "stop" if self._racing else "result" if self._field.display and self._verdict else "dismiss"
        return action not in {"stop", "result", "dismiss"} or action == escape

    def action_stop(self) -> None:
        self._engine.stop_reply()

    # -- live ---------------------------------------------------------------------------------------------------------

    def on_race_started(self, begun: RaceStarted) -> None:
        self._lanes = begun.lanes
        self._timer = self.set_interval(PAUSE * 2, self._draw)

    def on_race_ended(self, ended: RaceEnded) -> None:
        self._racing, self._over, self._verdict = False, ended.over, ended.sentences
        if self._timer is not None:
            self._timer.stop()
        if ended.over:
            self.action_replay()
        else:
            if not self._lanes:  # there was no race
                self.query_one("#course", Static).update("")
            self._tell()
        self.refresh_bindings()

    # -- replay -------------------------------------------------------------------------------------------------------

    def action_replay(self) -> None:
        """Show both answers again, each at its true speed."""
        if self._timer is not None:
            self._timer.stop()
        self.query_one("#verdict", Static).update("")
        self._began = time.monotonic()
        self._timer = self.set_interval(PAUSE, self._replay)
        self._replay()

    def _replay(self) -> None:
        seconds = time.monotonic() - self._began
        self._draw(seconds)
        if seconds >= ends(self._lanes):
            if self._timer is not None:
                self._timer.stop()
            self._tell()

    def on_resize(self) -> None:
        if self._lanes:
            self._draw(self._drawn)

    def _draw(self, seconds: float | None = None) -> None:
        self._drawn = seconds
        size = terminal_size((self.size.width - 2, max(self.size.height - LEFT, 1) + AROUND - 6))
        self.query_one("#course", Static).update("\n".join(frame(self._lanes, size, seconds)))

    def _tell(self) -> None:
        first, *rest = map(one_line, self._verdict)
        style = "bold $text-success" if self._over else "$text-error"
        lines = Content.assemble((first, style), *(f"\n{line}" for line in rest))
        self.query_one("#verdict", Static).update(lines)
