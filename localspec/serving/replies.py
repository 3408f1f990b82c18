"""Replies in the format of OpenAI's clients. The key `localspec` has the figures that OpenAI's format lacks."""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.events import Done, Reason, Text

_FINISHED: Mapping[Reason, str] = {"stop": "stop", "length": "length", "interrupted": "stop", "repetition": "stop"}


def error(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the JSON of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class ReplyForm:
    """The JSON form of one reply: an answer in a conversation, or the continuation of a text."""

    def __init__(self, chat: bool, model: str, version: str, start: Mapping[str, Any]) -> None:
        self._chat = chat
        prefix, self._object = ("chatcmpl", "chat.completion") if chat else ("cmpl", "text_completion")
        self._start = start
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._fingerprint = {"system_fingerprint": f"localspec-{version}-{str(start.get('revision'))[:12]}"}

    # -- all at once --------------------------------------------------------------------------------------------------

    def whole(self, texts: Sequence[Text], done: Done, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole reply as one object."""
        text = "".join(part.text for part in texts)
        reasoning = "".join(part.reasoning for part in texts)
        body: dict[str, Any] = {"text": reasoning + text}
        if self._chat:
            body = {"message": {"role": "assistant", "content": text, "refusal": None}}
            if reasoning:
                body["message"]["reasoning_content"] = reasoning
        choice = {"index": 0, **body, "logprobs": None, "finish_reason": _FINISHED[done.reason]}
        extra = {**self._start, "token_ids": done.statistics.token_ids, **figures}
        extra["token_sources"] = [source for part in texts for source in part.sources]
        return {
            **self._head, "object": self._object, "choices": [choice], "usage": usage(done), **self._fingerprint,
            "localspec": extra,
        }  # fmt: skip

    # -- piece by piece -----------------------------------------------------------------------------------------------

    def first(self, with_usage: bool) -> bytes | None:
        """Return the first piece of a stream, which precedes all text; None for the continuation of a text."""
        if not self._chat:
            return None
        return self._piece({"delta": {"role": "assistant", "content": ""}}, with_usage, {"localspec": self._start})

    def step(self, text: Text, with_usage: bool) -> bytes:
        """Return the piece for one decode step."""
        body: dict[str, Any] = {"text": text.reasoning + text.text}
        if self._chat:
            body = {"delta": {"content": text.text}}
            if text.reasoning:
                body["delta"] = {"reasoning_content": text.reasoning, **({"content": text.text} if text.text else {})}
        return self._piece(body, with_usage, {"localspec": {"token_ids": text.tokens, "token_sources": text.sources}})

    def last(self, done: Done, figures: Mapping[str, Any], with_usage: bool) -> bytes:
        """Return the last pieces: the finish reason, the figures, and the usage if `with_usage`."""
        body: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        extra = {"localspec": {**self._start, **figures}}
        pieces = self._piece({**body, "finish_reason": _FINISHED[done.reason]}, with_usage, extra)
        if with_usage:
            pieces += _event(
                {**self._head, "object": self._pieces, **self._fingerprint, "choices": [], "usage": usage(done)}
            )
        return pieces + b"data: [DONE]\n\n"

    @property
    def _pieces(self) -> str:
        return "chat.completion.chunk" if self._chat else self._object

    def _piece(self, body: Mapping[str, Any], with_usage: bool, extra: Mapping[str, Any]) -> bytes:
        choice = {"index": 0, "logprobs": None, "finish_reason": None, **body}
        null = {"usage": None} if with_usage else {}
        return _event({**self._head, "object": self._pieces, **self._fingerprint, "choices": [choice], **null, **extra})


def broken_off(error_json: Mapping[str, Any]) -> bytes:
    """Return the last pieces of a stream that ends with an error. `error_json` is the JSON of the error."""
    return _event(error_json) + b"data: [DONE]\n\n"


def usage(done: Done) -> dict[str, Any]:
    """Return the numbers of tokens of the prompt and of the reply."""
    statistics = done.statistics
    completion_tokens = len(statistics.token_ids)
    return {
        "prompt_tokens": statistics.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": statistics.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": statistics.reused_tokens},
        "completion_tokens_details": {"reasoning_tokens": statistics.reasoning_tokens},
    }


def _event(value: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
