"""Separates thoughts from answers in a growing text, by the marks of the model's family.

It also finds the template's switch for thinking.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from localspec.models.messages import Message

WhenItThinks = Literal["no", "always", "switch"]  # before it answers: never, in any case, or as `--think` asks
Decode = Callable[[Sequence[int]], str]

_LEAD = 16  # characters of white space that may precede the mark
_TAIL = 64  # tokens at the end of a prompt that may include the mark


class Marks(NamedTuple):
    """The texts before and after thoughts, such as <think> and </think>.

    `around` are the marks before and after an answer, in families that also mark answers. `direct` precedes an answer
    without thoughts, in families that mark such answers.
    """

    opening: str
    closing: str
    around: tuple[str, str] | None = None
    direct: str = ""


# In the order of the search; a model uses marks that its template has, or that are single tokens.
KNOWN = (
    Marks("<think>", "</think>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("Here is my thought process:", "Here is my response:"),  # Granite 3.2
    Marks(
        "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>",
        direct="<|channel|>final<|message|>",
    ),  # gpt-oss
)  # fmt: skip
_AROUND = ("<response>", "</response>")  # Granite 3.3


def marks_of(template: str, tokens: Sequence[str]) -> Marks | None:
    """Return the known marks that a chat template or a model's added tokens contain; None if there are none."""
    for marks in KNOWN:
        if any(mark in template or mark in tokens for mark in marks[:2]):
            return marks._replace(around=_AROUND if all(mark in template for mark in _AROUND) else None)
    return None


class Parting:
    """A growing reply, divided into thoughts and answer. The result does not depend on the pieces in which it arrives.

    Thoughts come at the beginning or not at all. The mark before them is missing if it is in the prompt. White space
    around the marks belongs to neither part. Places are positions in the whole `text`, including marks.
    """

    def __init__(self, marks: Marks | None = None, begun: bool = False) -> None:
        self.text = ""
        self.settled = 0  # up to here it is known which part each character belongs to, if any
        self.answer: int | None = None  # where the answer begins
        self.thinks = marks is not None and begun  # whether there are any thoughts, finished or not
        self._marks, self._begun, self._whole = marks, begun, False
        self._last = False  # whether the last part is there, which no mark ends
        self._parts: list[tuple[bool, int, int | None]] = []  # whether it is thinking, its first place, and its end

    @property
    def thinking(self) -> bool:
        """Whether the model still thinks: no answer has begun."""
        return self.thinks and self.answer is None

    def add(self, text: str) -> None:
        """Add more text of the reply."""
        self.text += text
        self._look()

    def finish(self) -> None:
        """End the text. The beginning of a mark is now ordinary text."""
        self._whole = True
        self._look()

    def cut(self, place: int) -> None:
        """Cut the text before index `place`, which is in the answer."""
        self.text = self.text[:place]
        self.settled, self._last = place, True  # a mark that was cut is not text

    def between(self, start: int, end: int) -> tuple[str, str]:
        """Return the thoughts and the answer in `text[start:end]`, without marks."""
        texts: list[list[str]] = [[], []]
        for thinks, first, after in self._parts:
            texts[not thinks].append(self.text[max(first, start) : end if after is None else min(after, end)])
        return "".join(texts[0]), "".join(texts[1])

    def _look(self) -> None:
        """Divide the whole text again into thoughts and answer. Set `settled`, the number of final characters."""
        if not self._last:
            self._parts = []
            if self._marks is None:
                self._begin_answer(0)
            else:
                self._divide(self._marks)
        if self._whole or self._last:
            self.settled = len(self.text)

    def _divide(self, marks: Marks) -> None:
        """Find thoughts and answer from the beginning of the text. Stop where later text can change what follows."""
        at, around = 0, ("", "")
        if not self._begun:
            start = self._skipped(0)
            near = start <= _LEAD
            self.thinks = near and self.text.startswith(marks.opening, start)
            if self.thinks:
                at = start + len(marks.opening)
            elif near and marks.direct and self.text.startswith(marks.direct, start):
                self._begin_answer(start + len(marks.direct))
                return
            elif near and any(self._may_become(mark, start) for mark in (marks.opening, marks.direct) if mark):
                return
            else:
                self._begin_answer(0)
                return
        at = self.settled = self._skipped(at)
        if self._begun and self.text.startswith(marks.opening, at):  # some models write the mark once more
            at = self.settled = self._skipped(at + len(marks.opening))
        elif self._begun and self._may_become(marks.opening, at):
            return
        if at == len(self.text) or (end := self._part(True, at, marks.closing)) is None:
            return
        at = self.settled = self._skipped(end)
        if marks.around and self.text.startswith(marks.around[0], at):
            around = marks.around
            at = self.settled = self._skipped(at + len(around[0]))
        if at == len(self.text) or (marks.around and not around[0] and self._may_become(marks.around[0], at)):
            return
        if not around[1]:
            self._begin_answer(at)
            return
        self.answer = at
        end = self._part(False, at, around[1])
        if end is not None and self._skipped(end) < len(self.text):  # text after the second mark is answer, too
            self._begin_answer(end)

    def _part(self, thinks: bool, start: int, closing: str) -> int | None:
        """Add the thoughts or answer from `start` to the mark `closing`. Return the index after it; None without it."""
        position = self.text.find(closing, start)
        end = position if position >= 0 else len(self.text) - (0 if self._whole else possible(self.text, (closing,)))
        while end > start and self.text[end - 1].isspace():
            end -= 1
        self._parts.append((thinks, start, end if position >= 0 or (thinks and self._whole) else None))
        self.settled = end if position < 0 else position + len(closing)
        return None if position < 0 else self.settled

    def _begin_answer(self, place: int) -> None:
        self.answer = place if self.answer is None else self.answer
        self._parts.append((False, place, None))
        self._last = True

    # -- searching the text -------------------------------------------------------------------------------------------

    def _may_become(self, mark: str, place: int) -> bool:
        return not self._whole and mark.startswith(self.text[place : place + len(mark)])

    def _skipped(self, place: int) -> int:
        """Return the position of the first character from `place` on that is not white space."""
        while place < len(self.text) and self.text[place].isspace():
            place += 1
        return place


def possible(text: str, words: Sequence[str], start: int = 0) -> int:
    """Return the length of the longest suffix of a text, not before `start`, that may be the beginning of one of the
    words."""
    longest = max((len(word) for word in words), default=1) - 1
    for length in range(min(longest, len(text) - start), 0, -1):
        if any(word.startswith(text[-length:]) for word in words):
            return length
    return 0


class Thinking:
    """A model's marks around thoughts, such as <think>, and a decoder that leaves these marks in the text."""

    def __init__(self, marks: Marks, decode: Decode, spell: Decode, special: Mapping[int, str]) -> None:
        """Store the marks and two decoders: `decode` leaves special tokens out, and `spell` includes them.

        `special` maps ids to the special tokens that are marks.
        """
        self.marks = marks
        self._decode, self._spell, self._special = decode, spell, special

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, with the special tokens that are marks."""
        if not self._special or self._special.keys().isdisjoint(tokens):
            return self._decode(tokens)
        text, run = "", list[int]()
        for token in tokens:
            if token in self._special:
                text, run = text + self._decode(run) + self._special[token], []
            else:
                run.append(token)
        return text + self._decode(run)

    def parting(self, prompt: Sequence[int]) -> Parting:
        """Return a `Parting` for the reply to this prompt, which may end in the mark before thoughts."""
        return Parting(self.marks, self._spell(prompt[-_TAIL:]).rstrip().endswith(self.marks.opening))


Render = Callable[[Sequence[Message], Mapping[str, bool]], str]  # an empty text if the template fails

_VARIABLES = ("enable_thinking", "thinking")  # Qwen3, SmolLM3 and many more; Granite
_WORDS = {True: "/think", False: "/no_think"}  # in a system message


class Switch(NamedTuple):
    """A switch for thinking: a variable of the template, or words in the system message if there is no such
    variable."""

    variable: str | None

    def variables(self, think: bool) -> dict[str, bool]:
        """Return the variables of the template for thinking on or off."""
        return {self.variable: think} if self.variable else {}

    def with_words(self, messages: Sequence[Message], think: bool) -> list[Message]:
        """Return the messages; without a variable for thinking, with `/think` or `/no_think` in the system message."""
        if self.variable:
            return list(messages)
        system = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
        rest = messages[1:] if system else messages
        return [{"role": "system", "content": f"{system}\n{_WORDS[think]}".lstrip("\n")}, *rest]

    def changes(self, render: Render, system: str | None) -> bool:
        """Return whether the switch changes a conversation's text, apart from adding `/think` or `/no_think`."""
        on, off = (self._text(render, system, think) for think in (True, False))
        return bool(on) and bool(off) and on != off

    def is_on(self, render: Render, system: str | None) -> bool:
        """Return whether the template lets the model think by default."""
        return self._text(render, system, None) == self._text(render, system, True)

    def _text(self, render: Render, system: str | None, think: bool | None) -> str:
        messages: list[Message] = [{"role": "user", "content": "a"}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        if think is None:
            text = render(messages, {})
        else:
            text = render(self.with_words(messages, think), self.variables(think))
        return text if self.variable else text.replace(_WORDS[False], "").replace(_WORDS[True], "")


def find_switch(template: str, render: Render) -> Switch | None:
    """Return the switch of a template; None if none of its variables changes the text."""
    switches = [Switch(variable) for variable in _VARIABLES if variable in template]
    if _WORDS[False] in template:
        switches.append(Switch(None))
    return next((switch for switch in switches if switch.changes(render, None)), None)
