"""The bar beside what grows: it moves with every line that comes, and nearly all of its own lines stay the same."""

from rich.segment import Segment
from textual.geometry import Region
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.widget import _RenderCache


class LeanScrollBar(ScrollBar):
    """Textual's own makes each of its lines anew, with room for borders that it never has."""

    def __init__(self, thickness: int) -> None:
        super().__init__(vertical=True, name="vertical", thickness=thickness)
        self.display = False
        self._kinds: dict[tuple[Segment, ...], Strip] = {}

    def _render_content(self) -> None:
        super()._render_content()
        strips = [self._kinds.setdefault(tuple(strip), strip) for strip in self._render_cache.lines]
        self._render_cache = _RenderCache(self.size, strips)

    def render_lines(self, crop: Region) -> list[Strip]:
        if self._dirty_regions:
            self._render_content()
        strips = self._render_cache.lines[crop.y : crop.bottom]
        background = self.background_colors[1]
        for one in self.get_line_filters():
            strips = [strip.apply_filter(one, background) for strip in strips]
        return strips
