"""The palette of commands, for keys that come faster than it is drawn."""

from contextlib import suppress

from textual.command import CommandPalette
from textual.events import Mount
from textual.message import Message
from textual.widgets import Input, OptionList

from localspec_tui.screens.closing import ClosesOnce


class Palette(ClosesOnce, CommandPalette):
    """Textual's own would end the chat when Enter comes twice, or a key for its list before that has lines.

    So would letters that arrive when it is closed: they begin a search, in a list that is gone. And so would Escape
    that comes before it is there.
    """

    async def _on_message(self, message: Message) -> None:
        chosen = isinstance(message, OptionList.OptionSelected) and not self.is_active
        late = isinstance(message, Input.Changed | Mount) and self not in self.app.screen_stack
        if not (chosen or late):
            await super()._on_message(message)

    def _action_command_list(self, action: str) -> None:
        with suppress(KeyError):
            super()._action_command_list(action)
