"""A server of this user that has the model loaded already, asked through its socket as if its engine were here."""

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from localspec import __version__, environment
from localspec.config import NAMES, Rule, Settings
from localspec.engine.report import whole
from localspec.events import Done, Event, Memory, Reporter, Statistics, Text
from localspec.models.messages import Message
from localspec.models.registry import TargetCard
from localspec.quantities import counted
from localspec.serving.over_socket import Gone, NotThisOne, event_of, lines, raise_what_is_wrong, statistics_of
from localspec.serving.what_came import WhatCame

TOLD_SECONDS = 2.0  # of waiting, after which that is told
STOP_SECONDS = 3.0  # for the figures of a reply that was stopped
SILENT = "waiting for localspec serve"
_END: Any = object()


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
    source: str = ""
    chosen: Sequence[str] = ()

    @property
    def greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.temperature == 0


@dataclass
class Spoken:
    """The figures of the reply under way, or of the last one, as far as they were told."""

    statistics: Statistics | None = None  # once it is over
    so_far: Statistics | None = None
    memory: Memory | None = None

    def end(self, statistics: Statistics) -> None:
        """The reply is over."""
        self.statistics = self.so_far = statistics
        self.memory = statistics.memory


class Form(NamedTuple):
    """In which form the server's engine answers."""

    engine: str
    device: str
    dtype: str
    quantize: str
    nodes: int
    pace: Sequence[str]


class WarmEngine:
    """An engine of the server. Where the server dies in the middle of a reply, one of this process goes on.

    `load` makes that one.
    """

    count_tokens = decode = None
    parameters = 0
    live = False  # whether drafts and figures are wanted while a reply comes

    def __init__(
        self, place: Path, card: TargetCard, told: Mapping[str, Any], settings: Settings, load: Callable[[], Any],
        reporter: Reporter,
    ) -> None:  # fmt: skip
        self._place, self._card, self._told, self._settings, self._load = place, card, told, settings, load
        self._reporter, self._server = reporter, str(told["server"])
        self._name = ""  # of the reply under way
        self._conversation: int | None = None
        self._speaking = False
        self._instead: Any = None  # an engine of this process
        self._spoken = Spoken()
        self.wanted: Callable[[], bool] = lambda: True
        self._context, self.load_seconds = int(told["context"]), float(told["load_s"])
        self.start: dict[str, Any] = {**told.get("start", {}), "engine": "server"}
        self._take_form(told["engine"])
        self._drafter = None if settings.drafter == "auto" else self.start["drafter"]

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
            "isa": environment.instruction_set(),
            "model": card.name,
            "path": str(card.path),
            "settings": {name: getattr(settings, name) for name in NAMES if name != "keymap"},
            "origins": {name: settings.origins.get(name, "default") for name in NAMES},
            "system": system,
            "chat": cls.live,
        }
        began, told = time.monotonic(), None
        with closing(lines(place, "/localspec/open", asked)) as answer:
            for line in answer:
                if line is None:
                    late = time.monotonic() - began > TOLD_SECONDS
                    reporter.progress(SILENT if late else f"loading {card.name}")
                elif "ahead" not in line:
                    told = line
                    break
        if told is None:
            raise Gone("The server is gone.")
        raise_what_is_wrong(told)
        try:
            engine, notices = cls(place, card, told, settings, load, reporter), [*map(str, told["notices"])]
        except (KeyError, TypeError, ValueError):
            raise Gone("The server is none that answers.") from None
        for sentence in notices:
            reporter.notice(sentence)
        return engine

    def _take_form(self, told: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError and ValueError for what is none."""
        self._form, self._label = Form(**told["choice"]), str(told["label"])
        device, held = told["held"]
        self._held, self._spoken.memory = (str(device), int(held)), Memory(**told["memory"])
        self.start["drafter"] = told["drafter"]

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def choice(self) -> Any:
        """In which form it answers."""
        return self._form

    @property
    def session(self) -> Any:
        """What is known of the reply under way, or of the last one."""
        return self._spoken if self._instead is None else self._instead.session

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together, at most."""
        return self._context

    @property
    def held(self) -> tuple[str, int]:
        """The device, and the bytes of its memory that go with the engine."""
        return self._held

    @property
    def exactness(self) -> Any:
        """This one: it knows what was told."""
        return self

    def label(self, rule: Rule) -> str:
        """How exact its replies are."""
        return self._label

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

    def report(self, sampling: WarmSampling, load_seconds: float) -> "WarmReport":
        """Return the report of a reply that is sampled in this way. The server knows how long its model loaded."""
        return WarmReport(self, sampling)

    def lend_core(self, lent: bool) -> None:
        """Leaves a core to who draws, if this process computes at all."""
        if self._instead is not None:
            self._instead.lend_core(lent)

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
        self, messages: Sequence[Message], sampling: Any, limits: Any = None, think: bool | None = None
    ) -> Generator[Event, None, None]:
        """Answers a conversation, as `Engine.chat` does and raising the same."""
        came = WhatCame()
        if self._instead is None:
            try:
                for event in self._from_server(messages, sampling, limits, think):
                    came.take(event)
                    yield event
                return
            except (Gone, NotThisOne) as why:
                self._go_on_here(why)
        yield from self._from_here(messages, sampling, limits, think, came)

    # -- the server ---------------------------------------------------------------------------------------------------

    def _from_server(
        self, messages: Sequence[Message], sampling: Any, limits: Any, think: bool | None
    ) -> Iterator[Event]:
        spoken, seen, ahead, began = self._spoken, list[Text](), 0, time.monotonic()
        spoken.statistics = spoken.so_far = None
        self._name, self._speaking = os.urandom(16).hex(), True  # `secrets` would import hashes
        asked = {
            "model": self._card.name, "path": str(self._card.path), "messages": list(messages),
            "sampling": vars(sampling), "max_tokens": limits.max_tokens if limits else None,
            "stop": list(limits.stop) if limits else [], "think": think, "name": self._name,
            "loop_prompt": limits.loop_prompt if limits else None,
            "kept": self._settings.log, "server": self._server, "live": self.live, "drafter": self._drafter,
        }  # fmt: skip
        answer, begun = lines(self._place, "/localspec/reply", asked), False
        try:
            while (line := next(answer, _END)) is not _END:
                if line is None:
                    if not self.wanted():
                        self._stop(answer, seen, begun)
                        return
                    if not begun and (ahead or time.monotonic() - began > TOLD_SECONDS):
                        before = f"localspec serve answers {counted(ahead, 'other')} before this"
                        self._reporter.progress(before if ahead else SILENT)
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
                    event, begun = event_of(line), True
                    if isinstance(event, Done):
                        spoken.end(event.statistics)
                    elif isinstance(event, Text):
                        seen.append(event)
                        self._take_figures(line, seen)
                    yield event
            raise Gone("The server is gone.")
        except (KeyError, TypeError, ValueError):
            raise Gone("The server is none that answers.") from None
        except GeneratorExit:
            self._stop(answer, seen, begun)
            raise
        finally:
            answer.close()
            self._speaking = False

    def _take_figures(self, line: Mapping[str, Any], seen: Sequence[Text]) -> None:
        if "figures" in line:
            self._spoken.so_far = now = replace(statistics_of(line["figures"]), token_ids=_tokens(seen))
            self._spoken.memory = now.memory

    def _stop(self, answer: Iterator[Any], seen: Sequence[Text], begun: bool) -> None:
        """Has the server keep what there is, and learns the figures of as much of it as was seen here."""
        if not begun:  # it waits for its turn, and is taken out of the queue
            return
        over, until = self._spoken.statistics is not None, time.monotonic() + STOP_SECONDS
        if not over:
            self._say_more({"stop": True})
        with suppress(Gone):
            for line in answer:
                if line is not None and line.get("kept") and not over:
                    self._spoken.end(_of_what_was(seen, statistics_of(line["kept"])))
                if (line is not None and "kept" in line) or time.monotonic() > until:
                    break
        if self._spoken.statistics is None and self._spoken.so_far is not None:  # it answers no more
            self._spoken.end(_of_what_was(seen, self._spoken.so_far))

    def _say_more(self, said: Mapping[str, Any]) -> None:
        answer = lines(self._place, f"/localspec/replies/{self._name}", said)
        with suppress(Gone), closing(answer):
            next(answer, None)

    # -- this process -------------------------------------------------------------------------------------------------

    def _go_on_here(self, why: Gone | NotThisOne) -> None:
        self._instead = engine = self._load()
        self._speaking = False
        self.start, self.load_seconds = {**self.start, "engine": engine.choice.engine}, engine.load_seconds

    def _from_here(
        self, messages: Sequence[Message], sampling: Any, limits: Any, think: bool | None, came: WhatCame
    ) -> Iterator[Event]:
        """The same reply from an engine of this process, without what has come of it.

        Raises Gone where its beginning is another one.
        """
        from localspec import Limits, Sampling

        engine = self._instead
        engine.conversation, engine.wanted = self._conversation, self.wanted
        known = Limits(limits.max_tokens, tuple(limits.stop), limits.loop_prompt) if limits else None
        with closing(engine.chat(messages, Sampling(**vars(sampling)), known, think)) as events:
            for event in events:
                if (rest := came.rest_of(event)) is not None:
                    yield rest


def _of_what_was(seen: Sequence[Text], statistics: Statistics) -> Statistics:
    """The figures with the tokens that were seen."""
    sources = [source for event in seen for source in event.sources]
    counts = {name: sources.count(name) for name in dict.fromkeys(sources)}
    return replace(statistics, token_ids=_tokens(seen), sources=counts)


def _tokens(seen: Sequence[Text]) -> tuple[int, ...]:
    return tuple(token for event in seen for token in event.tokens)


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
