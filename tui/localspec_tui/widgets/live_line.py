"""The line above the prompt: how the reply goes, or what is being waited for."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from localspec.chat.figures import Figures
from localspec.chat.wording import (
    SAMENESS,
    a_step,
    memory_words,
    share_words,
    short_number,
    thought,
    times,
    worth,
)
from localspec.quantities import tokens_a_second
from localspec.text import one_line
from localspec_tui.widgets.status_line import BETWEEN, fitting

METER = 5  # cells
MATTERS = 5  # the last rank that does: ranks are by importance, places in the line by what belongs together
TIGHT, FULL = 0.8, 0.92  # of the context: from here on it is worth a look, and a new conversation

Spans = tuple[tuple[str, str], ...]  # text and style


@dataclass(frozen=True)
class _Part:
    """One thing worth knowing. Its `forms` say it at less and less length, the last one at first."""

    rank: int  # the lower, the more important
    forms: tuple[Spans, ...]
    last: bool = False  # to say more of it matters least


class LiveLine(Widget):
    """How the reply goes, or what is being waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[str, ...] | Figures = ()
        self._warning = ""

    def show(self, *parts: str) -> None:
        """Sentences, the most important first."""
        self._set(tuple(map(one_line, parts)))

    def show_figures(self, figures: Figures | None, warning: str = "") -> None:
        """Those of the reply under way, or of the last one, behind a warning; None leaves what is shown."""
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
            return warned + Content(between) + line if line.plain else warned
        return Content(fitting(self._shown, self.size.width))


def line_of(figures: Figures, width: int) -> Content:
    """What there is room for: all that matters, the first ranks first, before anything is said at length."""
    parts = list(_parts(figures))
    ranked = sorted(parts, key=lambda part: part.rank)
    first = [(part, part.forms[-1:]) for part in ranked if part.rank <= MATTERS]
    chosen: dict[int, Spans] = {}
    at_length = sorted(ranked, key=lambda part: part.last)
    for part, forms in [*first, *((part, part.forms) for part in at_length)]:
        others = [form for rank, form in chosen.items() if rank != part.rank]
        room = width - sum(_width(form) + len(BETWEEN) for form in others)
        fitting = [form for form in forms if _width(form) <= room]
        if fitting:
            chosen[part.rank] = fitting[0]
    shown = [chosen[part.rank] for part in parts if part.rank in chosen]
    return Content.assemble(*(span for at, form in enumerate(shown) for span in ((BETWEEN if at else "", ""), *form)))


def _width(form: Spans) -> int:
    return sum(cell_len(text) for text, _ in form)


def _parts(figures: Figures) -> Iterator[_Part]:
    """In the order in which they are shown. Each colour stands beside a word or a mark that says the same."""
    if figures.tokens_per_second is not None:
        yield _Part(0, (((tokens_a_second(figures.tokens_per_second), "bold $foreground"),),))
    elif figures.pieces_per_second is not None:
        speed = f"~{tokens_a_second(figures.pieces_per_second)}"
        yield _Part(0, (((f"{speed}, if each piece that comes is a token", ""),), ((speed, ""),)), last=True)
    if figures.speedup is not None:
        slower = figures.speedup < 1
        shown = worth(figures.speedup)
        style = "bold $text-warning" if slower else "bold $text-success"
        short = times(figures.speedup)
        said = (shown if slower else f"{shown} over plain", *([f"{short} as fast"] if slower else []), short)
        yield _Part(1, tuple(((form, style),) for form in said), last=True)
    elif figures.drafts and figures.tokens_per_second is not None and figures.off_reason is None:
        yield _Part(1, ((("×?", ""),),))
    if figures.acceptance_length is not None:
        yield _Part(2, (((a_step(figures.acceptance_length), ""),),))
    if figures.used and figures.context:
        yield _Part(3, _context(figures.used, figures.context), last=True)
    if figures.off_reason:
        reason = one_line(figures.off_reason)
        yield _Part(5, tuple(((form, "$text-warning"),) for form in (f"no drafts now: {reason}", "drafts off")))
    if figures.exactness == "bitwise":
        yield _Part(4, tuple(((form, "$text-success"),) for form in (SAMENESS["bitwise"], "same ✓")))
    elif figures.exactness:
        yield _Part(4, (((SAMENESS[figures.exactness], ""),),))
    if figures.reasoning_tokens:
        words = thought(figures.reasoning_tokens, figures.reasoning_seconds)
        yield _Part(6, (((words, ""),), ((f"thought {short_number(figures.reasoning_tokens)}", ""),)))
    if figures.sources:
        yield _Part(7, (((share_words(figures.sources), ""),),))
    if figures.memory.peak:
        yield _Part(8, (((memory_words(figures.memory.peak), ""),),))
    if figures.precision:
        yield _Part(9, (((one_line(figures.precision), ""),),))


def _context(used: int, context: int) -> tuple[Spans, ...]:
    share = used / context
    style = "bold $text-error" if share >= FULL else "$text-warning" if share >= TIGHT else ""
    mark = "! " if share >= FULL else ""
    count = f"{mark}{short_number(used)}/{short_number(context)}"
    full = max(1, min(METER, round(METER * share)))
    meter = ((" ", ""), ("▰" * full + "▱" * (METER - full), style), (" ", ""))
    return (("ctx", ""), *meter, (count, style)), (("ctx ", ""), (count, style))
