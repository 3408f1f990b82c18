"""The prompt field."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from localspec.chat.commands import is_whole
from localspec_tui import keymap
from localspec_tui.widgets.suggestions import Suggestions
from localspec_tui.widgets.typed_text import KeysInOrder, TypedText

# Usual keys of a text field need no mention, and would hide the others.
_EXPECTED = ("cursor_", "page_", "select_", "delete_left", "delete_right", "copy", "cut", "paste")
# Except these, whose reach is not obvious.
_TIPS = {
    "prompt.select_all": "Select all the text: typing replaces it, Delete removes it",
    "prompt.delete_to_start_of_line": "Delete to the line's beginning, or the line break before it",
}


def _inherited(prompt_bindings: Sequence[Binding]) -> list[BindingType]:
    """Return TextArea's bindings, each with an id, but without the keys that have another meaning in a prompt."""
    reserved = {key for binding in prompt_bindings for key in binding.key.split(",")}
    return [
        replace(
            binding,
            key=",".join(keys),
            id=f"prompt.{re.sub('[^a-z_]', '', binding.action.replace('(True)', '_selecting').lower())}",
            system=binding.action.startswith(_EXPECTED),
        )
        for binding in TextArea.BINDINGS
        if isinstance(binding, Binding) and (keys := [key for key in binding.key.split(",") if key not in reserved])
    ]


class Prompt(KeysInOrder, TypedText, inherit_bindings=False):
    """A field for a prompt of several lines. Enter sends the prompt. In the first and last line the arrow keys show
    earlier and later prompts."""

    OWN: ClassVar[list[Binding]] = [
        Binding("enter", "send", "Send", id="prompt.send"),
        Binding("ctrl+j,alt+enter,shift+enter", "break_line", "Insert a line break", id="prompt.newline", show=False),
        Binding("up", "up", "Go up a line, or to an earlier prompt", id="prompt.earlier", show=False),
        Binding("down", "down", "Go down a line, or to a later prompt", id="prompt.later", show=False),
        Binding("end", "end", "Go to the end of the line, or of the conversation", id="prompt.to_end", show=False),
        Binding("tab", "complete", "Complete the command or the path", id="prompt.complete", show=False),
        Binding("escape", "close_list", "Close the list of commands", id="prompt.close", show=False),
        Binding("ctrl+d", "delete_or_quit", "Quit, on an empty prompt", id="prompt.end", show=False),
        Binding("pageup", "screen.page(-1)", "Scroll up", id="prompt.page_up", show=False),
        Binding("pagedown", "screen.page(1)", "Scroll down", id="prompt.page_down", show=False),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [*OWN, *_inherited(OWN)]
    LISTED: ClassVar[list[Binding]] = [
        *OWN,
        *(
            replace(binding, tooltip=_TIPS[binding.id])
            for binding in BINDINGS
            if isinstance(binding, Binding) and binding.id in _TIPS
        ),
    ]

    @dataclass
    class Sent(Message):
        """A message that the user pressed Enter to send this text."""

        text: str

    def __init__(self, suggestions: Suggestions, starter: Callable[[str], str | None]) -> None:
        """Begin empty. `starter` returns the suggested prompt that a key chooses; None if the key chooses no prompt."""
        super().__init__(placeholder="Say something", compact=True, highlight_cursor_line=False)
        self._suggestions, self._starter = suggestions, starter
        self._chosen: tuple[str, str] | None = None  # a key, and the prompt that it has just been replaced by
        self._earlier: list[str] = []  # the oldest first
        self._shown: int | None = None  # the shown one; None is the text being written
        self._draft = ""

    @property
    def own_keys(self) -> set[str]:
        """The keys that have an effect in this field, apart from letters."""
        bindings = (binding for binding in self.BINDINGS if isinstance(binding, Binding))
        return {key for binding in bindings for key in keymap.keys_of(self.app, binding)}

    def remember(self, prompts: Sequence[str]) -> None:
        """Set the earlier prompts for the arrow keys, the oldest first."""
        self._earlier = [*prompts, *self._earlier]

    def _chooses(self, event: events.Key) -> bool:
        """Fill the empty field with the suggested prompt that a key chooses. Return whether the key chose one.

        If the next key is printable too, the user is typing a text: put the first character back in place of the
        suggested prompt.
        """
        chosen, self._chosen = self._chosen, None
        if chosen and event.is_printable and self.text == chosen[1]:
            self.put(chosen[0])
        elif not self.text and (prompt := self._starter(event.key)):
            self.put(prompt)
            self.select_all()  # selected as a proposal, which typing replaces
            self._chosen = event.key, prompt
            return True
        return False

    # -- completion ---------------------------------------------------------------------------------------------------

    @property
    def before(self) -> str:
        """Return the text before the cursor, as far as it can be completed.

        The text is empty if the cursor is within a command, because commands are completed only at their end.
        """
        before = self.get_text_range((0, 0), self.cursor_location)
        return "" if before.startswith("/") and before != self.text else before

    def on_text_area_changed(self) -> None:
        self._suggestions.typed(self.before)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether an action works now: Tab needs the beginning of a command, and Escape an open list."""
        if action in ("complete", "close_list"):
            self._suggestions.typed(self.before)  # the event of the last letters may still be on its way
            return self._suggestions.is_open if action == "close_list" else self._suggestions.starts_command
        return True

    async def action_complete(self) -> None:
        await self._suggestions.fetched()  # Tab may be pressed before the list arrives
        self._complete_by_the_list()

    def _complete_by_the_list(self) -> None:
        if (line := self._suggestions.line) is not None:
            self._suggestions.open()
            self.complete(line)

    def complete(self, line: str) -> None:
        """Replace the text before the cursor by the completion `line`."""
        self.replace(line, (0, 0), self.cursor_location)
        self._suggestions.typed(self.before)

    def action_close_list(self) -> None:
        self._suggestions.close()

    def put(self, text: str) -> None:
        super().put(text)
        self._suggestions.typed(self.before, by_hand=False)

    def give_back(self, text: str) -> None:
        """Put an unsent prompt back into the field, unless the field already has text."""
        if not self.text:
            self.put(text)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_send(self) -> None:
        if not self.text.strip():
            return
        self._suggestions.typed(self.before)
        if self._suggestions.is_open and (self._suggestions.at is not None or not is_whole(self.before)):
            self._complete_by_the_list()
            return
        self.post_message(self.Sent(self.text))
        if self.text in self._earlier:
            self._earlier.remove(self.text)
        self._earlier.append(self.text)
        self._shown, self._draft = None, ""
        self.put("")

    async def action_end(self) -> None:
        """Move the cursor to the end of its line. If it is already there, scroll to the end of the conversation."""
        if self.cursor_at_end_of_line and self.selection.is_empty:
            await self.run_action("screen.end")
        else:
            self.action_cursor_line_end()

    def action_break_line(self) -> None:
        self.replace("\n", *self.selection, maintain_selection_offset=False)

    def action_delete_or_quit(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.app.exit()

    def action_up(self) -> None:
        if self._suggestions.is_open:
            self._suggestions.move(-1)
        elif self.navigator.is_first_wrapped_line(self.cursor_location):
            self._walk(-1)
        else:
            self.action_cursor_up()

    def action_down(self) -> None:
        if self._suggestions.is_open:
            self._suggestions.move(1)
        elif self.navigator.is_last_wrapped_line(self.cursor_location):
            self._walk(1)
        else:
            self.action_cursor_down()

    def _walk(self, step: int) -> None:
        """Show an earlier prompt (-1) or a later one (1). After the latest comes the text that the user was writing."""
        index = (len(self._earlier) if self._shown is None else self._shown) + step
        if not 0 <= index <= len(self._earlier) or (self._shown is None and step > 0):
            return
        if self._shown is None:
            self._draft = self.text
        self._shown = index if index < len(self._earlier) else None
        self.put(self._draft if self._shown is None else self._earlier[self._shown])
