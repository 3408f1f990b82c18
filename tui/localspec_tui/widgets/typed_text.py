"""A field for text of several lines."""

from textual.widgets import TextArea

from localspec.text import safe


class TypedText(TextArea):
    """What is put into it reaches the terminal as text, never as a command; what is pasted, the application sees to."""

    def put(self, text: str) -> None:
        """Replaces the text, and puts the cursor after it."""
        self.load_text(safe(text))
        self.move_cursor(self.document.end)
