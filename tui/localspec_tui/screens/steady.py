"""What Textual's screens forget where much happens at once: how large they are, and what is gone from them."""

from typing import Any

from textual import events
from textual.geometry import Offset
from textual.widget import Widget


class Steady:
    """For a screen: it is laid out for one size at a time, and a click on what is gone is none.

    No screen itself: Textual looks for styles and keys among the first screens that a class is made of alone.
    """

    async def on_event(self: Any, event: events.Event) -> None:
        """Takes any size that it is told as news of the one that the terminal has now.

        Textual lays a screen out as large as each event says, and tells it of that once more. Two events with anything
        between them then go on for ever: each finds the screen as the other one left it.
        """
        if isinstance(event, events.Resize) and event.size != self.app.size:
            event = events.Resize.from_dimensions(self.app.size, None)
        await super().on_event(event)  # type: ignore[misc]

    def get_widget_and_offset_at(self: Any, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """What stands there. Until the next layout it may have left the screen, and Textual asks for its parent."""
        widget, offset = super().get_widget_and_offset_at(x, y)  # type: ignore[misc]
        return (None, None) if widget is not None and widget.parent is None else (widget, offset)
