"""How one finds words in the conversation of the chat."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from textual.actions import SkipAction
from textual.widgets import Input

from localspec_tui.screens.reading import ReadingScreen
from localspec_tui.widgets.find_line import FindLine

if TYPE_CHECKING:
    from localspec.chat.finding import Hit


class FindingScreen(ReadingScreen):
    """The part of the chat's screen that does so. The chat sees to what stands here."""

    _find: FindLine
    _looked_for = ""
    _found: "Sequence[Hit]" = ()
    _hit: "Hit | None" = None  # which is shown
    _only_counted = False
    _go_back: Callable[[], Awaitable[None]] | None = None  # to where one was before

    @property
    def types_elsewhere(self) -> bool:
        """Whether what is typed is for another field than the prompt."""
        return isinstance(self.focused, Input)

    def action_find(self, words: str = "") -> None:
        """The same key once more goes on to the next."""
        if self._go_back is not None and self.types_elsewhere:
            self._find.step(1)
        elif not self._conversation.messages:
            self.notify("Nothing was said yet.", markup=False)
        else:
            self._go_back = self._go_back or self._conversation.place()
            self._find.open(words)

    async def on_find_line_asked(self, asked: FindLine.Asked) -> None:
        """The newest first: one begins at the end of a conversation."""
        if self._go_back is None:  # left meanwhile
            return
        self._looked_for, self._only_counted = asked.words, asked.step is None
        self._look()
        at = 0
        if asked.step and self._hit in self._found:
            at = (self._found.index(self._hit) + asked.step) % len(self._found)
        self._hit = self._found[at] if self._found and not self._only_counted else None
        await self._show_hit()

    async def find_anew(self, *, last: bool) -> None:
        """More was said, in the `last` turn alone or wherever: it is found as well, and what is shown stays."""
        if self._go_back is None or not self._looked_for.strip():
            return
        shown = self._hit
        self._look(len(self._conversation.messages) - 1 if last else 0)
        if shown in self._found or self._only_counted:
            self._tell_hit()
        elif shown is not None or self._found:
            self._hit = self._found[0] if self._found else None
            await self._show_hit()

    async def on_resize(self) -> None:
        """What was found may stand elsewhere now."""
        if self._hit is not None:
            await self._show_hit()

    def _look(self, first: int = 0) -> None:
        """From that turn on; what was found before it is so still."""
        from localspec.chat.finding import places  # after the first paint

        before = [hit for hit in self._found if hit.turn < first]
        self._found = [*places(self._conversation.messages, self._looked_for, first), *before]

    async def _show_hit(self) -> None:
        from localspec.store.searched_words import folded_words

        self._tell_hit()
        if self._hit is None:
            self._conversation.unmark()
        else:
            await self._conversation.reveal(*self._hit, folded_words(self._looked_for)[0])

    def _tell_hit(self) -> None:
        if self._hit is not None:
            self._find.tell(f"{self._found.index(self._hit) + 1} of {len(self._found)}")
        elif self._looked_for.strip():
            self._find.tell(f"{len(self._found) or 'not'} found")
        else:
            self._find.tell("")

    def action_copy_text(self) -> None:
        """What is marked as found is nothing that one has selected: where a reply is under way, the key stops it."""
        if self._conversation.found is not None and self.check_action("stop", ()):
            raise SkipAction
        super().action_copy_text()

    async def on_find_line_left(self, left: FindLine.Left) -> None:
        if self._go_back is None:
            return
        back = self._go_back
        self._leave_find()
        if left.back:
            self.type_here()
            await back()

    def _leave_find(self) -> None:
        self._go_back = self._hit = None
        self._looked_for, self._found = "", ()
        self._conversation.unmark()
        self._find.close()
