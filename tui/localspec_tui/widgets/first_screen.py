"""The content of an empty conversation: the model, suggested prompts, the last conversation, and what is saved."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from localspec.quantities import ago
from localspec.text import one_line
from localspec_tui import keymap

if TYPE_CHECKING:
    from localspec.chat.introduction import Introduction
    from localspec.store.conversations import ConversationInfo


class FirstScreen(Vertical):
    """A view of the model and suggested prompts, which disappears with the first prompt of a conversation."""

    @dataclass
    class Chosen(Message):
        """A message that a suggested prompt was clicked."""

        prompt: str

    def __init__(self) -> None:
        super().__init__()
        self._starters: tuple[str, ...] = ()
        self._model, self._facts = Static(markup=False, id="model"), Static(markup=False, id="facts")
        self._choices = [_Starter(number) for number in (1, 2, 3)]
        self._saved = ""
        self._all_starters: Sequence[str] = ()
        self._drafted = False
        self.display = False

    def compose(self) -> ComposeResult:
        yield self._model
        yield from self._choices
        yield self._facts

    def starter(self, key: str) -> str | None:
        """Return the suggested prompt that a key chooses; None for other keys, or while the prompt is not visible."""
        return dict(zip("123", self._starters, strict=False)).get(key) if self.display else None

    def show_file(self, file: Path | None) -> None:
        """Show the file in which conversations are saved; None if they are not saved."""
        where = "Saved only on this machine (not with --no-log), in"  # a low window may cut off the path
        self._saved = f"{where}\n{file}" if file else "Nothing is saved."

    def expect(self, name: str, starters: Sequence[str]) -> None:
        """Show which model is being loaded, and suggested prompts."""
        self._model.update(Content.styled(one_line(name), "bold"))
        self._offer(starters)

    def introduce(self, model: "Introduction") -> None:
        """Show the model that answers from now on."""
        self._offer(model.starters)
        self._model.update(
            Content.assemble(
                (one_line(model.name), "bold"),
                "\n",
                one_line(model.facts),
                "\n",
                (one_line(model.expectation), "$text-muted"),
            )
        )

    def _offer(self, starters: Sequence[str]) -> None:
        self._all_starters = starters
        self._starters = () if self._drafted else tuple(map(one_line, starters[:3]))
        offered = (*self._starters, *[""] * len(self._choices))  # a tiny model has fewer starters
        for choice, prompt in zip(self._choices, offered, strict=False):
            choice.offer(prompt)

    def begin(self, last: "ConversationInfo | None", *, hidden: bool) -> None:
        """Prepare the view for a conversation. Hide it if `hidden`, because the conversation already has prompts.

        `last` is the conversation that was used last, which the view offers to continue.
        """
        lines = [self._saved]
        if last is not None:
            resumes = keymap.key(self.app, "chat.resume")
            lines.insert(0, f"Last conversation: {one_line(last.title)}, {ago(last.used, time.time())} ({resumes})")
        self._facts.update("\n".join(lines))
        if self._drafted:
            self._drafted = False
            self._offer(self._all_starters)
        self.display = not hidden

    def offer_none(self) -> None:
        """Offer no suggested prompts in this conversation, because the prompt field has a draft."""
        self._drafted = True
        self._offer(self._all_starters)

    def leave(self) -> None:
        """Hide the view, because a prompt was sent."""
        self.display = False


class _Starter(Static):
    """A suggested prompt, and the key that chooses it."""

    def __init__(self, number: int) -> None:
        super().__init__(markup=False, classes="starter")
        self._number, self._prompt = number, ""
        self.display = False

    def offer(self, prompt: str) -> None:
        self._prompt = prompt
        line = Table.grid(padding=(0, 1))
        line.add_row(Text(f" {self._number}", "bold"), Text(prompt))
        self.update(line)
        self.display = bool(prompt)

    def on_click(self) -> None:
        self.post_message(FirstScreen.Chosen(self._prompt))
