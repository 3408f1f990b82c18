"""The panel of figures: the progress of the reply, the proposers of its tokens, and the use of memory."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.chat.figures import SAMENESS, Figures, drafting_off, seconds_words, shares, thought, tokens_a_step
from localspec.marks import EIGHTHS, bar, means, wrapped
from localspec.quantities import counted, short_pace, size, speedup
from localspec.text import one_line

LEAST_COLUMNS = 100  # of the terminal, for a place at the side; in a narrower one it covers the conversation
NAMES = 13  # columns of a name; longer ones are cut
DEPTHS = 8  # the deepest that is drawn
MOST = 4096  # moments of a reply that are stored: more than seven minutes

ASKED = "no drafts, because you chose drafter none; /race shows what they would save"
QUICKEST = "no drafts: plain decoding is fastest here"
SEE_DRAFTS = "To use drafts, start localspec chat --drafter phrases. /race compares the speed with and without drafts"

Line = tuple[str, str]  # a text and its style


class SidePanel(VerticalScroll, can_focus=False):
    """A panel with figures of the reply, the model and memory. F4 opens it. While closed, it costs almost no time."""

    def __init__(self) -> None:
        super().__init__()
        self._text = Static(markup=False)
        self._shown: list[Line] = []
        self._figures: Figures | None = None
        self.add_class("-empty")  # until there is something to show: a server may report nothing
        self._moments: list[tuple[float, int]] = []  # seconds and tokens of this reply

    def compose(self) -> ComposeResult:
        yield self._text

    def toggle(self) -> None:
        """Open the panel, or close it."""
        if self.has_class("-empty"):
            self.notify("There are no figures to show yet; some servers report none.", markup=False)
        else:
            self.toggle_class("-open")

    @property
    def covers(self) -> bool:
        """Return whether the panel is open and covers the conversation."""
        return self.display and self.app.size.width < LEAST_COLUMNS

    def show(self, figures: Figures | None) -> None:
        """Show the figures of the current or the last reply. With None, leave the panel as it is."""
        if figures is None:
            return
        self._figures = figures
        if self._moments and figures.tokens < self._moments[-1][1]:
            self._moments.clear()
        if figures.tokens and (not self._moments or figures.tokens > self._moments[-1][1]):
            self._moments.append((figures.seconds, figures.tokens))
            del self._moments[:-MOST]
        if self.is_mounted and (self.display or self.has_class("-empty")):
            self._draw(figures)

    def on_resize(self) -> None:
        self.on_show()

    def on_show(self) -> None:
        if self._figures is not None:
            self._draw(self._figures)

    def _draw(self, figures: Figures) -> None:
        width = max(self.scrollable_content_region.width, 8)
        sections = (
            ("this reply", _speed(figures, self._rates(), width)),
            ("tokens proposed by", _bars(shares(figures.sources), width)),
            ("drafts that were right", _depths(figures.acceptance_by_depth)),
            ("model", _model(figures, width)),
            ("memory", _memory(figures, width)),
            ("sampling", ((line, "dim") for line in wrapped(figures.sampling, width) if line)),
        )
        between, shown = "\n\n" if self.screen.has_class("-tall") else "\n", list[Line]()
        for heading, lines in sections:
            if below := [(f"\n{text}", style) for text, style in lines]:
                shown += [(f"{between if shown else ''}{heading}", "dim"), *below]
        if shown != self._shown:
            self._shown = shown
            self._text.update(Content.assemble(*shown))
        self.set_class(not shown, "-empty")

    def _rates(self) -> list[float]:
        """Return the tokens/s between consecutive measurements."""
        pairs = zip(self._moments, self._moments[1:], strict=False)
        return [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs if after[0] > before[0]]


def _speed(figures: Figures, rates: Sequence[float], width: int) -> Iterator[Line]:
    if figures.tokens_per_second is not None:
        steps = tokens_a_step(figures.acceptance_length)
        yield short_pace(figures.tokens_per_second) + (f" · {steps}" if steps else ""), "bold"
        if rates:
            yield sparkline(means(rates, width)), "$text-primary"
    elif figures.pieces_per_second is not None:
        yield from _folded(
            f"about {short_pace(figures.pieces_per_second)}, if the server sends one token at a time", width, ""
        )
    if figures.speedup is not None:
        style = "$text-success" if figures.speedup >= 1 else "$text-warning"
        yield from _folded(_gain(speedup(figures.speedup), figures.saved_seconds), width, style)
    elif figures.acceptance_by_depth:
        yield "speedup not known yet", "dim"
    elif not figures.drafts and figures.memory.target:  # a server may draft without reporting it
        why = drafting_off(figures.off_reason, drafts=False) or QUICKEST
        yield from _folded(ASKED if figures.no_drafts else f"{why}. {SEE_DRAFTS}", width, "dim")
    elif figures.sources and not figures.off_reason:
        yield from _folded("nothing was drafted: no phrase matched", width, "dim")
    if figures.drafts and figures.off_reason:
        yield from _folded(drafting_off(figures.off_reason, drafts=True), width, "$text-warning")
    if figures.reasoning_tokens:
        yield from _folded(thought(figures.reasoning_tokens, figures.reasoning_seconds), width, "")


def _gain(ratio: str, saved: float | None) -> str:
    """Return the speedup of a reply and the seconds that it saved: `2.4× faster, 4.9 s saved`."""
    if ratio == "as fast":
        return "as fast as without drafts"
    if saved is None:
        return f"{ratio} than without drafts"
    duration = seconds_words(abs(saved))
    return f"{ratio}, {duration} saved" if saved >= 0 else f"{ratio}, {duration} lost"


def _folded(text: str, width: int, style: str) -> Iterator[Line]:
    return ((line, style) for line in wrapped(text, width))


def _model(figures: Figures, width: int) -> Iterator[Line]:
    """Yield the device and precision, how full the context is, and how exact the text is."""
    on = f" on {one_line(figures.device)}" if figures.device else ""
    if figures.precision:
        yield from _folded(one_line(figures.precision) + on, width, "")
    if figures.used:
        room = f"{figures.used:,} of {counted(figures.context, 'token')}" if figures.context else f"{figures.used:,}"
        yield from _folded(f"context {room}", width, "")
    if figures.exactness:
        style = "$text-success" if figures.exactness == "bitwise" else ""
        yield from _folded(SAMENESS.get(figures.exactness, one_line(figures.exactness)), width, style)


def sparkline(values: Sequence[float]) -> str:
    """Return a chart with one column per value, from zero to the maximum."""
    largest = max(values)
    return "".join(EIGHTHS[1 + round(7 * value / largest)] if largest > 0 else EIGHTHS[1] for value in values)


def _bars(parts: Sequence[tuple[str, float]], width: int) -> Iterator[Line]:
    room = max(width - NAMES - 6, 1)
    for name, share in parts:
        drawn = bar(share, room)
        yield f"{set_cell_size(name, NAMES)} {drawn}{' ' * (room - cell_len(drawn))} {share:4.0%}", ""


def _depths(chances: Sequence[float]) -> Iterator[Line]:
    """Yield a bar for the acceptance rate at each depth of the drafts, and the rate at the first depth in words."""
    shown = chances[:DEPTHS]
    if shown:
        yield " ".join(EIGHTHS[max(round(8 * chance), 1)] * 2 for chance in shown), "$text-primary"
        yield f"first token right: {100 * shown[0]:.0f} %", ""


def _memory(figures: Figures, width: int) -> Iterator[Line]:
    memory = figures.memory
    parts = [("weights", memory.target), ("drafter", memory.drafter), ("cache", memory.cache)]
    if figures.free is not None:
        parts.append(("free", figures.free))
    total, room = sum(amount for _, amount in parts), max(width - 18, 1)
    for name, amount in parts:
        if amount:
            drawn = bar(amount / total, room)
            yield f"{name:7} {drawn}{' ' * (room - cell_len(drawn))} {size(amount):>9}", ""
