"""Widgets that grow with a reply."""

from typing import Self

from textual.geometry import Region
from textual.widget import Widget


class LaidOutOnce(Widget):
    """A widget that grows without a second layout.

    Textual takes the new size, which a layout has just found, as a request for another layout and another picture.
    """

    _has_grown = False

    def watch_virtual_size(self) -> None:
        self._has_grown = True

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Draw again, except right after the size has changed."""
        has_grown, self._has_grown = self._has_grown, False
        if has_grown and layout:
            return self
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
