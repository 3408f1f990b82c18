"""The protocol between a chat and its model, which runs in this process or on a server."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from localspec.config import Rule, Settings
from localspec.events import Event, Memory, Statistics
from localspec.models.messages import Message

if TYPE_CHECKING:
    from localspec.choosing.choice import Choice
    from localspec.decoding.limits import Limits
    from localspec.decoding.sampling import Sampling
    from localspec.decoding.session import Session
    from localspec.engine.report import Report


@dataclass(frozen=True)
class RemoteSampling:
    """The sampling settings of a reply that a server generates. A setting that is None is left to the server.

    The class has the fields of `Sampling`, but its module does not import numpy.
    """

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    rule: Rule = "exact"
    epsilon: float | None = None
    delta: float | None = None
    source: str = ""
    chosen: Sequence[str] = ()

    @property
    def greedy(self) -> bool:
        """Return whether the likeliest token is always picked."""
        return self.temperature == 0


ReplySampling: TypeAlias = "Sampling | RemoteSampling"


class ServedForm(NamedTuple):
    """The device and precision of a server's engine, as far as it reports them. For a local engine, see `Choice`."""

    engine: str = "server"
    device: str = ""
    dtype: str = ""
    quantize: str = "none"
    nodes: int = 0
    pace: Sequence[str] = ()
    bits: float = 0.0


@dataclass
class ReplyFigures:
    """The figures of the current or the last reply, as far as a server sent them. For a local engine, see `Session`.

    `memory` is None if the server is on another machine.
    """

    statistics: Statistics | None = None  # when the reply is over
    so_far: Statistics | None = None
    memory: Memory | None = None

    def end(self, statistics: Statistics) -> None:
        """Set the figures of a finished reply."""
        self.statistics = self.so_far = statistics
        self.memory = statistics.memory


class Labelled(Protocol):
    """An object with a method `label`, which says in words how exact replies are."""

    def label(self, rule: Rule, /) -> str: ...


class Answerer(Protocol):
    """A model that answers one conversation at a time. Use it from one thread."""

    conversation: int | None  # in which replies are saved
    wanted: Callable[[], bool]  # called while waiting for another machine; False ends the reply, as closing it does

    @property
    def choice(self) -> "Choice | ServedForm": ...
    @property
    def exactness(self) -> Labelled: ...
    @property
    def session(self) -> "Session | ReplyFigures": ...
    @property
    def context(self) -> int: ...
    @property
    def freed_memory(self) -> tuple[str, int]: ...
    @property
    def parameters(self) -> int: ...
    @property
    def count_tokens(self) -> Callable[[str], int] | None: ...
    @property
    def decode(self) -> Callable[[Sequence[int]], str] | None: ...

    def report(self, sampling: Any, load_seconds: float, /) -> "Report": ...
    def lend_core(self, lent: bool, /) -> None: ...
    def sampling(self, settings: Settings, /) -> Any: ...
    def thinking(self, settings: Settings, system: str | None = None, /) -> bool | None: ...
    def thinks_by_itself(self, system: str | None = None, /) -> bool | None: ...
    def chat(
        self,
        messages: Sequence[Message],
        sampling: Any,
        limits: "Limits | None" = None,
        think: bool | None = None,
    ) -> Generator[Event, None, None]: ...
