"""How a conversation is opened and its model loaded; the engine's thread is given both, and tests give it others."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol

from localspec.config import Settings
from localspec.events import Reporter

if TYPE_CHECKING:
    from localspec import Engine
    from localspec.chat.answerer import Answerer
    from localspec.chat.start import StartedChat
    from localspec.models.registry import TargetCard
    from localspec.store.store import Store


class Opening(Protocol):
    """Opens the store, which the ExitStack closes, and finds the conversation and its model. Raises LocalspecError."""

    def __call__(self, at_the_end: ExitStack, notice: Callable[[str], None], /) -> "StartedChat": ...


class Loading(Protocol):
    """Loads a model. Raises LocalspecError."""

    def __call__(
        self,
        settings: Settings,
        card: "TargetCard",
        *,
        store: "Store | None",
        notice: Callable[[str], None],
        progress: Callable[[str], None],
    ) -> "Answerer": ...


def load(
    settings: Settings,
    card: "TargetCard",
    *,
    store: "Store | None",
    notice: Callable[[str], None],
    progress: Callable[[str], None],
) -> "Answerer":
    """The engine that the settings ask for: that of a server of this user, or one of this process."""
    from localspec.serving.warm_chat import warm_or_here

    here = partial(_load_here, settings, card, store, notice, progress)
    return warm_or_here(settings, card, Reporter(notice, progress), here)


def _load_here(
    settings: Settings,
    card: "TargetCard",
    store: "Store | None",
    notice: Callable[[str], None],
    progress: Callable[[str], None],
) -> "Engine":
    """Imports torch where a GPU may want it."""
    from localspec.machine.hardware import gpu_expected

    if gpu_expected():
        progress("importing torch")
    from localspec import Engine

    progress(f"loading {card.name}")
    return Engine.open(settings, card, store=store, notice=notice, progress=progress)
