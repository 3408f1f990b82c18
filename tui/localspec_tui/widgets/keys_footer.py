"""The line of keys at the bottom."""

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

AROUND = 3  # blanks of one key


class KeysFooter(Footer):
    """As many keys as there is room for, none of them cut; the palette's stands at the right in any case.

    Textual makes it anew whenever bindings may have changed, with each move of the focus: here, when they have.
    """

    _shown: object = None  # what it was last composed of

    def compose(self) -> ComposeResult:
        self._shown = self._known()
        keys = sorted((key for key in super().compose() if isinstance(key, FooterKey)), key=self._rank)
        palette = [key for key in keys if key.has_class("-command-palette")]
        room = self.app.size.width - sum(_width(key) + 2 for key in palette)  # a line, and a blank
        for key in keys:
            if key not in palette:
                room -= _width(key)
                if room < 0:
                    break
                yield key
        yield from palette

    def _rank(self, key: FooterKey) -> int:
        """What has the focus, then the screen in its own order, also where the user gave other keys, then the rest."""
        screen, rest = ([*map(_action, owner.BINDINGS)] for owner in (self.screen, self.app))
        action = _action(key)
        return screen.index(action) if action in screen else len(screen) if action in rest else -1

    def _known(self) -> object:
        """All that it is composed of."""
        bindings = self.screen.active_bindings.values()
        keys = [(one.binding, one.enabled, one.tooltip) for one in bindings if one.binding.show]
        return self._bindings_ready, self.app.size.width, keys

    def bindings_changed(self, screen: Screen[object]) -> None:
        self._bindings_ready = True
        if screen.app.app_focus and self.is_attached and screen is self.screen:
            self.call_after_refresh(self._keep_up)

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._keep_up)

    async def _keep_up(self) -> None:
        if self.is_attached and self._known() != self._shown:
            await self.recompose()


def _action(key: object) -> str:
    return str(getattr(key, "action", "")).removeprefix("app.")


def _width(key: FooterKey) -> int:
    return cell_len(key.key_display) + cell_len(key.description) + AROUND
