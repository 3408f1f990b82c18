"""How one finds words in the conversation of the chat."""

from collections.abc import Awaitable, Callable
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
    _hit: "Hit | None"
    _go_back: Callable[[], Awaitable[None]] | None  # to where one was before

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
        from localspec.chat.finding import hits  # after the first paint
        from localspec.store.searched_words import patterns

        found = hits(self._conversation.messages, asked.words)
        at = 0
        if asked.step and self._hit in found:
            at = (found.index(self._hit) + asked.step) % len(found)
        self._hit = found[at] if found else None
        if self._hit is None:
            self._conversation.unmark()
            self._find.tell("not found" if asked.words.strip() else "")
        else:
            self._find.tell(f"{at + 1} of {len(found)}")
            await self._conversation.reveal(*self._hit, patterns(asked.words)[0])

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
        self._conversation.unmark()
        self._find.close()
