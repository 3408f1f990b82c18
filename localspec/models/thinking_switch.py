"""What in a chat template lets a model think or not: found by rendering it both ways and comparing the texts."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from localspec.models.messages import Message

Render = Callable[[Sequence[Message], Mapping[str, bool]], str]  # nothing where the template fails

_VARIABLES = ("enable_thinking", "thinking")  # Qwen3, SmolLM3 and many more; Granite
_WORDS = {True: "/think", False: "/no_think"}  # in a system message


class Switch(NamedTuple):
    """A variable of the template; or words in the system message, where it has no such variable."""

    variable: str | None

    def variables(self, think: bool) -> dict[str, bool]:
        """What the template is given."""
        return {self.variable: think} if self.variable else {}

    def said(self, messages: Sequence[Message], think: bool) -> list[Message]:
        """The conversation as the template is to see it."""
        if self.variable:
            return list(messages)
        system = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
        rest = messages[1:] if system else messages
        return [{"role": "system", "content": f"{system}\n{_WORDS[think]}".lstrip("\n")}, *rest]

    def changes(self, render: Render, system: str | None) -> bool:
        """Whether it makes another text of a conversation, beside what it says itself."""
        on, off = (self._text(render, system, think) for think in (True, False))
        return bool(on) and bool(off) and on != off

    def is_on(self, render: Render, system: str | None) -> bool:
        """Whether the template lets the model think where nobody says so."""
        return self._text(render, system, None) == self._text(render, system, True)

    def _text(self, render: Render, system: str | None, think: bool | None) -> str:
        asked: list[Message] = [{"role": "user", "content": "a"}]
        if system:
            asked.insert(0, {"role": "system", "content": system})
        if think is None:
            text = render(asked, {})
        else:
            text = render(self.said(asked, think), self.variables(think))
        return text if self.variable else text.replace(_WORDS[False], "").replace(_WORDS[True], "")


def find_switch(template: str, render: Render) -> Switch | None:
    """The switch of a template; None where nothing that it names changes its text."""
    named = [Switch(variable) for variable in _VARIABLES if variable in template]
    if _WORDS[False] in template:
        named.append(Switch(None))
    return next((switch for switch in named if switch.changes(render, None)), None)
