"""Drawing from the front: what is covered, or has not changed, is neither rendered nor cut to pieces."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import cast

from textual._compositor import ChopsUpdate, Compositor, CompositorMap, ReflowResult
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

Chops = Sequence[Mapping[int, Strip]]  # by line, what stands from each column on at which a widget begins or ends


class FrontFirst(Compositor):
    """Textual's own renders each line of whatever lies behind or beside a text as well, and throws it away."""

    @property
    def full_map(self) -> CompositorMap:
        """As ever. Who still asks for a layout may change again before it comes, and keeps no height of this one.

        Textual takes a second request for the first one, and so the height that it found in between for the last.
        """
        anew, found = self._full_map_invalidated, super().full_map
        for widget in found if anew else ():
            widget._layout_updates += widget._layout_required
        return found

    def reflow(self, parent: Widget, size: Size) -> ReflowResult:
        """As ever; and it has all widgets now, also those that were new to the picture before."""
        result = super().reflow(parent, size)
        self._full_map_invalidated = False  # or all would be laid out once more as soon as one asks where it stands
        return result

    def render_partial_update(self) -> ChopsUpdate | None:
        """What has changed since the last time; None where nothing has."""
        changed = [*self._regions_to_spans(self._dirty_regions)]
        self._dirty_regions.clear()
        if not changed:
            return None
        return ChopsUpdate(self._from_the_front(changed), changed, [cuts[1:] for cuts in self.cuts])

    def _render_chops(self, crop: Region, is_rendered_line: Callable[[int], bool]) -> Chops:
        lines = filter(is_rendered_line, crop.intersection(self.size.region).line_range)
        return self._from_the_front((y, *crop.column_span) for y in lines)

    def _from_the_front(self, spans: Iterable[tuple[int, int, int]]) -> Chops:
        """Of these lines, each with its first column and the one after the last; the rest stays empty."""
        cuts = self.cuts
        chops: list[dict[int, Strip | None]] = [dict.fromkeys(line[:-1]) for line in cuts]
        free: dict[int, dict[int, int]] = {}  # by line, the columns where nothing stands yet, each with its end
        for y, first, after in spans:
            pieces = {x: end for x, end in pairwise(cuts[y]) if x < after and end > first}
            free[y] = {**free.get(y, {}), **pieces}
        for widget, (region, clip) in self.visible_widgets.items():
            if not free:
                break
            seen = region.intersection(clip)
            left, right = seen.column_span
            found = {}
            for y in seen.line_range:
                pieces = free.get(y, {})
                if taken := {x: end for x, end in pieces.items() if left <= x < right}:
                    found[y] = taken
                    for x in taken:
                        del pieces[x]
                    if not pieces:
                        del free[y]
            if not found:
                continue
            top, last = min(found), max(found)
            strips = widget.render_lines(Region(left - region.x, top - region.y, seen.width, last - top + 1))
            for y, taken in found.items():
                strip = strips[y - top]
                for x, end in taken.items():
                    chops[y][x] = strip.crop(x - left, end - left)
        return cast("Chops", chops)
