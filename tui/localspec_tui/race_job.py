"""A race on the engine's thread: beside the conversation, of which nothing changes."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, cast

from textual.message import Message

from localspec.chat.attachments import written
from localspec.config import Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec_tui.messages import RaceBegun, RaceEnded

if TYPE_CHECKING:
    from localspec import Engine, Event
    from localspec.bench.race import Lane
    from localspec.chat.answerer import Answerer
    from localspec.models.messages import Message as ChatMessage


def run(
    engine: "Answerer | None",
    prompt: str,
    system: str | None,
    settings: Settings,
    stop: threading.Event,
    post: Callable[[Message], object],
) -> None:
    """Lets them race until both are there or it is stopped, and tells `post` of it.

    The prompt is given as it was typed: the files that it names are read, as in the chat.
    """
    from localspec.bench.race import race, result
    from localspec.bench.racers import sentences

    told, over = ["The race was stopped."], False
    try:
        asked: list[ChatMessage] = [{"role": "system", "content": system}] if system else []
        asked.append({"role": "user", "content": written(prompt).prompt})
        if engine is None:
            raise UsageMistake("No model is loaded, so none can race.")
        if engine.choice.engine == "server":
            raise UsageMistake("A server answers, and a race takes a model of this process; --server off has one.")
        lanes, streams = opponents(_of_this_process(engine), asked, settings)
        with ExitStack() as at_the_end:
            for stream in streams:
                at_the_end.callback(stream.close)
            post(RaceBegun(lanes))
            over = all(not stop.is_set() for _ in race(lanes, streams))
        if over:
            told = list(sentences(lanes, result(*lanes)))
    except LocalspecError as error:
        told, over = [str(error)], False
    with suppress(RuntimeError):  # the screen is gone already
        post(RaceEnded(told, over))


def _of_this_process(engine: "Answerer") -> "Engine":
    """This engine; where a server of this user answers, one that is loaded for the race, and goes with it."""
    from localspec.serving.warm_chat import WarmChat

    return cast("Engine", engine.in_this_process() if isinstance(engine, WarmChat) else engine)


def opponents(
    engine: "Engine", asked: "Sequence[ChatMessage]", settings: Settings
) -> "tuple[list[Lane], list[Generator[Event, None, None]]]":
    """Who races, on the target of this engine, which stays as it is: what drafts in the race is another one's."""
    from localspec import Engine, Limits
    from localspec.bench.racers import LONGEST, racers, that_drafts

    limits = Limits(settings.max_tokens or LONGEST, settings.stop)
    system = asked[0]["content"] if asked[0]["role"] == "system" else None
    beside = Engine(that_drafts(engine.choice), phrases="off", beside=engine)
    return racers(beside, asked, engine.sampling(settings), limits, engine.thinking(settings, system))
