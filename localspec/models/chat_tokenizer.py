"""Turns conversations into text and token ids by a model's own chat template and tokenizer, and ids into text."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from localspec.errors import LocalspecError, first_line
from localspec.models.confinement import Stopped, confinement
from localspec.models.messages import Message
from localspec.models.thinking import Thinking, WhenItThinks, marks_of
from localspec.models.thinking_switch import Switch, find_switch
from localspec.models.tokenizer import Tokenizer

_FRAME = 2**20  # characters that a template may put around what was said
_COUNTED = 2**16  # messages whose tokens are remembered


class ChatTokenizer:
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._stopped = ""
        self._counts: dict[int, int] = {}  # tokens of messages, by the hash of their text

    def encode(self, messages: Sequence[Message], vocab_size: int, think: bool | None = None) -> list[int]:
        """Returns the token ids of a conversation that waits for the assistant, as `render` writes it.

        Raises LocalspecError for ids that a model of so many does not have, and for a template that fails.
        """
        ids = self.tokenizer.encode(self.render(messages, think=think), self.add_special_tokens)
        if ids and max(ids) >= vocab_size:
            raise LocalspecError(
                f"The model's tokenizer gives the id {max(ids)}, and its config.json promises a vocab_size of "
                f"{vocab_size}; fetch the model again."
            )
        return ids

    def count(self, text: str) -> int:
        """Return how many tokens a message is; of earlier messages that is known, whose texts are not held."""
        key = hash(text)
        if key not in self._counts:
            if len(self._counts) >= _COUNTED:
                self._counts.clear()
            self._counts[key] = len(self.tokenizer.encode(text, False))
        return self._counts[key]

    @property
    def add_special_tokens(self) -> bool:
        """Whether the tokenizer is to set the marks around a text; a chat template brings its own."""
        return not self.tokenizer.chat_template

    def render(self, messages: Sequence[Message], waits: bool = True, think: bool | None = None) -> str:
        """Returns the text of a conversation that `waits` for the assistant, or that has just ended.

        A model without a template gets the contents as plain text. Where a template refuses a system message, it is
        put before the first user message. One with a switch for thinking is told whether to `think`, unless that is
        None. Raises LocalspecError for a template that fails.
        """
        messages = [self._disarmed(message) for message in messages]
        if self.add_special_tokens:
            return "\n\n".join(message["content"] for message in messages)
        switch = None if think is None else self.switch
        if switch is None or think is None:
            return self._templated(messages, waits)
        return self._templated(switch.said(messages, think), waits, switch.variables(think))

    def _templated(self, messages: Sequence[Message], waits: bool, switches: Mapping[str, bool] | None = None) -> str:
        said = sum(len(text) for message in messages for text in message.values())
        request = {
            "template": self.tokenizer.chat_template,
            "messages": messages,
            "waits": waits,
            "tokens": self.tokenizer.special_tokens,
            "switches": switches,
            "most": _FRAME + 4 * said,
        }
        if not self._stopped:
            try:
                answer = confinement.ask(request)
            except Stopped as stopped:
                self._stopped = str(stopped)  # one that never ends is not waited for again
        if self._stopped:
            answer = {"error": self._stopped}
        if "text" in answer:
            return str(answer["text"])
        if answer.get("refused") and messages[0]["role"] == "system" and len(messages) > 1:
            system, first, *rest = messages
            first = {**first, "content": f"{system['content']}\n\n{first['content']}"}
            return self._templated([first, *rest], waits, switches)
        raise LocalspecError(
            f"The model's chat template cannot be used ({first_line(answer['error'])[:200]}); fetch the model again."
        )

    # -- thinking ----------------------------------------------------------------------------------------------------

    @cached_property
    def thinking(self) -> Thinking | None:
        """How the model's thinking is told from its answers; None for a model that knows no marks of it."""
        added = self.tokenizer.added_tokens
        marks = marks_of(self.tokenizer.chat_template or "", [token.content for token in added.values()])
        if marks is None:
            return None
        special = {token: added[token].content for token in added.keys() & self.tokenizer.special_ids}
        shown = {token: content for token, content in special.items() if content in marks[:2]}
        return Thinking(marks, self.decode, self.tokenizer.decode, shown)

    @cached_property
    def switch(self) -> Switch | None:
        """What in the model's template lets it think or not; None where nothing does."""
        return find_switch(self.tokenizer.chat_template or "", self._asks)

    def heeds_switch(self, system: str | None) -> bool:
        """Whether the template's switch changes anything beside this system prompt; some have none then."""
        return self.switch is not None and self.switch.changes(self._asks, system)

    def thinks_by_itself(self, system: str | None) -> bool | None:
        """Whether the template lets the model think where nobody says so; None where its switch changes nothing."""
        return self.switch.is_on(self._asks, system) if self.switch and self.heeds_switch(system) else None

    def _asks(self, messages: Sequence[Message], switches: Mapping[str, bool]) -> str:
        """What becomes of a conversation with these variables; nothing where the template fails."""
        try:
            return self._templated(messages, waits=True, switches=switches)
        except LocalspecError:
            return ""

    @property
    def thinks(self) -> WhenItThinks | None:
        """When the model thinks before it answers; None where neither its template nor its tokens tell."""
        if self.switch is not None:
            return "switch"
        if self.thinking is None:
            return "no"
        begun = self._asks([{"role": "user", "content": "a"}], {}).rstrip().endswith(self.thinking.marks.opening)
        return "always" if begun else None

    @cached_property
    def reads_reasoning(self) -> bool:
        """Whether the template asks what was thought before an earlier answer."""
        return "reasoning_content" in (self.tokenizer.chat_template or "")

    def _disarmed(self, message: Message) -> Message:
        """Without what spells special tokens, and without what the template does not ask for."""
        return {
            key: value if key == "role" else self.disarm(value)
            for key, value in message.items()
            if key != "reasoning_content" or self.reads_reasoning
        }

    # -- what is read and written --------------------------------------------------------------------------------------

    @property
    def keeps_prompts(self) -> bool:
        """Whether what is asked is part of what the model reads; True for a template that fails, which is told then."""
        try:
            return "\u2461" in self.render([{"role": "user", "content": "\u2461"}])
        except LocalspecError:
            return True

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of token ids; special tokens have none."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def disarm(self, content: str) -> str:
        """Breaks up what spells a special token, so that it stays text: a piped file must not end the user's turn."""
        for token in self.tokenizer.added_tokens.values():
            if token.special and token.content in content:
                content = content.replace(token.content, token.content[0] + "\u200c" + token.content[1:])
        return content

    def stop_tokens(self, eos_token_ids: Iterable[object]) -> frozenset[int]:
        """Returns every id that ends a reply: those given, the tokenizer's, and the mark that the template sets.

        `eos_token_ids` are values of config.json and generation_config.json: an id, a list of them, or None. Raises
        LocalspecError where one is not a token id.
        """
        stops: set[int] = set()
        for ids in (*eos_token_ids, self.tokenizer.eos_token_id):
            several = ids if isinstance(ids, list) else [] if ids is None else [ids]
            for token in several:
                if not isinstance(token, int):
                    raise LocalspecError(
                        f"The eos_token_id {ids!r} of this model is no token id; fetch the model again."
                    )
                stops.add(token)
        if not self.add_special_tokens:
            turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\u2460"}]
            try:
                after = self._templated(turns, waits=False).rpartition("\u2460")[2]
            except LocalspecError:  # some refuse such turns; one that always fails is reported when it is used
                return frozenset(stops)
            first = self.tokenizer.encode(after.strip(), add_special_tokens=False)[:1]
            stops.update(set(first) & self.tokenizer.added_tokens.keys())
        return frozenset(stops)
