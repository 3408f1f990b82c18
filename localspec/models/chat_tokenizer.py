"""Turns conversations into text and token ids with a model's own chat template and tokenizer, and ids into text."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError, UsageMistake, first_line
from localspec.models.encoding import Unwanted
from localspec.models.messages import Message
from localspec.models.model import recommended_sampling
from localspec.models.spelled_marks import PROBE, SpelledMarks, whole_characters
from localspec.models.thinking import Switch, Thinking, WhenItThinks, find_switch, marks_of
from localspec.models.tokenizer import Tokenizer
from localspec.weights import packed_file
from localspec.weights.checkpoint import is_packed

_COUNTED = 2**16  # messages whose token counts are remembered
_FRAME = 2**20  # characters that a template may add around the messages
# Text that a template which changes prompts would change: case, characters of HTML, a long line.
_PROBE = "\u2461 Is \"Abc\" < 3 & 'xyz' > 12? " + " ".join(map(str, range(20)))
_PLAINEST: list[Message] = [{"role": "user", "content": "a"}]
_LIKE_A_MARK = re.compile(r"(?=.*[^\W\d_])[^\w\s].*[^\w\s]", re.DOTALL)  # <|user|>, [INST], but no spaces and no words


class Refusal(UsageMistake):
    """An error: a chat template refuses a conversation, for example one with two turns of the user in a row."""


class ChatTokenizer:
    """A tokenizer with its chat template. A *mark* is a special token around turns or prompts, such as <|im_end|>."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._stopped = tokenizer.trial.template_fault
        # The messages that the template writes into its text, by roles and switches.
        self._writes: dict[tuple[object, ...], frozenset[int]] = {}
        self._spelled: dict[str, bool] = {}  # whether the vocabulary can spell a character
        self._counts: dict[int, int] = {}  # tokens of messages, by the hash of their text

    def encode(self, messages: Sequence[Message], vocab_size: int, think: bool | None = None) -> list[int]:
        """Return the token ids of a conversation that waits for the assistant, as `render` renders it.

        Special tokens in typed text stay text. Raises LocalspecError for ids of `vocab_size` or more, and the errors of
        `render`.
        """
        ids = self._marked(self.marks.encode(self.render_apart(messages, think=think), self.add_special_tokens))
        if ids and (highest := max(ids)) >= vocab_size:
            raise LocalspecError(
                f"The model's tokenizer gives the id {highest}, but its config.json has a vocab_size of {vocab_size}; "
                "fetch the model again."
            )
        return ids

    def _marked(self, ids: list[int]) -> list[int]:
        """Add the special tokens that the model's file requires around each prompt, if the prompt `ids` lack them."""
        before, after = self.tokenizer.around
        begins, ends = ids[: len(before)] == before, ids[len(ids) - len(after) :] == after
        return [*([] if begins else before), *ids, *([] if ends else after)]

    def added_marks(self) -> list[tuple[str, bool]]:
        """Return the special tokens that the model's file requires around prompts, but that the chat template omits.

        Each is a pair: its text, and True if it precedes the prompt, or False if it follows.
        """
        if self.add_special_tokens or not any(self.tokenizer.around):
            return []
        try:
            ids = self.tokenizer.encode(self.render([{"role": "user", "content": "a"}]), False)
        except LocalspecError:  # reported when the template is used
            return []
        framed = self._marked(ids)
        before = [(token, True) for token in self.tokenizer.around[0] if framed[:1] != ids[:1]]
        after = [(token, False) for token in self.tokenizer.around[1] if framed[-1:] != ids[-1:]]
        return [(self.tokenizer.decode([token]), first) for token, first in before + after]

    def require_template(self) -> None:
        """Raise LocalspecError if the model's chat template cannot be used."""
        self.render(_PLAINEST)

    def count(self, text: str) -> int:
        """Return the number of tokens in the text of a message. Results are cached, by the hashes of the texts."""
        key = hash(text)
        if key not in self._counts:
            if len(self._counts) >= _COUNTED:
                self._counts.clear()
            self._counts[key] = len(self.tokenizer.encode(text, False))
        return self._counts[key]

    @property
    def add_special_tokens(self) -> bool:
        """Whether the tokenizer adds special tokens around a text.

        With a chat template it does not, because the template writes them.
        """
        return not self.tokenizer.chat_template

    def render(self, messages: Sequence[Message], waits: bool = True, think: bool | None = None) -> str:
        """Return the text of a conversation that `waits` for the assistant, or that has just ended.

        Without a template, return the contents as plain text. System messages that a template refuses or leaves out are
        put before the next user message. `think` sets a template's switch for thinking, unless it is None. Raises
        Refusal for a conversation that the template refuses, and LocalspecError for a template that fails.
        """
        return self.marks.restored(self.render_apart(messages, waits, think))

    def render_apart(self, messages: Sequence[Message], waits: bool = True, think: bool | None = None) -> str:
        """Return the text of `render`, but change special tokens that a user typed, so that they are not recognized.

        Usually a stand-in replaces the first character. `marks` then encodes them as ordinary text.
        """
        # Many templates do not use the thoughts before earlier answers.
        unread = () if "reasoning_content" in (self.tokenizer.chat_template or "") else ("reasoning_content",)
        used = ({key: text for key, text in message.items() if key not in unread} for message in messages)
        plain = [_with_texts(message, whole_characters) for message in used]
        apart = [_with_texts(message, self.marks.set_apart) for message in plain]
        if apart == plain:
            return self._rendered(plain, waits, think)
        try:
            text = self._rendered(apart, waits, think)
            whole = all(value.strip() in text for message in apart for key, value in message.items() if key != "role")
            if whole or self.marks.restored(text) == self._rendered(plain, waits, think):
                return text
        except LocalspecError:  # such as a template that searches for its marks in messages
            pass
        return self._rendered([_with_texts(message, self.marks.broken) for message in plain], waits, think)

    def _rendered(self, messages: Sequence[Message], waits: bool, think: bool | None) -> str:
        if self.add_special_tokens:
            return "\n\n".join(message["content"] for message in messages)
        switch = None if think is None else self.switch
        if switch is None or think is None:
            return self._templated(messages, waits)
        return self._templated(switch.with_words(messages, think), waits, switch.variables(think))

    def _templated(self, messages: Sequence[Message], waits: bool, switches: Mapping[str, bool] | None = None) -> str:
        """Render a conversation with the chat template. Raises the errors of `render`.

        System messages that the template refuses or leaves out are merged into user messages.
        """
        answer = self._answer(messages, waits, switches)
        systems = {index for index, message in enumerate(messages) if message["role"] == "system"}
        if "text" in answer and systems:
            systems -= self._included_systems(messages, waits, switches)
        if systems and ("text" in answer or answer.get("refused")):
            for merged in (systems - {0}, systems):  # many accept the first one, but no others
                fewer_messages = _merged(messages, merged)
                if len(fewer_messages) == len(messages):
                    continue
                new_answer = self._answer(fewer_messages, waits, switches)
                if "text" in new_answer and (
                    merged == systems or 0 in self._included_systems(fewer_messages, waits, switches)
                ):
                    return str(new_answer["text"])
                answer = answer if "text" in answer else new_answer
        if "text" in answer:
            return str(answer["text"])
        words = whole_characters(self.marks.restored(first_line(answer["error"])[:200]))
        if answer.get("refused") and "text" in self._answer(_PLAINEST, True):
            raise Refusal(f"The model's chat template refuses this conversation ({words}); change the messages.")
        remedy = "correct the template, or choose another model" if answer.get("limit") else "fetch the model again"
        raise LocalspecError(f"The model's chat template cannot be used ({words}); {remedy}.")

    def _answer(
        self, messages: Sequence[Message], waits: bool, switches: Mapping[str, bool] | None = None
    ) -> dict[str, Any]:
        """Run the template on a conversation. Return {"text": …}, or {"error": reason}.

        An error has `refused` if the template raised it on purpose, and `limit` if the template exceeded a limit.
        """
        if self._stopped:
            return {"error": self._stopped, "limit": True}
        from jinja2 import TemplateError  # slow to import

        from localspec.models.chat_template import TOO_SLOW, length, render_template

        template, tokens = self.tokenizer.chat_template or "", self.tokenizer.special_tokens
        try:
            text = render_template(template, messages, waits, tokens, switches)
        except TemplateError as error:
            return {"error": f"{error}" or type(error).__name__, "refused": True}
        except TimeoutError:
            self._stopped = TOO_SLOW  # a template that never ends is not run again
            return {"error": TOO_SLOW, "limit": True}
        except MemoryError as error:
            return {"error": f"{error}" or "the template takes more memory than there is", "limit": True}
        except Unwanted:
            raise
        except Exception as error:  # noqa: BLE001  # a template fails as any program can
            return {"error": f"{error}" or type(error).__name__}
        if len(text) > (limit := _FRAME + 4 * length(messages)):
            return {
                "error": f"the template makes a text of {len(text):,} characters, but at most {limit:,} are allowed",
                "limit": True,
            }
        if _halves(text) - _halves("".join("".join(message.values()) for message in messages)):
            return {"error": "the template produces halves of surrogate pairs, which are not characters"}
        return {"text": text}

    def _included_systems(
        self, messages: Sequence[Message], waits: bool, switches: Mapping[str, bool] | None
    ) -> frozenset[int]:
        """Return the indices of the system messages whose contents are in the template's text."""
        key = (*(message["role"] for message in messages), waits, *sorted((switches or {}).items()))
        if key not in self._writes:
            included = set()
            for index, message in enumerate(messages):
                if message["role"] == "system":
                    probe = {**message, "content": f"{message['content']}{PROBE}"}
                    answer = self._answer([*messages[:index], probe, *messages[index + 1 :]], waits, switches)
                    if PROBE in answer.get("text", PROBE):
                        included.add(index)
            self._writes[key] = frozenset(included)
        return self._writes[key]

    # -- marks ---------------------------------------------------------------------------------------------------------

    @cached_property
    def marks(self) -> SpelledMarks:
        """The codec that encodes marks as text where a user typed them, and as tokens where the template wrote them."""
        added = self.tokenizer.added_tokens
        special = {token.content for token in added.values() if token.special}
        named = {added[token].content for token in self.tokenizer.special_ids & added.keys()}
        return SpelledMarks(self.tokenizer, special | named | {added[token].content for token in self.turn_marks})

    @cached_property
    def turn_marks(self) -> frozenset[int]:
        """Added tokens that the template writes around turns, although the tokenizer's files do not list
        them as special."""
        added = {
            token: entry.content
            for token, entry in self.tokenizer.added_tokens.items()
            if token not in self.tokenizer.special_ids and _LIKE_A_MARK.fullmatch(entry.content)
        }
        thinking = marks_of(self.tokenizer.chat_template or "", list(added.values()))
        added = {token: content for token, content in added.items() if not thinking or content not in thinking[:2]}
        if self.add_special_tokens or not added:
            return frozenset()
        turns = [{"role": role, "content": "a"} for role in ("system", "user", "assistant", "user")]
        ids: set[int] = set()
        for conversation, waits in ((turns, True), (turns[1:], True), (turns[1:2], True), (turns[1:3], False)):
            text = str(self._answer(conversation, waits).get("text", ""))
            ids.update(self.tokenizer.encode(text, False))
        return frozenset(ids & added.keys())

    # -- thinking ----------------------------------------------------------------------------------------------------

    @cached_property
    def thinking(self) -> Thinking | None:
        """The decoder that knows the marks around thoughts; None if the model has no known marks."""
        added = self.tokenizer.added_tokens
        marks = marks_of(self.tokenizer.chat_template or "", [token.content for token in added.values()])
        if marks is None:
            return None
        special = {token: added[token].content for token in added.keys() & self.tokenizer.special_ids}
        several = (*marks[:2], marks.direct)  # a mark may be made of several tokens
        shown = {token: content for token, content in special.items() if any(content in mark for mark in several)}
        return Thinking(marks, self.decode, self.tokenizer.decode, shown)

    @cached_property
    def switch(self) -> Switch | None:
        """The `Switch` by which the chat template turns thinking on or off; None if the template has no switch."""
        return find_switch(self.tokenizer.chat_template or "", self._switched)

    def heeds_switch(self, system: str | None) -> bool:
        """Return whether the switch for thinking changes the prompt. Some system prompts disable it."""
        return self.switch is not None and self.switch.changes(self._switched, system)

    def thinks_by_itself(self, system: str | None) -> bool | None:
        """Return whether the template lets the model think by default; None if its switch has no effect."""
        return self.switch.is_on(self._switched, system) if self.switch and self.heeds_switch(system) else None

    def _switched(self, messages: Sequence[Message], switches: Mapping[str, bool]) -> str:
        """Return the template's text of a conversation, with the variables `switches`; "" if the template fails."""
        try:
            return self._templated(messages, waits=True, switches=switches)
        except LocalspecError:
            return ""

    @property
    def thinks(self) -> WhenItThinks | None:
        """When the model thinks before an answer: "always", "no", or "switch" if a switch decides; None if unknown."""
        if self.switch is not None:
            return "switch"
        if self.thinking is None:
            return "no"
        text = self._switched([{"role": "user", "content": "a"}], {})
        begun = text.rstrip().endswith(self.thinking.marks.opening)
        return "always" if begun else None

    # -- reading and writing ------------------------------------------------------------------------------------------

    def prompt_loss(self) -> str:
        """Return how the template alters prompts: "leaves out", "changes", or empty if it does not.

        For a template that fails the result is empty, because its error is raised later, when the template is used.
        """
        try:
            if _PROBE in (text := self.render([{"role": "user", "content": _PROBE}])):
                return "changes" if text.count(_PROBE) > 1 else ""
        except LocalspecError:
            return ""
        return "changes" if "\u2461" in text else "leaves out"

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens and marks of turns."""
        if self.turn_marks:
            tokens = [token for token in tokens if token not in self.turn_marks]
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def unspelled(self, messages: Sequence[Message]) -> str:
        """Return the characters of a conversation that the vocabulary cannot represent, each once."""
        characters = {character for message in messages for character in set(whole_characters(message["content"]))}
        new = "".join(sorted(characters - self._spelled.keys()))
        if self._spells(new):
            self._spelled.update(dict.fromkeys(new, True))
        else:
            self._spelled.update({character: self._spells(character) for character in new})
        return "".join(sorted(character for character in characters if not self._spelled[character]))

    def _spells(self, characters: str) -> bool:
        """Return whether the vocabulary can represent every character of a text.

        Results for single characters are cached.
        """
        if characters.isspace():
            return True
        ids = self.tokenizer.encode(characters, False)
        if self.tokenizer.token_to_id(self.tokenizer.special_tokens.get("unk_token", "")) in ids:
            return False
        decoded = self.tokenizer.decode(ids)  # normalised characters, which by themselves become others
        return set(characters) <= set(decoded) or (len(characters) == 1 and bool(decoded.strip()))

    def stop_tokens(self, eos_token_ids: Iterable[object]) -> frozenset[int]:
        """Return all ids that end a reply: the given ids, the tokenizer's, and the mark that the template writes after
        replies.

        `eos_token_ids` are values of config.json and generation_config.json: an id, a list of ids, or None. Raises
        LocalspecError if one is not a token id.
        """
        stops: set[int] = set()
        for ids in (*eos_token_ids, self.tokenizer.eos_token_id):
            several = ids if isinstance(ids, list) else [] if ids is None else [ids]
            for token in several:
                if not isinstance(token, int):
                    raise LocalspecError(
                        f"The eos_token_id {ids!r} of this model is not a token id; fetch the model again."
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


def _halves(text: str) -> set[str]:
    """Return a text's surrogates (halves of characters). In messages, they replace first characters of typed marks."""
    return set(re.findall("[\ud800-\udfff]", text))


def _with_texts(message: Message, change: Callable[[str], str]) -> Message:
    return {key: text if key == "role" else change(text) for key, text in message.items()}


def _merged(messages: Sequence[Message], systems: Collection[int]) -> list[Message]:
    """Merge the system messages at the indices `systems` into the user message that follows them, if there is one."""
    merged: list[Message] = []
    waiting: list[Message] = []
    for index, message in enumerate(messages):
        if index in systems:
            waiting.append(message)
        elif waiting and message["role"] == "user":
            merged.append({**message, "content": "\n\n".join(part["content"] for part in (*waiting, message))})
            waiting = []
        else:
            merged.append(message)
    return [*merged, *waiting]


def chat_files(path: Path) -> tuple[ChatTokenizer, Mapping[str, Any]]:
    """Return the tokenizer of a directory or a packed file, and the model's recommended sampling.

    Raises LocalspecError for files that cannot be used.
    """
    return ChatTokenizer(tokenizer_of(path)), recommended_sampling(path)


def tokenizer_of(path: Path) -> Tokenizer:
    """Return the tokenizer of a directory or a packed file. Raises LocalspecError for files that cannot be used."""
    if not is_packed(path):
        return Tokenizer.open(path)
    packed = packed_file.read(path)
    return Tokenizer.decoded({name: packed.text(name) for name in packed.header.texts}, path)
