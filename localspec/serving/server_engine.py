"""A server that answers in place of an engine of this process: what it sends becomes the same events."""

import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import Limits
from localspec.chat.kept_phrases import Decode, decoder
from localspec.chat.wording import SAMENESS
from localspec.checkpoint import revision
from localspec.config import TYPED, Rule, Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Done, Event, Memory, Prefill, Reporter, Statistics, Text
from localspec.models import registry
from localspec.models.messages import Message
from localspec.serving import pieces
from localspec.serving.link import BrokenOff, Head, Link, NothingCame, Patience, Silent
from localspec.serving.pieces import (
    END,
    Broken,
    Piece,
    Told,
    count,
    messages,
    number,
    proposed,
    read_piece,
    word,
)
from localspec.serving.server import OK, Server, TooLong, refusal
from localspec.text import one_line

FIRST_SECONDS = 600.0  # until the first text: it may load its model, and others may be before us
NEXT_SECONDS = 120.0  # from one piece to the next
FIRST_TOLD, TOLD_AGAIN = 2.0, 10.0  # seconds of silence until it is told, and told again
_TOLD = (
    "revision",
    "drafter",
    "device",
    "dtype",
    "quantize",
    "exactness",
    "accept",
    "lossless",
    "seed",
)  # of localspec


@dataclass
class ServerSampling:
    """What was asked for; the rest is what the server tells, or None."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    rule: Rule = "exact"

    @property
    def greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.temperature == 0

    def as_json(self) -> dict[str, Any]:
        """What was asked for, as a request says it."""
        asked = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p", "seed")}
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class ServerChoice:
    """In which form the model answers, as far as the server tells."""

    engine: str = "server"
    device: str = ""
    dtype: str = ""
    quantize: str = "none"
    nodes: int = 0


@dataclass
class Spoken:
    """The figures of the reply under way, or of the last one. What the server holds in memory is not this machine's."""

    statistics: Statistics | None = None
    memory: Memory | None = None

    @property
    def so_far(self) -> Statistics | None:
        """Those so far."""
        return self.statistics


class ServerEngine:
    """One model of a server. Use it from one thread at a time."""

    count_tokens = None  # its tokenizer is not here
    held = ("cpu", 0)
    parameters, costs = 0, None

    def __init__(self, server: Server, model: str, reporter: Reporter) -> None:
        self.server, self.model, self.reporter = server, model, reporter
        self.conversation: int | None = None
        self.wanted: Callable[[], bool] = lambda: True
        self.context = server.models[model].context if model in server.models else 0
        self.session, self.told = Spoken(), dict[str, Any]()
        self._path = _place(model) if server.ours else None
        self._decoders: dict[str, Decode] = {}  # by revision

    @property
    def choice(self) -> ServerChoice:
        """What the server told with the last reply."""
        told = {name: word(self.told.get(name)) for name in ("device", "dtype", "quantize")}
        where = f"at {self.server.address.name}"
        return ServerChoice(device=where, dtype=told["dtype"], quantize=told["quantize"] or "none")

    @property
    def decode(self) -> Callable[[Sequence[int]], str] | None:
        """Reads token ids, where the server tells them and its model is here, too."""
        return None if self._path is None else self._decode

    def _decode(self, tokens: Sequence[int]) -> str:
        assert self._path is not None
        told = str(self.told.get("revision"))
        if told not in self._decoders:  # only now: most replies are never looked at so closely
            same = revision(self._path) == told
            self._decoders[told] = decoder(os.fspath(self._path) if same else None)
        return self._decoders[told](tokens) or ""

    @property
    def exactness(self) -> "ServerEngine":
        """This one: it knows as much as was told."""
        return self

    def label(self, rule: Rule) -> str:
        """How exact its replies are, by its own word; an empty text where it says nothing of that."""
        told = word(self.told.get("exactness"))
        return told if told in SAMENESS else ""

    def sampling(self, settings: Settings) -> ServerSampling:
        """What was asked for. Raises UsageMistake for what has no effect."""
        asked = ServerSampling(settings.temperature, settings.top_p, settings.top_k, settings.min_p, settings.seed)
        for name in ("top_p", "top_k", "min_p") if asked.greedy else ():
            origin, spelled = settings.origins.get(name, ""), name.replace("_", "-")
            if origin == TYPED or origin.startswith("--"):
                how = f"{settings.shown(name)}" if origin == TYPED else f"--{spelled}"
                raise UsageMistake(
                    f"{how} has no effect at temperature 0; leave it out, or give a temperature above 0."
                )
        return asked

    def thinking(self, settings: Settings, system: str | None = None) -> bool | None:
        """Whether the model is told to think. Nobody here knows whether it heeds that."""
        return settings.think

    def thinks_by_itself(self, system: str | None = None) -> bool | None:
        """That cannot be told."""
        return None

    # -- replies ------------------------------------------------------------------------------------------------------

    def chat(
        self,
        messages: Sequence[Message],
        sampling: ServerSampling,
        limits: Limits | None = None,
        think: bool | None = None,
    ) -> Generator[Event, None, None]:
        """Answers a conversation; where the server says that it is too long, its oldest turns are left out.

        Where a stream ends with nothing in it, it is asked once more for a reply in one piece, or the reason why not.
        Raises NotAllowed, NotHere, UsageMistake and LocalspecError for what the server refuses, and BrokenOff where it
        is gone in the middle: what it said until then has come.
        """
        body, self.session.statistics = self._body(sampling, limits or Limits(), think), None
        said, dropped = list(messages), 0
        first = 1 if said and said[0]["role"] == "system" else 0
        while True:
            try:
                yield from self._reply({**body, "messages": self._readable(said)}, dropped)
                return
            except NothingCame:
                if not body["stream"]:
                    raise
                body = {**body, "stream": False}  # some servers say only so what is wrong
                del body["stream_options"]
            except TooLong:
                if len(said) - first < 3:
                    raise
                del said[first : first + 2]
                dropped += 1

    def _body(self, sampling: ServerSampling, limits: Limits, think: bool | None) -> dict[str, Any]:
        return {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling.as_json(),
            **({} if limits.max_tokens is None else {"max_tokens": limits.max_tokens}),
            **({"stop": list(limits.stop)} if limits.stop else {}),
            **({} if think is None else {"chat_template_kwargs": {"enable_thinking": think}}),
        }

    def _readable(self, said: Sequence[Message]) -> list[Message]:
        """Thoughts of earlier replies go back to localspec alone, whose chat templates may ask for them."""
        if self.server.ours:
            return list(said)
        return [{name: text for name, text in one.items() if name != "reasoning_content"} for one in said]

    def _reply(self, body: Mapping[str, Any], dropped: int) -> Generator[Event, None, None]:
        content = json.dumps(body).encode()
        with self.server.post("chat/completions", content) as link:
            yield from _Reply(self, dropped).events(self._wait(link))

    def _wait(self, link: Link) -> Iterator[Head | bytes | None]:
        """What arrives, as long as it is wanted and in time."""
        patience, tell_at = Patience(FIRST_SECONDS), FIRST_TOLD
        for one in link.arrivals():
            if not self.wanted():
                return
            if one is None:
                if patience.waited >= tell_at:
                    tell_at += TOLD_AGAIN
                    self.reporter.progress(f"waiting for {self.server.address.name}, {patience.waited:.0f} s")
            elif isinstance(one, bytes) and one.startswith(b"data:"):  # anything else says that it lives, and no more
                patience.renew(NEXT_SECONDS)
                tell_at = FIRST_TOLD
            yield one
            if patience.over:
                raise Silent(f"{self.server.address.url} has said nothing for {patience.limit:.0f} s; try again.")


class _Reply:
    """One reply, as it comes."""

    def __init__(self, engine: ServerEngine, dropped: int) -> None:
        self._engine, self._dropped = engine, dropped
        self._began = time.perf_counter()
        self._first = self._last = 0.0  # seconds until then
        self._tokens: list[int] = []
        self._sources: dict[str, int] = {}
        self._thoughts, self._said = 0, False
        self._thought_until = 0.0
        self._piece = Piece()  # what was told so far beside the text
        self._thinking = pieces.ThinkingInText(told_apart=engine.server.ours)

    def events(self, arrivals: Iterator[Head | bytes | None]) -> Iterator[Event]:
        engine, where = self._engine, self._engine.server.address.url
        head = next((one for one in arrivals if isinstance(one, Head)), None)
        if head is None:  # not wanted any more
            return
        if head.status != OK:
            content = b"\n".join(one for one in arrivals if isinstance(one, bytes))
            raise refusal(where, engine.model, head, content, engine.server.key)
        forms = {"text/event-stream": messages, "application/json": self._at_once}
        if head.kind not in forms:
            kind = one_line(head.kind)[:80] or "something without a name"
            raise LocalspecError(f"{where} answers with {kind}, which is no reply; correct the address.")
        lines = (one for one in arrivals if not isinstance(one, Head))
        begun = ended = told = False
        try:
            for content in filter(None, forms[head.kind](lines)):
                if content.strip() == END:
                    ended = True
                    break
                piece = read_piece(content)
                self._take(piece)
                begun = True
                if event := self._text(piece):
                    if not told:  # only now is it sure that there is a reply
                        told = True
                        yield Prefill(0, 0, self._dropped)
                    yield event
        except Broken as wrong:
            raise LocalspecError(f"{where} broke its own form: {wrong}.") from None
        except BrokenOff as gone:
            if begun or isinstance(gone, Silent):
                raise (_broken_off(where) if begun else gone) from None
            raise NothingCame(str(gone)) from None
        except LocalspecError as failed:
            raise LocalspecError(f"{where} gave up: {failed}") from None
        if not engine.wanted():
            return
        if not ended and self._piece.reason is None:
            raise _broken_off(where) if begun else NothingCame(f"{where} sent no reply, and not why; ask again.")
        if event := self._text(Piece(), final=True):
            if not told:
                told = True
                yield Prefill(0, 0, self._dropped)
            yield event
        if not begun:
            raise LocalspecError(f"{where} sent an end and no reply before it; ask again, or name another model.")
        if self._piece.tool is not None:
            tool = f" {self._piece.tool!r}" if self._piece.tool else ""
            sentence = f"{where} calls a tool{tool}, which nobody offered and nothing here runs"
            if not self._said:
                raise LocalspecError(f"{sentence}; ask in other words, or start that server without tools.")
            engine.reporter.notice(f"{sentence}; what it said beside that is all of the reply.")
        if self._piece.reason is None:
            engine.reporter.notice(
                f"{where} ended the reply and not why: it may be cut off, as by somebody else's prompt."
            )
        if not told:
            yield Prefill(0, 0, self._dropped)
        engine.session.statistics = self._statistics()
        yield Done(self._piece.reason or "stop", engine.session.statistics)

    def _at_once(self, lines: Iterator[bytes | None]) -> Iterator[bytes | None]:
        """A reply that is no stream, as the one message of one."""
        whole = b"\n".join(line for line in lines if line is not None)
        if self._engine.wanted():
            yield whole
            yield END

    def _take(self, piece: Piece) -> None:
        if self._engine.server.ours and piece.own:
            self._engine.told.update({name: piece.own[name] for name in _TOLD if name in piece.own})
        before = self._piece
        self._piece = Piece(
            reason=piece.reason or before.reason,
            usage=piece.usage or before.usage,
            own={**before.own, **piece.own},
            timings=piece.timings or before.timings,
            tool=before.tool if piece.tool is None else before.tool or piece.tool,
        )

    def _text(self, piece: Piece, final: bool = False) -> Text | None:
        tokens, sources = proposed(piece.own) if self._engine.server.ours else ((), ())
        piece = self._thinking.part(piece, final)
        if not (piece.text or piece.reasoning or tokens):
            return None
        self._last = time.perf_counter() - self._began
        self._first = self._first or self._last
        self._tokens += tokens
        for source in sources:
            if source in self._sources or len(self._sources) < pieces.MOST_SOURCES:
                self._sources[source] = self._sources.get(source, 0) + 1
        thoughts = len(tokens) if piece.reasoning and not piece.text else 0
        self._thoughts += thoughts
        if piece.reasoning:
            self._thought_until = self._last
        self._said = self._said or bool(piece.text.strip())
        self._engine.session.statistics = self._statistics()
        return Text(piece.text, tokens, sources, self._last, 0, (), piece.reasoning, thoughts)

    # -- figures ------------------------------------------------------------------------------------------------------

    def _statistics(self) -> Statistics:
        """What is known now: told by the server where it tells, else measured here."""
        usage, told = self._piece.usage, Told(self._piece.own)
        details = usage.get("completion_tokens_details")
        thoughts = count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
        written = count(usage.get("completion_tokens"))
        tokens = len(self._tokens) if self._tokens else written or 0
        decoding = self._last - self._first
        speed = (tokens - 1) / decoding if decoding > 0 and tokens > 1 else 0.0
        return Statistics(
            token_ids=tuple(self._tokens),
            prompt_tokens=count(usage.get("prompt_tokens")) or 0,
            reused_tokens=0,
            prefill_seconds=told.time("prefill_s"),
            first_token_seconds=told.time("first_token_s") or self._first,
            decode_seconds=told.time("decode_s") or decoding,
            draft_seconds=0.0,
            verify_seconds=0.0,
            step_seconds=0.0,
            tokens_per_second=told.time("tokens_per_second") or speed,
            steps=told.counted("steps"),
            acceptance_length=number(told.speculation.get("acceptance_length")) or 0.0,
            acceptance_by_depth=told.by_depth,
            drafted=told.counted("draft_n") or count(self._piece.timings.get("draft_n")) or 0,
            accepted=told.counted("draft_n_accepted") or count(self._piece.timings.get("draft_n_accepted")) or 0,
            sources=dict(self._sources),
            off_reason=word(told.speculation.get("off_reason")) or None,
            memory=told.memory,
            reasoning_tokens=self._thoughts if thoughts is None else thoughts,
            reasoning_seconds=told.time("reasoning_s") or self._thought_until,
            told_tokens=None if self._tokens else written or 0,
        )


def _place(model: str) -> Path | None:
    """Where a model of this name is on this machine."""
    try:
        return registry.resolve(model).path
    except LocalspecError:
        return None


def _broken_off(where: str) -> BrokenOff:
    return BrokenOff(f"{where} broke off in the middle of the reply; ask again, there or with --server off.")
