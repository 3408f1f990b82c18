"""Fields in which keys act in the order of typing, even if many arrive at once, as over a slow connection."""

from typing import Any

from textual import events
from textual.widgets import Input

from localspec_tui.widgets.graphemes import after, before


class KeysInOrder:
    """A mixin for text fields that runs key bindings at once.

    Textual would pass a binding up to the application, and letters typed after it would act first.
    """

    async def on_key(self: Any, event: events.Key) -> None:
        field = self.screen.focused
        focus_moved = field is not self and isinstance(field, KeysInOrder)  # by a prior key
        if focus_moved:
            _done_with(event)
            field.post_message(events.Key(event.key, event.character))
            return
        if self._chooses(event):
            _done_with(event)
            return
        active = self.screen.active_bindings.get(event.key)
        if active is None or (active.node is not self and event.is_printable):
            return
        # If a prior key opened another screen, drop this key: it may mean something else there.
        if self.app.screen is not self.screen or await self.app.run_action(active.binding.action, active.node):
            _done_with(event)

    def _chooses(self, event: events.Key) -> bool:
        """Handle a key before the bindings, and return whether it was handled."""
        return False


class OneLine(KeysInOrder, Input):
    """A text field of one line."""

    def action_delete_left(self) -> None:
        place = before(self.value, self.cursor_position)
        if self.selection.is_empty and place < self.cursor_position:
            self.delete(place, self.cursor_position)
        else:
            super().action_delete_left()

    def action_delete_right(self) -> None:
        place = after(self.value, self.cursor_position)
        if self.selection.is_empty and place > self.cursor_position:
            self.delete(self.cursor_position, place)
        else:
            super().action_delete_right()

    def action_cursor_left(self, select: bool = False) -> None:
        if select or not self.selection.is_empty:
            super().action_cursor_left(select)
        else:
            self.cursor_position = before(self.value, self.cursor_position)

    def action_cursor_right(self, select: bool = False) -> None:
        if select or not self.selection.is_empty or self.cursor_at_end:
            super().action_cursor_right(select)
        else:
            self.cursor_position = after(self.value, self.cursor_position)


def _done_with(event: events.Key) -> None:
    """Stop an event, so that nothing else handles it."""
    event.stop()
    event.prevent_default()
