"""Lines whose parts are displayed as far as there is room."""

import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.widget import Widget

from localspec.store.titles import title_of
from localspec.text import one_line
from localspec_tui import keymap

BETWEEN = " · "


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` cells. A text that was cut ends in an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def fitting(parts: Sequence[str], width: int) -> str:
    """Return the parts that fit, the first ones first.

    A part that is too long is left out, but the first part is cut.
    """
    line = ""
    for part in parts:
        longer = line + BETWEEN + part if line else cut(part, width)
        if cell_len(longer) <= width:
            line = longer
    return line


def whole_names(sentence: str, width: int) -> str:
    """Return a sentence for this many columns. A longer path is broken only after its separators."""
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


class WaitingLine(Widget):
    """A line with the waiting prompts, or with background work. Without either it takes no room."""

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
        count = f"{len(self._prompts)} wait" if len(self._prompts) > 1 else "waits"
        key = keymap.key(self.app, "chat.stop")
        return Content(cut(f"{count} ({key} takes back): {' · '.join(self._prompts)}", self.size.width))


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
        what = " and ".join(filter(None, (self._turns, "what is typed" if self._typed else "")))
        again = "each prompt will try again" if self._turns else self._typed
        return Content(fitting((f"✗ not saved: {what}", again), self.size.width))


class TopLine(Widget):
    """The model, its changed settings, and the title of the conversation."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self._kept = kept
        self._model: tuple[str, ...] = ()
        self._badges: tuple[str, ...] = ()
        self._title = ""
        self._proposed = False  # the title comes from a prompt without an answer yet

    def show_model(self, *facts: str) -> None:
        """Show facts about the model, its name first."""
        self._model = tuple(map(one_line, filter(None, facts)))
        self.refresh()

    def show_set(self, *badges: str) -> bool:
        """Show the changed settings. Return whether that changes the line."""
        before, self._badges = self._badges, tuple(map(one_line, badges))
        self.refresh()
        return self._badges != before and {*self._badges} <= {fact for fact, _ in self._facts()}

    def call(self, title: str) -> None:
        """Show this text as the title of the conversation."""
        self._title, self._proposed = one_line(title), False
        self.refresh()

    def begin(self, prompt: str) -> None:
        """Use the first prompt as the title if there is no other title."""
        if not self._title:
            self.call(title_of(prompt))
            self._proposed = True

    def answered(self, answer: bool) -> None:
        """Set whether the first prompt has an answer. A prompt without an answer is not used as a title."""
        self.call(self._title if answer or not self._proposed else "")

    def _facts(self) -> list[tuple[str, str]]:
        """Return the facts for which there is room, each with its style."""
        kept = () if self._kept else ("nothing is saved",)
        facts = (*self._model[:1], *kept), self._badges, self._model[1:]
        shown, room = [], self.size.width - cell_len("localspec")
        for style, parts in zip(("bold", "bold $text-accent", "bold"), facts, strict=True):
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
