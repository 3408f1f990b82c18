"""The Textual application of the chat: its end, the clipboard, notifications, and the command palette."""

import asyncio
import re
import sys
import threading
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console, RenderableType
from textual import events, work
from textual.app import ScreenStackError, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.notifications import Notification, Notify
from textual.screen import Screen
from textual.theme import Theme
from textual.widget import MountError
from textual.widgets import Input

from localspec import environment
from localspec.config import Settings
from localspec.paths import Paths
from localspec.text import one_line, safe
from localspec_tui import clipboard, keymap, messages, terminal, themes
from localspec_tui.engine_thread import EngineThread
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.palette import MatchingCommands, Palette
from localspec_tui.suspending import StoppableApp
from localspec_tui.widgets.status_line import whole_names

AROUND_TOAST = 2  # columns around its text


class ChatApp(StoppableApp):
    """The chat application. `failure` is the error that ended the chat; None if the user or a signal ended it."""

    CSS_PATH = "app.tcss"
    TITLE = "localspec"
    COMMANDS = {MatchingCommands}  # noqa: RUF012  # Textual declares it so
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-wide")]  # noqa: RUF012  # Textual declares it so
    VERTICAL_BREAKPOINTS = [(0, "-low"), (14, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", id="app.quit", priority=True),
        Binding("ctrl+c", "interrupt", "Copy the selection, or stop the reply", id="app.interrupt", show=False),
    ]

    def __init__(self, engine: EngineThread, settings: Settings, *, first: str | None = None, files: str = "") -> None:
        """Build the application, with `files` before the `first` prompt. Raises UsageMistake for a bad theme or key."""
        themes.check(settings)
        self.chosen_keys = keymap.effective(settings)
        super().__init__()
        self.error_console = Console(quiet=True)  # for tracebacks, with the values of all variables
        self.set_keymap(self.chosen_keys)
        self._chat = ChatScreen(engine, first, files, settings.log)
        self._saves_text = settings.log
        self._theme, self._theme_origin = settings.theme, settings.origins.get("theme", "default")
        self._light = environment.light_background()
        self.theme = themes.shown(self._theme, self._light)
        self.failure: Exception | None = None
        self.code = 0  # the exit code
        self._left: int | None = None  # the exit code, after a signal
        self.toast: Notification | None = None  # the last one
        self.ends = threading.Event()  # set once the end requested by a signal has begun

    def get_default_screen(self) -> Screen[None]:
        return self._chat

    # -- leaving ------------------------------------------------------------------------------------------------------

    def leave(self, code: int) -> None:
        """End the application like ctrl+q, but with this exit code. Any thread or signal handler may call this."""
        self._left = code
        self.soon(self._leave_now)

    def _leave_now(self) -> None:
        if self._left is not None:
            self.ends.set()
            self.exit(return_code=self._left)

    def keep_unsent(self) -> None:
        """Save the unsent prompt for the next chat. Call this after the application has ended, whatever the reason."""
        self._chat.draft.save_now()

    @property
    def unsent_lost(self) -> str:
        """Return why `keep_unsent` could not save the draft; empty if the draft is saved."""
        return self._chat.draft.trouble

    def end_download(self, seconds: float) -> None:
        """Stop a download after the application has ended. Wait at most `seconds` for it."""
        self._chat.download.give_up()
        self._chat.download.wait(seconds)

    def on_mount(self) -> None:
        self._leave_now()

    def on_start_failed(self, failed: messages.StartFailed) -> None:
        self.failure = failed.error
        self.exit()

    def on_thread_failed(self, failed: messages.ThreadFailed) -> None:
        raise failed.error

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        self.code = return_code
        super().exit(result, return_code, message)

    def bell(self) -> None:
        """Save the exception that is being handled as `failure`, and make no sound.

        Textual calls `bell` before it reports an exception. A failure to mount a widget while the chat ends is ignored.
        """
        error = sys.exception()
        if isinstance(error, Exception) and not (self.leaving and isinstance(error, MountError)):
            self.failure = self.failure or error

    def panic(self, *renderables: RenderableType) -> None:
        """End the chat, because of the present exception, or because keys can no longer be read from the terminal."""
        if sys.exception() is not None:
            self.bell()
            super().panic(*renderables)
        elif terminal.is_there():
            raise RuntimeError("the chat can no longer read keys from the terminal")
        else:
            self.leave(terminal.HANGUP)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_interrupt(self) -> None:
        """Stop the reply. If no reply is running, say which key quits.

        If text is selected, the screen handles the key instead, and copies the text.
        """
        if not self._chat.turns.stop_reply():
            self.notify(f"{keymap.key(self, 'app.quit')} quits.", markup=False)

    def action_all_keys(self) -> None:
        """Show all keys of the dialog in front."""
        from localspec_tui.screens.palette import AllKeysScreen

        self.push_screen(AllKeysScreen(self.screen))

    def action_command_palette(self) -> None:
        """Open the palette, unless it is already open. Textual's own check misses a palette below another screen."""
        if not any(isinstance(screen, Palette) for screen in self.screen_stack):
            self.push_screen(Palette(id="--command-palette"))

    async def run_action(self, action: Any, *arguments: Any, **options: Any) -> bool:
        """Run the action of a key. While the palette's list is still empty, ignore its keys, which raise KeyError."""
        with suppress(KeyError) if str(action).startswith("command_list") else nullcontext():
            return await super().run_action(action, *arguments, **options)
        return False

    async def on_event(self, event: events.Event) -> None:
        """Handle an event. Make pasted text safe, and send text that is typed in the chat to the prompt field."""
        if isinstance(event, events.Paste):
            event.text = safe(re.sub("\r\n?", "\n", event.text))
        if isinstance(event, events.Key) and event.key.startswith("alt+") and event.key in self.screen.active_bindings:
            event.character = None  # most terminals send Escape and the letter, which Textual also reports as a letter
        typed = isinstance(event, events.Paste) or (isinstance(event, events.Key) and self._is_typed(event))
        if typed and self.screen is self._chat and not self._chat.types_elsewhere:
            self._chat.type_here()
        await super().on_event(event)

    def _is_typed(self, key: events.Key) -> bool:
        """Return whether a key is meant for the prompt: a letter, or a key such as Enter that only the prompt uses."""
        return key.is_printable or (self._chat.is_for_prompt(key.key) and key.key not in self.screen.active_bindings)

    @property
    def clipboard(self) -> str:
        """Return the text that was last copied in this application, which ctrl+v inserts."""
        return one_line(super().clipboard) if isinstance(self.focused, Input) else safe(super().clipboard)

    def copy_to_clipboard(self, text: str, label: str = "") -> None:
        """Copy to the clipboards of terminal, tmux and desktop. A toast names the text (`label`) and the clipboards.

        An empty text is not copied, because that would overwrite the clipboard.
        """
        if not text:
            return
        super().copy_to_clipboard(text)
        file = Paths(environment.home()).copied if self._saves_text else None
        threading.Thread(target=self._copy, args=(text, file, label), name="clipboard", daemon=True).start()

    def _copy(self, text: str, file: Path | None, label: str) -> None:
        """Copy in a thread, because the program that owns a clipboard may be slow."""
        sentence = clipboard.copied(text, file)
        with suppress(RuntimeError):  # the application has ended
            self.post_message(messages.Copied(sentence, label))

    def on_copied(self, copied: messages.Copied) -> None:
        sentence = f"{copied.sentence} ({copied.label})" if copied.label else copied.sentence
        self.notify(whole_names(sentence, self.size.width - AROUND_TOAST), markup=False, timeout=3)

    @property
    def leaving(self) -> bool:
        """Whether a signal to end has arrived, even if the application could not end yet."""
        return self._left is not None

    # -- toasts -------------------------------------------------------------------------------------------------------

    def notify(self, message: str, *, title: str = "", **options: Any) -> None:
        """Show a notification, with its title on the same line."""
        super().notify(f"{title}: {message}" if title else message, **options)

    def on_notify(self, event: Notify) -> None:
        """Clear the previous toast before showing another: each toast covers a line of the chat."""
        self.clear_notifications()
        self.toast = event.notification

    def clear_notifications(self) -> None:
        self.toast = None
        super().clear_notifications()
        with suppress(ScreenStackError):  # before the first screen
            self.screen.query("ToastHolder").remove()  # Textual would leave their space

    @property
    def toasts(self) -> list[Notification]:
        """Return the visible toasts (notifications): at most one, because a new toast replaces the previous one."""
        return [self.toast] if self.toast is not None and not self.toast.has_expired else []

    def push_screen(self, *screen: Any, **options: Any) -> Any:
        """Open a screen, and clear the toast of the screen below."""
        self.clear_notifications()
        return super().push_screen(*screen, **options)

    def pop_screen(self) -> Any:
        """Close a screen, and clear its toast."""
        self.clear_notifications()
        return super().pop_screen()

    # -- colours ------------------------------------------------------------------------------------------------------

    @cached_property
    def available_themes(self) -> dict[str, Theme]:
        """Return all themes without copying them, because Textual requests them for each line that it draws."""
        return super().available_themes

    def on_background_known(self, background: messages.BackgroundKnown) -> None:
        self._light = background.light
        self.theme = themes.shown(self._theme, self._light)

    def search_themes(self) -> None:
        """Open the palette's list of themes."""
        self.push_screen(Palette(providers=[themes.Themes], placeholder="Search for a colour theme"))

    def on_command_palette_option_highlighted(self, moved: CommandPalette.OptionHighlighted) -> None:
        """Show the theme under the palette's cursor."""
        command = getattr(getattr(moved.highlighted_event.option, "hit", None), "command", None)
        if isinstance(command, partial) and command.func == self.choose_theme:
            self.theme = themes.shown(command.args[0], self._light)

    def on_command_palette_closed(self, closed: CommandPalette.Closed) -> None:
        """Restore the previous theme if none was chosen."""
        if not closed.option_selected:
            self.theme = themes.shown(self._theme, self._light)

    @work(exclusive=True, group="theme")
    async def choose_theme(self, theme: str) -> None:
        """Show a theme, and save it for the next session."""
        self._theme = theme
        self.theme = themes.shown(theme, self._light)
        self.notify(await asyncio.to_thread(themes.keep, theme, self._theme_origin), markup=False)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the commands of the palette: the actions of the chat's keys, and the choice of a theme."""
        for binding in ChatScreen.BINDINGS:
            if isinstance(binding, Binding) and binding.tooltip:
                keys = keymap.shown(self, binding)
                yield SystemCommand(binding.tooltip, keys, partial(self.run_action, binding.action, self._chat))
        yield SystemCommand("Let the model think before it answers, or not", "/think", self._chat.action_think)
        yield SystemCommand("Choose other colours", "", self.action_change_theme)
