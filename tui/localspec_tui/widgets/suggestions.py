"""The completions of a command or path, displayed above the prompt field while the user types."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from rich.cells import cell_len, set_cell_size
from textual import work
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.chat.commands import Completion, Suggestion, choices, needed, starts_command
from localspec_tui.laid_block import LEAST_ROOM, cuts

LookUp = Callable[[str], Sequence[Suggestion]]

AROUND = 3  # columns for the padding and the scrollbar
PATIENCE = 0.3  # seconds that a key waits for a list


class Suggestions(OptionList, can_focus=False):
    """A list of completions, which opens if there are completions. `typed` must be called when the text before the
    cursor changes.

    `look_up` returns names to suggest. It may read the disk, so it runs on another thread, and its result is kept until
    the text before the cursor is empty.
    """

    BINDINGS = []  # noqa: RUF012  # keys are the prompt's

    def __init__(self, look_up: LookUp) -> None:
        super().__init__(markup=False)
        self._look_up = look_up
        self._known: dict[str, Sequence[Suggestion]] = {}
        self._fetched = asyncio.Event()
        self._fetched.set()  # no look-up is running
        self._before = ""
        self._choices: list[Completion] = []
        self._dismissed = False  # closed by the user, until there is nothing to complete any more
        self.at: int | None = None  # the one chosen by the arrow keys
        self._width = 0  # for which the descriptions are wrapped

    @property
    def is_open(self) -> bool:
        return bool(self._choices) and not self._dismissed

    @property
    def starts_command(self) -> bool:
        """Whether the text before the cursor begins a slash command or ends in an `@path`, which can be completed."""
        return starts_command(self._before)

    async def fetched(self) -> None:
        """Wait a moment until the names that complete the typed text (models, files …) have been read."""
        if needed(self._before) in (None, *self._known):
            return
        if self._fetched.is_set():  # if text was not typed by hand, nothing opened
            self._dismissed = False
            self._choose()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._fetched.wait(), PATIENCE)

    def typed(self, before: str, *, by_hand: bool = True) -> None:
        """List the completions of the text before the cursor. Text that was not typed by hand opens no list."""
        if before == self._before:
            return
        if not before:
            self._known.clear()
        self._dismissed = bool(self._dismissed and self._before) if by_hand else True
        self._before, self.at = before, None
        self._choose()

    def close(self) -> None:
        self._dismissed = True
        self._show()

    def open(self) -> None:
        self._dismissed = False
        self._show()

    def move(self, step: int) -> None:
        """Move to the next (1) or previous (-1) completion, wrapping around."""
        at = -1 if self.at is None and step > 0 else self.at or 0
        self.at = (at + step) % len(self._choices)
        self.highlighted = self.at

    @property
    def line(self) -> str | None:
        """Return the text to put before the cursor, from the chosen or first completion; None without completions."""
        return self._choices[self.at or 0].line if self._choices else None

    def line_of(self, index: int) -> str:
        return self._choices[index].line

    def _choose(self) -> None:
        need = needed(self._before)
        if need is not None and need not in self._known and not self._dismissed:
            self._fetched.clear()
            self._fetch(need)
        self._choices = choices(self._before, self._known)
        self._show()

    @work(exclusive=True)
    async def _fetch(self, need: str) -> None:
        self._known[need] = await asyncio.to_thread(self._look_up, need)
        self._choose()
        self._fetched.set()

    def _show(self) -> None:
        if not self.is_mounted:
            return
        width = max((cell_len(choice.shown) for choice in self._choices), default=0)
        offered = self._choices if self.is_open else []
        self.set_options(Option(self._text(shown, width, does)) for _, shown, does in offered)
        self.highlighted = (self.at or 0) if self.is_open else None
        self.display = self.is_open

    def _text(self, shown: str, width: int, does: str) -> Content:
        """Return the text of a completion. The description is wrapped to the right of the name, or below the name."""
        columns = (self.outer_size.width or self.screen.size.width) - AROUND
        indent = width + 2 if columns - width - 2 >= LEAST_ROOM else 2
        room = columns - indent
        ends = [*cuts(does, room, room), len(does)]
        lines = [does[start:end].rstrip() for start, end in zip([0, *ends], ends, strict=False)]
        begin = set_cell_size(shown, width) + "  " if indent > 2 or not does else f"{shown}\n  "
        return Content.assemble(begin, (f"\n{' ' * indent}".join(lines), "dim"))

    def on_resize(self) -> None:
        """Wrap the descriptions for the new width."""
        if self.outer_size.width != self._width:
            self._width = self.outer_size.width
            self._show()
