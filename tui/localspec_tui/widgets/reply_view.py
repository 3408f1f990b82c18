"""A reply, whole or growing."""

from textual.app import ComposeResult
from textual.widgets import Static

from localspec_tui.reply_markdown import ReplyMarkdown
from localspec_tui.widgets.message_view import MessageView

ENDINGS = {
    "interrupted": "(stopped)",
    "length": "(the reply ended at its limit of tokens)",
    None: "(cut off: localspec was ended while this was written)",
}


class ReplyView(MessageView):
    """A reply, whole or growing."""

    def __init__(self, source: str = "", reason: str | None = "stop") -> None:
        super().__init__(source)
        self._reason = reason
        self._markdown = ReplyMarkdown(source)

    def compose(self) -> ComposeResult:
        yield self._markdown
        if self._reason != "stop":
            yield self._ending(self._reason)

    async def grow(self, text: str) -> None:
        """Adds what came. The reply must be mounted."""
        self.source += text
        await self._markdown.append(text)

    async def finish(self, source: str, reason: str | None) -> None:
        """Shows the whole reply once more: a last line may have changed how the first one is read."""
        self.source = source
        await self._markdown.update(source)
        if reason != "stop":
            await self.mount(self._ending(reason))

    @staticmethod
    def _ending(reason: str | None) -> Static:
        return Static(ENDINGS.get(reason, ""), markup=False, classes="ending")
