"""Markdown as it is shown: nothing of what a model writes is obeyed, fetched or opened."""

import asyncio

from localspec.text import safe
from localspec_tui.block_view import BlockView
from localspec_tui.growing_document import GrowingDocument, is_long, read_blocks

AT_ONCE = 4096  # characters; longer texts are read on another thread, while keys are served


class ReplyMarkdown(BlockView):
    """One reply. It may grow by `append`; `update` with the whole text makes up for what only the end can tell."""

    BELOW = 1

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._document = GrowingDocument()
        self._first = safe(text)
        self._lock = asyncio.Lock()

    async def on_mount(self) -> None:
        if self._first:
            await self.update(self._first)

    @property
    def is_plain(self) -> bool:
        """Whether the text is too long to be shown as Markdown."""
        return is_long(self._document.source)

    async def update(self, text: str) -> None:
        """Show this text instead."""
        text = safe(text)
        async with self._lock:
            long = len(text) > AT_ONCE
            blocks = await asyncio.to_thread(read_blocks, text) if long else read_blocks(text)
            self._document.set(text, blocks)
            self.show(blocks)

    async def append(self, text: str) -> None:
        """Add to the text."""
        async with self._lock:
            settled = self._document.settled
            self._document.append(safe(text))
            self.show(self._document.blocks, min(settled, self._document.settled))
