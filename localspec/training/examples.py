"""Reads texts, conversations and prompts from files, as characters; it does not use a tokenizer."""

import hashlib
import json
import lzma
import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from localspec.bench.prompts import BenchPrompt
from localspec.errors import UsageMistake
from localspec.models.messages import Message
from localspec.outside_files import DATA_LIMIT, MIB, decoded, parse_json, read_bytes
from localspec.store.conversations import Saved, Turn
from localspec.store.history import History

PIECE = 4000  # characters of plain text in an example, about; it is cut between paragraphs
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Example:
    """A text to learn from, or a conversation with replies of the assistant."""

    text: str = ""
    messages: tuple[Message, ...] = ()

    @cached_property
    def digest(self) -> bytes:
        """A digest, the same on every machine for the same text."""
        return hashlib.sha256(json.dumps([self.text, self.messages], sort_keys=True).encode()).digest()


@dataclass(frozen=True)
class Question:
    """A conversation that the assistant must answer, and the user's prompts `following`, one after each reply."""

    id: str
    messages: tuple[Message, ...]
    following: tuple[str, ...] = ()


def read_examples(files: Sequence[Path]) -> list[Example]:
    """Read plain text, or JSONL with "text" or "messages" in each line; both may be compressed with xz.

    Raises UsageMistake for a file that cannot be read, is not UTF-8, or has no examples.
    """
    return [example for file in files for example in _examples(file)]


def read_answers(file: Path, most: int | None = None) -> list[Example]:
    """Return the first `most` lines of a file of answers, or all lines; nothing if the file does not exist.

    Another training may add lines at the same time, so a line without its end is left out. Raises UsageMistake for a
    file that cannot be read.
    """
    try:
        *whole, _ = read_bytes(file, DATA_LIMIT).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageMistake(f"{file} cannot be read ({error.strerror}); give a readable file.") from None
    content = b"\n".join(whole[:most]).decode("utf-8", "replace")
    return [_from_json(entry, place) for entry, place in _entries(file, content)]


def digest_of(examples: Sequence[Example]) -> str:
    """Return a short digest of texts in their order."""
    return hashlib.sha256(b"".join(example.digest for example in examples)).hexdigest()[:16]


def _examples(file: Path) -> list[Example]:
    content = _content(file)
    if _is_json(file, content):
        examples = [_from_json(entry, place) for entry, place in _entries(file, content)]
    else:
        examples = [Example(piece) for piece in _pieces(content)]
    if not examples:
        raise UsageMistake(f"{file} has no text; give a file with text.")
    return examples


def read_questions(file: Path) -> list[Question]:
    """Read prompts from JSONL with "turns", "prompt" or "messages" in each line, or from plain text with one prompt per
    line.

    A line of JSONL may have an "id". Files may be compressed with xz. Every turn gets a reply; a conversation gets one
    reply after its last user message. Raises the errors of `read_examples`.
    """
    content = _content(file)
    if _is_json(file, content):
        questions = [
            Question(str(entry.get("id", number)), *_prompts(entry, place))
            for number, (entry, place) in enumerate(_entries(file, content), start=1)
        ]
    else:
        lines = [line.strip() for line in content.split("\n") if line.strip()]
        questions = [
            Question(str(number), ({"role": "user", "content": line},)) for number, line in enumerate(lines, start=1)
        ]
    if not questions:
        raise UsageMistake(f"{file} has no prompts; write one per line.")
    names = [question.id for question in questions]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageMistake(
            f"{file} has the id {twice!r} more than once, so replies to it would be ambiguous; give each prompt a "
            "different id."
        )
    return questions


def _prompts(entry: dict[str, Any], place: str) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Return the messages that the model answers first, and the user's prompts that come after each reply."""
    if "messages" in entry:
        messages = _messages(entry["messages"], place)
        last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
        if last >= 0:
            return messages[: last + 1], ()
    turns = entry.get("turns", [entry.get("prompt")])
    texts = turns if isinstance(turns, list) else []
    if "messages" in entry or not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise UsageMistake(
            f'{place}: there is no prompt; write {{"prompt": "…"}}, {{"turns": ["…"]}} or {{"messages": […]}}.'
        )
    first, *following = map(_whole, texts)
    return ({"role": "user", "content": first},), tuple(following)


def _content(file: Path) -> str:
    try:
        content = read_bytes(file, DATA_LIMIT, pipe=True)
    except OSError as error:
        raise UsageMistake(f"{file} cannot be read ({error.strerror}); give a readable file.") from None
    if file.suffix == ".xz":
        try:
            with lzma.open(BytesIO(content)) as unpacked:
                content = unpacked.read(DATA_LIMIT + 1)
        except (lzma.LZMAError, EOFError) as error:
            raise UsageMistake(f"{file} is not a whole xz file ({error}); fetch it again.") from None
        if len(content) > DATA_LIMIT:
            raise UsageMistake(f"{file} has more than {DATA_LIMIT // MIB} MiB of text; give a smaller file.")
    try:
        return decoded(content)
    except ValueError as error:
        raise UsageMistake(f"{file} cannot be read, because it {error}; give JSONL or plain text.") from None


def _is_json(file: Path, content: str) -> bool:
    """Return whether a file is JSONL. Raises UsageMistake for a file that is a single JSON list."""
    name = file.with_suffix("").suffix if file.suffix == ".xz" else file.suffix
    begins = "" if name == ".txt" else content.lstrip()[:1]
    if begins == "[" and name != ".jsonl" and _is_list(content):
        raise UsageMistake(f"{file} is one JSON list; write one object per line (JSONL).")
    return name == ".jsonl" or begins == "{"


def _is_list(content: str) -> bool:
    try:
        return isinstance(parse_json(content), list)
    except ValueError:
        return False  # a text may begin with a bracket


def _entries(file: Path, content: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the JSON object in each line that is not empty, with a name of the place: `FILE, line 3`."""
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            entry = parse_json(line)
        except ValueError:
            raise UsageMistake(f"{place}: this line is not JSON; correct it.") from None
        if not isinstance(entry, dict):
            raise UsageMistake(f"{place}: this line is not a JSON object; correct it.")
        yield entry, place


def _from_json(entry: dict[str, Any], place: str) -> Example:
    if "messages" in entry:
        messages = _messages(entry["messages"], place)
        if not any(message["role"] == "assistant" for message in messages):
            raise UsageMistake(
                f"{place}: this line has no message of the assistant, so there is nothing to learn; remove the line."
            )
        return Example(messages=messages)
    text = entry.get("text")
    if not isinstance(text, str) or not text.strip():
        raise UsageMistake(f'{place}: there is neither "text" nor "messages"; write one of them.')
    return Example(_whole(text))


def _messages(value: object, place: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise UsageMistake(f'{place}: "messages" is not a list of messages; write [{{"role": …, "content": …}}, …].')
    messages = []
    for message in value:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role not in ROLES or not isinstance(content, str):
            raise UsageMistake(f'{place}: a message needs a "role" ({", ".join(ROLES)}) and "content" that is text.')
        messages.append({"role": role, "content": _whole(content)})
    return tuple(messages)


def _pieces(text: str) -> Iterator[str]:
    """Yield paragraphs, joined to about `PIECE` characters. A longer paragraph is cut between lines or words."""
    waiting: list[str] = []
    size = 0  # of the waiting paragraphs
    for paragraph in text.replace("\r\n", "\n").split("\n\n"):
        # the start of the rest: an index, because copying the rest each time would take hours for a large file
        start = 0
        while len(paragraph) - start > PIECE:
            end = start + PIECE
            cut = max(paragraph.rfind("\n", start + 1, end), paragraph.rfind(" ", start + 1, end))
            cut = cut if cut > 0 else end
            yield "\n\n".join([*waiting, paragraph[start:cut]])
            waiting, size, start = [], 0, cut
        rest = paragraph[start:]
        if waiting and size + len(rest) > PIECE:
            yield "\n\n".join(waiting)
            waiting, size = [], 0
        waiting.append(rest)
        size += len(rest)
    if "".join(waiting).strip():
        yield "\n\n".join(waiting)


def _whole(text: str) -> str:
    """Return a text without lone surrogates, which no tokenizer accepts."""
    return text.encode("utf-8", "replace").decode()


HELD_OUT = 0.125  # of the conversations, by digests of their beginnings: the same ones after others were added
BENCHED = 12  # of those, at most
WHOLE = ("stop", "length")  # reasons for the end of an uninterrupted reply


@dataclass(frozen=True)
class PastConversation:
    """A saved conversation in which every reply is the model's own."""

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Past:
    """A user's saved conversations, the newest first, in three groups.

    `conversations` are to learn from as they are. `questions` are conversations whose prompts the model answers again.
    `held_out` are prompts kept for the benchmark, and no conversation with one of them is in the other groups.
    """

    conversations: Sequence[PastConversation]
    questions: Sequence[Question]
    held_out: Sequence[BenchPrompt]


def read_past(history: History, model: str) -> Past:
    """Return the saved conversations. Replies count as the model's own if the conversation used `model` last.

    Raises StoreTrouble.
    """
    saved = [loaded for info in history.conversations() if (loaded := history.read(info.id)) is not None]
    apart = {chat.turns[0].prompt for chat in saved if _is_held_out(chat.turns[0].prompt)}
    conversations: list[PastConversation] = []
    questions: list[Question] = []
    for chat in saved:
        turns = [turn for turn in chat.turns if turn.prompt.strip()]
        if not turns or apart & {turn.prompt for turn in turns}:
            continue
        name = _name(chat.info.id, turns)
        if chat.info.model == model and (messages := _complete_messages(chat, turns)):
            conversations.append(PastConversation(name, messages))
        else:
            first, *following = [turn.prompt for turn in turns]
            questions.append(Question(name, (*_system(chat), {"role": "user", "content": first}), tuple(following)))
    benched = sorted(apart, key=_digest)[:BENCHED]
    return Past(
        conversations,
        questions,
        [BenchPrompt(f"yours-{number}", "yours", text) for number, text in enumerate(benched, start=1)],
    )


def _is_held_out(prompt: str) -> bool:
    return bool(prompt.strip()) and int.from_bytes(_digest(prompt)[:4], "big") < HELD_OUT * 2**32


def _name(conversation: int, turns: Sequence[Turn]) -> str:
    """Return a name for a saved conversation. The name changes with every turn, because the text changes."""
    digest = hashlib.sha256("\0".join(text for turn in turns for text in (turn.prompt, turn.reply)).encode())
    return f"history-{conversation}-{digest.hexdigest()[:8]}"


def _digest(prompt: str) -> bytes:
    return hashlib.sha256(prompt.encode()).digest()


def _complete_messages(chat: Saved, turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Return a conversation's messages before the first reply that was interrupted or is missing."""
    messages: list[Message] = []
    for turn in turns:
        if turn.reason not in WHOLE or not turn.reply.strip():
            break
        messages += [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": turn.reply}]
    return (*_system(chat), *messages) if messages else ()


def _system(chat: Saved) -> tuple[Message, ...]:
    return ({"role": "system", "content": chat.system},) if chat.system else ()


SHIPPED = Path(__file__).parent / "prompts.toml"
COPIES = 16  # of a template, each time with other words and numbers
T = TypeVar("T")
SLOT = re.compile("«(?:(\\d+)-(\\d+)|([a-z]+))»")


def shipped_questions() -> list[Question]:
    """Return localspec's own prompts for training text, always in the same order, which alternates categories."""
    return _in_turn([list(_questions(kind, entry)) for kind, entry in _kinds().items()])


def held_out_prompts() -> list[BenchPrompt]:
    """Return localspec's own prompts that are never used in training, in an order that alternates categories."""
    return _in_turn(
        [
            [BenchPrompt(f"{kind}-{number}", kind, text) for number, text in enumerate(entry["held_out"], start=1)]
            for kind, entry in _kinds().items()
        ]
    )


def _in_turn(groups: Sequence[Sequence[T]]) -> list[T]:
    return [item for turn in zip_longest(*groups) for item in turn if item is not None]


def _questions(kind: str, entry: Mapping[str, Any]) -> Iterator[Question]:
    every = [*_single(entry), *entry.get("dialogues", ())]
    mixed = random.Random(kind).sample(every, len(every))  # noqa: S311
    for number, (first, *following) in enumerate(mixed, start=1):
        yield Question(f"{kind}-{number}", ({"role": "user", "content": first},), tuple(following))


@cache
def _shipped() -> Mapping[str, Any]:
    return tomllib.loads(SHIPPED.read_text("utf-8"))


def _kinds() -> dict[str, Mapping[str, Any]]:
    return {kind: entry for kind, entry in _shipped().items() if kind != "words"}


def _single(entry: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield the single-turn prompts in a category's `entry`, each once. Some of them are made from templates."""
    prompts = dict.fromkeys(entry["prompts"])
    for template in entry["templates"]:
        draw = random.Random(template)  # noqa: S311
        prompts |= dict.fromkeys(_filled(template, draw) for _ in range(entry.get("copies", COPIES)))
    return ((text,) for text in prompts)


def _filled(template: str, draw: random.Random) -> str:
    def word(slot: re.Match[str]) -> str:
        low, high, name = slot.groups()
        return str(draw.randint(int(low), int(high))) if name is None else draw.choice(_shipped()["words"][name])

    return SLOT.sub(word, template)
