"""How a conversation is opened and its model loaded; the engine's thread is given both, and tests give it others."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from localspec.config import Settings
from localspec_tui import preload_torch

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
) -> "Engine":
    """The engine that the settings ask for. Imports torch where a GPU may want it."""
    from localspec.machine.hardware import gpu_expected

    if gpu_expected():
        progress("importing torch")
        preload_torch.load()
    from localspec import Engine

    progress(f"loading {card.name}")
    return Engine.open(settings, card, store=store, notice=notice, progress=progress)
