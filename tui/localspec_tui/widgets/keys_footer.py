"""The line of keys at the bottom."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer

AROUND = 3  # blanks of one key
SHOW_KEYS = {"keys", "all_keys"}  # in the chat, and above it


class KeysFooter(Footer):
    """As many keys as there is room for, none of them cut, then the one that shows all keys.

    The palette's stands at the right in any case.

    Textual makes it anew whenever bindings may have changed, with each move of the focus: here, when they have.
    """

    _shown: object = None  # what it was last composed of
    _is_ready = False  # whether the bindings are known

    def compose(self) -> ComposeResult:
        self._shown = self._known()
        all_of_them: Iterator[Any] = (key for key in super().compose() if _action(key))
        keys = sorted(all_of_them, key=lambda key: rank(self.screen, key))
        palette = [key for key in keys if key.has_class("-command-palette")]
        help_keys = [key for key in keys if _action(key) in SHOW_KEYS]
        keys = [key for key in keys if key not in palette and key not in help_keys]
        room = self.app.size.width - sum(map(_width, (*help_keys, *palette))) - len(palette)  # and a blank
        yield from keys[: bisect_right([*accumulate(map(_width, keys))], room)]
        yield from (*help_keys, *palette)

    def _known(self) -> object:
        """All that it is composed of."""
        bindings = self.screen.active_bindings.values()
        keys = [(one.binding, one.enabled, one.tooltip) for one in bindings if one.binding.show]
        return self._is_ready, self.app.size.width, keys

    def bindings_changed(self, screen: Screen[object]) -> None:
        self._is_ready = True
        super().bindings_changed(screen)

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self.recompose)

    async def recompose(self) -> None:
        """Make the keys again, if they have changed."""
        if self.is_attached and self._known() != self._shown:
            await super().recompose()


def rank(screen: Screen[object], key: object) -> int:
    """What has the focus, then the screen in its own order, also where the user gave other keys, then the rest."""
    own, rest = ([*map(_action, owner.BINDINGS)] for owner in (screen, screen.app))
    action = _action(key)
    return own.index(action) if action in own else len(own) if action in rest else -1


def _action(key: object) -> str:
    return str(getattr(key, "action", "")).removeprefix("app.")


def _width(key: Any) -> int:
    return cell_len(key.key_display) + cell_len(key.description) + AROUND
