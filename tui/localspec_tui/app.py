"""The application around the chat screen: leaving, failing, copying, the palette."""

import asyncio
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.console import RenderableType
from textual import events, work
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.notifications import Notify
from textual.screen import Screen
from textual.theme import Theme
from textual.widget import MountError
from textual.widgets import Input
from textual.widgets._toast import ToastHolder, ToastRack
from textual.worker import WorkerFailed

from localspec import environment
from localspec.config import Settings
from localspec.paths import Paths
from localspec.text import one_line, safe
from localspec_tui import clipboard, keymap, messages, terminal, themes
from localspec_tui.engine_thread import EngineThread
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.palette import Commands, Palette
from localspec_tui.stopping import StoppableApp
from localspec_tui.widgets.status_line import whole_names

TOASTS = 2  # at a time; in a small window each takes too much of the text
SMALL = (80, 24)  # columns and lines; below, there is one at a time
AROUND_TOAST = 2  # columns around its text


class ChatApp(StoppableApp):
    """`failure` is what ended it, where that was no key and no signal."""

    CSS_PATH = "app.tcss"
    TITLE = "localspec"
    COMMANDS = {Commands}  # noqa: RUF012  # Textual declares it so
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-wide")]  # noqa: RUF012  # Textual declares it so
    VERTICAL_BREAKPOINTS = [(0, "-low"), (14, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", id="app.quit", priority=True),
        Binding("ctrl+c", "interrupt", "Copy what is selected, or stop", id="app.interrupt", show=False),
    ]

    def __init__(self, engine: EngineThread, settings: Settings, *, first: str | None = None, files: str = "") -> None:
        """Raises UsageMistake where the settings name no theme, or keys that cannot be."""
        themes.check(settings)
        keys = keymap.effective(settings)
        super().__init__()
        self.set_keymap(keys)
        self._chat = ChatScreen(engine, first, files, settings.log)
        self._kept = settings.log
        self._theme, self._theme_origin = settings.theme, settings.origins.get("theme", "default")
        self._light = environment.light_background()
        self.theme = themes.shown(self._theme, self._light)
        self.failure: Exception | None = None
        self._left: int | None = None  # the exit code, once a signal came
        self.ends = threading.Event()  # once what a signal asked for is being done

    def get_default_screen(self) -> Screen[None]:
        return self._chat

    # -- leaving ------------------------------------------------------------------------------------------------------

    def leave(self, code: int) -> None:
        """Ends the application as ctrl+q does, but with this exit code. From any thread, and from signal handlers."""
        self._left = code
        self.soon(self._leave_now)

    def _leave_now(self) -> None:
        if self._left is not None:
            self.ends.set()
            self.exit(return_code=self._left)

    def keep_unsent(self) -> None:
        """When it has ended, however it did: what was typed and not sent is kept for the next chat."""
        self._chat.keep_unsent()

    @property
    def unsent_lost(self) -> str:
        """Why what was typed and not sent is not kept, after `keep_unsent`; nothing where it is."""
        return self._chat.unsent_lost

    def end_download(self, seconds: float) -> None:
        """When it has ended: waits so long for what was being fetched to be put away."""
        self._chat.download.give_up()
        self._chat.download.wait(seconds)

    def on_mount(self) -> None:
        self._leave_now()

    def on_start_failed(self, failed: messages.StartFailed) -> None:
        self.failure = failed.error
        self.exit()

    def on_thread_failed(self, failed: messages.ThreadFailed) -> None:
        raise failed.error

    def _handle_exception(self, error: Exception) -> None:
        """Textual would print the values of all variables, prompts among them.

        What comes while one leaves finds no place any more, which is no failure.
        """
        if self._exit and isinstance(error.error if isinstance(error, WorkerFailed) else error, MountError):
            return
        self._return_code = 1
        self.failure = self.failure or error
        if self._exception is None:
            self._exception = error  # a test that drives the application raises it
            self._exception_event.set()
        self._close_messages_no_wait()

    def panic(self, *renderables: RenderableType) -> None:
        """The thread that reads keys has failed; what it gives is a traceback with values."""
        if terminal.is_there():
            self._handle_exception(RuntimeError("keys can no longer be read"))
        else:
            self.leave(terminal.HANGUP)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_interrupt(self) -> None:
        """Where something is selected, the screen has copied it before this."""
        if not self._chat.stop_reply():
            self.notify(f"{keymap.key(self, 'app.quit')} quits.", markup=False)

    def action_all_keys(self) -> None:
        """Of the dialog in front."""
        from localspec_tui.screens.all_keys import AllKeysScreen

        self.push_screen(AllKeysScreen(self.screen))

    def action_command_palette(self) -> None:
        """Opens it, but not a second time: Textual knows only of one that nothing lies above."""
        if not any(isinstance(screen, Palette) for screen in self.screen_stack):
            self.push_screen(Palette(id="--command-palette"))

    async def on_event(self, event: events.Event) -> None:
        """What is pasted commands nothing, whatever field it goes to; what is typed in the chat is for the prompt."""
        if isinstance(event, events.Paste):
            event.text = safe(re.sub("\r\n?", "\n", event.text))
        if isinstance(event, events.Key) and event.key.startswith("alt+") and event.key in self.screen.active_bindings:
            event.character = None  # most terminals send Escape and the letter, which Textual gives as a letter as well
        typed = isinstance(event, events.Paste) or (isinstance(event, events.Key) and self._is_typed(event))
        if typed and self.screen is self._chat and not self._chat.types_elsewhere:
            self._chat.type_here()
        await super().on_event(event)

    def _is_typed(self, key: events.Key) -> bool:
        """Letters, and what only the prompt has a use for, such as Enter, while a message has the focus."""
        return key.is_printable or (self._chat.is_for_prompt(key.key) and key.key not in self.screen.active_bindings)

    @property
    def clipboard(self) -> str:
        """What was copied here, for ctrl+v."""
        return one_line(self._clipboard) if isinstance(self.focused, Input) else safe(self._clipboard)

    def copy_to_clipboard(self, text: str, what: str = "") -> None:
        """To the terminal, and wherever else it may arrive; a toast says where it did, and `what` it was.

        Where nothing is selected there is nothing to copy: it would take away what the clipboard holds.
        """
        if not text:
            return
        super().copy_to_clipboard(text)
        file = Paths(environment.home()).copied if self._kept else None
        threading.Thread(target=self._copy, args=(text, file, what), name="clipboard", daemon=True).start()

    def _copy(self, text: str, file: Path | None, what: str) -> None:
        """On a thread of its own: what owns a clipboard may take its time."""
        sentence = clipboard.copied(text, file)
        with suppress(RuntimeError):  # the application has ended
            self.post_message(messages.Copied(sentence, what))

    def on_copied(self, copied: messages.Copied) -> None:
        sentence = f"{copied.sentence} ({copied.what})" if copied.what else copied.sentence
        self.notify(whole_names(sentence, self.size.width - AROUND_TOAST), markup=False, timeout=3)

    @property
    def leaving(self) -> bool:
        """Whether a signal came, also where nothing could be done about it yet."""
        return self._left is not None

    # -- toasts -------------------------------------------------------------------------------------------------------

    def notify(self, message: str, *, title: str = "", **how: Any) -> None:
        """What it is about stands in the same line."""
        super().notify(f"{title}: {message}" if title else message, **how)

    def _refresh_notifications(self) -> None:
        """Textual would leave the room of those that are gone."""
        super()._refresh_notifications()
        known = {ToastRack._toast_id(one) for one in self._notifications}
        for holder in self.screen.query(ToastHolder) if self._screen_stack else ():
            if holder.id not in known:
                holder.remove()

    def on_notify(self, event: Notify) -> None:
        """Before Textual shows it: the same text never twice, and few at a time, for each takes a line of the chat."""
        few = 1 if self.size.width < SMALL[0] or self.size.height < SMALL[1] else TOASTS
        self._hide_tooltip()  # of the key that was clicked: it would lie above what came of it
        message = event.notification.message
        others = [one for one in self._notifications if one.message != message]
        again = [one for one in self._notifications if one.message == message]
        for one in [*again, *others[: max(len(others) - few + 1, 0)]]:
            self._unnotify(one, refresh=False)

    def push_screen(self, *screen: Any, **how: Any) -> Any:
        """What was told of one screen is not told of the next."""
        self.clear_notifications()
        self._hide_tooltip()  # Textual leaves one that is about to be shown, and it would stay above the next
        return super().push_screen(*screen, **how)

    def _hide_tooltip(self) -> None:
        """That of the key below the pointer, if one is shown or about to be."""
        if self._screen_stack:
            if (coming := self.screen._tooltip_timer) is not None:
                coming.stop()
            self.screen._clear_tooltip()

    def pop_screen(self) -> Any:
        """Likewise on the way back."""
        self.clear_notifications()
        return super().pop_screen()

    # -- colours ------------------------------------------------------------------------------------------------------

    @property
    def available_themes(self) -> dict[str, Theme]:
        """All of them, and no copy: Textual asks for them with each line that it draws."""
        return self._registered_themes

    def on_background_known(self, known: messages.BackgroundKnown) -> None:
        self._light = known.light
        self.theme = themes.shown(self._theme, self._light)

    def search_themes(self) -> None:
        """The palette's list of themes."""
        self.push_screen(Palette(providers=[themes.Themes], placeholder="Search for colours"))

    def on_command_palette_option_highlighted(self, moved: CommandPalette.OptionHighlighted) -> None:
        """Show the theme that the palette's cursor is on."""
        command = getattr(getattr(moved.highlighted_event.option, "hit", None), "command", None)
        if isinstance(command, partial) and command.func == self.choose_theme:
            self.theme = themes.shown(command.args[0], self._light)

    def on_command_palette_closed(self, closed: CommandPalette.Closed) -> None:
        """Show the theme of before, where none was chosen."""
        if not closed.option_selected:
            self.theme = themes.shown(self._theme, self._light)

    @work(exclusive=True, group="theme")
    async def choose_theme(self, theme: str) -> None:
        """Shows it, and keeps it for the next time."""
        self._theme = theme
        self.theme = themes.shown(theme, self._light)
        self.notify(await asyncio.to_thread(themes.keep, theme, self._theme_origin), markup=False)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: what the chat's own keys do, and the colours."""
        for binding in ChatScreen.BINDINGS:
            if isinstance(binding, Binding) and binding.tooltip:
                keys = keymap.shown(self, binding)
                yield SystemCommand(binding.tooltip, keys, partial(self.run_action, binding.action, self._chat))
        yield SystemCommand("Let the model think before it answers, or not", "/think", self._chat.action_think)
        yield SystemCommand("Choose other colours", "", self.action_change_theme)
