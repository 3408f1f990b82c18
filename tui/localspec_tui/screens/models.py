"""The models that are installed here: let another one answer."""

import asyncio
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from localspec.checkpoint import Checkpoint
from localspec.errors import LocalspecError
from localspec.models import registry
from localspec.models.registry import TargetCard
from localspec.text import one_line


class _Models(OptionList):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select", "Choose", id="models.choose")]


class ModelsScreen(ModalScreen[TargetCard | None]):
    """Gives the chosen model, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back", id="models.back"),
    ]

    def __init__(self, current: TargetCard | None) -> None:
        super().__init__()
        self._current = current  # the one that answers, if one does
        self._cards: list[TargetCard] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel"):
            yield Static("Which model answers from here on?", markup=False)
            yield _Models(markup=False)
        yield Footer(show_command_palette=False)

    async def on_mount(self) -> None:
        options = self.query_one(OptionList)
        try:
            found = await asyncio.to_thread(lambda: list(registry.installed()))
        except LocalspecError as error:
            options.add_option(Option(one_line(str(error)), disabled=True))
            return
        self._cards = [card for card, _ in found]
        lines = [(_line(card, what, card == self._current), isinstance(what, LocalspecError)) for card, what in found]
        if self._current is not None and self._current not in self._cards:  # a directory, given by -m
            self._cards.insert(0, self._current)
            lines.insert(0, (_entry(self._current, str(self._current.path), True), False))
        options.add_options(Option(line, disabled=disabled) for line, disabled in lines)
        options.highlighted = next((n for n, card in enumerate(self._cards) if card == self._current), 0)
        options.focus()

    def on_option_list_option_selected(self, selected: OptionList.OptionSelected) -> None:
        self.dismiss(self._cards[selected.option_index])


def _line(card: TargetCard, found: Checkpoint | LocalspecError, current: bool) -> Content:
    if isinstance(found, LocalspecError):
        return _entry(card, str(found), current)
    return _entry(card, f"{found.parameters / 1e6:,.0f} million parameters · {card.description}", current)


def _entry(card: TargetCard, about: str, current: bool) -> Content:
    name = f"{card.name} (answers now)" if current else card.name
    return Content.assemble(one_line(name), "\n", (one_line(about), "dim"))
