"""A reply, whole or growing."""

from collections.abc import Mapping
from typing import Any

from textual.app import ComposeResult
from textual.geometry import Region
from textual.strip import Strip
from textual.widgets import Static

from localspec.chat.wording import kept_thought, summary
from localspec.repetition import goes_round
from localspec_tui.growing_document import LONGEST, is_long
from localspec_tui.reply_markdown import ReplyMarkdown
from localspec_tui.widgets.message_view import MessageView
from localspec_tui.widgets.thought_view import ThoughtView

ENDINGS = {
    "interrupted": "(stopped)",
    "length": "(the reply ended at its limit of tokens)",
    "repetition": "(stopped: it repeated itself)",
    None: "(cut off: localspec was ended while this was written)",
}
LONG = f"(longer than {LONGEST // 1024} KB, so it is shown as plain text)"
CONTEXT_FULL = "(the reply ended because the context was full)"


class ReplyView(MessageView):
    """A reply, whole or growing; what was thought before it is folded above."""

    def __init__(
        self,
        source: str = "",
        reason: str | None = "stop",
        figures: Mapping[str, Any] | None = None,
        reasoning: str = "",
    ) -> None:
        super().__init__(source)
        self._below = _below(source, reason, figures or {})
        self._markdown = ReplyMarkdown(source)
        self._thoughts = ThoughtView(reasoning, kept_thought(figures or {})) if reasoning else None

    def render_lines(self, crop: Region) -> list[Strip]:
        """Nothing, but for the bar of what has the focus or was found: it would be drawn anew with each word."""
        if self.has_focus or self.has_class("-found"):
            return super().render_lines(crop)
        return [Strip.blank(crop.width, self.visual_style.rich_style)] * crop.height

    def compose(self) -> ComposeResult:
        if self._thoughts is not None:
            yield self._thoughts
        yield self._markdown
        if self._below:
            yield _line(self._below)

    async def grow(self, text: str) -> None:
        """Adds what came. The reply must be mounted."""
        self.source += text
        was_plain = self._markdown.is_plain
        await self._markdown.append(text)
        if self._markdown.is_plain and not was_plain:
            self.notify(f"The reply is longer than {LONGEST // 1024} KB; it goes on as plain text.", markup=False)

    async def think(self, reasoning: str) -> None:
        """Adds what was thought. The reply must be mounted."""
        if self._thoughts is None:
            self._thoughts = ThoughtView()
            await self.mount(self._thoughts, before=0)
        self._thoughts.grow(reasoning)

    def tell_thought(self, words: str) -> None:
        """How long it was thought so far."""
        if self._thoughts is not None:
            self._thoughts.tell(words)

    def toggle_thoughts(self) -> bool:
        """Opens or folds what was thought; False where nothing was."""
        if self._thoughts is None:
            return False
        self._thoughts.toggle()
        return True

    async def finish(self, source: str, reason: str | None, figures: Mapping[str, Any], reasoning: str = "") -> None:
        """Shows the whole reply once more: a last line may have changed how the first one is read."""
        if reasoning:
            await self.think("")
            assert self._thoughts is not None
            self._thoughts.finish(reasoning, kept_thought(figures))
        self.source = source
        await self._markdown.update(source)
        if below := _below(source, reason, figures):
            await self.mount(_line(below))


def _below(source: str, reason: str | None, figures: Mapping[str, Any]) -> str:
    """How it ended, where that is worth a word, that it went round, and what it took."""
    ended = CONTEXT_FULL if reason == "length" and figures.get("context_full") is True else ENDINGS.get(reason, "")
    circles = "(it repeats itself)" if reason != "repetition" and goes_round(source) else ""
    long = LONG if is_long(source) else ""
    return " · ".join(filter(None, (ended, long, circles, summary(figures))))


def _line(text: str) -> Static:
    return Static(text, markup=False, classes="ending")
