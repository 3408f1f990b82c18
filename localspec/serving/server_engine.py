"""Replies from a server instead of an engine in this process. The server's messages become an engine's events."""

import json
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from localspec import Limits
from localspec.chat.answerer import RemoteSampling, ReplyFigures, ServedForm
from localspec.chat.figures import SAMENESS
from localspec.chat.model_list import named_on_server
from localspec.chat.readable_phrases import Decode, decoder
from localspec.chat.start import start_chat
from localspec.config import TYPED, Rule, Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Event, Reporter
from localspec.models import registry
from localspec.models.messages import Message, turns_left_out
from localspec.models.registry import TargetCard
from localspec.serving.link import EmptyReply, Head, Link, SilentServer
from localspec.serving.pieces import number, word
from localspec.serving.server import Server, TooLong
from localspec.serving.server_reply import ServerReply, ServerReport
from localspec.store.conversations import Saved
from localspec.store.store import Store
from localspec.text import one_line
from localspec.weights.checkpoint import revision

FIRST_SECONDS = 600.0  # until the first text: it may be loading its model, or answering others
NEXT_SECONDS = 120.0  # between two pieces
FIRST_NOTICE, NEXT_NOTICE = 2.0, 10.0  # of silence before the first notice, and between two notices


SAMPLED = ("temperature", "top_p", "top_k", "min_p")  # fields of a request


class ServerEngine:
    """One model of a server. Use it from one thread at a time."""

    count_tokens = None  # its tokenizer is not here
    freed_memory = ("cpu", 0)
    parameters = 0

    def __init__(self, server: Server, model: str, reporter: Reporter) -> None:
        self.server, self.model, self.reporter = server, model, reporter
        self.conversation: int | None = None
        self.wanted: Callable[[], bool] = lambda: True
        self.context = server.models[model].context if model in server.models else 0
        self.session, self.reported = ReplyFigures(), dict[str, Any]()
        self._room = sys.maxsize  # characters; the server refused a longer conversation
        self._truncates = False  # whether requests ask the server to leave out turns
        self._path = _path_on_this_machine(model) if server.is_localspec else None
        self._decoders: dict[str, Decode] = {}  # by revision

    @property
    def choice(self) -> ServedForm:
        """Return the device and precision of the model, as the server reported them with the last reply."""
        reported = {name: word(self.reported.get(name)) for name in ("device", "dtype", "quantize")}
        address = f"at {self.server.address.name}"
        return ServedForm(
            device=address,
            dtype=reported["dtype"],
            quantize=reported["quantize"] or "none",
            bits=number(self.reported.get("bits_per_weight")) or 0.0,
        )

    @property
    def decode(self) -> Callable[[Sequence[int]], str] | None:
        """A function that decodes token ids; None if the server sends no ids, or the model is not on this machine."""
        return None if self._path is None else self._decode

    def _decode(self, tokens: Sequence[int]) -> str:
        assert self._path is not None
        reported = str(self.reported.get("revision"))
        if reported not in self._decoders:  # only on demand, because few replies are inspected so closely
            same = revision(self._path) == reported
            self._decoders[reported] = decoder(os.fspath(self._path) if same else None)
        return self._decoders[reported](tokens) or ""

    @property
    def exactness(self) -> "ServerEngine":
        """Return the object whose method `label` says how exact replies are. Here it is the engine itself."""
        return self

    def label(self, rule: Rule) -> str:
        """Return how exact replies are, in the server's words; empty if the server does not report it."""
        reported = word(self.reported.get("exactness"))
        return reported if reported in SAMENESS else ""

    def sampling(self, settings: Settings) -> RemoteSampling:
        """Return the sampling settings. Raises UsageMistake for a setting without effect."""
        values = {name: getattr(settings, name) for name in SAMPLED}
        chosen = tuple(name for name, value in values.items() if value is not None)
        sampling = RemoteSampling(**values, seed=settings.seed, source="the server's default", chosen=chosen)
        for name in ("top_p", "top_k", "min_p") if sampling.greedy else ():
            origin, spelled = settings.origins.get(name, ""), name.replace("_", "-")
            if origin == TYPED or origin.startswith("--"):
                flag = f"{settings.shown(name)}" if origin == TYPED else f"--{spelled}"
                raise UsageMistake(
                    f"{flag} has no effect at temperature 0; leave it out, or give a temperature above 0."
                )
        return sampling

    def thinking(self, settings: Settings, system: str | None = None) -> bool | None:
        """Return whether the settings ask for thinking. Whether the model obeys is unknown."""
        return settings.think

    def thinks_by_itself(self, system: str | None = None) -> bool | None:
        """Return None: whether a server's model thinks by default is unknown."""
        return None

    def report(self, sampling: RemoteSampling, load_seconds: float) -> ServerReport:
        """Return the report of a reply with this sampling. Connecting to the server took `load_seconds`."""
        return ServerReport(self, sampling, load_seconds)

    def lend_core(self, lent: bool) -> None:
        """Do nothing, because the model runs in another process."""

    # -- replies ------------------------------------------------------------------------------------------------------

    def chat(
        self,
        messages: Sequence[Message],
        sampling: RemoteSampling,
        limits: Limits | None = None,
        think: bool | None = None,
    ) -> Generator[Event, None, None]:
        """Yield the events of a reply to a conversation.

        If the server says that the conversation is too long, its oldest turns are left out, and the request is sent
        again. A localspec server leaves turns out itself. For other servers this method removes turns until the text is
        about half as long as the refused text.

        After an empty stream, the request is sent once more without streaming, because some servers report errors only
        in whole replies. Raises NotAllowed, NotHere, UsageMistake and LocalspecError if the server refuses. Raises
        BrokenOff after the events so far, if the connection ends within a reply.
        """
        body = self._body(sampling, limits or Limits(), think)
        self.session.statistics = self.session.so_far = None
        first = 1 if messages and messages[0]["role"] == "system" else 0
        turns = max(0, (len(messages) - first - 1) // 2)  # that can be left out
        sizes = [len(message["content"]) for message in messages]
        while True:
            dropped = turns_left_out(sum(sizes[:first]), sizes[first:], turns, self._room)
            sent = [*messages[:first], *messages[first + 2 * dropped :]]
            if self._truncates:
                body["truncation"] = "auto"
            try:
                yield from self._reply({**body, "messages": self._sendable(sent)}, dropped)
                return
            except EmptyReply:
                if not body["stream"]:
                    raise
                body = {**body, "stream": False}
                del body["stream_options"]
            except TooLong:
                if self.server.is_localspec and not self._truncates:
                    self._truncates = True
                    continue
                if dropped == turns:
                    raise
                self._room = sum(len(message["content"]) for message in sent) - 1

    def _body(self, sampling: RemoteSampling, limits: Limits, think: bool | None) -> dict[str, Any]:
        return {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name in (*SAMPLED, "seed") if (value := getattr(sampling, name)) is not None},
            **({} if limits.max_tokens is None else {"max_tokens": limits.max_tokens}),
            **({"stop": list(limits.stop)} if limits.stop else {}),
            **({} if think is None else {"chat_template_kwargs": {"enable_thinking": think}}),
        }

    def _sendable(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages without their thoughts, except for a localspec server: its chat templates may use
        thoughts."""
        if self.server.is_localspec:
            return list(messages)
        return [{name: text for name, text in message.items() if name != "reasoning_content"} for message in messages]

    def _reply(self, body: Mapping[str, Any], dropped: int) -> Generator[Event, None, None]:
        content = json.dumps(body).encode()
        reply = ServerReply(self, dropped, body.get("max_tokens"))
        with closing(self.server.post("chat/completions", content)) as link:
            yield from reply.events(self._wait(link, reply))

    def _wait(self, link: Link, reply: ServerReply) -> Iterator[Head | bytes | None]:
        """Yield what `link` receives, as long as the function `self.wanted` returns True.

        Raises SilentServer if no text has arrived for too long. Comments in the stream do not count as text.
        """
        notice_at = FIRST_NOTICE
        for arrival in link.arrivals():
            if not self.wanted():
                return
            if reply.waited < FIRST_NOTICE:
                notice_at = FIRST_NOTICE
            elif reply.waited >= notice_at:
                notice_at = reply.waited + NEXT_NOTICE
                self.reporter.progress(f"waiting for {self.server.address.name}, {reply.waited:.0f} s")
            yield arrival
            limit = NEXT_SECONDS if reply.begun else FIRST_SECONDS
            if reply.waited > limit:
                raise SilentServer(f"{self.server.address.url} has sent nothing for {limit:.0f} s; try again.")


def _path_on_this_machine(model: str) -> Path | None:
    try:
        return registry.resolve(model).path
    except LocalspecError:
        return None


class NamedServer:
    """The server that the settings name. The start of a chat asks the server for its models."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: Server | None = None
        self.start = partial(start_chat, settings, find_card=self._card)  # raises the errors of `Server.open`, too

    def load(
        self,
        settings: Settings,
        card: TargetCard,
        *,
        store: Store | None = None,
        notice: Callable[[str], None] = lambda _: None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> ServerEngine:
        """Return an engine for the server's model with the name of `card`. Raises NotHere without such a model."""
        server = self._open(Reporter(notice, progress))
        return ServerEngine(server, server.model(card.name, insist=True), Reporter(notice, progress))

    def named(self, name: str) -> TargetCard:
        """Return the server's model of this name. Raises NotHere."""
        server = self._open(Reporter())
        return named_on_server(server.model(name, insist=True), f"at {server.address.url}")

    def listed(self, current: str) -> list[str]:
        """Return a line for each of the server's models, with a star for the current one."""
        names = [*self._open(Reporter()).models] or [current]
        return [one_line(f"{'*' if name == current else ' '} {name}") for name in names]

    def _open(self, reporter: Reporter) -> Server:
        if self._server is None:
            assert self._settings.elsewhere is not None
            reporter.progress(f"asking {self._settings.elsewhere}")
            self._server = Server.open(self._settings.elsewhere)
            if self._server.unencrypted_key:
                reporter.notice(self._server.unencrypted_key)
        return self._server

    def _card(self, settings: Settings, saved: Saved | None, reporter: Reporter) -> TargetCard:
        server = self._open(reporter)
        flag = settings.origins.get("model", "").startswith("--")
        model = settings.model if flag or saved is None else saved.info.model
        name = server.model(model, insist=flag)
        if model not in (None, name) and (saved is not None or not settings.origins.get("model", "").endswith(".toml")):
            reporter.notice(f"{server.address.name} has no {model}, so {name} answers.")
        return named_on_server(name, f"at {server.address.url}")
