"""A race on the engine's thread, outside the conversation, which does not change."""

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from textual.message import Message

from localspec.bench.race import opponents, race, result, sentences
from localspec.chat.attachments import with_files
from localspec.config import Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec.serving.socket_engine import in_this_process
from localspec_tui.messages import RaceEnded, RaceStarted

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer


def run(
    engine: "Answerer | None",
    prompt: str,
    system: str | None,
    settings: Settings,
    stop: threading.Event,
    post: Callable[[Message], object],
) -> None:
    """Run the race until both lanes end or it is stopped, and report to `post`.

    `prompt` is the typed text. The files that the text names are read, as in the chat.
    """
    told, over = ["The race was stopped."], False
    try:
        asked = with_files(prompt).prompt
        if engine is None:
            raise UsageMistake("No model is loaded, so there is no race.")
        lanes, streams = opponents(in_this_process(engine), asked, system, settings)
        with ExitStack() as at_the_end:
            for stream in streams:
                at_the_end.callback(stream.close)
            post(RaceStarted(lanes))
            over = all(not stop.is_set() for _ in race(lanes, streams))
        if over:
            told = list(sentences(lanes, result(*lanes)))
    except LocalspecError as error:
        told, over = [str(error)], False
    with suppress(RuntimeError):  # the screen is already gone
        post(RaceEnded(told, over))
