"""A chat beside a server of this user that has the model loaded already: nothing but its loading time is different.

What changes while one chats, sampling and thinking, is worked out here from the model's own files: the server's engine
may be busy with what others asked.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from localspec import environment
from localspec.chat.answerer import Answerer
from localspec.config import Rule, Settings
from localspec.engine.asked_sampling import asked_sampling
from localspec.engine.asked_thinking import asked_thinking
from localspec.errors import UsageMistake
from localspec.events import Reporter
from localspec.models.chat_files import chat_files
from localspec.models.registry import TargetCard
from localspec.paths import Paths
from localspec.serving.over_socket import Gone, NotThisOne
from localspec.serving.warm import WarmEngine

if TYPE_CHECKING:
    from localspec import Engine


class WarmChat(WarmEngine):
    """An engine of the server, for a chat. From the moment on when the server is gone, one of this process."""

    live = True

    def __init__(
        self, place: Path, card: TargetCard, told: Mapping[str, Any], settings: Settings, load: Callable[[], Any],
        reporter: Reporter,
    ) -> None:  # fmt: skip
        super().__init__(place, card, told, settings, load, reporter)
        self._parameters = int(told["parameters"])
        self._files, self._generation = chat_files(card.path)

    def in_this_process(self) -> Any:
        """An engine of this process: for a race, which is between two of them. Raises what loading one does."""
        return self._load() if self._instead is None else self._instead

    def _go_on_here(self, why: Gone | NotThisOne) -> None:
        what = "localspec serve is gone" if isinstance(why, Gone) else str(why).rstrip(".").replace("The", "the", 1)
        self._reporter.notice(f"{what}, so from here on {self._card.name} answers in this process.")
        super()._go_on_here(why)

    # -- what it is: the server's, or that of the engine that took its place ------------------------------------------

    @property
    def choice(self) -> Any:
        """In which form it answers."""
        return self._form if self._instead is None else self._instead.choice

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together, at most."""
        return self._context if self._instead is None else int(self._instead.context)

    @property
    def held(self) -> tuple[str, int]:
        """The device, and the bytes of its memory that go with the engine."""
        return self._held if self._instead is None else (self._instead.held[0], self._instead.held[1])

    @property
    def exactness(self) -> Any:
        """How exact its replies are."""
        return self if self._instead is None else self._instead.exactness

    @property
    def parameters(self) -> int:  # type: ignore[override]
        """How many numbers the weights are."""
        return self._parameters

    # -- what is worked out here --------------------------------------------------------------------------------------

    def count_tokens(self, text: str) -> int:  # type: ignore[override]
        """How many tokens a text is, as part of a prompt."""
        return len(self._files.tokenizer.encode(text, False))

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:  # type: ignore[override]
        """Reads token ids; whoever keeps it does not keep the model."""
        return self._files.tokenizer.decode

    def sampling(self, settings: Settings) -> Any:
        """Return what was asked for, else the model's default; a fresh seed where none was given."""
        return asked_sampling(settings, self._generation, self._card.names)

    def thinking(self, settings: Settings, system: str | None = None) -> bool | None:
        """Whether the model is told to think, as an engine says it and raising the same."""
        return asked_thinking(settings, self._files, self._card.name, system)

    def thinks_by_itself(self, system: str | None = None) -> bool | None:
        """Whether it does where nobody says so; None where it cannot be told."""
        return self._files.thinks_by_itself(system)

    def label(self, rule: Rule) -> str:
        """How exact its replies are; the server's engine was loaded for the same rule."""
        return self._label


def of_this_process(engine: Answerer) -> "Engine":
    """This engine; where a server of this user answers, one that is loaded for a race, and goes with it.

    Raises UsageMistake where another server answers, and what loading one raises.
    """
    if engine.choice.engine == "server":
        raise UsageMistake("A server answers, and a race takes a model of this process; --server off has one.")
    return cast("Engine", engine.in_this_process() if isinstance(engine, WarmChat) else engine)


def warm_or_here(settings: Settings, card: TargetCard, reporter: Reporter, here: Callable[[], Answerer]) -> Answerer:
    """Who answers a chat: a server of this user that loads models by the same settings, else what `here` loads.

    Raises what `here` raises, and the same where the server cannot load the model.
    """
    place = Paths(environment.home()).socket
    if settings.server is None and os.path.exists(place):
        with suppress(Gone, NotThisOne):
            return WarmChat.open(place, card, settings, None, reporter, here)
    return here()
