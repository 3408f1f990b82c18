"""The speed of servers: each gets the same prompts in turn.

This process measures the times; the server counts the tokens.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from localspec import Limits
from localspec.bench.figures import rounded, spread
from localspec.bench.prompts import BenchPrompt, in_turns, remaining_words
from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec.events import Done, Text
from localspec.serving.server import TooLong
from localspec.serving.server_engine import ServerEngine

SHORTEST = 0.05  # seconds: text that comes faster may have been buffered and sent at once
WARM_UP = ("Hi", 4)  # not a prompt of the bench: a server may cache it


class TimedReply(NamedTuple):
    """The times of one reply, and its tokens. `at_first` is the number of tokens that arrived with the first text.

    If `reported` is False, the server did not report numbers of tokens, and pieces of the stream are counted instead.
    """

    text: str
    tokens: int
    at_first: int
    first: float  # seconds until the first text
    rest: float  # and from then on
    reported: bool = True

    @property
    def speed(self) -> float:
        """Return the tokens per second after the first text; 0 if unknown."""
        lasting = self.rest >= SHORTEST and self.tokens > self.at_first
        return (self.tokens - self.at_first) / self.rest if lasting else 0.0

    @property
    def whole(self) -> float:
        """Return the tokens per second from the request to the end of the reply."""
        return self.tokens / (self.first + self.rest) if self.text else 0.0


def measure(
    engines: Sequence[ServerEngine],
    prompts: Sequence[BenchPrompt],
    max_tokens: int,
    repeat: int,
    settings: Settings,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Measure all servers, and return the report.

    Each server gets all prompts, `repeat` times, with at most `max_tokens` tokens per reply. A prompt that is too long
    for one server is left out for all. Raises UsageMistake if no prompt is left, and the errors of `ServerEngine.chat`.
    """
    for engine in engines:
        progress(f"warming up {engine.server.address.name}")
        _reply(engine, WARM_UP[0], settings, min(WARM_UP[1], max_tokens))
    turns, began = repeat * len(prompts), time.monotonic()
    replies: list[dict[int, TimedReply]] = [{} for _ in engines]  # of each engine, by turn
    too_long: dict[int, TooLong] = {}  # by prompt
    for number, (turn, index) in enumerate(in_turns(range(len(engines)), turns)):
        prompt_index = turn % len(prompts)
        if prompt_index in too_long:
            continue
        left = (time.monotonic() - began) / number * (len(engines) * turns - number) if number else None
        progress(f"prompt {turn + 1} of {turns}" + ("" if left is None else f", {remaining_words(left)}"))
        try:
            replies[index][turn] = _reply(engines[index], prompts[prompt_index].text, settings, max_tokens)
        except TooLong as error:
            too_long[prompt_index] = error
    shared_turns = [turn for turn in range(turns) if turn % len(prompts) not in too_long]
    if not shared_turns:
        raise UsageMistake(str(next(iter(too_long.values()))))
    comparable = settings.temperature == 0 or settings.seed is not None
    shared = [[timed[turn] for turn in shared_turns] for timed in replies]
    return {
        "prompts": len(prompts) - len(too_long),
        "left_out": len(too_long),
        "repeat": repeat,
        "max_tokens": max_tokens,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "rows": [
            {
                "server": engine.server.address.url,
                "name": name,
                "program": engine.server.program or None,
                "model": engine.model,
                **_figures(timed, shared[0], len(prompts) - len(too_long), comparable and index > 0),
            }
            for index, (engine, name, timed) in enumerate(zip(engines, _names(engines), shared, strict=True))
        ],
    }


def _names(engines: Sequence[ServerEngine]) -> list[str]:
    """Return host and port of each server, or the whole address of servers that would share a name."""
    short = [engine.server.address.name for engine in engines]
    long = [engine.server.address.url for engine in engines]
    return [url if short.count(name) > 1 else name for name, url in zip(short, long, strict=True)]


def _reply(engine: ServerEngine, prompt: str, settings: Settings, max_tokens: int) -> TimedReply:
    messages, sampling = [{"role": "user", "content": prompt}], engine.sampling(settings)
    *events, done = engine.chat(messages, sampling, Limits(max_tokens))
    assert isinstance(done, Done)
    texts = [event for event in events if isinstance(event, Text)]
    reported = done.statistics.tokens
    if not texts:
        return TimedReply("", reported, 0, 0.0, 0.0)
    text, began = "".join(event.reasoning + event.text for event in texts), texts[0].seconds
    at_first, tokens = len(texts[0].tokens) or 1, reported or len(texts)
    return TimedReply(text, tokens, at_first, began, texts[-1].seconds - began, reported > 0)


def _figures(
    replies: Sequence[TimedReply], firsts: Sequence[TimedReply], prompts: int, comparable: bool
) -> dict[str, Any]:
    """Return one server's measurements, compared with the first server's. An unknown figure is None."""
    whole, whole_quartiles = spread([reply.whole for reply in replies if reply.whole])
    speed, speed_quartiles = spread([reply.speed for reply in replies if reply.speed])
    first, first_quartiles = spread([reply.first for reply in replies if reply.text])
    pairs = [(reply.whole, other.whole) for reply, other in zip(replies, firsts, strict=True)]
    speedup, speedup_quartiles = spread([reply / other for reply, other in pairs if reply and other])
    same = [reply.text == other.text for reply, other in zip(replies, firsts, strict=True)]
    return {
        "prompts": prompts,
        "tokens": sum(reply.tokens for reply in replies),
        "counted": "tokens" if all(reply.reported for reply in replies) else "pieces",
        "reply_tokens_per_second": rounded(whole),
        "reply_tokens_per_second_quartiles": whole_quartiles,
        "first_token_s": rounded(first),
        "first_token_s_quartiles": first_quartiles,
        "tokens_per_second": rounded(speed),
        "tokens_per_second_quartiles": speed_quartiles,
        "speedup": rounded(speedup),
        "speedup_quartiles": speedup_quartiles,
        "identical_prompts": sum(all(same[at::prompts]) for at in range(prompts)) if comparable else None,
    }
