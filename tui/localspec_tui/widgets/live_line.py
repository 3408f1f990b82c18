"""The line above the prompt: the progress of the reply, or the reason for waiting."""

from collections.abc import Iterator

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from localspec.chat.figures import Figures
from localspec.chat.wording import context_share, gain, tokens_a_step
from localspec.quantities import short_pace
from localspec.text import one_line
from localspec_tui.widgets.status_line import BETWEEN, fitting

TIGHT, FULL = 0.8, 0.92  # of the context: it is shown as a warning, and then as a reason for a new conversation

Part = tuple[str, str]  # a text and its style


class LiveLine(Widget):
    """The progress of the reply, or the reason for waiting."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[str, ...] | Figures = ()
        self._warning = ""

    def show(self, *parts: str) -> None:
        """Show sentences, the most important first."""
        self._set(tuple(map(one_line, parts)))

    def show_figures(self, figures: Figures | None, warning: str = "") -> None:
        """Show the figures of the current or the last reply, after a warning. None keeps the present ones."""
        if figures is None:
            return
        if figures.reading is not None:
            done, total = figures.reading
            self.show(f"reading {done:,} of {total:,} tokens")
        else:
            self._set(figures, warning)

    def _set(self, shown: tuple[str, ...] | Figures, warning: str = "") -> None:
        if (shown, warning) != (self._shown, self._warning):
            self._shown, self._warning = shown, warning
            self.refresh()

    def render(self) -> Content:
        if isinstance(self._shown, Figures):
            warned = Content.styled(self._warning, "$text-warning")
            between = BETWEEN if self._warning else ""
            line = line_of(self._shown, self.size.width - warned.cell_length - len(between))
            if line.plain:
                return warned + Content(between) + line
            return warned if self._warning else Content("ready")  # nothing is known before the first reply
        return Content(fitting(self._shown, self.size.width))


def line_of(figures: Figures, width: int) -> Content:
    """Return the parts for which there is room. The last ones are left out first."""
    shown: list[Part] = []
    room = width
    for text, style in _parts(figures):
        room -= cell_len(text) + (len(BETWEEN) if shown else 0)
        if room < 0:
            break
        shown += [(BETWEEN, ""), (text, style)] if shown else [(text, style)]
    return Content.assemble(*shown)


def _parts(figures: Figures) -> Iterator[Part]:
    """Yield the known figures, the most important first. A nearly full context comes before everything else.

    Each colour comes with a word or a mark of the same meaning.
    """
    full = figures.context and figures.used / figures.context
    context = context_share(figures.used, figures.context)
    if full >= FULL:
        yield f"! {context}", "bold $text-error"
    if figures.tokens_per_second is not None:
        yield short_pace(figures.tokens_per_second), "bold $foreground"
    elif figures.pieces_per_second is not None:
        yield f"~{short_pace(figures.pieces_per_second)}", ""
    if (words := gain(figures.speedup)) and figures.speedup is not None:
        yield words, "bold $text-success" if figures.speedup > 1 else "bold $text-warning"
    if words := tokens_a_step(figures.acceptance_length):
        yield words, ""
    if context and full < FULL:
        yield context, "$text-warning" if full >= TIGHT else ""
