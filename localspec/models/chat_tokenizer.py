"""Turns conversations into text and token ids by a model's own chat template and tokenizer, and ids into text."""

from collections.abc import Iterable, Sequence

from localspec.errors import LocalspecError, first_line
from localspec.models.confinement import Stopped, confinement
from localspec.models.messages import Message
from localspec.models.tokenizer import Tokenizer

_FRAME = 2**20  # characters that a template may put around what was said


class ChatTokenizer:
    """A tokenizer with its chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._stopped = ""

    def encode(self, messages: Sequence[Message], vocab_size: int) -> list[int]:
        """Returns the token ids of a conversation that waits for the assistant, as `render` writes it.

        Raises LocalspecError for ids that a model of so many does not have, and for a template that fails.
        """
        ids = self.tokenizer.encode(self.render(messages), self.add_special_tokens)
        if ids and max(ids) >= vocab_size:
            raise LocalspecError(
                f"The model's tokenizer gives the id {max(ids)}, and its config.json promises a vocab_size of "
                f"{vocab_size}; fetch the model again."
            )
        return ids

    @property
    def add_special_tokens(self) -> bool:
        """Whether the tokenizer is to set the marks around a text; a chat template brings its own."""
        return not self.tokenizer.chat_template

    def render(self, messages: Sequence[Message], waits: bool = True) -> str:
        """Returns the text of a conversation that `waits` for the assistant, or that has just ended.

        A model without a template gets the contents as plain text. Where a template refuses a system message, it is
        put before the first user message. Raises LocalspecError for a template that fails.
        """
        messages = [{**message, "content": self.disarm(message["content"])} for message in messages]
        if self.add_special_tokens:
            return "\n\n".join(message["content"] for message in messages)
        return self._templated(messages, waits)

    def _templated(self, messages: Sequence[Message], waits: bool) -> str:
        said = sum(len(message["content"]) for message in messages)
        request = {
            "template": self.tokenizer.chat_template,
            "messages": messages,
            "waits": waits,
            "tokens": self.tokenizer.special_tokens,
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
            return self._templated([first, *rest], waits)
        raise LocalspecError(
            f"The model's chat template cannot be used ({first_line(answer['error'])[:200]}); fetch the model again."
        )

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
