"""One live conversation: committed tokens, their cache and a drafter. Streams events, ends a reply where it must."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.detokenize import Transcript
from localspec.decoding.drafter import Drafter, Step
from localspec.decoding.forward import ForwardModel, TokenCache, common_prefix
from localspec.decoding.sampling import Sampling
from localspec.decoding.stats import Tally, count_sources, step_sources
from localspec.errors import DoesNotFit, UsageMistake
from localspec.events import Done, Event, Memory, Prefill, Reason, Statistics, Text
from localspec.machine.memory import give_back, out_of_memory, peak_memory
from localspec.policy.prediction import CHUNK
from localspec.text import safe

FEWER = CHUNK // 4  # prompt tokens a forward where CHUNK take too much memory
Made = TypeVar("Made")


@dataclass(frozen=True)
class Limits:
    """Where a reply ends at the latest: tokens, and strings that are cut off with all that follows."""

    max_tokens: int | None = None
    stop: Sequence[str] = ()


class Session:
    """`tokens` are final and all but the last one are in the cache, between replies and after every step."""

    def __init__(self, target: ForwardModel[Any], drafter: Drafter, budget: Budget) -> None:
        self.target, self.drafter, self.budget = target, drafter, budget
        self.tokens: list[int] = []
        self.cache: TokenCache = target.cache(0)
        self.statistics: Statistics | None = None  # of the last reply, complete or not
        self.current: object = None  # the reply that may change this session; a later one takes over

    def generate(
        self, prompt: Sequence[int], sampling: Sampling, limits: Limits | None = None
    ) -> Generator[Event, None, None]:
        """Answers a prompt of token ids. Stop asking for events and the session stands where the last event left it.

        What the new prompt shares with the tokens of the turns before is not read again. Raises UsageMistake for a
        prompt that is empty or leaves no room for an answer. Where memory runs out, the reply goes on in smaller steps
        and without trees, which changes no token; raises DoesNotFit where not even that fits.
        """
        limits = limits or Limits()
        room = self.target.context - len(prompt)
        if limits.max_tokens is not None and limits.max_tokens < 1:
            raise UsageMistake(f"A reply of {limits.max_tokens} tokens is none; ask for 1 or more.")
        if not prompt:
            raise UsageMistake("The prompt is empty; say something.")
        if room < 1:
            raise UsageMistake(
                f"The prompt is {len(prompt)} tokens long and the context holds {self.target.context}; "
                "shorten it, or give a longer --context where the model allows one."
            )
        reply = _Reply(
            self, prompt, sampling, limits, room if limits.max_tokens is None else min(room, limits.max_tokens)
        )
        return reply.events()

    def rewind(self, length: int) -> None:
        """Cuts tokens, cache and drafter to the first `length` tokens; the last of them becomes the root again."""
        del self.tokens[length:]
        self.cache.truncate(min(self.cache.length, max(length - 1, 0)))
        self.drafter.rewind(length)


class _Reply:
    """The making of one reply: its clock, its counts, its text."""

    def __init__(self, session: Session, prompt: Sequence[int], sampling: Sampling, limits: Limits, room: int) -> None:
        self.session, self.prompt, self.sampling, self.room = session, prompt, sampling, room
        self.transcript = Transcript(session.target.decode, limits.stop)
        self.tally = Tally()
        self.sources: list[str] = []
        self.began = time.perf_counter()
        self.prefilled = self.first = self.last = 0.0
        self.out = 0  # reply tokens the consumer has
        self.reused = 0
        self.chunk, self.spare = CHUNK, True  # what memory allows

    def events(self) -> Generator[Event, None, None]:
        session = self.session
        session.current = self
        try:
            yield from self._prefill()
            reason, _ = self._take([session.tokens[-1]], ["target"])
            self.first = self.last = self._clock()
            yield from self._text(reason is not None)
            while reason is None:
                step = self._fitting(self._decode, self._without_trees)
                session.tokens += step.committed
                reason, taken = self._take(step.committed, step_sources(step))
                self.tally.add(step, taken)
                self.last = self._clock()
                yield from self._text(reason is not None)
            self._settle(self.transcript.tokens)
            assert session.statistics is not None
            yield Done(reason, session.statistics)
        finally:
            # The consumer stopped asking, or a step failed; a stream that is closed late changes nothing.
            if session.statistics is None and session.current is self:
                self._settle(self.out)

    def _prefill(self) -> Iterator[Prefill]:
        session, prompt = self.session, self.prompt
        session.statistics = None
        self.reused = min(common_prefix(session.tokens, prompt), session.cache.length, len(prompt) - 1)
        del session.tokens[self.reused :]
        session.cache.truncate(self.reused)
        session.drafter.rewind(self.reused)
        session.budget.begin()
        self._fitting(lambda: self._reserve(len(prompt)), self._without_spare)
        yield Prefill(self.reused, len(prompt))
        while len(session.tokens) < len(prompt):
            session.tokens += self._fitting(self._read, self._in_smaller_chunks).committed
            if len(session.tokens) < len(prompt):
                yield Prefill(len(session.tokens), len(prompt))
        self.prefilled = self._clock()
        yield Prefill(len(prompt), len(prompt))

    def _read(self) -> Step:
        """The next chunk of the prompt."""
        session, start = self.session, len(self.session.tokens)
        chunk = self.prompt[start : start + self.chunk]
        last = start + len(chunk) == len(self.prompt)
        return prefill_step(session.target, session.cache, session.drafter, chunk, self.sampling, last)

    def _decode(self) -> Step:
        session = self.session
        self._reserve(len(session.tokens))
        return decode_step(
            session.target, session.cache, session.drafter, session.tokens, session.budget, self.sampling
        )

    def _reserve(self, tokens: int) -> None:
        """Room for so many, a tree behind them, and the rows that the target fills it up with."""
        session = self.session
        session.cache.reserve(tokens + session.budget.nodes + session.target.multiple, self.spare)

    # -- where memory runs out ----------------------------------------------------------------------------------------

    def _fitting(self, work: Callable[[], Made], less: Callable[[], bool]) -> Made:
        """What `work` gives. Where memory runs out it is tried once more, if `less` made it need less than before.

        Raises DoesNotFit. The session then stands where it stood before.
        """
        length = self.session.cache.length
        for _ in range(2):
            try:
                return work()
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
            # No longer in the handler: an error keeps alive all that its frames hold.
            self.session.cache.truncate(length)
            self.session.drafter.rewind(len(self.session.tokens))
            give_back(str(self.session.target.device))
            if not less():
                break
        raise DoesNotFit(
            f"A text of {max(len(self.session.tokens), len(self.prompt))} tokens does not fit in the memory of "
            f"{self.session.target.device}; give a smaller --context, or another --quantize."
        )

    def _without_spare(self) -> bool:
        before, self.spare = self.spare, False
        return before

    def _in_smaller_chunks(self) -> bool:
        before, self.chunk = self.chunk, FEWER
        return before > FEWER

    def _without_trees(self) -> bool:
        fewer = self.session.budget.nodes > 0
        self.session.budget.stop("memory ran out, so the rest of this reply is decoded without drafts")
        return self._without_spare() or fewer

    # -- what leaves --------------------------------------------------------------------------------------------------

    def _take(self, tokens: Sequence[int], sources: Sequence[str]) -> tuple[Reason | None, int]:
        """Commits tokens one by one; the reason to end the reply within them, if any, and how many were taken."""
        for taken, (token, source) in enumerate(zip(tokens, sources, strict=True), start=1):
            if token in self.session.target.stop_tokens:
                self.transcript.finish()
                return "stop", taken
            self.sources.append(source)
            if self.transcript.add(token):
                return "stop", taken
            if self.transcript.tokens >= self.room:
                return "stop" if self.transcript.finish() else "length", taken
        return None, len(tokens)

    def _text(self, final: bool) -> Iterator[Text]:
        text, tokens = self.transcript.release(final)
        start, self.out = self.out, tokens
        if text or tokens > start:
            ids = self.session.tokens[len(self.prompt) + start : len(self.prompt) + tokens]
            yield Text(safe(text), tuple(ids), tuple(self.sources[start:tokens]), self.last, self.tally.steps)

    def _settle(self, reply_tokens: int) -> None:
        """Text, tokens, cache and drafter end at the same place, the cache one token short of the text."""
        session = self.session
        # A reply that was stopped while its prompt was read leaves what was read.
        session.rewind(min(len(self.prompt) + reply_tokens, len(session.tokens)))
        decoding = self.last - self.first
        counted = reply_tokens - 1  # the first token belongs to prefill
        session.statistics = Statistics(
            token_ids=tuple(session.tokens[len(self.prompt) :]),
            prompt_tokens=len(self.prompt),
            reused_tokens=self.reused,
            prefill_seconds=self.prefilled,
            first_token_seconds=self.first,
            decode_seconds=decoding,
            draft_seconds=self.tally.draft_seconds,
            verify_seconds=self.tally.verify_seconds,
            tokens_per_second=counted / decoding if decoding > 0 and counted > 0 else 0.0,
            steps=self.tally.steps,
            acceptance_length=self.tally.acceptance_length,
            acceptance_by_depth=self.tally.acceptance_by_depth,
            drafted=self.tally.drafted,
            accepted=self.tally.accepted,
            sources=count_sources(self.sources[:reply_tokens]),
            off_reason=session.budget.off_reason,
            memory=Memory(
                session.target.nbytes,
                session.drafter.nbytes,
                session.cache.nbytes,
                peak_memory(str(session.target.device)),
            ),
        )

    def _clock(self) -> float:
        return time.perf_counter() - self.began
