"""Keeps what was typed and not sent, so that it outlives the process."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.store.drafts import Drafts


class Draft:
    """A text that was typed and not sent, kept while it is typed.

    `unsent` returns it, `conversation` where it was typed, and `server` is who would answer it. Without a store nothing
    is kept; a store that fails costs nothing else.
    """

    def __init__(self, unsent: Callable[[], str], server: str | None, conversation: Callable[[], int | None]) -> None:
        self._unsent, self._server, self._conversation = unsent, server, conversation
        self._drafts: Drafts | None = None
        self._tried: tuple[str, int | None] = "", None
        self.trouble = ""  # why the last that was tried could not be kept

    def keep_in(self, drafts: "Drafts") -> None:
        """From here on there is a place for it."""
        self._drafts = drafts

    async def save(self) -> None:
        """Keeps it if it has changed. Whoever types does not wait for the disk."""
        drafts = self._drafts
        if drafts is not None and (draft := self._now()) != self._tried:
            self._tried = draft
            self.trouble = await asyncio.to_thread(self._keep, drafts, *draft)

    def save_now(self) -> None:
        """The same at the end, when nobody types any more, and once more where it could not be kept."""
        if self._drafts is not None and ((draft := self._now()) != self._tried or self.trouble):
            self._tried = draft
            self.trouble = self._keep(self._drafts, *draft)

    def _now(self) -> tuple[str, int | None]:
        text = self._unsent()
        return text, self._conversation() if text else None

    def _keep(self, drafts: "Drafts", text: str, conversation: int | None) -> str:
        """Why it could not be kept; nothing where it was."""
        try:
            drafts.keep(text, self._server, conversation)
        except LocalspecError as error:
            return str(error)
        except sqlite3.ProgrammingError:  # a closed store is the end of all
            return ""
        return ""
