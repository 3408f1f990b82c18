"""A server of this user that has the model loaded already, asked through its socket as if its engine were here.

A few lines over a socket: a command that answers at once imports neither an HTTP library nor a tokenizer.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from localspec import __version__, config, errors
from localspec.config import NAMES, Rule, Settings
from localspec.engine.report import whole
from localspec.errors import LocalspecError
from localspec.events import Done, Event, Memory, Prefill, Reporter, Statistics, Text
from localspec.models.messages import Message
from localspec.models.registry import TargetCard

LOOK = 0.2  # seconds between two looks at whether an answer is still wanted
CONNECT_SECONDS = 1.0
TOLD_SECONDS = 2.0  # of waiting, after which that is told
SILENT_SECONDS = 600.0  # of a server that is asked by others meanwhile, or loads its model
STOP_SECONDS = 3.0  # for the figures of a reply that was stopped
LONGEST_LINE = 2**26  # bytes
_END: Any = object()


class Gone(LocalspecError):
    """The server ended, or never was."""


class NotThisOne(LocalspecError):
    """The server would not answer as an engine of this process."""


@dataclass(frozen=True)
class WarmSampling:
    """How a reply is sampled: `Sampling`, told by the server."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    rule: Rule
    epsilon: float
    delta: float

    @property
    def greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.temperature == 0


@dataclass
class _Spoken:
    statistics: Statistics | None = None
    memory: Memory | None = None

    @property
    def so_far(self) -> Statistics | None:
        return self.statistics


class _Choice(NamedTuple):
    device: str
    dtype: str
    quantize: str
    nodes: int
    engine: str = "server"


class WarmEngine:
    """An engine of the server. Where the server dies in the middle of a reply, one of this process goes on.

    `load` makes that one.
    """

    count_tokens = decode = None
    held, parameters, costs = ("cpu", 0), 0, None

    def __init__(
        self, place: Path, card: TargetCard, told: Mapping[str, Any], settings: Settings, load: Callable[[], Any]
    ) -> None:
        self._place, self._card, self._told, self._settings, self._load = place, card, told, settings, load
        self._name = os.urandom(16).hex()  # `secrets` would import hashes
        self._conversation: int | None = None
        self._speaking = False
        self._instead: Any = None  # an engine of this process
        self.wanted: Callable[[], bool] = lambda: True
        self.session, self.context = _Spoken(), int(told["context"])
        self.choice = _Choice(**told["choice"])
        self.start: dict[str, Any] = {**told["start"], "engine": "server"}
        self.load_seconds = float(told["load_s"])

    @classmethod
    def open(
        cls, place: Path, card: TargetCard, settings: Settings, system: str | None, reporter: Reporter,
        load: Callable[[], Any], keep: float | None = None,
    ) -> Self:  # fmt: skip
        """With `keep` the server stays for so many seconds at least, if it was to end.

        Raises Gone and NotThisOne where an engine of this process has to answer, and what that would raise.
        """
        asked = {
            "keep": keep,
            "version": __version__,
            "isa": config.instruction_set(),
            "model": card.name,
            "path": str(card.path),
            "settings": {name: getattr(settings, name) for name in NAMES if name != "keymap"},
            "origins": {name: settings.origins.get(name, "default") for name in NAMES},
            "system": system,
        }
        began, told = time.monotonic(), None
        with closing(_lines(place, "/localspec/open", asked)) as lines:
            for told in lines:
                if told is not None:
                    break
                if time.monotonic() - began > TOLD_SECONDS:
                    reporter.progress("waiting for localspec serve")
        if told is None:
            raise Gone("The server is gone.")
        _raise_what_is_wrong(told)
        try:
            engine, notices = cls(place, card, told, settings, load), [*map(str, told["notices"])]
        except (KeyError, TypeError, ValueError):
            raise Gone("The server is none that answers.") from None
        for sentence in notices:
            reporter.notice(sentence)
        return engine

    @property
    def exactness(self) -> "WarmEngine":
        """This one: it knows what was told."""
        return self

    def label(self, rule: Rule) -> str:
        """How exact its replies are."""
        return str(self._told["label"])

    def sampling(self, settings: Settings) -> Any:
        """How replies are sampled, as the server has it for the settings that this was opened with."""
        return WarmSampling(**self._told["sampling"])

    def thinking(self, settings: Settings, system: str | None = None) -> bool | None:
        """Whether the model is told to think."""
        told: bool | None = self._told["think"]
        return told

    def thinks_by_itself(self, system: str | None = None) -> bool | None:
        """Whether it does where nobody says so."""
        told: bool | None = self._told["by_itself"]
        return told

    @property
    def conversation(self) -> int | None:
        """Where replies are kept. The server keeps phrases, and is told while it speaks."""
        return self._conversation

    @conversation.setter
    def conversation(self, number: int | None) -> None:
        self._conversation = number
        if self._instead is not None:
            self._instead.conversation = number
        elif self._speaking:
            self._say_more({"conversation": number})

    def chat(
        self, messages: Sequence[Message], sampling: WarmSampling, limits: Any = None, think: bool | None = None
    ) -> Generator[Event, None, None]:
        """Answers a conversation, as `Engine.chat` does and raising the same."""
        came: list[Text] = []
        try:
            for event in self._from_server(messages, sampling, limits, think):
                if isinstance(event, Text):
                    came.append(event)
                yield event
            return
        except Gone:
            self._speaking = False
        yield from self._go_on(messages, sampling, limits, think, came)

    # -- the server ---------------------------------------------------------------------------------------------------

    def _from_server(
        self, messages: Sequence[Message], sampling: WarmSampling, limits: Any, think: bool | None
    ) -> Iterator[Event]:
        self.session.statistics, seen = None, list[Text]()
        asked = {
            "model": self._card.name, "path": str(self._card.path), "messages": list(messages),
            "sampling": vars(sampling), "max_tokens": limits.max_tokens if limits else None,
            "stop": list(limits.stop) if limits else [], "think": think, "name": self._name,
            "kept": self._settings.log,
        }  # fmt: skip
        lines, self._speaking = _lines(self._place, "/localspec/reply", asked), True
        try:
            while (line := next(lines, _END)) is not _END:
                if line is not None:
                    _raise_what_is_wrong(line)
                    if "kept" in line:
                        return
                    event = _event(line)
                    if isinstance(event, Done):
                        self.session.statistics = event.statistics
                    elif isinstance(event, Text):
                        seen.append(event)
                    yield event
                elif not self.wanted():
                    self._stop(lines, seen)
                    return
            raise Gone("The server is gone.")
        except GeneratorExit:
            self._stop(lines, seen)
            raise
        finally:
            lines.close()
            self._speaking = False

    def _stop(self, lines: Iterator[Any], seen: Sequence[Text]) -> None:
        """Has the server keep what there is, and learns the figures of as much of it as was seen here."""
        if self.session.statistics is not None:
            return
        self._say_more({"stop": True})
        until = time.monotonic() + STOP_SECONDS
        with suppress(Gone):
            for line in lines:
                if line is not None and line.get("kept"):
                    tokens = tuple(token for event in seen for token in event.tokens)
                    sources = [source for event in seen for source in event.sources]
                    counted = {name: sources.count(name) for name in dict.fromkeys(sources)}
                    found = _statistics(line["kept"])
                    self.session.statistics = replace(found, token_ids=tokens, sources=counted)
                if (line is not None and "kept" in line) or time.monotonic() > until:
                    return

    def _say_more(self, said: Mapping[str, Any]) -> None:
        lines = _lines(self._place, f"/localspec/replies/{self._name}", said)
        with suppress(Gone), closing(lines):
            next(lines, None)

    # -- this process -------------------------------------------------------------------------------------------------

    def _go_on(
        self, messages: Sequence[Message], sampling: WarmSampling, limits: Any, think: bool | None, came: Sequence[Text]
    ) -> Iterator[Event]:
        """The same reply from an engine of this process, without what has come of it.

        Raises Gone where its beginning is another one.
        """
        from localspec import Limits, Sampling

        self._instead = engine = self._load()
        engine.conversation, engine.wanted = self._conversation, self.wanted
        self.start, self.load_seconds = {**self.start, "engine": engine.choice.engine}, engine.load_seconds
        known = Limits(limits.max_tokens, tuple(limits.stop)) if limits else None
        text, reasoning = "".join(one.text for one in came), "".join(one.reasoning for one in came)
        left = sum(len(one.tokens) for one in came)
        events = engine.chat(messages, Sampling(**vars(sampling)), known, think)
        try:
            for event in events:
                match event:
                    case Text() if left or text or reasoning:
                        event, text, reasoning, left = _without(event, text, reasoning, left)
                        if event is not None:
                            yield event
                    case Prefill() if came:
                        continue
                    case _:
                        yield event
        finally:
            events.close()
            self.session.statistics = engine.session.statistics


class WarmReport:
    """The JSON object of one reply of such an engine."""

    def __init__(self, engine: WarmEngine, sampling: WarmSampling) -> None:
        self._engine, self._sampling = engine, sampling

    @property
    def start(self) -> dict[str, Any]:
        """What of it does not depend on how the reply went."""
        return self._engine.start

    @property
    def exactness(self) -> str:
        """For a line of figures."""
        return self._engine.label(self._sampling.rule)

    def of(self, text: str, reasoning: str, reason: str, statistics: Statistics) -> dict[str, Any]:
        """All of it, once the reply is over."""
        return whole(self.start, text, reasoning, reason, statistics, self._engine.load_seconds)


def _without(event: Text, text: str, reasoning: str, left: int) -> tuple[Text | None, str, str, int]:
    """An event without what was said before, and what of that is still to come."""
    for new, old in ((event.text, text), (event.reasoning, reasoning)):
        if not (old.startswith(new) or new.startswith(old)):
            raise Gone("The server was gone in the middle of the reply, and here it would be another one; ask again.")
    cut = min(left, len(event.tokens))
    rest = replace(
        event,
        text=event.text[len(text) :],
        reasoning=event.reasoning[len(reasoning) :],
        tokens=event.tokens[cut:],
        sources=event.sources[cut:],
        reasoning_tokens=max(0, event.reasoning_tokens - cut),
    )
    empty = not (rest.text or rest.reasoning or rest.tokens)
    return None if empty else rest, text[len(event.text) :], reasoning[len(event.reasoning) :], left - cut


# -- over the socket --------------------------------------------------------------------------------------------------


def _lines(place: Path, path: str, body: Mapping[str, Any]) -> Generator[Any, None, None]:
    """The lines that the server answers with; None after each `LOOK` in which nothing came. Raises Gone."""
    content = json.dumps(body).encode()
    # HTTP/1.0: the answer comes as it is, and ends where the connection does.
    head = f"POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(CONNECT_SECONDS)
            connection.connect(os.fspath(place))
            connection.settimeout(None)
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            connection.settimeout(LOOK)
            buffer, headed, heard = bytearray(), False, time.monotonic()
            while True:
                try:
                    piece = connection.recv(2**16)
                except TimeoutError:
                    if time.monotonic() - heard > SILENT_SECONDS:
                        raise Gone(f"The server has said nothing for {SILENT_SECONDS:.0f} s.") from None
                    yield None
                    continue
                if not piece:
                    return
                heard = time.monotonic()
                buffer += piece
                if not headed:
                    status, end, rest = bytes(buffer).partition(b"\r\n\r\n")
                    if not end:
                        continue
                    if status.split(b" ", 2)[1:2] != [b"200"]:
                        raise Gone("The server is none that answers.")
                    headed, buffer = True, bytearray(rest)
                *whole, left = buffer.split(b"\n")
                buffer = bytearray(left)
                for line in whole:
                    yield json.loads(line)
                if len(buffer) > LONGEST_LINE:
                    raise Gone("The server is none that answers.")
    except (OSError, ValueError) as error:
        raise Gone(f"The server is gone ({error}).") from None


def _raise_what_is_wrong(line: Mapping[str, Any]) -> None:
    if "error" in line:
        kind, sentence = line["error"]
        if kind in ("Differs", "NotHere", "Refused", "TooMany"):
            raise NotThisOne(sentence)
        if "being stopped" in sentence:
            raise Gone(sentence)
        found = getattr(errors, kind, LocalspecError)
        raise found(sentence)


def _event(line: Mapping[str, Any]) -> Event:
    """The event that a line tells. Raises Gone for one that tells none."""
    try:
        if "prefill" in line:
            return Prefill(*line["prefill"])
        if "text" in line:
            text, tokens, sources, seconds, steps, reasoning, thoughts = line["text"]
            return Text(text, tuple(tokens), tuple(sources), seconds, steps, (), reasoning, thoughts)
        return Done(line["done"], _statistics(line["statistics"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Gone("The server is none that answers.") from None


def _statistics(told: Mapping[str, Any]) -> Statistics:
    known = {one.name: told[one.name] for one in fields(Statistics) if one.name in told}
    known["rows"] = {int(rows): count for rows, count in told["rows"].items()}
    known["memory"] = Memory(**told["memory"])
    for name in ("token_ids", "acceptance_by_depth"):
        known[name] = tuple(told[name])
    return Statistics(**known)
