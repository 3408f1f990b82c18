"""The two requests of a command to its user's server, through a socket: to open an engine, and to reply.

Command and server have the same version. So events are sent unchanged, and the protocol may change between versions.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from localspec import Limits, Sampling, __version__, config, environment
from localspec.chat.answerer import ServedForm
from localspec.config import LOADED_BY, Rule, Settings
from localspec.engine.engine import Engine
from localspec.engine.report import Report
from localspec.errors import LocalspecError
from localspec.events import Done, Draft, Event, Prefill, Text
from localspec.models.messages import Message
from localspec.serving.client_request import RequestRefused
from localspec.serving.loaded import LoadedModels

NAMED_SECONDS = 1.0  # for the conversation to be named, which happens with the first event
FIGURES_SECONDS = 0.1  # between two reports of a running reply: a chat draws no more often
THIS = os.urandom(16).hex()  # identifies this server: a later one may load models differently


class Differs(LocalspecError):
    """An error: this server's version or settings differ from the command's, and its replies could differ too."""


@dataclass(frozen=True)
class OpenRequest:
    """A request for an engine of this model with these settings."""

    version: str
    isa: str | None
    model: str
    path: str
    settings: Settings
    system: str | None
    keep: float | None = None  # seconds for which the server stays
    chat: bool = False  # a chat computes its sampling itself, because users change it

    @classmethod
    def of(cls, body: object) -> "OpenRequest":
        """Read the JSON of a request. Raises RequestRefused."""
        try:
            assert isinstance(body, dict)
            settings = config.restored(body.pop("settings"), body.pop("origins"))
            return cls(**body, settings=settings)
        except (AssertionError, KeyError, TypeError, ValueError, AttributeError):
            raise RequestRefused("Only localspec's own commands may send this request.") from None

    def answer(self, models: LoadedModels, server_settings: Settings) -> dict[str, Any]:
        """Load the engine if necessary, and return its description as JSON.

        Raises Differs, and the errors of loading.
        """
        if (self.version, self.isa) != (__version__, environment.instruction_set()):
            raise Differs("The server is another version of localspec.")
        self._compare(models, server_settings)
        loaded, seconds = models.exactly(self.model, self.path)
        models.keep_alive = max(models.keep_alive, self.keep or 0.0)
        engine, settings = loaded.engine, self.settings
        loaded.touch()
        facts = {
            "server": THIS,
            "load_s": seconds,
            "context": engine.context,
            "notices": loaded.notices,
            "engine": form(engine, settings.accept),
        }
        if self.chat:
            return {**facts, "parameters": engine.parameters}
        sampling = engine.sampling(settings)
        return {
            **facts,
            "sampling": asdict(sampling),
            "think": engine.thinking(settings, self.system),
            "by_itself": engine.thinks_by_itself(self.system),
            "start": Report.before(engine, sampling, seconds).start,
        }

    def _compare(self, models: LoadedModels, server_settings: Settings) -> None:
        """Raise Differs unless each setting of the command equals the server's setting, or the server's automatic
        choice."""
        other = [name for name in LOADED_BY if getattr(self.settings, name) != getattr(server_settings, name)]
        for name in other:
            if name not in _CHOSEN or getattr(server_settings, name) != _CHOSEN[name]:
                raise Differs(f"The server was started with another value of {name}.")
        choice = models.choice_of(self.model, self.path) if other else None
        for name in other:
            if choice is not None and not choice.agrees(name, self.settings):
                raise Differs(f"The server uses another value of {name}.")


# The values that a server chooses itself if its settings have these.
_CHOSEN: Mapping[str, Any] = {"context": None, "drafter": "auto", "device": "auto", "dtype": "auto", "quantize": "auto"}


@dataclass(frozen=True)
class ReplyRequest:
    """A request for a reply, after an `OpenRequest` for the engine."""

    model: str
    path: str
    messages: Sequence[Message]
    sampling: Mapping[str, Any]
    max_tokens: int | None
    stop: Sequence[str]
    think: bool | None
    name: str  # under which it sends more later
    kept: bool  # whether it will name the conversation
    server: str  # the server that opened the engine
    live: bool = False  # whether drafts are shown, and figures during the reply
    loop_prompt: str | None = None  # of a reply that is stopped if it repeats itself without end
    drafter: str | None = None  # the named drafter; one that the server chose itself may have changed by now

    @classmethod
    def of(cls, body: object) -> "ReplyRequest":
        """Read the JSON of a request. Raises RequestRefused."""
        try:
            assert isinstance(body, dict)
            request = cls(**body)
            Sampling(**request.sampling)
            return request
        except (AssertionError, TypeError):
            raise RequestRefused("Only localspec's own commands may send this request.") from None

    @property
    def rule(self) -> Rule:
        """Return the acceptance rule of the reply's drafts."""
        return Sampling(**self.sampling).rule

    def events(self, engine: Engine) -> Any:
        """Return the events of the reply.

        Raises Differs if another server opened the engine, or if the engine's drafter has changed.
        """
        if self.server != THIS:
            raise Differs("The server was restarted.")
        if self.drafter not in (None, engine.choice.drafter):
            raise Differs(f"The server now drafts with {engine.choice.drafter}.")
        limits = Limits(self.max_tokens, tuple(self.stop), self.loop_prompt)
        return engine.chat(list(self.messages), Sampling(**self.sampling), limits, self.think)


def form(engine: Engine, rule: Rule) -> dict[str, Any]:
    """Return an engine's device, packing, drafter and memory. They may change between two replies."""
    choice = engine.choice
    return {
        "choice": {name: getattr(choice, name) for name in ServedForm._fields},
        "drafter": choice.drafter,
        "label": engine.exactness.label(rule),
        "held": engine.freed_memory,
        "memory": asdict(engine.session.memory),
    }


class EventLines:
    """The events of one reply as JSON. Drafts and figures are included only if they are displayed."""

    def __init__(self, engine: Engine, live: bool) -> None:
        self._engine, self._live, self._figured_at = engine, live, 0.0

    def of(self, event: Event) -> dict[str, Any]:
        """Return the JSON of one event, and of the figures so far."""
        match event:
            case Prefill():
                return {"prefill": [event.done, event.total, event.dropped]}
            case Text():
                fields = [event.text, event.tokens, event.sources, event.seconds, event.steps]
                line: dict[str, Any] = {"text": [*fields, event.reasoning, event.reasoning_tokens]}
                return {**line, "drafts": [*map(_draft, event.drafts)], **self._figures()} if self._live else line
            case Done(reason, statistics):
                return {"done": reason, "statistics": asdict(statistics)}

    def _figures(self) -> dict[str, Any]:
        now = time.monotonic()
        if now - self._figured_at < FIGURES_SECONDS:  # computing them takes half as long as a step of a small model
            return {}
        self._figured_at, statistics = now, self._engine.session.so_far
        if statistics is None:
            return {}
        return {"figures": asdict(replace(statistics, token_ids=()))}  # those were sent with their text


def _draft(draft: Draft) -> list[Any]:
    tokens, parents, path = ([*map(int, values)] for values in (draft.tokens, draft.parents, draft.path))
    probe = None if draft.probe is None else [*map(bool, draft.probe)]
    return [tokens, parents, None if draft.sources is None else list(draft.sources), probe, path]
