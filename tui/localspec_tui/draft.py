"""Saves text that was typed and not sent, so that the next chat can restore it."""

import asyncio
import sqlite3
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec_tui.engine_thread import EngineThread
from localspec_tui.turns import Outbox
from localspec_tui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from localspec.store.drafts import Drafts


class UnsentText:
    """A saver of unsent text: the typed text, unanswered prompts, and drafts that were put aside.

    Without a store nothing is saved. A failing store only sets `trouble`.
    """

    def __init__(self, prompt: Prompt, outbox: Outbox, engine: EngineThread) -> None:
        self._prompt, self._outbox, self._engine = prompt, outbox, engine
        self._aside: dict[int, str] = {}  # drafts of other conversations, by number; 0 is the next new one
        self._drafts: Drafts | None = None
        self._tried: tuple[str, int | None] = "", None
        self._trouble = ""  # why the last attempt to save failed

    def put_aside(self, *, for_new: bool = False) -> None:
        """Store the typed text for its conversation: a saved one, or with `for_new` the next new one."""
        number = None if self._outbox.to_be_shown else self._engine.conversation.now.id or (0 if for_new else None)
        if number is not None and self._prompt.text.strip():
            self._aside[number] = self._prompt.text
            self._prompt.put("")

    def take_aside(self, number: int | None) -> str:
        """Return the text that was stored for a conversation, or for a new one; empty if there is none."""
        return self._aside.pop(number or 0, "")

    def save_to(self, drafts: "Drafts") -> None:
        """Save unsent text to this table of the store from now on."""
        self._drafts = drafts

    async def save(self) -> None:
        """Save the text if it has changed, without blocking the user."""
        drafts = self._drafts
        if drafts is not None and (draft := self._now()) != self._tried:
            self._tried = draft
            self._trouble = await asyncio.to_thread(self._save, drafts, *draft)

    def save_now(self) -> None:
        """Save the text at the end, even if the last attempt failed."""
        if self._drafts is not None and ((draft := self._now()) != self._tried or self._trouble):
            self._tried = draft
            self._trouble = self._save(self._drafts, *draft)

    @property
    def trouble(self) -> str:
        """Return why the text is not saved; empty if it is saved or there is none."""
        return self._trouble if self._trouble and self._now()[0] else ""

    def _now(self) -> tuple[str, int | None]:
        """Return the unsent text, and the conversation that it belongs to."""
        here = [*self._outbox.unsent(self._engine.buffer.accepted), self._prompt.text]
        text = "\n\n".join(text for text in [*self._aside.values(), *here] if text.strip())
        if not text:
            return "", None
        in_this = any(text.strip() for text in here) or not self._aside
        return text, self._engine.conversation.now.id if in_this else [*self._aside][-1] or None

    def _save(self, drafts: "Drafts", text: str, conversation: int | None) -> str:
        """Save the text, and return why that failed; empty on success."""
        try:
            drafts.keep(text, self._engine.settings.elsewhere, conversation)
        except LocalspecError as error:
            return str(error)
        except sqlite3.ProgrammingError:  # the store is closed: the application ends
            return ""
        return ""
