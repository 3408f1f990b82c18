"""The search in a conversation, and the line in which its words are typed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input, Static

from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.typed_text import OneLine

if TYPE_CHECKING:
    from localspec.store.searched_words import Hit

QUIET_SECONDS = 0.1  # after the last key, before a message is shown


class _FindField(OneLine):
    proposed = False  # whether the selection was proposed

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,up", "look(1)", "Older", id="find.older"),
        Binding("shift+enter,down", "look(-1)", "Newer", id="find.newer"),
        Binding("escape", "leave", "Back", tooltip="Return to the previous place", id="find.leave"),
    ]

    def __init__(self, look: Callable[[int], None]) -> None:
        super().__init__(compact=True, placeholder="words in this conversation")
        self._look = look

    def action_look(self, step: int) -> None:
        self._look(step)

    def action_leave(self) -> None:
        self.post_message(FindLine.Closed(back=True))

    def propose(self) -> None:
        """Select all words in the field, so that the next typed letter replaces them."""
        self.action_select_all()
        self.proposed = True

    def watch_selection(self) -> None:
        self.proposed = False

    def action_copy(self) -> None:
        """Copy the selected words.

        If `propose`, not the user, selected them, and a reply is running, the key stops the reply instead.
        """
        if self.proposed and self.screen.check_action("stop", ()):
            raise SkipAction
        super().action_copy()

    def on_blur(self, _: events.Blur) -> None:
        """End the search when the focus moves to another widget of this window."""
        if self.app.app_focus:
            self.post_message(FindLine.Closed(back=False))


class FindLine(Horizontal):
    """A line in which the user types the words of a search in the conversation. It takes no room while it is closed."""

    @dataclass
    class Searched(Message):
        """A request to show a message with these words: the newest (`step` 0), the next older (1) or newer one (-1).
        If `step` is None, the messages with these words are only counted."""

        words: str
        step: int | None

    @dataclass
    class Closed(Message):
        """A message that the search has ended. With `back`, the view returns to the place before the search."""

        back: bool

    def __init__(self) -> None:
        super().__init__()
        self._words, self._count = _FindField(self.step), Static(markup=False)
        self._searched = ""
        self._quiet: Timer | None = None
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static("find ", markup=False)
        yield self._words
        yield self._count

    def open(self, words: str) -> None:
        """Search for `words`. If they are empty, propose the words of the last search, and only count their matches."""
        self._searched = ""
        self._count.update("")
        self.display = True
        if words:
            self._words.value = words
        self.screen.set_focus(self._words)  # at once, before the next typed key
        self._words.propose()
        if self._words.value:
            self._search(0 if words else None)

    def close(self) -> None:
        """Close the line. Its words are proposed the next time."""
        self.display = False

    def show_count(self, count: str) -> None:
        """Show a label such as "3 of 7"."""
        self._count.update(f" {count}" if count else "")

    def on_input_changed(self, changed: Input.Changed) -> None:
        changed.stop()
        if self._quiet is not None:
            self._quiet.stop()
        if changed.value != self._searched:
            self._quiet = self.set_timer(QUIET_SECONDS, lambda: self._search(0))

    def step(self, step: int) -> None:
        """Search for an older message (1) or a newer one (-1), or for the newest message if the words have changed."""
        self._search(step if self._words.value == self._searched else 0)

    def _search(self, step: int | None) -> None:
        if self._quiet is not None:
            self._quiet.stop()
        self._searched = self._words.value
        if self.display:
            self.post_message(self.Searched(self._searched, step))


class Finder:
    """A search for words in a conversation, from its newest message to its oldest."""

    def __init__(self, conversation: ConversationView, line: FindLine) -> None:
        self._conversation, self._line = conversation, line
        self._words = ""
        self._hits: Sequence[Hit] = ()
        self._hit: Hit | None = None  # the shown one
        self._only_counts = False
        # Returns the view to where the user was; None while this line is closed.
        self._go_back: Callable[[], Awaitable[None]] | None = None

    def open(self, words: str) -> bool:
        """Open the search, or move an open search to the next message. Return False if the conversation is empty."""
        if self._go_back is not None and self._line.has_focus_within:
            self._line.step(1)
            return True
        if self._conversation.messages:
            self._go_back = self._go_back or self._conversation.restorer()
            self._line.open(words)
        return bool(self._conversation.messages)

    async def search(self, request: FindLine.Searched) -> None:
        """Search for words. Show the message that `request.step` chooses, and a label such as "3 of 7"."""
        if self._go_back is None:  # closed meanwhile
            return
        self._words, self._only_counts = request.words, request.step is None
        self._look()
        at = 0
        if request.step and self._hit in self._hits:
            at = (self._hits.index(self._hit) + request.step) % len(self._hits)
        self._hit = self._hits[at] if self._hits and not self._only_counts else None
        await self._show_hit()

    async def search_again(self) -> None:
        """Repeat the search after the conversation has changed. The displayed message stays if it still matches."""
        if self._go_back is None or not self._words.strip():
            return
        shown = self._hit
        self._look()
        if shown in self._hits or self._only_counts:
            self._show_count()
        elif shown is not None or self._hits:
            self._hit = self._hits[0] if self._hits else None
            await self._show_hit()

    def _look(self) -> None:
        from localspec.store.searched_words import places  # after the first paint

        self._hits = places(self._conversation.messages, self._words)

    async def show_again(self) -> None:
        """Scroll to the match again after a change of size."""
        if self._hit is not None:
            await self._show_hit()

    async def _show_hit(self) -> None:
        from localspec.store.searched_words import folded_words

        self._show_count()
        if self._hit is None:
            self._conversation.unmark()
        else:
            await self._conversation.reveal(*self._hit, folded_words(self._words)[0])

    def _show_count(self) -> None:
        if self._hit is not None:
            self._line.show_count(f"{self._hits.index(self._hit) + 1} of {len(self._hits)}")
        else:
            self._line.show_count(f"{len(self._hits) or 'not'} found" if self._words.strip() else "")

    def leave(self) -> Callable[[], Awaitable[None]] | None:
        """End the search. Return a function that scrolls back to where the user was; None if there was no search."""
        back, self._go_back = self._go_back, None
        self._hit, self._words, self._hits = None, "", ()
        self._conversation.unmark()
        self._line.close()
        return back
