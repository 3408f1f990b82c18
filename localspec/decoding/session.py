"""One live conversation: committed tokens, their cache and a drafter. It streams events and ends replies."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from localspec.choosing.fit import CHUNK
from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.drafter import Drafter, DrafterState, Step
from localspec.decoding.forward import ForwardModel, ParkableCache, brought_back, common_prefix, set_aside
from localspec.decoding.limits import Limits
from localspec.decoding.parked import Parked, ParkedText
from localspec.decoding.sampling import Sampling
from localspec.errors import DoesNotFit, UsageMistake, out_of_memory
from localspec.events import Done, Draft, Event, Memory, Prefill, Reason, Statistics, Text
from localspec.machine.memory import give_back, peak_memory
from localspec.models.detokenize import Transcript
from localspec.models.thinking import Thinking
from localspec.repetition import EVERY, is_loop


class Tally:
    """Running counts over the decode steps of one reply."""

    def __init__(self) -> None:
        self.steps = 0
        self.drafted = 0
        self.accepted = 0
        self.committed = 0
        self.draft_seconds = self.verify_seconds = 0.0
        self.rows: Counter[int] = Counter()  # number of forwards by rows
        self.step_seconds = 0.0  # of draft, forward, and everything else in a step
        self._reached: list[int] = []  # by depth: how often a parent was accepted and had a child
        self._accepted: list[int] = []  # by depth: how often one of its children was accepted

    def add(self, step: Step, count: int) -> None:
        """Count one decode step. The reply takes only the first `count` of the tokens that the step committed."""
        assert step.tree is not None
        self.steps += 1
        self.drafted += step.tree.size - 1
        self.rows[step.tree.size] += 1
        self.committed += count
        self.draft_seconds += step.draft_seconds
        self.verify_seconds += step.verify_seconds
        self.accepted += min(count, len(step.path) - 1)
        for depth, node in enumerate(step.path):
            if not step.tree.children[node]:
                break
            if depth == len(self._reached):
                self._reached.append(0)
                self._accepted.append(0)
            self._reached[depth] += 1
            self._accepted[depth] += depth + 1 < len(step.path)

    @property
    def acceptance_length(self) -> float:
        """τ, the tokens committed per target forward, bonus included; 0 before the first step."""
        return self.committed / self.steps if self.steps else 0.0

    @property
    def acceptance_by_depth(self) -> tuple[float, ...]:
        """The chance that a node at depth 1, 2, … is accepted, given its parent was."""
        return tuple(accepted / reached for accepted, reached in zip(self._accepted, self._reached, strict=True))


def step_sources(step: Step) -> list[str]:
    """Return the source of each committed token of a decode step. The bonus token comes from the target."""
    assert step.tree is not None
    sources = step.tree.source or ["drafter"] * step.tree.size
    return [*(sources[node] for node in step.path[1:]), "target"]


def draft_of(step: Step) -> Draft:
    """Return the draft of a decode step. The draft shares the lists of the step's tree."""
    tree = step.tree
    assert tree is not None
    return Draft(tree.tokens, tree.parents, tree.source, tree.probe, step.path)


SMALL_CHUNK = CHUNK // 4  # prompt tokens per forward if CHUNK of them take too much memory
Result = TypeVar("Result")


class Session:
    """A conversation with one target. Its `tokens` are final after every step; all but the last are in the cache.

    A cache with recurrent states may hold fewer tokens after a reply was cut far back.
    """

    def __init__(
        self,
        target: ForwardModel[Any],
        drafter: Drafter,
        budget: Budget,
        thinking: Thinking | None = None,
        parked: Parked | None = None,
    ) -> None:
        """Begin without a text. `parked` stores texts that the next prompt does not continue; None discards them."""
        self.target, self.drafter, self.budget, self.thinking = target, drafter, budget, thinking
        self.parked = parked
        self.tokens: list[int] = []
        self.cache: ParkableCache = target.cache(0)
        self.statistics: Statistics | None = None  # of the last reply, complete or not
        self.current: _Reply | None = None  # the latest reply, which may change this session

    def generate(
        self, prompt: Sequence[int], sampling: Sampling, limits: Limits | None = None
    ) -> Generator[Event, None, None]:
        """Answer a prompt of token ids. A consumer may stop at any event; the session then stays in the state of that
        event.

        The prefix that the prompt shares with earlier turns is not read again. Raises UsageMistake for a prompt that is
        empty or leaves no room for an answer. If memory runs out, the reply continues in smaller steps and without
        trees, which changes no token. Raises DoesNotFit if even that needs too much memory.
        """
        limits = limits or Limits()
        room = self.target.context - len(prompt)
        if limits.max_tokens is not None and limits.max_tokens < 1:
            raise UsageMistake(f"A reply of {limits.max_tokens} tokens is not possible; ask for 1 or more.")
        if not prompt:
            raise UsageMistake("The prompt is empty; type something.")
        if room < 1:
            raise UsageMistake(
                f"The prompt is {len(prompt):,} tokens long, but the context holds {self.target.context:,}; shorten "
                "it, or give a longer --context where the model allows one."
            )
        most = room if limits.max_tokens is None else min(room, limits.max_tokens)
        return _Reply(self, prompt, sampling, most, limits).events()

    def rest(self, seconds: float) -> None:
        """Leave `seconds` out of the time of the latest reply, because another session was replying then."""
        if self.current:
            self.current.began += seconds

    @property
    def so_far(self) -> Statistics | None:
        """The figures of the latest reply so far; None before the first reply."""
        return self.statistics or (self.current.statistics() if self.current else None)

    @property
    def memory(self) -> Memory:
        """The bytes of weights, drafter, cache and parked texts, and the peak of this process."""
        parked = self.parked.nbytes if self.parked else 0
        peak = peak_memory(self.target.device)
        return Memory(self.target.nbytes, self.drafter.nbytes, self.cache.nbytes, peak, parked)

    def rewind(self, length: int) -> None:
        """Cut tokens, cache and drafter to the first `length` tokens; the last of them becomes the root again."""
        del self.tokens[length:]
        self.cache.truncate(min(self.cache.length, max(length - 1, 0)))
        self.drafter.rewind(length)

    def forget(self) -> None:
        """Discard everything that was read, including parked texts."""
        self.rewind(0)
        if self.parked:
            self.parked.clear()

    def turn_to(self, prompt: Sequence[int]) -> None:
        """Switch to the text that `Parked.choose` returns for a prompt.

        The live text is parked or discarded, or left for the next prefill to cut.
        """
        parked = self.parked
        if parked is None:
            return
        parked.fit()
        live = ParkedText(self.tokens, self.cache, DrafterState())
        start = parked.choose(live, prompt)
        if start.text is None and not start.leaves:
            return
        try:
            self.tokens = []
            live.cache, self.cache = set_aside(self.cache, self.target.cache)
            live.drafter_state = self.drafter.hand_over()
            if start.leaves:
                parked.add(live, start.text)
            source = start.text or (live if start.length else None)
            if source is None:
                return
            if start.copied:
                source = source.copy(start.length, len(prompt) + CHUNK)
            else:
                parked.remove(source)
            tokens = list(source.tokens[: start.length])
            self.drafter.resume(source.drafter_state, tokens)
            self.cache = brought_back(source.cache, self.cache)
            self.tokens = tokens
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            self.forget()  # everything is read again


class _Reply:
    """A reply in progress: its clock, its counts, and its text."""

    def __init__(
        self, session: Session, prompt: Sequence[int], sampling: Sampling, max_tokens: int, limits: Limits
    ) -> None:
        self.session, self.prompt, self.sampling, self.max_tokens = session, prompt, sampling, max_tokens
        self.loop_prompt = limits.loop_prompt
        thinking = session.thinking
        decode = thinking.decode if thinking else session.target.decode
        self.transcript = Transcript(decode, limits.stop, thinking.parting(prompt) if thinking else None)
        self.tally = Tally()
        self.sources: list[str] = []
        self.drafts: list[Draft] = []  # not yet passed to the consumer
        self.began = 0.0  # when its first event was requested
        self.prefill_seconds = self.first_seconds = self.last_seconds = 0.0  # since then: prompt, first, last token
        # Reply tokens that the consumer has, and how many of them come before the answer.
        self.released = self.thought = 0
        self.thought_seconds = 0.0  # when the last thought came
        self.reused = 0  # prompt tokens that were in the cache
        self.chunk, self.spare = CHUNK, True  # as memory allows

    def events(self) -> Generator[Event, None, None]:
        session, self.began = self.session, time.perf_counter()
        session.current = self
        try:
            yield from self._prefill()
            reason, _ = self._commit([session.tokens[-1]], ["target"])
            self.first_seconds = self.last_seconds = self._clock()
            yield from self._release(reason is not None)
            while reason is None:
                began = self._clock()
                step = self._within_memory(self._decode, self._give_up_trees)
                session.tokens += step.committed
                reason, count = self._commit(step.committed, step_sources(step))
                self.tally.add(step, count)
                self.drafts.append(draft_of(step))
                ended = self._clock()
                self.tally.step_seconds += ended - began
                self._report_pace(step, count, ended - self.last_seconds)
                self.last_seconds = ended
                yield from self._release(reason is not None)
            self._finish(self.transcript.tokens)
            assert session.statistics is not None
            yield Done(reason, session.statistics)
        finally:
            # The consumer stopped, or a step failed. Closing a stream after a later reply began changes nothing.
            if session.statistics is None and session.current is self:
                self._finish(self.released)

    def _prefill(self) -> Iterator[Prefill]:
        session, prompt = self.session, self.prompt
        session.statistics = None
        session.turn_to(prompt)
        session.cache.truncate(min(common_prefix(session.tokens, prompt), session.cache.length, len(prompt) - 1))
        self.reused = session.cache.length
        del session.tokens[self.reused :]
        session.drafter.rewind(self.reused)
        session.budget.begin()
        self._within_memory(lambda: self._reserve(len(prompt)), self._give_up_spare)
        yield Prefill(self.reused, len(prompt))
        while len(session.tokens) < len(prompt):
            session.tokens += self._within_memory(self._read_chunk, self._shrink_chunks).committed
            if len(session.tokens) < len(prompt):
                yield Prefill(len(session.tokens), len(prompt))
        self.prefill_seconds = self._clock()
        yield Prefill(len(prompt), len(prompt))

    def _read_chunk(self) -> Step:
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
        """Make room in the cache for `tokens` tokens, a tree, and the rows with which the target pads the tree."""
        session = self.session
        session.cache.reserve(tokens + session.budget.nodes + session.target.row_multiple, self.spare)

    # -- where memory runs out ----------------------------------------------------------------------------------------

    def _within_memory(self, work: Callable[[], Result], less: Callable[[], bool]) -> Result:
        """Return the result of `work`.

        If memory runs out, try again without parked texts. If that fails, call `less`, which should reduce the need for
        memory, and try once more if `less` returns True.

        Raises DoesNotFit; the session is then as it was before.
        """
        length = self.session.cache.length
        for _ in range(3):
            try:
                return work()
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
            # Outside the handler, because an error keeps everything alive that its frames hold.
            self.session.cache.truncate(length)
            self.session.drafter.rewind(len(self.session.tokens))
            freed = self.session.parked is not None and self.session.parked.clear()
            give_back(self.session.target.device)
            if not freed and not less():
                break
        length, device = max(len(self.session.tokens), len(self.prompt)), self.session.target.device
        raise DoesNotFit(
            f"A text of {length} tokens does not fit in the memory of {device}; give a smaller --context, or another "
            "--quantize."
        )

    def _give_up_spare(self) -> bool:
        had_spare, self.spare = self.spare, False
        return had_spare

    def _shrink_chunks(self) -> bool:
        previous, self.chunk = self.chunk, SMALL_CHUNK
        return previous > SMALL_CHUNK

    def _give_up_trees(self) -> bool:
        fewer = self.session.budget.nodes > 0
        self.session.budget.stop("memory ran out, so the rest of this reply is written without drafts")
        return self._give_up_spare() or fewer

    # -- tokens and text -----------------------------------------------------------------------------------------------

    def _commit(self, tokens: Sequence[int], sources: Sequence[str]) -> tuple[Reason | None, int]:
        """Commit tokens one by one, until the reply ends.

        Return the reason if it ended, and the number of committed tokens.
        """
        for count, (token, source) in enumerate(zip(tokens, sources, strict=True), start=1):
            if token in self.session.target.stop_tokens:
                self.transcript.finish()
                return "stop", count
            self.sources.append(source)
            if self.transcript.add(token):
                return "stop", count
            if self.transcript.tokens >= self.max_tokens:
                return "stop" if self.transcript.finish(cut=True) else "length", count
            if self._loops():
                return "stop" if self.transcript.finish(cut=True) else "repetition", count
        return None, len(tokens)

    def _loops(self) -> bool:
        """Return whether the reply's text repeats one phrase again and again."""
        if self.loop_prompt is None or self.transcript.tokens % EVERY:
            return False
        return is_loop(self.transcript.text, self.loop_prompt)

    def _release(self, final: bool) -> Iterator[Text]:
        text, tokens, reasoning, thought = self.transcript.release(final)
        start, self.released = self.released, tokens
        thought_before, self.thought = self.thought, thought
        if thought > thought_before:
            self.thought_seconds = self.last_seconds - self.prefill_seconds
        if text or reasoning or tokens > start:
            ids = self.session.tokens[len(self.prompt) + start : len(self.prompt) + tokens]
            sources, drafts = tuple(self.sources[start:tokens]), tuple(self.drafts)
            self.drafts.clear()
            yield Text(
                text,
                tuple(ids),
                sources,
                self.last_seconds,
                self.tally.steps,
                drafts,
                reasoning,
                thought - thought_before,
            )

    def _report_pace(self, step: Step, count: int, seconds: float) -> None:
        """Record the time of a step for the speedup. `count` of its tokens belong to the reply.

        `seconds` is the time since the end of the previous step.
        """
        assert step.tree is not None
        context = len(self.session.tokens) - len(step.committed)
        drafting = step.draft_seconds + step.learn_seconds
        self.session.budget.plain.observe(step.tree.size, context, count, seconds, drafting)

    def _finish(self, reply_tokens: int) -> None:
        """Cut the session's tokens, cache and drafter to the end of the reply, and store the statistics.

        The cache is one token shorter, because the last token is the root of the next draft.
        """
        # If the reply was stopped while the prompt was read, that part stays.
        self.session.rewind(min(len(self.prompt) + reply_tokens, len(self.session.tokens)))
        self.session.statistics = self.statistics(reply_tokens)

    def statistics(self, reply_tokens: int | None = None) -> Statistics:
        """Return the figures of the reply up to `reply_tokens` tokens; by default up to the last token that the
        consumer received."""
        session, reply_tokens = self.session, self.released if reply_tokens is None else reply_tokens
        decoding = self.last_seconds - self.first_seconds
        counted = reply_tokens - 1  # the first token belongs to prefill
        speedup = session.budget.plain.speedup
        return Statistics(
            token_ids=tuple(session.tokens[len(self.prompt) : len(self.prompt) + reply_tokens]),
            prompt_tokens=len(self.prompt),
            reused_tokens=self.reused,
            prefill_seconds=self.prefill_seconds,
            first_token_seconds=self.first_seconds,
            decode_seconds=decoding,
            draft_seconds=self.tally.draft_seconds,
            verify_seconds=self.tally.verify_seconds,
            step_seconds=self.tally.step_seconds,
            tokens_per_second=counted / decoding if decoding > 0 and counted > 0 else 0.0,
            steps=self.tally.steps,
            acceptance_length=self.tally.acceptance_length,
            acceptance_by_depth=self.tally.acceptance_by_depth,
            drafted=self.tally.drafted,
            accepted=self.tally.accepted,
            sources={"target": 0, **Counter(self.sources[:reply_tokens])},  # the target is always listed
            off_reason=session.budget.off_reason,
            memory=session.memory,
            rows=dict(self.tally.rows),
            plain_seconds=speedup * decoding if session.budget.most and speedup else None,
            reasoning_tokens=self.thought,
            reasoning_seconds=self.thought_seconds,
        )

    def _clock(self) -> float:
        return time.perf_counter() - self.began
