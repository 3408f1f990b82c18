"""A view of a reply's tokens, each with a mark for its proposer: a drafter or the model. Only visible lines are drawn.

Words are kept whole where there is room, and every token is visible, even spaces.
"""

from bisect import bisect_right
from typing import ClassVar, NamedTuple

from rich.cells import cell_len, get_character_cell_size
from rich.columns import Columns
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from localspec.chat.trace import Pieces, Trace, proposers
from localspec.text import safe

ROWS = 2  # of a line: its text, and the marks below


class Mark(NamedTuple):
    """The mark below the text of a token. It shows what proposed the token: a drafter or the model.

    Each mark has a distinct shape, and a CSS class for its colour.
    """

    first: str
    rest: str
    style: str

    @property
    def symbol(self) -> str:
        """Return the mark as it appears in the legend."""
        return f"{self.first}{self.rest}".strip()


PAST = Mark("╺", "━", "xray--past")
CHAT = Mark("┅", "┅", "xray--chat")
DRAFTER = Mark("═", "═", "xray--drafter")
SEVERAL = Mark("≡", "≡", "xray--several")
MODEL = Mark("·", " ", "xray--model")
CORRECTED = Mark("×", " ", "xray--corrected")


def mark_of(source: str) -> Mark:
    """Return the mark for this proposer of tokens."""
    if "+" in source:
        return SEVERAL
    return {"target": MODEL, "phrases": PAST, "prompt": CHAT}.get(source, DRAFTER)


MARKS = {mark.style for mark in (PAST, CHAT, DRAFTER, SEVERAL, MODEL, CORRECTED)}


NEWLINE, TAB, NOTHING = "⏎", "⇥", "∅"  # how a line break, a tab and a token without text are shown


class Run(NamedTuple):
    """The part of a piece (one or a few tokens, `chat.trace.Piece`) that is in one line, from column `x` on."""

    piece: int
    text: str
    x: int
    width: int


Line = tuple[Run, ...]
_Cell = tuple[int, str]  # a piece and a character of it


class Layout:
    """The lines of a reply in `width` columns. Its pieces (one or a few tokens each) are added one after another."""

    def __init__(self, width: int) -> None:
        self.width = max(width, 2)
        self.pieces = 0
        self._closed: list[Line] = []
        self._first: list[int] = []  # by closed line: its first piece
        self._open: list[_Cell] = []
        self._column = 0

    def add(self, text: str) -> None:
        """Add the text of the next piece (one or a few tokens) of the reply."""
        number, self.pieces = self.pieces, self.pieces + 1
        shown = safe(text).replace("\t", TAB) or NOTHING
        blank = not shown.strip(" ")
        for character in shown:
            size, wrapped = get_character_cell_size(character), False
            if character == "\n":
                character, size = NEWLINE, 1
            while self._column + size > self.width:
                self._wrap()
                wrapped = True
            if wrapped and character == " " and not blank and not self._open:
                continue  # the line's end shows it
            self._open.append((number, character))
            self._column += size
            if character == NEWLINE:
                self._close(len(self._open))

    def _wrap(self) -> None:
        """End the line after its last whole word."""
        last = next((at for at in reversed(range(len(self._open))) if self._open[at][1] == " "), None)
        self._close(len(self._open) if last is None else last + 1)

    def _close(self, cells: int) -> None:
        line, self._open = self._open[:cells], self._open[cells:]
        self._closed.append(_runs(line))
        self._first.append(line[0][0])
        self._column = sum(get_character_cell_size(character) for _, character in self._open)

    @property
    def height(self) -> int:
        """Return the number of lines."""
        return len(self._closed) + bool(self._open)

    def line(self, number: int) -> Line:
        """Return line `number`; an empty line beyond the last."""
        if number < len(self._closed):
            return self._closed[number]
        return _runs(self._open) if number == len(self._closed) else ()

    def line_of(self, piece: int) -> int:
        """Return the number of the line in which a piece (one or a few tokens) begins."""
        at = bisect_right(self._first, piece)
        if self._open and self._open[0][0] <= piece:
            at = len(self._closed) + 1
        line = max(at - 1, 0)
        while line and self.line(line)[0].piece == piece and self.line(line - 1)[-1].piece == piece:
            line -= 1
        return line

    def piece_at(self, line: int, x: int) -> int | None:
        """Return the index of the piece (one or a few tokens) at or left of column `x`; None beyond the last line."""
        runs = self.line(max(line, 0))
        if not runs:
            return None
        return next((run.piece for run in runs if x < run.x + run.width), runs[-1].piece)

    def column_of(self, piece: int) -> int:
        """Return the column where a piece (one or a few tokens) begins, in its first line."""
        return next((run.x for run in self.line(self.line_of(piece)) if run.piece == piece), 0)


def _runs(cells: list[_Cell]) -> Line:
    texts: list[tuple[int, str]] = []
    for piece, character in cells:
        if texts and texts[-1][0] == piece:
            texts[-1] = piece, texts[-1][1] + character
        else:
            texts.append((piece, character))
    runs, x = [], 0
    for piece, text in texts:
        width = cell_len(text)
        runs.append(Run(piece, text, x, width))
        x += width
    return tuple(runs)


class XRayLegend(Widget):
    """The legend of the marks, with the number of tokens for each."""

    COMPONENT_CLASSES: ClassVar[set[str]] = MARKS

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[tuple[Mark, str]] = []

    def show(self, trace: Trace) -> None:
        """Count the tokens of a trace again, and show the legend."""
        parts = [(mark_of(source), words) for source, words in proposers(trace)]
        if wrong := trace.corrections:
            parts.append((CORRECTED, f"replaced a refused draft: {wrong}"))
        if parts != self._parts:
            self._parts = parts
            self.refresh(layout=True)

    def render(self) -> Columns:
        return Columns((self._part(mark, words) for mark, words in self._parts), padding=(0, 3))

    def _part(self, mark: Mark, words: str) -> Text:
        return Text.assemble((mark.symbol, self.get_component_rich_style(mark.style) + Style(bold=True)), f" {words}")


class XRayView(ScrollView, can_focus=True):
    """A view of one reply, which may grow. The message Moved names the token under the cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {*MARKS, "xray--step"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right", "move(1)", "Next token", id="xray.next", show=False),
        Binding("left", "move(-1)", "Token before", id="xray.previous", show=False),
        Binding("down", "line(1)", "Line below", id="xray.below", show=False),
        Binding("up", "line(-1)", "Line above", id="xray.above", show=False),
        Binding("tab", "step(1)", "Next step", id="xray.next_step"),
        Binding("shift+tab", "step(-1)", "Step before", id="xray.previous_step", show=False),
        Binding("pagedown", "page(1)", "Screenful down", id="xray.page_down", show=False),
        Binding("pageup", "page(-1)", "Screenful up", id="xray.page_up", show=False),
        Binding("home", "first", "First token", id="xray.first", show=False),
        Binding("end", "last", "Last token", id="xray.last", show=False),
    ]

    class Moved(Message):
        """A message that the cursor is on another token, or that more is known about the token at the cursor."""

    def __init__(self) -> None:
        super().__init__()
        self._trace = Trace()
        self.pieces = Pieces(self._trace)
        self._layout = Layout(2)
        self.cursor = 0  # index of a piece
        self._column: int | None = None  # where moving up and down began
        self._step = range(1)  # pieces of the same step
        self._follows = False  # whether it follows the last token of a growing reply

    # -- what is shown ------------------------------------------------------------------------------------------------

    def begin(self, trace: Trace, pieces: Pieces) -> None:
        """Show another reply, whose text (`pieces`) is already decoded. If the reply is growing, follow its end."""
        self._trace, self.pieces = trace, pieces
        self._layout = Layout(self._columns)
        self.cursor, self._step, self._follows = 0, range(1), not trace.ended
        self.scroll_to(y=0, animate=False, force=True)
        self.grow()

    def grow(self) -> None:
        """Show the text that was decoded since the last call."""
        first = max(self._layout.height - 1, 0)
        for piece in self.pieces.all[self._layout.pieces :]:
            self._layout.add(piece.text)
        self.virtual_size = Size(self._columns, ROWS * self._layout.height)
        self.refresh(Region(0, ROWS * first - self.scroll_offset.y, self.size.width, self.size.height))
        if self._follows and self.pieces.all:
            self._put_cursor(len(self.pieces.all) - 1)
        self.post_message(self.Moved())

    @property
    def _columns(self) -> int:
        return max(self.scrollable_content_region.width, 2)

    def on_resize(self, _: events.Resize) -> None:
        if self._layout.width != self._columns:
            self._layout = Layout(self._columns)
            for piece in self.pieces.all:
                self._layout.add(piece.text)
            self.virtual_size = Size(self._columns, ROWS * self._layout.height)
            self._show_cursor()
            self.refresh()

    # -- drawing ------------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        at, below = divmod(y + self.scroll_offset.y, ROWS)
        draw = self._marks if below else self._text
        segments = [draw(run) for run in self._layout.line(at)]
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def _mark(self, piece: int) -> Mark:
        token = self.pieces.all[piece].after - 1
        mark = mark_of(self._trace.source(token))
        return CORRECTED if mark is MODEL and self._trace.corrected(token) else mark

    def _text(self, run: Run) -> Segment:
        mark = self._mark(run.piece)
        style = self.get_component_rich_style("xray--model" if mark is CORRECTED else mark.style)
        if run.piece == self.cursor:
            style += Style(reverse=True)
        elif run.piece in self._step:
            style += Style(bgcolor=self.get_component_styles("xray--step").background.rich_color)
        return Segment(run.text, style)

    def _marks(self, run: Run) -> Segment:
        mark = self._mark(run.piece)
        blanks = len(run.text) - len(run.text.lstrip(" "))
        blanks = blanks if blanks < run.width else 0  # so that neighbouring pieces stay distinguishable
        shape = " " * blanks + mark.first + mark.rest * (run.width - blanks - 1) if run.width else ""
        return Segment(shape, self.get_component_rich_style(mark.style))

    # -- the cursor ---------------------------------------------------------------------------------------------------

    def move_to(self, piece: int) -> None:
        """Move the cursor to piece number `piece` (one or a few tokens), or to the nearest that exists."""
        if self.pieces.all:
            last = len(self.pieces.all) - 1
            self._put_cursor(min(max(piece, 0), last))
            self._column = None
            self._follows = not self._trace.ended and self.cursor == last
            self.post_message(self.Moved())

    def _put_cursor(self, piece: int) -> None:
        """Move the cursor to a piece (one or a few tokens), and highlight all tokens of the same decode step."""
        previous, self.cursor = self._step, piece
        place = self._trace.place(self.pieces.all[piece].first)
        self._step = range(self.pieces.at(place.first), self.pieces.at(place.after - 1) + 1)
        for step in (previous, self._step):
            top, end = (ROWS * self._layout.line_of(edge) for edge in (step.start, step.stop))
            self.refresh(Region(0, top - self.scroll_offset.y, self.size.width, end + ROWS - top))
        self._show_cursor()

    def _show_cursor(self) -> None:
        top, height = ROWS * self._layout.line_of(self.cursor), self.scrollable_content_region.height
        if top < self.scroll_offset.y or height < ROWS:
            self.scroll_to(y=top, animate=False, force=True)
        elif top + ROWS > self.scroll_offset.y + height:
            self.scroll_to(y=top + ROWS - height, animate=False, force=True)

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_line(self, by: int) -> None:
        """Move the cursor to the line below (1) or above (-1). A token of several lines is passed in one movement."""
        line = self._layout.line_of(self.cursor) + by
        while self._layout.piece_at(line, 0) == self.cursor and 0 < line < self._layout.height - 1:
            line += by
        self._go_to_line(line)

    def action_page(self, by: int) -> None:
        lines = max(self.scrollable_content_region.height // ROWS - 1, 1)
        line = self._layout.line_of(self.cursor) + by * lines
        self._go_to_line(min(max(line, 0), self._layout.height - 1))

    def _go_to_line(self, line: int) -> None:
        """Move the cursor to a line, as near as possible to the column where the vertical movement began."""
        x = self._layout.column_of(self.cursor) if self._column is None else self._column
        piece = self._layout.piece_at(line, x)
        if piece is not None:
            self.move_to(piece)
            self._column = x

    def action_step(self, by: int) -> None:
        """Move to the first token of the next or previous decode step."""
        if self.pieces.all:
            place = self._trace.place(self.pieces.all[self.cursor].first)
            token = place.after if by > 0 else self._trace.place(max(place.first - 1, 0)).first
            self.move_to(self.pieces.at(token))

    def action_first(self) -> None:
        self.move_to(0)

    def action_last(self) -> None:
        self.move_to(len(self.pieces.all) - 1)

    def on_click(self, click: events.Click) -> None:
        offset = click.get_content_offset(self)
        if offset is not None:
            at = offset + self.scroll_offset
            piece = self._layout.piece_at(at.y // ROWS, at.x)
            if piece is not None:
                self.move_to(piece)
