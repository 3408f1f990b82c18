"""Text fields of one line and of several lines. Their keys act in the order of typing, even if many arrive at once."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from textual import events
from textual.widgets import Input, TextArea

from localspec.text import safe


class KeysInOrder:
    """A mixin for text fields that runs the binding of a key at once.

    Textual would first pass the key up to the application, and letters typed after the key would act before it.
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


FARTHEST = 64  # most code points before the cursor that are searched for the beginning of a grapheme


@cache
def _grapheme() -> "re.Pattern[str]":
    import regex  # after the first paint

    return cast("re.Pattern[str]", regex.compile(r"\X"))


def before(text: str, at: int) -> int:
    """Return the beginning of the grapheme (a visible character) that ends at position `at`."""
    return max((match.start() for match in _grapheme().finditer(text, max(at - FARTHEST, 0), at)), default=0)


def after(text: str, at: int) -> int:
    """Return the end of the grapheme (a visible character) that begins at position `at`."""
    match = _grapheme().match(text, at)
    return match.end() if match else at


LONGEST = 1_000_000  # characters; each key costs time for all of them, and no model has a context for more


class TypedText(TextArea):
    """A field of several lines. `put` removes control sequences, which the terminal would execute, from its text.

    The application does the same with pasted text.
    """

    def put(self, text: str) -> None:
        """Replace the text, and put the cursor after it."""
        self.load_text(safe(text))
        self.move_cursor(self.document.end)

    def on_paste(self, event: events.Paste) -> None:
        """Refuse a paste, with a notice, if it would make the text longer than LONGEST."""
        text = event.text
        if len(text) + len(self.document.text) <= LONGEST:
            return
        event.stop()
        event.prevent_default()
        self.notify(
            f"A prompt has at most {LONGEST:,} characters, but with what you pasted it would have "
            f"{len(text) + len(self.document.text):,}; save the text to a file, then type @ and its path.",
            severity="error",
            markup=False,
        )

    # -- graphemes, which may be several code points ------------------------------------------------------------------

    def action_delete_left(self) -> None:
        if not self._delete_part(before):
            super().action_delete_left()

    def action_delete_right(self) -> None:
        if not self._delete_part(after):
            super().action_delete_right()

    def _delete_part(self, end_of: Callable[[str, int], int]) -> bool:
        """Delete one grapheme, from the cursor to the position that `end_of` (`before` or `after`) returns.

        Return False if the line has no such grapheme, if text is selected, or if the field is read-only.
        """
        row, column = self.cursor_location
        other = end_of(self.document.get_line(row), column)
        if self.read_only or not self.selection.is_empty or other == column:
            return False
        self.delete((row, column), (row, other), maintain_selection_offset=False)
        return True

    def get_cursor_left_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        place = before(self.document.get_line(row), column)
        return (row, place) if place != column else super().get_cursor_left_location()

    def get_cursor_right_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        place = after(self.document.get_line(row), column)
        return (row, place) if place != column else super().get_cursor_right_location()
