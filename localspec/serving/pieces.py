"""Reads the messages in a server's reply: texts, the drafters of tokens, and figures. Any message may be invalid."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from localspec.errors import LocalspecError
from localspec.events import Reason
from localspec.models.thinking import KNOWN, Parting
from localspec.outside_files import parse_json
from localspec.text import one_line, safe, shortened

LONGEST_WORDS = 300  # characters of a server's own sentence
DEEPEST = 64  # depths of drafts with reported chances
MOST_SOURCES = 100  # names of proposers
_REASONS: Mapping[object, Reason] = {
    **dict.fromkeys(("length", "max_tokens"), "length"),
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn"), "stop"),
    **dict.fromkeys(("tool_calls", "function_call"), "stop"),  # reported under the name of the tool
}
END = b"[DONE]"


class Broken(LocalspecError):
    """An error: an answer does not follow the protocol."""


class GaveUp(LocalspecError):
    """An error: a server reports that it cannot finish a reply."""


class ServerPiece(NamedTuple):
    """The content of one message of a server."""

    text: str = ""
    reasoning: str = ""
    reason: Reason | None = None  # why the reply is over
    usage: Mapping[str, Any] = {}
    localspec_fields: Mapping[str, Any] = {}  # fields that only localspec sends
    timings: Mapping[str, Any] = {}  # fields that only llama-server sends
    tool: str | None = None  # the name of a called tool, perhaps empty
    why: str = ""  # its word for an unusual reason
    in_reply: bool = False  # whether it is part of the reply at all


def read_piece(content: bytes) -> ServerPiece:
    """Return the content of one message of a stream, or of a whole reply.

    Raises Broken, and GaveUp for a refusal by the server.
    """
    try:
        value = parse_json(content)
    except ValueError:
        raise Broken(f"the server sent {shown(content)} instead of JSON") from None
    if not isinstance(value, dict):
        raise Broken(f"the server sent {shown(content)} instead of a JSON object")
    if value.get("error"):
        raise GaveUp(words_of(value) or "the server sent no details.")
    choices = value.get("choices")
    choices = [] if choices is None else choices
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise Broken(f"the server sent {shown(content)} instead of a piece of a reply")
    # One reply was requested: one with another number does not belong to it.
    first: Mapping[str, Any] = next((choice for choice in choices if choice.get("index") in (0, None)), {})
    message = mapping(first.get("delta")) or mapping(first.get("message"))
    reason = first.get("finish_reason") or None  # some have an empty text until the end
    reason_name = reason if isinstance(reason, str) else repr(reason)
    return ServerPiece(
        _content(message.get("content"), content),
        _text(message.get("reasoning_content")) or _text(message.get("reasoning")),
        None if reason is None else _REASONS.get(reason_name, "stop"),
        mapping(value.get("usage")),
        mapping(value.get("localspec")),
        mapping(value.get("timings")),
        _first_called_tool(message, reason),
        "" if reason is None or reason_name in _REASONS else shortened(one_line(reason_name), 60),
        bool(first),
    )


def _first_called_tool(message: Mapping[str, Any], reason: object) -> str | None:
    calls = message.get("tool_calls")
    called = mapping(calls[0]) if isinstance(calls, list) and calls else {}
    function = mapping(called.get("function")) or mapping(message.get("function_call"))
    if not called and not function and reason not in ("tool_calls", "function_call"):
        return None
    name = function.get("name")
    return shortened(one_line(name), 60) if isinstance(name, str) else ""


class ThinkingInText:
    """A splitter of thoughts and answer, for servers that leave both in the text, with `<think>` tags."""

    def __init__(self, separated: bool) -> None:
        """Begin a reply. If `separated`, the server separates thoughts itself, and the text is not split."""
        self._parting = None if separated else Parting(KNOWN[0])
        self._handed_on = 0  # up to here

    def part(self, piece: ServerPiece, final: bool) -> ServerPiece:
        """Return the next piece, divided into thoughts and answer.

        A possible beginning of a tag is held back until there is more text, or until the `final` piece.
        """
        if self._parting is None:
            return piece
        if piece.reasoning and not self._parting.text:
            self._parting = None
            return piece
        self._parting.add(piece.text)
        if final:
            self._parting.finish()
        start, self._handed_on = self._handed_on, max(self._handed_on, self._parting.settled)
        thought, answer = self._parting.between(start, self._handed_on)
        return piece._replace(text=answer, reasoning=piece.reasoning + thought)


def messages(lines: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """Yield the messages of a stream of server-sent events, and None if nothing came for a while."""
    gathered: list[bytes] = []
    for line in lines:
        if line is None:
            yield None
        elif line.startswith(b"data:"):
            gathered.append(line[5:].removeprefix(b" "))
        elif not line and gathered:
            yield b"\n".join(gathered)
            gathered.clear()
    if gathered:
        yield b"\n".join(gathered)


def words_of(value: object) -> str:
    """Return the server's error as one line of limited length; empty if it reports none."""
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    if message is None and isinstance(value, dict):
        message = value.get("message") or value.get("detail")
    return shortened(one_line(message), LONGEST_WORDS) if isinstance(message, str) else ""


def shown(content: bytes) -> str:
    """Return the beginning of a server's answer, quoted and safe to print in a message."""
    return repr(shortened(one_line(content[:LONGEST_WORDS].decode("utf-8", "replace")), 60))


def count(value: object) -> int | None:
    """Return `value` if it can be a number of tokens or bytes, otherwise None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def number(value: object) -> float | None:
    """Return `value` as a float if it can be a measurement (0 ≤ value < 10¹²), otherwise None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return float(value) if is_number else None  # type: ignore[arg-type]


def proposed(localspec_fields: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the token ids in `localspec_fields`, and which drafter proposed each; both empty if missing or invalid."""
    tokens, sources = localspec_fields.get("token_ids"), localspec_fields.get("token_sources")
    if not isinstance(tokens, list) or not isinstance(sources, list) or len(tokens) != len(sources):
        return (), ()
    if not all(type(token) is int and 0 <= token < 2**31 for token in tokens):
        return (), ()
    if not all(isinstance(source, str) and len(source) <= 100 for source in sources):
        return (), ()
    return tuple(tokens), tuple(map(one_line, sources))


def word(value: object) -> str:
    """Return a text as one line of at most 100 characters; empty for anything else."""
    return one_line(value)[:100] if isinstance(value, str) else ""


def _content(value: object, content: bytes) -> str:
    """Return the text of a piece of a reply, or the joined texts of its parts. Raises Broken for anything else."""
    if value is None or isinstance(value, str):
        return _text(value)
    parts = [part.get("text") if isinstance(part, dict) else None for part in value] if isinstance(value, list) else []
    if not isinstance(value, list) or not all(isinstance(part, str) for part in parts):
        raise Broken(f"the server sent {shown(content)}, whose content is not text")
    return safe("".join(map(str, parts)))


def _text(value: object) -> str:
    return safe(value) if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}
