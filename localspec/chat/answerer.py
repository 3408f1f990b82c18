"""Who answers a chat: an engine in this process, or a server. What a chat asks of either, and nothing more."""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from localspec.config import Rule, Settings
from localspec.events import Event, Memory, Statistics
from localspec.models.messages import Message

if TYPE_CHECKING:
    from localspec.decoding.limits import Limits


class Sampled(Protocol):
    """How a reply is sampled. None is what a server decides and has not told."""

    @property
    def greedy(self) -> bool: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def temperature(self) -> float | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def min_p(self) -> float | None: ...


class Chosen(Protocol):
    """In which form a model answers; an empty text, 0 and no `pace` are what nobody told."""

    @property
    def engine(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def quantize(self) -> str: ...
    @property
    def nodes(self) -> int: ...
    @property
    def pace(self) -> Sequence[str]: ...


class Labelled(Protocol):
    """How exact replies are."""

    def label(self, rule: Rule, /) -> str: ...


class Spoken(Protocol):
    """The reply under way, or the last one."""

    @property
    def statistics(self) -> Statistics | None: ...
    @property
    def so_far(self) -> Statistics | None: ...
    @property
    def memory(self) -> Memory | None: ...


class Answerer(Protocol):
    """It has one conversation at a time. Use it from one thread."""

    conversation: int | None  # where replies are kept
    wanted: Callable[[], bool]  # asked while one waits for another machine; False ends the reply, as closing it does

    @property
    def choice(self) -> Chosen: ...
    @property
    def exactness(self) -> Labelled: ...
    @property
    def session(self) -> Spoken: ...
    @property
    def context(self) -> int: ...
    @property
    def held(self) -> tuple[str, int]: ...
    @property
    def parameters(self) -> int: ...
    @property
    def count_tokens(self) -> Callable[[str], int] | None: ...
    @property
    def decode(self) -> Callable[[Sequence[int]], str] | None: ...

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
