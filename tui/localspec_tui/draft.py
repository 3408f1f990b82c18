"""Saving the text that was typed and not sent, so that the next chat can restore it."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.store.drafts import Drafts


class Draft:
    """A saver of the unsent text. `unsent` returns the text, and `conversation` the conversation that it belongs to.

    `server` is the address of the server that would answer it. Without a store nothing is saved. A failing store only
    sets `trouble`.
    """

    def __init__(self, unsent: Callable[[], str], server: str | None, conversation: Callable[[], int | None]) -> None:
        self._unsent, self._server, self._conversation = unsent, server, conversation
        self._drafts: Drafts | None = None
        self._tried: tuple[str, int | None] = "", None
        self.trouble = ""  # why the last attempt to save failed

    def keep_in(self, drafts: "Drafts") -> None:
        """Save to this table from now on."""
        self._drafts = drafts

    async def save(self) -> None:
        """Save the text if it has changed, without blocking the user."""
        drafts = self._drafts
        if drafts is not None and (draft := self._now()) != self._tried:
            self._tried = draft
            self.trouble = await asyncio.to_thread(self._keep, drafts, *draft)

    def save_now(self) -> None:
        """Save the text at the end, also if the last attempt failed."""
        if self._drafts is not None and ((draft := self._now()) != self._tried or self.trouble):
            self._tried = draft
            self.trouble = self._keep(self._drafts, *draft)

    def _now(self) -> tuple[str, int | None]:
        """Return the unsent text and its conversation."""
        text = self._unsent()
        return text, self._conversation() if text else None

    def _keep(self, drafts: "Drafts", text: str, conversation: int | None) -> str:
        """Save the text, and return why that failed; empty on success."""
        try:
            drafts.keep(text, self._server, conversation)
        except LocalspecError as error:
            return str(error)
        except sqlite3.ProgrammingError:  # the store is closed: the application ends
            return ""
        return ""
