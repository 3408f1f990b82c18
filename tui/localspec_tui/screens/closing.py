"""How what opens above the chat is closed, and the key that all of it has."""

from typing import Any

from textual.await_complete import AwaitComplete
from textual.binding import Binding

from localspec_tui.screens.steady import Steady

DIALOG_KEYS = Binding("f1", "app.all_keys", "Keys", id="dialog.keys")


class ClosesOnce(Steady):
    """For a screen: keys that come before it is gone choose nothing more, and close nothing that lies below it."""

    def dismiss(self: Any, result: Any = None) -> AwaitComplete:
        """Closes it, where it is the one in front."""
        done: AwaitComplete
        if not self.is_active:
            done = AwaitComplete.nothing()  # type: ignore[no-untyped-call]
        else:
            self.workers.cancel_node(self)  # Textual does so when the widgets that they write to are gone already
            done = super().dismiss(result)  # type: ignore[misc]
        return done
