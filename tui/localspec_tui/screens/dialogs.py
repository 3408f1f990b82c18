"""Works around two faults of Textual's screens when many events arrive at once: wrong sizes, and removed widgets."""

from typing import Any

from textual import events
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.geometry import Offset
from textual.widget import Widget


class StableLayout:
    """A mixin for screens, which keeps their layout stable while the size of the terminal changes.

    It is not a Screen itself, because Textual reads styles and keys only from the first Screen base.
    """

    async def on_event(self: Any, event: events.Event) -> None:
        """Use the present size of the terminal for the layout at any change of size.

        Textual uses the size in each event, and posts that size to the screen again. Two events with other events in
        between would then alternate forever.
        """
        if isinstance(event, events.Resize) and event.size != self.app.size:
            event = events.Resize.from_dimensions(self.app.size, None)
        await super().on_event(event)  # type: ignore[misc]

    @property
    def is_covered(self: Any) -> bool:
        """Return whether another screen hides this one completely, so that it need not be drawn."""
        stack = self.app.screen_stack
        above = stack[stack.index(self) + 1 :] if self in stack else []
        return any(screen.styles.background.a == 1 for screen in above)

    def get_widget_and_offset_at(self: Any, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """Return the widget at a place; None if it was removed since the last layout.

        A removed widget has no parent, which Textual does not expect.
        """
        widget, offset = super().get_widget_and_offset_at(x, y)  # type: ignore[misc]
        return (None, None) if widget is not None and widget.parent is None else (widget, offset)


DIALOG_KEYS = Binding("f1", "app.all_keys", "Keys", id="dialog.keys")


class ClosesOnce(StableLayout):
    """A mixin for screens. Keys that arrive while it closes neither choose anything more nor close the screen below."""

    def dismiss(self: Any, result: Any = None) -> AwaitComplete:
        """Close the screen, if it is in front."""
        done: AwaitComplete
        if not self.is_active:
            done = AwaitComplete.nothing()  # type: ignore[no-untyped-call]
        else:
            self.workers.cancel_node(self)  # Textual does so only after the widgets that they write to are gone
            done = super().dismiss(result)  # type: ignore[misc]
        return done
