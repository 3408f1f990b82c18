"""What stands in the place of a standard output that was closed before the program began."""

import io


class ClosedOutput(io.StringIO):
    """Takes what is written nowhere, and knows whether anything was."""

    missed = False

    def write(self, text: str) -> int:
        """Raises TypeError for bytes, by which typer tells streams of text from others."""
        if not isinstance(text, str):
            raise TypeError("this is a stream of text")
        self.missed = self.missed or bool(text)
        return len(text)
