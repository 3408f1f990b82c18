"""An engine without a model that replies with a test's script, and conversations with it."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from localspec.chat.conversation import Conversation
from localspec.decoding.sampling import Sampling
from localspec.errors import UsageMistake
from localspec.events import Done, Event, Memory, Prefill, Statistics, Text

SAMPLING = Sampling(seed=7)


def statistics(tokens: int = 3) -> Statistics:
    return Statistics(
        token_ids=tuple(range(tokens)), prompt_tokens=5, reused_tokens=0, prefill_seconds=0.1, first_token_seconds=0.1,
        decode_seconds=0.5, draft_seconds=0.0, verify_seconds=0.4, step_seconds=0.45, tokens_per_second=4.0, steps=2,
        acceptance_length=1.0, acceptance_by_depth=(), drafted=0, accepted=0, sources={"target": tokens},
        off_reason=None, memory=Memory(1, 0, 1, 2),
    )  # fmt: skip


class Engine:
    """An engine that answers with these pieces; `asked` has the messages it got, `closed` counts the ended replies."""

    def __init__(self, *pieces: str, failure: Exception | None = None) -> None:
        self.pieces, self.failure = pieces, failure
        self.asked: list[list[Any]] = []
        self.closed = self.dropped = 0
        self.session = SimpleNamespace(statistics=None)

    def chat(self, messages: Any, sampling: Any, limits: Any, think: Any = None) -> Iterator[Event]:
        self.asked.append(list(messages))
        if messages[-1]["content"] == "too long":
            raise UsageMistake("The prompt is too long; shorten it.")
        try:
            yield Prefill(5, 5, self.dropped)
            for number, piece in enumerate(self.pieces):
                yield Text(piece, (number,), ("target",), 0.1 * number, number)
            if self.failure:
                raise self.failure
            yield Done("stop", replace(statistics(), dropped_turns=self.dropped))
        finally:
            self.closed += 1
            self.session.statistics = statistics(1)


def talk(conversation: Conversation, engine: Any, prompt: str) -> list[Event]:
    return list(conversation.ask(engine, prompt, SAMPLING))
