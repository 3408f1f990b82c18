"""A server that the user named: its program, its models, and the errors for requests that it refuses."""

import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from localspec.config import nearest
from localspec.errors import LocalspecError, NotAllowed, NotHere, UsageMistake
from localspec.outside_files import parse_json
from localspec.serving.link import Head, Link, ServerAddress, key_for
from localspec.serving.pieces import count, shown, words_of
from localspec.text import one_line

OK = 200
ASK_SECONDS = 30.0  # until a server has listed its models
MOST_MODELS = 1000
LISTED = 10  # models that a sentence names
# By the owner in their lists of models.
_PROGRAMS = {
    "localspec": "localspec",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama-server",
    "library": "Ollama",
}
_OVERFLOWS = ("context_length_exceeded", "exceed_context_size", "context length", "context size", "context window")


class ServedModel(NamedTuple):
    """A model of a server, as the server reports it: its owner, and its context in tokens (0: unknown)."""

    owner: str
    context: int


class TooLong(UsageMistake):
    """An error: the server has no room for a conversation of this length and its reply."""


@dataclass(frozen=True)
class Server:
    """A server that answered at this address. `unread` is the number of unreadable entries in its list of models."""

    address: ServerAddress
    key: str | None
    models: Mapping[str, ServedModel]
    unread: int = 0

    @classmethod
    def open(cls, url: str) -> Self:
        """Ask a server for its models.

        `models` is empty if the server does not list its models. Raises LocalspecError and NotAllowed.
        """
        address = ServerAddress.of(url)
        key = key_for(address)
        with closing(Link(address, f"{address.base}/models", headers=_headers(key))) as link:
            head, content = _head_and_body(address, link)
        if head.status in (404, 405, 501):
            return cls(address, key, {})
        if head.status != OK:
            raise refusal(address.url, "", head, content, key)
        return cls(address, key, *_models(address, content))

    @property
    def is_localspec(self) -> bool:
        """Return whether the server is localspec, which reports more than others."""
        return self.program == "localspec"

    @property
    def program(self) -> str:
        """Return the name of the program that serves, as its list of models states it; empty if unknown."""
        owners = {model.owner for model in self.models.values()}
        return _PROGRAMS.get(owners.pop(), "") if len(owners) == 1 else ""

    @property
    def unencrypted_key(self) -> str:
        """Return a warning that others on the network could read the key; empty otherwise."""
        if not (self.key and self.address.crosses_a_network_in_the_clear):
            return ""
        return (
            f"your key and conversations go to {self.address.name} unencrypted, and others on the network "
            "can read them; use https:// if the server has it."
        )

    def model(self, name: str | None, *, insist: bool) -> str:
        """Return the model that answers: the named model, or, unless `insist` is set, the server's first model.

        Raises NotHere, and UsageMistake if the server has no model.
        """
        if name is not None and (name in self.models or (insist and not self.models)):
            return name
        if name is not None and insist:
            listed = ", ".join([*self.models][:LISTED])
            raise NotHere(f"{self.address.url} has no model {name!r}{nearest(name, self.models)}; it has: {listed}.")
        if not self.models:
            raise UsageMistake(f"{self.address.url} does not say which models it has; name one with -m.")
        return next(iter(self.models))

    def post(self, path: str, body: bytes) -> Link:
        """Send a request. The answer is read from the returned link."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        return Link(self.address, f"{self.address.base}/{path}", body, {**headers, **_headers(self.key)})


def refusal(url: str, model: str, head: Head, content: bytes, key: str | None) -> LocalspecError:
    """Return the error for a status other than success, with the server's own words."""
    value: Any = None
    with suppress(ValueError):
        value = parse_json(content)
    words, status = words_of(value), head.status
    details = f": {words.rstrip('.')}" if words else ""
    if 300 <= status < 400:
        return LocalspecError(
            f"{url} redirects to {one_line(head.location)[:200] or 'another place'}, which localspec does not follow; "
            "give that address."
        )
    if status in (401, 403):
        if key:
            return NotAllowed(f"{url} refuses your key{details}; put the right key into LOCALSPEC_SERVER_KEY.")
        return NotAllowed(f"{url} wants a key, but you have set none{details}; put the key into LOCALSPEC_SERVER_KEY.")
    error = value.get("error") if isinstance(value, dict) else None
    report = f"{error if isinstance(error, dict) else ''} {words}".lower()
    if status in (400, 413, 422, 500) and any(sign in report for sign in _OVERFLOWS):
        return TooLong(f"{url} has no room for prompt and reply{details}; shorten the prompt, or ask for fewer tokens.")
    if status == 404 and model:
        return NotHere(f"{url} has no chat with {model!r}{details}; correct the address or -m.")
    if status in (400, 413, 422):
        return UsageMistake(f"{url} refuses this request{details or f' with status {status}'}.")
    if status in (429, 503):
        return LocalspecError(f"{url} is full{details}; try again later.")
    return LocalspecError(f"{url} answers with status {status}{details}.")


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _head_and_body(address: ServerAddress, link: Link) -> tuple[Head, bytes]:
    began, head, lines = time.monotonic(), None, []
    for arrival in link.arrivals():
        if isinstance(arrival, Head):
            head = arrival
        elif arrival is not None:
            lines.append(arrival)
        if time.monotonic() - began > ASK_SECONDS:
            raise LocalspecError(f"{address.url} did not list its models within {ASK_SECONDS:.0f} s; try again.")
    assert head is not None
    return head, b"\n".join(lines)


def _models(address: ServerAddress, content: bytes) -> tuple[dict[str, ServedModel], int]:
    """Return the models in a server's list by name, and the number of unreadable entries."""
    try:
        value = parse_json(content)
    except ValueError:
        value = None
    listed = value.get("data") if isinstance(value, dict) else None
    if not isinstance(listed, list):
        raise LocalspecError(
            f"{address.url} does not list models but {shown(content)}, so it is not an OpenAI-compatible server; "
            "correct the address, which usually ends in /v1."
        )
    models: dict[str, ServedModel] = {}
    unread = 0
    for entry in listed[:MOST_MODELS]:
        name = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(name, str) and 0 < len(name) <= 500 and one_line(name) == name:
            meta = entry.get("meta") if isinstance(entry.get("meta"), dict) else {}
            context = count(entry.get("max_model_len")) or count(meta.get("n_ctx")) or 0
            models[name] = ServedModel(str(entry.get("owned_by"))[:100], context)
        else:
            unread += 1
    return models, unread
