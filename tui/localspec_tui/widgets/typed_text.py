"""A text field of several lines."""

from collections.abc import Callable

from textual import events
from textual.widgets import TextArea

from localspec.text import safe
from localspec_tui.widgets.keys_in_order import after, before

LONGEST = 1_000_000  # characters; each key costs time for all of them, and no model has a context for more


class TypedText(TextArea):
    """A field of several lines. Text from `put` is made safe, so that it sends no commands to the terminal.

    Pasted text is made safe by the application.
    """

    def put(self, text: str) -> None:
        """Replace the text, and put the cursor after it."""
        self.load_text(safe(text))
        self.move_cursor(self.document.end)

    def on_paste(self, event: events.Paste) -> None:
        """Drop a paste, with a notice, if it would make the field longer than LONGEST."""
        text = event.text
        if len(text) + len(self.document.text) <= LONGEST:
            return
        event.stop()
        event.prevent_default()
        self.notify(
            f"A prompt has at most {LONGEST:,} characters, and with what you pasted it would have "
            f"{len(text) + len(self.document.text):,}; save the text to a file, and type @ and its path.",
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
        """Delete the grapheme from the cursor to `end_of` it.

        Return False if there is none in this line, if text is selected, or if the field is read-only.
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
