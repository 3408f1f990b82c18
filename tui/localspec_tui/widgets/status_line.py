"""Lines whose parts are shown as far as there is room."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.widget import Widget

from localspec.text import one_line

BETWEEN = " · "


def cut(text: str, width: int) -> str:
    """`text` in at most `width` cells, the last one an ellipsis where something is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def fitting(parts: Sequence[str], width: int) -> str:
    """The parts that fit, the first ones first; a part that is too long is left out, but the first is cut."""
    line = ""
    for part in parts:
        longer = line + BETWEEN + part if line else cut(part, width)
        if cell_len(longer) <= width:
            line = longer
    return line


class LiveLine(Widget):
    """How the reply goes, or what is being waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: tuple[str, ...] = ()

    def show(self, *parts: str) -> None:
        """The most important first."""
        parts = tuple(map(one_line, parts))
        if parts != self._parts:
            self._parts = parts
            self.refresh()

    def render(self) -> Content:
        return Content(fitting(self._parts, self.size.width))


class WaitingLine(Widget):
    """The prompts that wait for their turn; it takes no room where none does."""

    def __init__(self) -> None:
        super().__init__()
        self._prompts: tuple[str, ...] = ()

    def show(self, *prompts: str) -> None:
        """The next one first."""
        self._prompts = tuple(map(one_line, prompts))
        self.display = bool(prompts)
        self.refresh()

    def render(self) -> Content:
        count = f"{len(self._prompts)} wait" if len(self._prompts) > 1 else "waits"
        return Content(cut(f"{count} (esc takes back): {' · '.join(self._prompts)}", self.size.width))


class TopLine(Widget):
    """Which model answers, and what the conversation is about."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self._kept = kept
        self._model: tuple[str, ...] = ()
        self._title = ""

    def show_model(self, *facts: str) -> None:
        """Its name first."""
        self._model = tuple(map(one_line, facts))
        self.refresh()

    def begin(self, prompt: str, *, anew: bool = False) -> None:
        """The first prompt is the title; `anew`: of another conversation."""
        if anew or not self._title:
            self._title = one_line(prompt)
            self.refresh()

    def render(self) -> Content:
        width = self.size.width
        kept = () if self._kept else ("nothing is kept",)
        left = fitting(("localspec", *self._model[:1], *kept, *self._model[1:]), width)
        right = cut(self._title, max(width - cell_len(left) - 2, 0))
        gap = " " * max(width - cell_len(left) - cell_len(right), 0)
        return Content.assemble((left, "bold"), gap, (right, "dim"))
