"""Keeps what was typed and not sent, so that it outlives the process."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.store.drafts import Drafts


class Draft:
    """`unsent` tells what there is now, and `server` who would answer it. Without a store nothing is kept; a store that
    fails costs nothing else."""

    def __init__(self, unsent: Callable[[], str], server: str | None) -> None:
        self._unsent, self._server = unsent, server
        self._drafts: Drafts | None = None
        self._tried = ""
        self.trouble = ""  # why the last that was tried could not be kept

    def keep_in(self, drafts: "Drafts") -> None:
        """From here on there is a place for it."""
        self._drafts = drafts

    async def save(self) -> None:
        """Keeps it if it has changed. Whoever types does not wait for the disk."""
        text, drafts = self._unsent(), self._drafts
        if drafts is not None and text != self._tried:
            self._tried = text
            self.trouble = await asyncio.to_thread(self._keep, drafts, text)

    def save_now(self) -> None:
        """The same at the end, when nobody types any more, and once more where it could not be kept."""
        text = self._unsent()
        if self._drafts is not None and (text != self._tried or self.trouble):
            self._tried = text
            self.trouble = self._keep(self._drafts, text)

    def _keep(self, drafts: "Drafts", text: str) -> str:
        """Why it could not be kept; nothing where it was."""
        try:
            drafts.keep(text, self._server)
        except LocalspecError as error:
            return str(error)
        except sqlite3.ProgrammingError:  # a closed store is the end of all
            return ""
        return ""
