"""Drawing from the front: what is covered is neither rendered nor cut to pieces."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import cast

from textual._compositor import Compositor
from textual.geometry import Region
from textual.strip import Strip


class FrontFirst(Compositor):
    """Textual's own renders each line of whatever lies behind a text as well, divides it, and throws it away."""

    def _render_chops(self, crop: Region, is_rendered_line: Callable[[int], bool]) -> Sequence[Mapping[int, Strip]]:
        """By line, what stands from each column on at which a widget begins or ends."""
        cuts = self.cuts
        chops: list[dict[int, Strip | None]] = [dict.fromkeys(line[:-1]) for line in cuts]
        for widget, (region, clip) in self.visible_widgets.items():
            seen = region.intersection(clip)
            if not seen or not crop.overlaps(clip):
                continue
            left, right = seen.column_span
            free = {}  # by line, the columns of this widget where nothing stands yet, each with its end
            for y in filter(is_rendered_line, seen.line_range):
                line = chops[y]
                if spans := [(x, end) for x, end in pairwise(cuts[y]) if left <= x < right and line[x] is None]:
                    free[y] = spans
            if not free:
                continue
            first, last = min(free), max(free)
            strips = widget.render_lines(Region(left - region.x, first - region.y, seen.width, last - first + 1))
            for y, spans in free.items():
                strip = strips[y - first]
                for x, end in spans:
                    chops[y][x] = strip.crop(x - left, end - left)
        return cast("Sequence[Mapping[int, Strip]]", chops)
