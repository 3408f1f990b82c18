"""What `run` and `chat` begin with where a server answers: the same conversations, and an engine that is elsewhere."""

from collections.abc import Callable
from contextlib import ExitStack

from localspec.chat.conversation import Resumed
from localspec.chat.model_list import named_there
from localspec.chat.start import StartedChat, start_chat
from localspec.config import Settings
from localspec.events import Reporter
from localspec.models.registry import TargetCard
from localspec.serving.server import Server
from localspec.serving.server_engine import ServerEngine
from localspec.store.conversations import Saved
from localspec.store.store import Store
from localspec.text import one_line


class Behind:
    """The server that the settings name. It is asked which models it has when a chat starts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: Server | None = None

    def start(
        self,
        resume: Resumed | None,
        at_the_end: ExitStack,
        notice: Callable[[str], None],
        progress: Callable[[str], None] = lambda _: None,
        *,
        tell_what_is_kept: bool = True,
    ) -> StartedChat:
        """As `start_chat` does. Raises what that and `Server.open` raise."""
        return start_chat(
            self._settings, resume, at_the_end, notice, progress, tell_what_is_kept=tell_what_is_kept, who=self._card
        )

    def load(
        self,
        settings: Settings,
        card: TargetCard,
        *,
        store: Store | None = None,
        notice: Callable[[str], None] = lambda _: None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> ServerEngine:
        """The model of this name there. Raises NotHere."""
        server = self._open(Reporter(notice, progress))
        return ServerEngine(server, server.model(card.name, insist=True), Reporter(notice, progress))

    def named(self, name: str) -> TargetCard:
        """One of its models. Raises NotHere."""
        server = self._open(Reporter())
        return named_there(server.model(name, insist=True), f"at {server.address.url}")

    def listed(self, current: str) -> list[str]:
        """A line for each of its models; a star for the one that answers."""
        names = [*self._open(Reporter()).models] or [current]
        return [one_line(f"{'*' if name == current else ' '} {name}") for name in names]

    def _open(self, reporter: Reporter) -> Server:
        if self._server is None:
            assert self._settings.elsewhere is not None
            reporter.progress(f"asking {self._settings.elsewhere}")
            self._server = Server.open(self._settings.elsewhere)
            if self._server.overheard:
                reporter.notice(self._server.overheard)
        return self._server

    def _card(self, settings: Settings, found: Saved | None, reporter: Reporter) -> TargetCard:
        server = self._open(reporter)
        flag = settings.origins.get("model", "").startswith("--")
        named = settings.model if flag or found is None else found.info.model
        name = server.model(named, insist=flag)
        if named not in (None, name) and (found is not None or not settings.origins.get("model", "").endswith(".toml")):
            reporter.notice(f"{server.address.name} has no {named}, so {name} answers.")
        return named_there(name, f"at {server.address.url}")
