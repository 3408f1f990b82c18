"""The engine of a running `localspec serve`. Commands of the server's own user reach it through a Unix socket."""

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from localspec import __version__, environment
from localspec.chat.answerer import RemoteSampling, ReplyFigures, ServedForm
from localspec.config import NAMES, Rule, Settings
from localspec.engine.report import Report
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Done, Event, Memory, Prefill, Reporter, Statistics, Text
from localspec.models.messages import Message
from localspec.models.registry import TargetCard
from localspec.paths import Paths
from localspec.quantities import counted
from localspec.serving.over_socket import NoServer, ServerDiffers, event_of, lines, raise_what_is_wrong, statistics_of

if TYPE_CHECKING:
    from localspec import Engine, Limits
    from localspec.chat.answerer import Answerer
    from localspec.models.chat_tokenizer import ChatTokenizer

NOTICE_SECONDS = 2.0  # of waiting, after which the user is informed
STOP_SECONDS = 3.0  # to wait for the figures of a reply that was stopped
SILENT = "waiting for localspec serve"
_END: Any = object()


class SocketEngine:
    """One model of the user's own server. Use it from one thread.

    Settings change during a chat, and the server may then be busy. So a chat computes sampling and thinking in this
    process, from the model's files. `localspec run` uses the values that the server sent, so it need not load a
    tokenizer.

    If the server ends before a reply has begun, `load` makes an engine in this process, which answers from then on. If
    it ends within a reply, the reply is broken off.
    """

    def __init__(
        self, socket: Path, card: TargetCard, opened: Mapping[str, Any], settings: Settings, load: Callable[[], Any],
        reporter: Reporter, chats: bool,
    ) -> None:  # fmt: skip
        self._socket, self._card, self._opened, self._settings, self._load = socket, card, opened, settings, load
        self._reporter, self._chats, self._server = reporter, chats, str(opened["server"])
        self._name = ""  # of the current reply
        self._conversation: int | None = None
        self._replying = False
        self._local: Any = None  # the engine of this process, after the server is gone
        self.session: Any = ReplyFigures()  # the figures of the current or the last reply
        self.wanted: Callable[[], bool] = lambda: True
        self.context = int(opened["context"])  # tokens of prompt and reply together, at most
        self.parameters = int(opened["parameters"]) if chats else 0
        start = {**opened.get("start", {}), "engine": "server"}
        self._report = Report(start, "", float(opened["load_s"]))
        self._take_form(opened["engine"])
        self._drafter = None if settings.drafter == "auto" else start["drafter"]
        if chats:
            _ = self._files  # now, because a damaged tokenizer must be reported before the first prompt

    @classmethod
    def open(
        cls, socket: Path, card: TargetCard, settings: Settings, system: str | None, reporter: Reporter,
        load: Callable[[], Any], keep: float | None = None, *, chats: bool = False,
    ) -> Self:  # fmt: skip
        """Ask the server at this socket for a model. The server loads the model if necessary.

        The server lives for at least `keep` seconds after the last request. Set `chats` if the settings may change
        between replies. Raises NoServer without a server, and ServerDiffers if its settings differ; in both cases an
        engine of this process must answer. Raises the errors of the server's engine, too.
        """
        body = {
            "keep": keep,
            "version": __version__,
            "isa": environment.instruction_set(),
            "model": card.name,
            "path": str(card.path),
            "settings": {name: getattr(settings, name) for name in NAMES if name != "keymap"},
            "origins": {name: settings.origins.get(name, "default") for name in NAMES},
            "system": system,
            "chat": chats,
        }
        began, opened = time.monotonic(), None
        with closing(lines(socket, "/localspec/open", body)) as answer:
            for line in answer:
                if line is None:
                    late = time.monotonic() - began > NOTICE_SECONDS
                    reporter.progress(SILENT if late else f"loading {card.name}")
                elif "ahead" not in line:
                    opened = line
                    break
        if opened is None:
            raise NoServer("The server is gone.")
        raise_what_is_wrong(opened)
        try:
            notices = [*map(str, opened["notices"])]
            engine = cls(socket, card, opened, settings, load, reporter, chats)
        except (KeyError, TypeError, ValueError):
            raise NoServer("The server does not answer like `localspec serve`.") from None
        for sentence in notices:
            reporter.notice(sentence)
        return engine

    def _take_form(self, sent: Mapping[str, Any]) -> None:
        """Store device, precision and drafter from the server. Raises KeyError, TypeError, ValueError for bad data."""
        self.choice: Any = ServedForm(**sent["choice"])
        self._label = str(sent["label"])
        device, size = sent["held"]
        self._freed_memory, self.session.memory = (str(device), int(size)), Memory(**sent["memory"])
        self._report.exactness = self._label
        self._report.start["drafter"] = sent["drafter"]

    # -- the properties of an engine ----------------------------------------------------------------------------------

    @property
    def freed_memory(self) -> tuple[str, int]:
        """Return the device, and how many bytes of its memory become free when the engine is discarded."""
        return self._freed_memory if self._local is None else (self._local.freed_memory[0], self._local.freed_memory[1])

    @property
    def exactness(self) -> Any:
        """The engine whose method `label` says how exact replies are: this one, or its replacement in this process."""
        return self if self._local is None else self._local.exactness

    def label(self, rule: Rule) -> str:
        """Return how exact the replies are, in the server's words, such as "bitwise"."""
        return self._label

    def report(self, sampling: Any, load_seconds: float) -> Report:
        """Return the report of a reply. The server measured how long loading took."""
        return self._report

    def lend_core(self, lent: bool) -> None:
        """Leave a core to the user interface, if the model runs in this process."""
        if self._local is not None:
            self._local.lend_core(lent)

    # -- what the model's files decide --------------------------------------------------------------------------------

    @cached_property
    def _files(self) -> "tuple[ChatTokenizer, Mapping[str, Any]]":
        from localspec.models.chat_tokenizer import chat_files  # imports tokenizers

        return chat_files(self._card.path)

    @property
    def count_tokens(self) -> Callable[[str], int] | None:
        """Return a function that counts the tokens of a text; None for `localspec run`, which loads no tokenizer."""
        return self._count_tokens if self._chats else None

    def _count_tokens(self, text: str) -> int:
        return len(self._files[0].tokenizer.encode(text, False))

    @property
    def decode(self) -> Callable[[Sequence[int]], str] | None:
        """Return a function that decodes token ids; None for `localspec run`, which loads no tokenizer."""
        return self._files[0].tokenizer.decode if self._chats else None

    def sampling(self, settings: Settings) -> Any:
        """Return the sampling of replies. Raises UsageMistake for a setting without effect."""
        if not self._chats:
            return RemoteSampling(**self._opened["sampling"])
        from localspec.engine.reply_settings import requested_sampling

        return requested_sampling(settings, self._files[1], self._card.names)

    def thinking(self, settings: Settings, system: str | None = None) -> bool | None:
        """Return whether the model thinks before it answers. Raises UsageMistake for a setting without effect."""
        if not self._chats:
            return cast("bool | None", self._opened["think"])
        from localspec.engine.reply_settings import requested_thinking

        return requested_thinking(settings, self._files[0], self._card.name, system)

    def thinks_by_itself(self, system: str | None = None) -> bool | None:
        """Return whether the model thinks by default; None if that is unknown."""
        if not self._chats:
            return cast("bool | None", self._opened["by_itself"])
        return self._files[0].thinks_by_itself(system)

    # -- replies ------------------------------------------------------------------------------------------------------

    @property
    def conversation(self) -> int | None:
        """Return the id of the saved conversation. The server stores this id with the phrases that it learns."""
        return self._conversation

    @conversation.setter
    def conversation(self, number: int | None) -> None:
        self._conversation = number
        if self._local is not None:
            self._local.conversation = number
        elif self._replying:
            self._send({"conversation": number})

    def chat(
        self, messages: Sequence[Message], sampling: Any, limits: "Limits | None" = None, think: bool | None = None
    ) -> Generator[Event, None, None]:
        """Yield the events of a reply, as `Engine.chat` does, and raise the same errors.

        Raises LocalspecError if the server ends within the reply.
        """
        if self._local is None:
            started = False
            try:
                for event in self._from_server(messages, sampling, limits, think):
                    started = started or not isinstance(event, Prefill)
                    yield event
                return
            except (NoServer, ServerDiffers) as error:
                if started:
                    raise LocalspecError("localspec serve ended in the middle of the reply; ask again.") from None
                self._load_here(error)
        yield from self._from_here(messages, sampling, limits, think)

    def _from_server(
        self, messages: Sequence[Message], sampling: Any, limits: "Limits | None", think: bool | None
    ) -> Iterator[Event]:
        received, ahead, began = list[Text](), 0, time.monotonic()
        self.session.statistics = self.session.so_far = None
        self._name, self._replying = os.urandom(16).hex(), True  # the module `secrets` takes longer to import
        body = {
            "model": self._card.name, "path": str(self._card.path), "messages": list(messages),
            "sampling": vars(sampling), "max_tokens": limits.max_tokens if limits else None,
            "stop": list(limits.stop) if limits else [], "think": think, "name": self._name,
            "loop_prompt": limits.loop_prompt if limits else None,
            "kept": self._settings.log, "server": self._server, "live": self._chats, "drafter": self._drafter,
        }  # fmt: skip
        answer, started = lines(self._socket, "/localspec/reply", body), False
        try:
            while (line := next(answer, _END)) is not _END:
                if line is None:
                    if not self.wanted():
                        self._stop(answer, received, started)
                        return
                    if not started and (ahead or time.monotonic() - began > NOTICE_SECONDS):
                        notice = f"waiting while localspec serve answers {counted(ahead, 'other request')}"
                        self._reporter.progress(notice if ahead else SILENT)
                    continue
                raise_what_is_wrong(line)
                if "kept" in line:
                    return
                if "ahead" in line:
                    ahead = int(line["ahead"])
                elif "notice" in line:
                    self._reporter.notice(str(line["notice"]))
                elif "engine" in line:
                    self._take_form(line["engine"])
                    ahead = 0
                else:
                    event, started = self._count_event(line, received), True
                    yield event
            raise NoServer("The server is gone.")
        except (KeyError, TypeError, ValueError):
            raise NoServer("The server does not answer like `localspec serve`.") from None
        except GeneratorExit:
            self._stop(answer, received, started)
            raise
        finally:
            answer.close()
            self._replying = False

    def _count_event(self, line: Mapping[str, Any], received: list[Text]) -> Event:
        """Return the event in a line of the server, after adding it to the figures and to `received`."""
        event = event_of(line)
        if isinstance(event, Done):
            self.session.end(event.statistics)
        elif isinstance(event, Text):
            received.append(event)
            if "figures" in line:
                figures = replace(statistics_of(line["figures"]), token_ids=_tokens(received))
                self.session.so_far, self.session.memory = figures, figures.memory
        return event

    def _stop(self, answer: Iterator[Any], received: Sequence[Text], started: bool) -> None:
        """Stop the reply on the server, and count only the tokens that this process received (`received`)."""
        if not started:  # the request waits in the queue, and the server removes it
            return
        is_over, deadline = self.session.statistics is not None, time.monotonic() + STOP_SECONDS
        if not is_over:
            self._send({"stop": True})
        with suppress(NoServer):
            for line in answer:
                if line is not None and line.get("kept") and not is_over:
                    self.session.end(_of_received(received, statistics_of(line["kept"])))
                if (line is not None and "kept" in line) or time.monotonic() > deadline:
                    break
        if self.session.statistics is None and self.session.so_far is not None:  # the server does not answer
            self.session.end(_of_received(received, self.session.so_far))

    def _send(self, body: Mapping[str, Any]) -> None:
        """Send information about the current reply to the server."""
        answer = lines(self._socket, f"/localspec/replies/{self._name}", body)
        with suppress(NoServer), closing(answer):
            next(answer, None)

    # -- an engine in this process ------------------------------------------------------------------------------------

    def load_here(self) -> "Engine":
        """Return an engine of this process, for example for a race. Raises the errors of loading."""
        return cast("Engine", self._load() if self._local is None else self._local)

    def _load_here(self, error: NoServer | ServerDiffers) -> None:
        if self._chats:
            problem = (
                "localspec serve ended"
                if isinstance(error, NoServer)
                else str(error).rstrip(".").replace("The", "the", 1)
            )
            self._reporter.notice(f"{problem}, so {self._card.name} answers in this process from now on.")
        self._local = engine = self._load()
        self.choice, self.session, self.context = engine.choice, engine.session, engine.context
        self._replying = False
        self._report.start["engine"], self._report.load_seconds = engine.choice.engine, engine.load_seconds

    def _from_here(
        self, messages: Sequence[Message], sampling: Any, limits: "Limits | None", think: bool | None
    ) -> Iterator[Event]:
        from localspec import Sampling

        engine = self._local
        engine.conversation, engine.wanted = self._conversation, self.wanted
        with closing(engine.chat(messages, Sampling(**vars(sampling)), limits, think)) as events:
            yield from events


def _of_received(received: Sequence[Text], statistics: Statistics) -> Statistics:
    """Return the figures of a reply, counting only the tokens that this process received (`received`)."""
    sources = [source for event in received for source in event.sources]
    counts = {name: sources.count(name) for name in dict.fromkeys(sources)}
    return replace(statistics, token_ids=_tokens(received), sources=counts)


def _tokens(received: Sequence[Text]) -> tuple[int, ...]:
    return tuple(token for event in received for token in event.tokens)


def in_this_process(engine: "Answerer") -> "Engine":
    """Return `engine`, or, in place of an engine of the user's own server, a new engine that runs in this process.

    Raises UsageMistake for an engine of another server, and the errors of loading.
    """
    if engine.choice.engine == "server":
        raise UsageMistake("A race needs a model in this process, but a server answers; give --server off.")
    return cast("Engine", engine.load_here() if isinstance(engine, SocketEngine) else engine)


def for_chat(settings: Settings, card: TargetCard, reporter: Reporter, load: "Callable[[], Answerer]") -> "Answerer":
    """Return an engine of the user's server, or the result of `load` if no server answers with these `settings`.

    Raises the errors of `load`, also if the server cannot load the model.
    """
    socket = Paths(environment.home()).socket
    if settings.server is None and os.path.exists(socket):
        with suppress(NoServer, ServerDiffers):
            return SocketEngine.open(socket, card, settings, None, reporter, load, chats=True)
    return load()
