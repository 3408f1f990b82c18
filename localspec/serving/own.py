"""What this user's own commands ask of a server over its socket: an engine as they would load it, event by event.

Both ends are the same version, so an event is told as it is, and both are changed together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from localspec import Limits, Sampling, __version__, config
from localspec.config import LOADED_BY, Settings
from localspec.engine.engine import Engine
from localspec.engine.report import Report
from localspec.errors import LocalspecError
from localspec.events import Done, Event, Prefill, Text
from localspec.models.messages import Message
from localspec.serving.asked import Refused
from localspec.serving.loaded import LoadedModels

NAMED_SECONDS = 1.0  # for the conversation to be named, which is done with the first event


class Differs(LocalspecError):
    """This is no server that could answer as the command itself would."""


@dataclass(frozen=True)
class Opened:
    """A command wants an engine for this model with these settings."""

    version: str
    isa: str | None
    model: str
    path: str
    settings: Settings
    system: str | None
    keep: float | None = None  # seconds for which the server is to stay

    @classmethod
    def of(cls, body: object) -> "Opened":
        """What the JSON of a request says. Raises Refused."""
        try:
            assert isinstance(body, dict)
            settings = config.restored(body.pop("settings"), body.pop("origins"))
            return cls(**body, settings=settings)
        except (AssertionError, KeyError, TypeError, ValueError, AttributeError):
            raise Refused("This is no request of localspec's own commands.") from None

    def answer(self, models: LoadedModels, own: Settings) -> dict[str, Any]:
        """What is told of the engine, which is loaded if it was not. Raises Differs, and what loading it does."""
        if (self.version, self.isa) != (__version__, config.instruction_set()):
            raise Differs("The server is of another version.")
        for name in LOADED_BY:
            if getattr(self.settings, name) != getattr(own, name):
                raise Differs(f"The server was started with another {name}.")
        loaded, seconds = models.exactly(self.model, self.path)
        models.keep_alive = max(models.keep_alive, self.keep or 0.0)
        engine, settings = loaded.engine, self.settings
        sampling = engine.sampling(settings)
        report = Report(engine, sampling, seconds)
        choice = engine.choice
        loaded.touch()
        return {
            "sampling": asdict(sampling),
            "think": engine.thinking(settings, self.system),
            "by_itself": engine.thinks_by_itself(self.system),
            "start": report.start,
            "label": report.exactness,
            "load_s": seconds,
            "context": engine.context,
            "notices": loaded.notices,
            "choice": {
                "device": choice.device,
                "dtype": choice.dtype,
                "quantize": choice.quantize,
                "nodes": choice.nodes,
            },
        }


@dataclass(frozen=True)
class Asking:
    """A command wants a reply."""

    model: str
    path: str
    messages: Sequence[Message]
    sampling: Mapping[str, Any]
    max_tokens: int | None
    stop: Sequence[str]
    think: bool | None
    name: str  # by which it says more later on
    kept: bool  # whether it will name the conversation

    @classmethod
    def of(cls, body: object) -> "Asking":
        """What the JSON of a request says. Raises Refused."""
        try:
            assert isinstance(body, dict)
            found = cls(**body)
            Sampling(**found.sampling)
            return found
        except (AssertionError, TypeError):
            raise Refused("This is no request of localspec's own commands.") from None

    def events(self, engine: Engine) -> Any:
        """What the engine answers."""
        limits = Limits(self.max_tokens, tuple(self.stop))
        return engine.chat(list(self.messages), Sampling(**self.sampling), limits, self.think)


def told(event: Event) -> dict[str, Any]:
    """An event as JSON. Drafts, which nobody looks at here, stay behind."""
    match event:
        case Prefill():
            return {"prefill": [event.done, event.total, event.dropped]}
        case Text():
            said = [event.text, event.tokens, event.sources, event.seconds, event.steps]
            return {"text": [*said, event.reasoning, event.reasoning_tokens]}
        case Done(reason, statistics):
            return {"done": reason, "statistics": asdict(statistics)}
