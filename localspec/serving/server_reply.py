"""One reply of a server as it arrives: its events, its figures, and its JSON object."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from localspec.engine.report import Report, sampling_facts
from localspec.errors import LocalspecError
from localspec.events import Done, Event, Memory, Prefill, Statistics, Text
from localspec.serving import pieces
from localspec.serving.link import BrokenOff, EmptyReply, Head, SilentServer
from localspec.serving.pieces import (
    DEEPEST,
    END,
    Broken,
    GaveUp,
    ServerPiece,
    count,
    mapping,
    messages,
    number,
    proposed,
    read_piece,
    word,
)
from localspec.serving.server import OK, refusal
from localspec.text import one_line

if TYPE_CHECKING:
    from localspec.chat.answerer import RemoteSampling
    from localspec.serving.server_engine import ServerEngine


LONGEST_REPLY = 2**20  # characters: no model writes as much, and nobody reads it
PIECES_A_TOKEN, PIECES_MORE = 8, 64  # some servers send a token in several pieces, letter by letter
# Fields of localspec's own reports.
_FACTS = ("revision", "drafter", "device", "dtype", "quantize", "exactness", "accept", "lossless")
_REPORTED = (*_FACTS, "bits_per_weight", "seed")


class ServerReply:
    """A reply that is arriving from a server.

    `most` tokens were requested. Reading stops if the reply has far more
    tokens than `most`, or does not end.
    """

    def __init__(self, engine: "ServerEngine", dropped: int, most: int | None = None) -> None:
        self._engine, self._where, self._most = engine, engine.server.address.url, most
        self._last_arrival = time.monotonic()  # when text arrived last, or the start
        self._left_out = self._dropped = dropped  # turns left out here, and including those that the server left out
        self._pieces = self._length = 0  # pieces with text, and characters
        self._began = time.perf_counter()
        self._first = self._last = 0.0  # when the first and the last text arrived
        self._tokens: list[int] = []
        self._sources: dict[str, int] = {}
        self._thoughts = 0
        self._prefilled = self._has_text = self._ended = False  # an event was sent; a text; the mark of the end
        self._thought_until = 0.0
        self._piece = ServerPiece()  # what was reported so far in addition to the text
        self._thinking = pieces.ThinkingInText(separated=engine.server.is_localspec)

    def events(self, arrivals: Iterator[Head | bytes | None]) -> Iterator[Event]:
        """Yield the reply's events; without `Done` if the reply is no longer wanted."""
        head = next((arrival for arrival in arrivals if isinstance(arrival, Head)), None)
        if head is None:  # no longer wanted
            return
        yield from self._texts(self._contents(head, arrivals))
        if not self._engine.wanted():
            return
        if not self._ended and self._piece.reason is None:
            if self._piece.in_reply:
                raise self._broken_off()
            raise EmptyReply(f"{self._where} sent no reply and no reason; ask again.")
        yield from self._text(ServerPiece(), final=True)
        for remark in self._remarks():
            self._engine.reporter.notice(remark)
        yield from self._prefill()
        statistics = self._engine.session.statistics = self._engine.session.so_far = self._statistics()
        yield Done(self._piece.reason or "stop", statistics)

    def _contents(self, head: Head, arrivals: Iterator[Head | bytes | None]) -> Iterator[bytes | None]:
        """Return an answer's messages, and None when none came for a while. Raises LocalspecError for other answers."""
        if head.status != OK:
            content = b"\n".join(arrival for arrival in arrivals if isinstance(arrival, bytes))
            raise refusal(self._where, self._engine.model, head, content, self._engine.server.key)
        forms = {"text/event-stream": messages, "application/json": self._as_one_message}
        if head.kind not in forms:
            kind = one_line(head.kind)[:80] or "content of an unnamed type"
            raise LocalspecError(f"{self._where} answers with {kind}, which is not a reply; correct the address.")
        return forms[head.kind](arrival for arrival in arrivals if not isinstance(arrival, Head))

    def _texts(self, contents: Iterator[bytes | None]) -> Iterator[Event]:
        """Yield the texts in the server's messages until the server ends the reply or the reply is too long."""
        try:
            for content in filter(None, contents):
                if content.strip() == END:
                    self._ended = True
                    return
                self._take(piece := read_piece(content))
                yield from self._text(piece)
                if self._piece.reason is None and (without_end := self._without_end()):
                    self._engine.reporter.notice(without_end)
                    self._piece = self._piece._replace(reason="length")
                    return
        except Broken as error:
            raise LocalspecError(
                f"{self._where} broke OpenAI's protocol: {error}; ask again, or use another server."
            ) from None
        except GaveUp as error:
            raise LocalspecError(f"{self._where} reported an error: {error}") from None
        except BrokenOff as error:
            if self._piece.in_reply:
                raise self._broken_off() from None
            raise (error if isinstance(error, SilentServer) else EmptyReply(str(error))) from None

    def _remarks(self) -> Iterator[str]:
        """Yield a sentence for each peculiarity of the ended reply. Raises LocalspecError if it has no answer."""
        last = self._piece
        if not last.in_reply:
            raise LocalspecError(f"{self._where} ended without a reply; ask again, or name another model.")
        if last.tool is not None:
            tool = f" {last.tool!r}" if last.tool else ""
            sentence = f"{self._where} calls a tool{tool}, but no tool was offered and localspec runs none"
            if not self._has_text:
                raise LocalspecError(f"{sentence}; ask in other words, or start that server without tools.")
            yield f"{sentence}; only its text is shown."
        if last.why == "content_filter":
            yield f"the filter of {self._where} cut the reply off."
        elif last.why:
            yield f"{self._where} ended the reply because of {last.why!r}."
        if last.reason is None:
            yield f"{self._where} ended the reply without a reason; it may be cut off."

    def _broken_off(self) -> BrokenOff:
        return BrokenOff(
            f"{self._where} closed the connection in the middle of the reply; ask again, there or with --server off."
        )

    @property
    def waited(self) -> float:
        """The seconds since text last arrived."""
        return time.monotonic() - self._last_arrival

    @property
    def begun(self) -> bool:
        """Whether any text has arrived."""
        return self._pieces > 0

    def _as_one_message(self, lines: Iterator[bytes | None]) -> Iterator[bytes | None]:
        """Yield a reply that the server did not stream, as the only message of a stream."""
        whole = b"\n".join(line for line in lines if line is not None)
        if self._engine.wanted():
            yield whole
            yield END

    def _without_end(self) -> str:
        """Return a sentence if the reply is too long; empty for a normal length."""
        token_count = len(self._tokens) or self._pieces
        if self._most is not None and token_count > PIECES_A_TOKEN * self._most + PIECES_MORE:
            return f"{self._where} sends more than the {self._most} requested tokens; the rest is not read."
        if self._length > LONGEST_REPLY:
            mib = LONGEST_REPLY // 2**20
            return f"{self._where} has sent over {mib} MiB of text without an end; the rest is not read."
        return ""

    def _take(self, piece: ServerPiece) -> None:
        """Store the reason, usage and figures in a message of the server, and count the length of its text."""
        fields = piece.localspec_fields
        if self._engine.server.is_localspec and fields:
            self._engine.reported.update({name: fields[name] for name in _REPORTED if name in fields})
            if "dropped_turns" in fields:
                self._dropped = self._left_out + (count(fields["dropped_turns"]) or 0)
        earlier = self._piece
        self._piece = ServerPiece(
            reason=piece.reason or earlier.reason,
            usage=piece.usage or earlier.usage,
            localspec_fields={**earlier.localspec_fields, **fields},
            timings=piece.timings or earlier.timings,
            why=piece.why or earlier.why,
            tool=earlier.tool if piece.tool is None else earlier.tool or piece.tool,
            in_reply=piece.in_reply or earlier.in_reply,
        )
        if piece.text or piece.reasoning or piece.tool is not None:
            self._last_arrival = time.monotonic()
            self._pieces, self._length = self._pieces + 1, self._length + len(piece.text + piece.reasoning)

    def _prefill(self) -> Iterator[Event]:
        """Yield, once per reply, the event that the prompt was read. This is certain when a text or the end arrives."""
        if not self._prefilled:
            self._prefilled = True
            yield Prefill(0, 0, self._dropped)

    def _text(self, piece: ServerPiece, final: bool = False) -> Iterator[Event]:
        """Yield the text of a piece, unless it is empty or may be the start of a tag."""
        tokens, sources = proposed(piece.localspec_fields) if self._engine.server.is_localspec else ((), ())
        piece = self._thinking.part(piece, final)
        if not (piece.text or piece.reasoning or tokens):
            return
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
        self._has_text = self._has_text or bool(piece.text.strip())
        self._engine.session.statistics = self._engine.session.so_far = self._statistics()
        yield from self._prefill()
        yield Text(piece.text, tokens, sources, self._last, 0, (), piece.reasoning, thoughts)

    # -- figures ------------------------------------------------------------------------------------------------------

    def _statistics(self) -> Statistics:
        """Return the figures so far: those that the server reports, or else those that this process measures."""
        usage, drafted = self._piece.usage, self._piece.timings
        fields = self._piece.localspec_fields
        timings, speculation, sizes = (mapping(fields.get(name)) for name in ("timings", "speculation", "memory"))
        by_depth = speculation.get("acceptance_by_depth")
        depths = by_depth[:DEEPEST] if isinstance(by_depth, list) else []
        details = usage.get("completion_tokens_details")
        thoughts = count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
        completion_tokens = count(usage.get("completion_tokens"))
        tokens = len(self._tokens) if self._tokens else completion_tokens or 0
        decoding = self._last - self._first
        speed = (tokens - 1) / decoding if decoding > 0 and tokens > 1 else 0.0

        def reported(name: str) -> float:
            return number(timings.get(name)) or 0.0

        return Statistics(
            token_ids=tuple(self._tokens),
            prompt_tokens=count(usage.get("prompt_tokens")) or 0,
            reused_tokens=0,
            dropped_turns=self._dropped,
            prefill_seconds=reported("prefill_s"),
            first_token_seconds=reported("first_token_s") or self._first,
            decode_seconds=reported("decode_s") or decoding,
            draft_seconds=0.0,
            verify_seconds=0.0,
            step_seconds=0.0,
            tokens_per_second=reported("tokens_per_second") or speed,
            steps=count(speculation.get("steps")) or 0,
            acceptance_length=number(speculation.get("acceptance_length")) or 0.0,
            acceptance_by_depth=tuple(number(chance) or 0.0 for chance in depths),
            drafted=count(speculation.get("draft_n")) or count(drafted.get("draft_n")) or 0,
            accepted=count(speculation.get("draft_n_accepted")) or count(drafted.get("draft_n_accepted")) or 0,
            sources=dict(self._sources),
            off_reason=word(speculation.get("off_reason")) or None,
            memory=Memory(*(count(sizes.get(f"{name}_bytes")) or 0 for name in ("target", "drafter", "cache", "peak"))),
            reasoning_tokens=self._thoughts if thoughts is None else thoughts,
            reasoning_seconds=reported("reasoning_s") or self._thought_until,
            reported_tokens=None if self._tokens else completion_tokens or 0,
        )


class ServerReport(Report):
    """The JSON object of one reply by a server. The figures that the server reports are known after the first event."""

    def __init__(self, engine: "ServerEngine", sampling: "RemoteSampling", load_seconds: float) -> None:
        self._engine, self._sampling, self.load_seconds = engine, sampling, load_seconds

    @property
    def exactness(self) -> str:  # type: ignore[override]
        """Return how exact the reply is, in the server's words; empty if the server does not report it."""
        return self._engine.label(self._sampling.rule)

    @property
    def start(self) -> dict[str, Any]:  # type: ignore[override]
        """The fields of the JSON object that do not depend on how the reply continues."""
        reported = self._engine.reported
        seed = reported.get("seed") if self._sampling.seed is None else self._sampling.seed
        of_model = {name: reported.get(name) for name in _FACTS}
        of_model["bits_per_weight"] = number(reported.get("bits_per_weight"))
        sampling = sampling_facts(self._sampling)
        return {"model": self._engine.model, **of_model, "engine": "server", "seed": seed, "sampling": sampling}

    def of(self, text: str, reasoning: str, reason: str, statistics: Statistics) -> dict[str, Any]:
        """Return the whole object, after the reply."""
        counted = statistics.reported_tokens is None or statistics.reported_tokens > 0
        report = super().of(text, reasoning, reason, statistics)
        report["token_ids"] = statistics.token_ids if statistics.reported_tokens is None else None
        report["prompt_tokens"] = statistics.prompt_tokens or None
        if not counted:
            report |= {"completion_tokens": None, "reasoning_tokens": None}
        if self._engine.server.is_localspec:
            return report
        timings, drafted = report["timings"], statistics.drafted
        timings |= {"prefill_s": None, "tokens_per_second": timings["tokens_per_second"] if counted else None}
        speculation = dict.fromkeys(report["speculation"])
        if drafted:
            speculation |= {"draft_n": drafted, "draft_n_accepted": statistics.accepted}
        return {**report, "reused_tokens": None, "speculation": speculation, "memory": dict.fromkeys(report["memory"])}
