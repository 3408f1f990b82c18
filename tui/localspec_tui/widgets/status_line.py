"""The lines above and below the conversation. Each displays as many of its parts as there is room for."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from textual import work
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget

from localspec.chat.attachments import is_long
from localspec.chat.figures import Figures, context_share, gain, tokens_a_step
from localspec.quantities import counted, short_pace
from localspec.store.conversations import title_of
from localspec.text import one_line
from localspec_tui import keymap

BETWEEN = " · "


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` cells. A text that was cut ends in an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def fitting(parts: Sequence[str], width: int) -> str:
    """Return a line of the parts that fit, with the first parts taking precedence.

    A part for which there is no room is left out; the first part is cut instead.
    """
    line = ""
    for part in parts:
        longer = line + BETWEEN + part if line else cut(part, width)
        if cell_len(longer) <= width:
            line = longer
    return line


def whole_names(sentence: str, width: int) -> str:
    """Break a sentence into lines of `width` columns. A path longer than a line is broken only after its separators."""
    lines: list[str] = []
    line = ""
    for word in sentence.split(" "):
        if cell_len(word) <= width:
            line = f"{line} {word}" if line else word
            continue
        lines += [line] if line else []
        line = ""
        for name in re.findall(r"[^/\\]*[/\\]|[^/\\]+", word):
            if line and cell_len(line + name) > width:
                lines.append(line)
                line = ""
            line += name
    return "\n".join([*lines, line])


QUIET_SECONDS = 0.15  # after the last key, before the disk is read
TITLE = 24  # columns of a long title that facts about the model leave free


class WaitingLine(Widget):
    """A line with the waiting prompts, or with background work. An empty line takes no room."""

    def __init__(self) -> None:
        super().__init__()
        self._prompts: tuple[str, ...] = ()
        self._activity = self._hint = ""

    def show(self, *prompts: str) -> None:
        """Show the waiting prompts, the next one first."""
        self._prompts = tuple(map(one_line, prompts))
        self._show()

    def show_activity(self, activity: str, hint: str = "") -> None:
        """Show background work, and a hint that is never cut. An empty text removes both."""
        self._activity, self._hint = one_line(activity), hint
        self._show()

    @property
    def busy(self) -> bool:
        """Return whether an activity is shown."""
        return bool(self._activity)

    def _show(self) -> None:
        self.display = bool(self._prompts or self._activity)
        self.refresh()

    def render(self) -> Content:
        if not self._prompts:
            hint = BETWEEN + self._hint if self._hint else ""
            return Content(cut(self._activity, self.size.width - cell_len(hint)) + hint)
        key, count = keymap.key(self.app, "chat.stop"), len(self._prompts)
        head = (
            f"{count} prompts waiting ({key} takes them back)" if count > 1 else f"prompt waiting ({key} takes it back)"
        )
        return Content(cut(f"{head}: {' · '.join(self._prompts)}", self.size.width))


class UnsavedLine(Widget):
    """A warning about unsaved text. It takes no room if everything is saved."""

    def __init__(self) -> None:
        super().__init__()
        self._turns, self._typed = "", ""
        self.display = False

    def show_turns(self, turns: int) -> None:
        """Show that this many of the newest turns are not saved."""
        self._turns = "" if not turns else "the last turn" if turns == 1 else f"the last {turns} turns"
        self._show()

    def show_typed(self, trouble: str) -> None:
        """Show why the typed text is not saved. An empty text removes the warning."""
        self._typed = one_line(trouble)
        self._show()

    def _show(self) -> None:
        self.display = bool(self._turns or self._typed)
        self.refresh()

    def render(self) -> Content:
        unsaved = " and ".join(filter(None, (self._turns, "the typed text" if self._typed else "")))
        again = "retried at each prompt" if self._turns else self._typed
        return Content(fitting((f"✗ not saved: {unsaved}", again), self.size.width))


class TopLine(Widget):
    """A line with the model, the changed settings, and the title of the conversation."""

    def __init__(self, saved: bool) -> None:
        super().__init__()
        self._saved = saved
        self._model: tuple[str, ...] = ()
        self._badges: tuple[str, ...] = ()
        self._title = ""
        self._proposed = False  # the title comes from a prompt without an answer yet

    def show_model(self, *facts: str) -> None:
        """Show facts about the model, its name first."""
        self._model = tuple(map(one_line, filter(None, facts)))
        self.refresh()

    def show_set(self, *badges: str) -> bool:
        """Show the changed settings (`badges`). Return whether they are new, and there is room for all of them."""
        previous, self._badges = self._badges, tuple(map(one_line, badges))
        self.refresh()
        return self._badges != previous and {*self._badges} <= {fact for fact, _ in self._facts()}

    def call(self, title: str) -> None:
        """Show `title` as the title of the conversation."""
        self._title, self._proposed = one_line(title), False
        self.refresh()

    def begin(self, prompt: str) -> None:
        """Use the first prompt as the title if there is no other title."""
        if not self._title:
            self.call(title_of(prompt))
            self._proposed = True

    def answered(self, answer: bool) -> None:
        """If the first prompt got no answer (`answer` is False), remove the title that was made from this prompt."""
        self.call(self._title if answer or not self._proposed else "")

    def _facts(self) -> list[tuple[str, str]]:
        """Return the facts about the model and its settings for which there is room, each with its style."""
        unsaved = () if self._saved else ("nothing is saved",)
        facts = (*self._model[:1], *unsaved), self._badges, self._model[1:]
        shown, room = [], self.size.width - cell_len("localspec")
        title = min(cell_len(self._title), TITLE) + 2 if self._title else 0
        # The title comes before the model's precision and device.
        for style, parts, free in zip(("bold", "bold $text-accent", "bold"), facts, (0, 0, title), strict=True):
            room -= free
            for part in parts:
                if cell_len(BETWEEN + part) <= room:
                    shown.append((part, style))
                    room -= cell_len(BETWEEN + part)
        return shown

    def render(self) -> Content:
        width = self.size.width
        left = Content.styled(cut("localspec", width), "bold")
        for fact in self._facts():
            left += Content.assemble((BETWEEN, "bold"), fact)
        right = cut(self._title, max(width - left.cell_length - 2, 0))
        gap = " " * max(width - left.cell_length - cell_len(right), 0)
        return Content.assemble(left, gap, (right, "dim"))


class AttachedLine(Widget):
    """A line with notices about the files and the length of the typed prompt. Without notices it takes no room.

    `measure` returns the notices. It may read the disk, so it is called on another thread.
    """

    def __init__(self, measure: Callable[[str], list[str]]) -> None:
        super().__init__()
        self._measure = measure
        self._sentences: tuple[str, ...] = ()
        self._asking: Timer | None = None
        self.display = False

    def look(self, text: str) -> None:
        """Show notices about the files and the length of the typed prompt, once typing pauses."""
        if self._asking is not None:
            self._asking.stop()
        if "@" in text or is_long(text):
            self._asking = self.set_timer(QUIET_SECONDS, lambda: self._find(text))
        else:
            self.workers.cancel_node(self)
            self._show()

    @work(exclusive=True)
    async def _find(self, text: str) -> None:
        self._show(*await asyncio.to_thread(self._measure, text))

    def _show(self, *sentences: str) -> None:
        self._sentences, self.display = tuple(map(one_line, sentences)), bool(sentences)
        self.refresh()

    def render(self) -> Content:
        return Content("+ " + fitting(self._sentences, self.size.width - 2))


class BelowLine(Widget):
    """A line that counts the new lines of text below the visible ones. Without such lines it takes no room. A click on
    it scrolls to the end."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = 0
        self.display = False

    def show(self, lines: int) -> None:
        """Show how many lines of new text are below."""
        if lines != self._lines:
            self._lines, self.display = lines, lines > 0
            self.refresh()

    def render(self) -> Content:
        key = keymap.key(self.app, "chat.end")
        return Content(f"↓ {counted(self._lines, 'new line')} ({key})")

    async def on_click(self) -> None:
        await self.run_action("screen.end")


TIGHT, FULL = 0.8, 0.92  # of the context: it is shown as a warning, and then as a reason for a new conversation

Part = tuple[str, str]  # a text and its style


class LiveLine(Widget):
    """A line with the progress of the reply, or the reason for waiting."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[str, ...] | Figures = ()
        self._warning = ""

    def show(self, *parts: str) -> None:
        """Show these texts in the line in place of figures, the most important first."""
        self._set(tuple(map(one_line, parts)))

    def show_figures(self, figures: Figures | None, warning: str = "") -> None:
        """Show the figures of the current or the last reply, after a warning. With None, leave the line as it is."""
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
    """Return the figures for which there is room. The last figures are left out first."""
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
