"""The X-ray of a reply: what proposed each token (a drafter or the model), and which drafts were refused."""

import asyncio
from collections.abc import Sequence
from typing import ClassVar, cast

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec.chat.trace import NO_TRACE, UNTOLD, Pieces, Trace, about, overview
from localspec.text import one_line
from localspec_tui.messages import Pace
from localspec_tui.screens.dialogs import DIALOG_KEYS, ClosesOnce
from localspec_tui.widgets.keys_panel import KeysFooter
from localspec_tui.widgets.status_line import cut
from localspec_tui.widgets.xray_view import XRayLegend, XRayView

LEAST_SECONDS = 0.2  # seconds between updates: tokens are read, not watched
NOTHING_YET = "There is no reply to look at yet."


class XRayScreen(ClosesOnce, Screen[None]):
    """A screen with the X-ray of one of the given replies.

    `traces` record how each reply was drafted. `chosen` is None if there is no reply yet, or if the reply has no trace,
    because it is of an `earlier` session.
    """

    AUTO_FOCUS = ""  # the tokens get it if there are any
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-broad")]  # noqa: RUF012  # Textual declares it so
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+t", "dismiss", "Back", id="xray.back"),
        Binding("alt+up", "reply(-1)", "Reply before", id="xray.reply_before"),
        Binding("alt+down", "reply(1)", "Reply after", id="xray.reply_after"),
        DIALOG_KEYS,
    ]

    def __init__(self, traces: Sequence[Trace], chosen: Trace | None, earlier: bool) -> None:
        super().__init__()
        self._traces, self._chosen = traces, chosen
        self._nothing = NO_TRACE if earlier else NOTHING_YET
        self._pieces: dict[int, Pieces] = {}  # decoded so far, by the id of a trace
        self._counted = 0  # replies
        self._pace = Pace()
        self._one_at_a_time = asyncio.Lock()

    def compose(self) -> ComposeResult:
        yield Static("", id="which", markup=False)
        with Container(id="both"):
            yield XRayView()
            with Vertical(id="chosen"):
                yield XRayLegend()
                with VerticalScroll(id="about", can_focus=False):
                    yield Static("", markup=False)
        yield KeysFooter(show_command_palette=False)

    def on_mount(self) -> None:
        if self._chosen is not None:  # otherwise its keys would have no effect
            self.query_one(XRayView).focus()
        self._pace.begin()
        self._show()
        self._follow_later()

    def on_resize(self) -> None:
        """Shorten the displayed prompt to the new width."""
        if self._chosen is not None:
            self._show_counts(self._chosen)

    # -- the choice of a reply ----------------------------------------------------------------------------------------

    def _replies(self) -> list[Trace]:
        return [trace for trace in self._traces if len(trace.tokens)]

    def _neighbour(self, step: int) -> Trace | None:
        """Return the trace of the previous (-1) or next (1) reply, if any; without a chosen reply, the last trace."""
        replies = self._replies()
        at = replies.index(self._chosen) + step if self._chosen in replies else len(replies) - 1
        return replies[at] if 0 <= at < len(replies) else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False for a key that would have no effect now, so that the footer does not show it."""
        return action != "reply" or self._neighbour(*cast("tuple[int]", parameters)) is not None

    def action_reply(self, step: int) -> None:
        """Move to the previous or next reply of this session."""
        if (neighbour := self._neighbour(step)) is not None:
            self._chosen = neighbour
            self._show()

    @work(exclusive=True, group="show")
    async def _show(self) -> None:
        chosen = self._chosen
        self.query_one("#both").display = chosen is not None
        self.refresh_bindings()
        if chosen is None:
            self.query_one("#which", Static).update(self._nothing)
            return
        pieces = self._pieces.setdefault(id(chosen), Pieces(chosen))
        async with self._one_at_a_time:
            await asyncio.to_thread(pieces.grow)  # thousands of tokens take time
        self.query_one(XRayView).begin(chosen, pieces)
        if self.focused is None:
            self.query_one(XRayView).focus()
        self._show_counts(chosen)

    # -- a growing reply ----------------------------------------------------------------------------------------------

    def _follow_later(self) -> None:
        self.set_timer(max(self._pace.next(), LEAST_SECONDS), self._follow)

    @work(exclusive=True, group="follow")
    async def _follow(self) -> None:
        if self not in self.app.screen_stack:  # it was closed meanwhile
            return
        view, chosen = self.query_one(XRayView), self._chosen
        pieces = view.pieces
        if chosen is not None and pieces.has_more:
            async with self._one_at_a_time:
                await asyncio.to_thread(pieces.grow)
            if pieces is view.pieces:
                view.grow()
                self._show_counts(chosen)
        elif chosen is not None and len(self._replies()) != self._counted:
            self._show_counts(chosen)
        self._follow_later()

    # -- words --------------------------------------------------------------------------------------------------------

    def _show_counts(self, chosen: Trace) -> None:
        replies = self._replies()
        if len(replies) != self._counted:  # there is a new one
            self._counted = len(replies)
            self.refresh_bindings()
        if chosen not in replies:
            self.query_one("#which", Static).update(UNTOLD if chosen.untold else NOTHING_YET)
            return
        number = f"reply {replies.index(chosen) + 1} of {len(replies)}, " if len(replies) > 1 else ""
        going = "" if chosen.ended else " so far"
        line = f"{number}{overview(chosen)}{going}"
        prompt = cut(one_line(chosen.prompt), max(self.size.width - cell_len(line) - 6, 0))
        self.query_one("#which", Static).update(Content.assemble((line, "bold"), "  ", (prompt, "dim")))
        self.query_one(XRayLegend).show(chosen)

    def on_xray_view_moved(self) -> None:
        view = self.query_one(XRayView)
        if self._chosen is None or not view.pieces.all:
            return
        first, *rest = about(self._chosen, view.pieces.all[view.cursor])
        content = Content.assemble((first, "bold"), *(f"\n{line}" for line in rest))
        self.query_one("#about Static", Static).update(content)
        self.query_one("#about").scroll_home(animate=False)
