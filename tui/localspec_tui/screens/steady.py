"""What Textual's screens forget where much happens at once: how large they are, and what is gone from them."""

from itertools import chain
from typing import Any

from textual import events
from textual._compositor import Compositor
from textual.geometry import Offset, Size
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.widget import Widget

from localspec_tui.screens.front_first import FrontFirst


class Steady:
    """For a screen: it is laid out for one size at a time and once, drawn once, and a click on what is gone is none.

    No screen itself: Textual looks for styles and keys among the first screens that a class is made of alone.
    """

    _compositor: Compositor

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._compositor = FrontFirst()

    async def on_event(self: Any, event: events.Event) -> None:
        """Takes any size that it is told as news of the one that the terminal has now.

        Textual lays a screen out as large as each event says, and tells it of that once more. Two events with anything
        between them then go on for ever: each finds the screen as the other one left it.
        """
        if isinstance(event, events.Resize) and event.size != self.app.size:
            event = events.Resize.from_dimensions(self.app.size, None)
        await super().on_event(event)  # type: ignore[misc]

    def _refresh_layout(self: Any, size: Size | None = None, scroll: bool = False) -> None:
        """Lays out, and draws, once what has grown.

        Textual takes the new size of whatever holds it for news that ask for a layout: a second one, which finds all in
        its place, and a second picture like the first. Scrollbars that come or go do need it.
        """
        grown = {*self._layout_widgets, *chain.from_iterable(self._layout_widgets.values())}
        before = [
            (one, one.virtual_size, one.scrollbars_enabled)
            for one in grown
            if not (one._layout_required or one._repaint_required or isinstance(one, ScrollView))
        ]
        super()._refresh_layout(size, scroll)  # type: ignore[misc]
        if self.is_current:
            for one, virtual, bars in before:
                if one.virtual_size != virtual and one.scrollbars_enabled == bars:
                    one._layout_required = one._repaint_required = False

    def _compositor_refresh(self: Any) -> None:
        """Draws scrollbars in the same picture as what they belong to: they learn of it by the layout before.

        And nothing where another screen covers all of this one: Textual would have that one drawn anew, at each event
        of this one. What it shows again, it draws as a whole.
        """
        if self.is_covered:
            self._compositor._dirty_regions.clear()
            self._dirty_widgets.clear()
            return
        bars = {one for one in self._compositor.visible_widgets if isinstance(one, ScrollBar) and one._repaint_required}
        self._compositor.update_widgets(bars)
        for bar in bars:
            bar._repaint_required = False
        super()._compositor_refresh()  # type: ignore[misc]

    @property
    def is_covered(self: Any) -> bool:
        """Whether another screen hides all of it: what nobody sees need not be drawn."""
        stack = self.app.screen_stack
        above = stack[stack.index(self) + 1 :] if self in stack else []
        return any(screen.styles.background.a == 1 for screen in above)

    def get_widget_and_offset_at(self: Any, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """What stands there. Until the next layout it may have left the screen, and Textual asks for its parent."""
        widget, offset = super().get_widget_and_offset_at(x, y)  # type: ignore[misc]
        return (None, None) if widget is not None and widget.parent is None else (widget, offset)
