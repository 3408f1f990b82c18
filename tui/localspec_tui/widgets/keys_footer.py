"""The line of keys at the bottom."""

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

AROUND = 3  # blanks of one key


class KeysFooter(Footer):
    """As many keys as there is room for, none of them cut; the palette's stands at the right in any case."""

    _filled = 0  # the width that it was last composed for

    def compose(self) -> ComposeResult:
        keys = [key for key in super().compose() if isinstance(key, FooterKey)]
        palette = [key for key in keys if key.has_class("-command-palette")]
        room = self.app.size.width - sum(_width(key) + 2 for key in palette)  # a line, and a blank
        for key in keys:
            if key not in palette:
                room -= _width(key)
                if room < 0:
                    break
                yield key
        yield from palette

    def on_resize(self, _: events.Resize) -> None:
        width = self.app.size.width
        if width != self._filled:
            self._filled = width
            self.call_after_refresh(self.recompose)


def _width(key: FooterKey) -> int:
    return cell_len(key.key_display) + cell_len(key.description) + AROUND
