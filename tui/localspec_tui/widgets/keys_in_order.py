"""Keys that arrive in one read, as over a slow connection, act in the order in which they were typed."""

from typing import Any

from textual import events
from textual.message_pump import MessagePump
from textual.widgets import Input

from localspec_tui.widgets.graphemes import after, before

LETTERS = "letters"  # the name of a key that stands for several


def take_waiting(event: events.Key, pump: MessagePump) -> None:
    """Make one insertion of a letter and of those that wait behind it, as after a paste that no terminal marked."""
    if not _is_letter(event):
        return
    letters = []
    while isinstance(key := pump._peek_message(), events.Key) and _is_letter(key):
        pump._pending_message = None
        letters.append(key.character or "")
    if letters:
        event.key, event.character = LETTERS, "".join([event.character or "", *letters])


def _is_letter(key: events.Key) -> bool:
    return key.is_printable and "+" not in key.key


class KeysInOrder:
    """For a field where one types: its bindings act at once.

    On their way up to the application the letters typed after them would overtake them.
    """

    async def _on_key(self: Any, event: events.Key) -> None:
        take_waiting(event, self)
        field = self.screen.focused
        led_away = field is not self and isinstance(field, KeysInOrder)  # by a key before this one
        if led_away:
            _done_with(event)
            field.post_message(events.Key(event.key, event.character))
            return
        if self._chooses(event):
            _done_with(event)
            return
        active = self.screen.active_bindings.get(event.key)
        if active is None or (active.node is not self and event.is_printable):
            return
        # Keys that come faster than the screen changes: another is open by now, and its own keys are others.
        if self.app.screen is not self.screen or await self.app.run_action(active.binding.action, active.node):
            _done_with(event)

    def _chooses(self, event: events.Key) -> bool:
        """Whether this key has done something before it comes to bindings."""
        return False


class OneLine(KeysInOrder, Input):
    """A field for one line."""

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
    event.stop()
    event.prevent_default()
