"""Turns conversations into text and token ids by a model's own chat template and tokenizer, and ids into text."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError

from localspec.errors import LocalspecError, first_line
from localspec.models.model_config import ModelConfig

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}


class ChatTokenizer:
    """A Hugging Face tokenizer with its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Returns the token ids of a conversation that waits for the assistant."""
        ids: list[int] = self.tokenizer(self.render(messages), add_special_tokens=self.add_special_tokens)["input_ids"]
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
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=waits)
        except Exception as error:  # a template is somebody else's program, and may fail in any way
            if isinstance(error, TemplateError) and messages[0]["role"] == "system" and len(messages) > 1:
                system, first, *rest = messages
                first = {**first, "content": f"{system['content']}\n\n{first['content']}"}
                return self._templated([first, *rest], waits)
            raise LocalspecError(
                f"The model's chat template cannot be used ({first_line(error)}); fetch the model again."
            ) from error
        return text

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of token ids; special tokens have none."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no text: role marks, ends, padding."""
        return frozenset(self.tokenizer.all_special_ids) | self._added_special.keys()

    @cached_property
    def _added_special(self) -> dict[int, str]:
        return {i: token.content for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}

    def disarm(self, content: str) -> str:
        """Breaks up what spells a special token, so that it stays text: a piped file must not end the user's turn."""
        for token in self._added_special.values():
            if token in content:
                content = content.replace(token, token[0] + "\u200c" + token[1:])
        return content


def stop_tokens(config: ModelConfig, generation: Mapping[str, Any], tokenizer: Any) -> frozenset[int]:
    """Returns every id that ends a reply: of both configs, of the tokenizer, and the mark that the template sets.

    Raises LocalspecError where one is not a token id.
    """
    stops: set[int] = set()
    for ids in (config.eos_token_id, generation.get("eos_token_id"), tokenizer.eos_token_id):
        several = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if not all(isinstance(token, int) for token in several):
            raise LocalspecError(f"The eos_token_id {ids!r} of this model is no token id; fetch the model again.")
        stops.update(several)
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\u2460"}]
        try:
            after = tokenizer.apply_chat_template(turns, tokenize=False).rpartition("\u2460")[2]
        except Exception:  # noqa: BLE001  # some refuse such turns; one that always fails is reported when it is used
            return frozenset(stops)
        first = tokenizer(after.strip(), add_special_tokens=False)["input_ids"][:1]
        stops.update(set(first) & tokenizer.added_tokens_decoder.keys())
    return frozenset(stops)


def tokenizer_hash(tokenizer: Any) -> str:
    """Returns a hash: two tokenizers with the same one give the same ids for every text."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16]
