"""Widgets that grow with a reply."""

from typing import Any

from textual.geometry import Region, Size


class LaidOutOnce:
    """A mixin for widgets that grow without a second layout. It is no Widget: Textual styles only the first base.

    Textual takes the new size, which a layout has just found, as a request for another layout and another picture.
    """

    _has_grown = False

    def watch_virtual_size(self, old: Size, new: Size) -> None:
        self._has_grown = old != new

    def refresh(
        self: Any, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Any:
        """Draw again, but not because of a new size."""
        has_grown, self._has_grown = self._has_grown, False
        if has_grown and layout and not regions:
            return self
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)  # type: ignore[misc]
