"""Reads the JSON of a client's request. Unsupported fields are refused, never ignored."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec.config import nearest
from localspec.errors import UsageMistake
from localspec.models.messages import Message

MOST_STOPS = 16
MOST_MESSAGES = 10_000


class RequestRefused(UsageMistake):
    """An error: a request is invalid or not supported. `field` is the JSON key that is wrong."""

    def __init__(self, sentence: str, field: str | None = None) -> None:
        super().__init__(sentence)
        self.field = field


@dataclass(frozen=True)
class ClientRequest:
    """A parsed request: the `messages` of a conversation, or a `text` to continue.

    `sampling` has only the settings that the client gave.
    """

    model: str | None
    messages: Sequence[Message] | None
    text: str | None
    sampling: Mapping[str, Any]
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    stream: bool = False
    usage_in_stream: bool = False
    client: str | None = None
    limit_field: str = "max_tokens"  # the name under which the limit was sent
    think_field: str = "reasoning_effort"
    whole: bool = True  # refuse a conversation that is longer than the context; if False, leave out its oldest turns


@dataclass
class _Fields:
    """A reader of a request's keys. `left` has the keys that were not read so far, and `known` all supported keys."""

    left: dict[str, Any]
    known: set[str] = field(default_factory=set)

    def take(self, name: str, read: Callable[[str, Any], Any], default: Any = None) -> Any:
        self.known.add(name)
        value = self.left.pop(name, None)
        return default if value is None else read(name, value)

    def only(self, name: str, *values: Any, why: str, instead: str = "leave it out") -> None:
        """Raise RequestRefused for the unsupported field `name`, unless it is missing, null, or equal to one of
        `values`."""
        value = self.left.pop(name, None)
        if value is not None and not any(value == supported and type(value) is type(supported) for supported in values):
            raise RequestRefused(f"'{name}' is not supported ({why}); {instead}.", name)

    def refuse_others(self) -> None:
        for name in (name for name, value in self.left.items() if value is not None):  # null means the same as no field
            raise RequestRefused(
                f"There is no field '{name[:100]}' here{nearest(name, self.known)}; leave it out.", name[:100]
            )


def chat_request(body: object) -> ClientRequest:
    """Return the request in the body of `POST /v1/chat/completions`. Raises RequestRefused."""
    fields = _fields(body)
    messages = fields.take("messages", _messages)
    if messages is None:
        raise RequestRefused("'messages' is missing; give the conversation as a list of messages.", "messages")
    think = fields.take("reasoning_effort", _effort)
    template = fields.take("chat_template_kwargs", _template_switch)
    if think is not None and template is not None and think != template:
        raise RequestRefused(
            "'reasoning_effort' and 'chat_template_kwargs' contradict each other; give one of them.", "reasoning_effort"
        )
    whole = fields.take("truncation", _truncation, True)
    longest = fields.take("max_completion_tokens", _count)
    for name in ("tools", "functions"):
        fields.only(name, [], why="models cannot call tools here")
    for name, off in (("tool_choice", ("none", "auto")), ("function_call", ("none", "auto"))):
        fields.only(name, *off, why="models cannot call tools here")
    fields.only("parallel_tool_calls", True, False, why="models cannot call tools here")
    in_words = "leave it out, describe the wanted JSON in the prompt, and check the reply"
    fields.only(
        "response_format", {"type": "text"}, why="localspec cannot make replies follow a schema", instead=in_words
    )
    fields.only("logprobs", False, why="probabilities are not reported")
    fields.only("top_logprobs", 0, why="probabilities are not reported")
    fields.only("modalities", ["text"], why="only text is supported")
    fields.only("prediction", why="localspec makes the drafts itself")
    fields.only("verbosity", "medium", why="only the prompt decides how long a reply is")
    request = _shared(fields, messages, None, template if think is None else think, longest)
    request = replace(request, whole=whole)
    return replace(request, think_field="chat_template_kwargs") if think is None else request


def text_request(body: object) -> ClientRequest:
    """Return the request in the body of `POST /v1/completions`. Raises RequestRefused."""
    fields = _fields(body)
    text = fields.take("prompt", _prompt)
    if text is None:
        raise RequestRefused("'prompt' is missing; give the text to continue.", "prompt")
    fields.only("suffix", "", why="localspec can add text only after the prompt")
    fields.only("echo", False, why="a reply contains only new text")
    fields.only("best_of", 1, why="each request gets exactly one reply")
    fields.only("logprobs", why="probabilities are not reported")
    return _shared(fields, None, text, None, None)


def _fields(body: object) -> _Fields:
    if not isinstance(body, dict):
        raise RequestRefused("The body of the request is not a JSON object; send one.")
    return _Fields(dict(body))


def _shared(
    fields: _Fields, messages: Sequence[Message] | None, text: str | None, think: bool | None, longest: int | None
) -> ClientRequest:
    max_tokens = fields.take("max_tokens", _count)
    if longest is not None and max_tokens is not None and longest != max_tokens:
        raise RequestRefused(
            "'max_tokens' and 'max_completion_tokens' contradict each other; give one of them.", "max_tokens"
        )
    sampling = {
        "temperature": fields.take("temperature", _number),
        "top_p": fields.take("top_p", _number),
        "top_k": fields.take("top_k", _whole),
        "min_p": fields.take("min_p", _number),
        "seed": fields.take("seed", _whole),
    }
    stream = fields.take("stream", _flag, False)
    usage = fields.take("stream_options", _stream_options)
    if usage is not None and not stream:
        raise RequestRefused("'stream_options' has no effect without 'stream'; leave it out.", "stream_options")
    if not stream:
        fields.known.discard("stream_options")
    fields.only("n", 1, why="each request gets exactly one reply")
    for name in ("presence_penalty", "frequency_penalty"):
        fields.only(name, 0, 0.0, why="probabilities are never changed")
    fields.only("logit_bias", {}, why="probabilities are never changed")
    fields.only("store", False, why="requests over HTTP are not saved")
    fields.only("metadata", {}, why="requests over HTTP are not saved")
    fields.only("service_tier", "auto", "default", why="localspec has no service tiers")
    for name in ("prompt_cache_key", "prompt_cache_retention", "safety_identifier"):  # hints without effect here
        fields.take(name, _ignored_text)
    request = ClientRequest(
        model=fields.take("model", _text),
        messages=messages,
        text=text,
        sampling={name: value for name, value in sampling.items() if value is not None},
        max_tokens=longest if max_tokens is None else max_tokens,
        stop=fields.take("stop", _stops, ()),
        think=think,
        limit_field="max_tokens" if longest is None else "max_completion_tokens",
        stream=stream,
        usage_in_stream=bool(usage),
        client=fields.take("user", _text),
    )
    fields.refuse_others()
    return request


def without_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the JSON object with these keys and values.

    Raises RequestRefused for a key that occurs twice, because one of its values would be ignored.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(twin, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise RequestRefused(f"An object has the key {shown(twin)} twice; leave one of them out.")
    return fields


# -- values -----------------------------------------------------------------------------------------------------------


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RequestRefused(f"'{name}' must be a text, not {shown(value)}.", name)
    return value


def _ignored_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise RequestRefused(f"'{name}' must be a text, not {shown(value)}.", name)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise RequestRefused(f"'{name}' must be true or false, not {shown(value)}.", name)
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestRefused(f"'{name}' must be a number, not {shown(value)}.", name)
    return float(value)


def _truncation(name: str, value: object) -> bool:
    """Return whether all turns must stay in the prompt. `value` is `truncation` of OpenAI's Responses API."""
    if value not in ("auto", "disabled"):
        raise RequestRefused(f"'{name}' must be 'auto' or 'disabled', not {shown(value)}.", name)
    return value == "disabled"


def _whole(name: str, value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise RequestRefused(f"'{name}' must be a whole number of {least} or more, not {shown(value)}.", name)
    return value


def _count(name: str, value: object) -> int:
    return _whole(name, value, least=1)


def _stops(name: str, value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > MOST_STOPS or not all(isinstance(x, str) and x for x in texts):
        raise RequestRefused(
            f"'{name}' must be a text, or a list of at most {MOST_STOPS} texts, none of them empty.", name
        )
    return tuple(texts)


def _stream_options(name: str, value: object) -> bool:
    """Return whether a streamed reply ends with the numbers of tokens in prompt and reply (`include_usage`)."""
    options = _Fields(dict(value)) if isinstance(value, dict) else None
    if options is None:
        raise RequestRefused(f"'{name}' must be an object, not {shown(value)}.", name)
    usage = options.take("include_usage", _flag, False)
    options.only("include_obfuscation", False, why="the pieces of a streamed reply are never padded")
    options.refuse_others()
    return bool(usage)


def _effort(name: str, value: object) -> bool:
    """Return whether the model should think, by the level of `reasoning_effort`. Levels of thinking do not differ."""
    if value not in ("none", "minimal", "low", "medium", "high"):
        raise RequestRefused(f"'{name}' must be none, minimal, low, medium or high, not {shown(value)}.", name)
    return value not in ("none", "minimal")


def _template_switch(name: str, value: object) -> bool | None:
    switches = _Fields(dict(value)) if isinstance(value, dict) else None
    if switches is None:
        raise RequestRefused(f"'{name}' must be an object, not {shown(value)}.", name)
    thinks: bool | None = switches.take("enable_thinking", _flag)
    switches.refuse_others()
    return thinks


def _prompt(name: str, value: object) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str) or not value:
        raise RequestRefused(f"'{name}' must be a single text; lists of texts and token ids are not supported.", name)
    return value


def _messages(name: str, value: object) -> list[Message]:
    if not isinstance(value, list) or not value or len(value) > MOST_MESSAGES:
        raise RequestRefused(f"'{name}' must be a list of 1 to {MOST_MESSAGES:,} messages.", name)
    messages = [_message(f"{name}[{index}]", message) for index, message in enumerate(value)]
    if messages[-1]["role"] != "user":
        raise RequestRefused(
            f"The last message of '{name}' is not the user's, so there is nothing to answer; end with the user's.",
            name,
        )
    return messages


def _message(place: str, value: object) -> Message:
    if not isinstance(value, dict):
        raise RequestRefused(f"'{place}' must be an object, not {shown(value)}.", place)
    fields = _Fields(dict(value))
    role = fields.take("role", _text)
    if role not in ("system", "developer", "user", "assistant"):
        raise RequestRefused(f"'{place}.role' must be system, developer, user or assistant, not {shown(role)}.", place)
    content = fields.take("content", lambda _, parts: _content(place, parts))
    fields.only(
        "name", why="models are not shown the names of speakers", instead="leave it out, or say it in 'content'"
    )
    fields.only("refusal", why="models do not read refusals")
    fields.only("tool_calls", [], why="models cannot call tools here")
    fields.only("annotations", [], why="models do not see web pages")
    message = {"role": "system" if role == "developer" else role}
    if role == "assistant" and (reasoning := fields.take("reasoning_content", _text)):
        message["reasoning_content"] = reasoning
    if content is None:
        raise RequestRefused(f"'{place}.content' is missing; give the text of the message.", place)
    fields.refuse_others()
    return {**message, "content": content}


def _content(place: str, value: object) -> str:
    """Return the text in the content of a message, with its parts joined. `place` names the message in errors."""
    if isinstance(value, str):
        return value
    parts = []
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestRefused(
                f"'{place}.content' must be text; pictures, sounds and files are not supported.", place
            )
        parts.append(part["text"])
    return "".join(parts)


def shown(value: object) -> str:
    """Return a short form of a value in a request, for a message: as JSON, with texts in Python's escapes."""
    words = repr(value) if isinstance(value, str) else json.dumps(value)
    return words if len(words) <= 60 else f"{words[:57]}…"
