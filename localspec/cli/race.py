"""`localspec race PROMPT`: shows plain and speculative decoding side by side."""

import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.bench.race import (
    LONGEST,
    PAUSE,
    Lane,
    RaceResult,
    ends,
    fits,
    frame,
    moments,
    race,
    racers,
    recording,
    result,
    sentences,
    whole_screen,
    with_drafts,
)
from localspec.chat.start import start_chat
from localspec.cli.console import Progress, folded, width
from localspec.cli.interrupt import cleared_up_when_ended
from localspec.cli.options import refuse_rule_without_effect, takes_settings
from localspec.cli.texts import valid_text
from localspec.config import Settings
from localspec.environment import dumb_terminal
from localspec.errors import LocalspecError, UsageMistake
from localspec.marks import drawable
from localspec.text import one_line

if TYPE_CHECKING:
    from localspec import Engine, Sampling

app = typer.Typer()

RECORDED = os.terminal_size((80, 24))  # if there is no terminal


@app.command("race")
@takes_settings(
    "model", "max_tokens", "temperature", "seed", "drafter", "draft_max", "drafter_rule", "exact", "context",
    "device", "dtype", "quantize",
    max_tokens="The longest reply, in tokens; by default 256.",
    seed="The same seed gives the same text.",
    exact="Make both texts the same, bit for bit. They may be written more slowly.",
)  # fmt: skip
def race_command(
    *,
    prompt: Annotated[str, typer.Argument(help="The prompt, which is answered with and without drafts.")],
    settings: Settings,
    cast: Annotated[
        Path | None, typer.Option("--cast", metavar="FILE", help="Record the replay in asciinema's format.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the display.")] = False,
) -> int:
    """Watch one prompt answered with and without drafts: step by step, then again at true speed.

    Nothing is saved, and no phrases of earlier replies are used. Without a terminal, only the result is printed.
    """
    if settings.draft_max == 0:
        raise UsageMistake(f"A race needs drafts, but {settings.shown('draft_max')} turns them off; leave it out.")
    if settings.plain:
        raise UsageMistake("A race needs a drafter; name one, such as --drafter phrases.")
    refuse_rule_without_effect(settings)
    if not (question := valid_text(prompt).strip()):
        raise UsageMistake('There is no prompt; write localspec race "your question".')
    if cast and not cast.parent.is_dir():
        raise UsageMistake(
            f"--cast {cast} is in a directory that does not exist; create the directory, or name another file."
        )
    on_screen = not as_json and sys.stdout is not None and sys.stdout.isatty() and not dumb_terminal()
    on_screen = on_screen and fits(shutil.get_terminal_size())
    progress = Progress()
    with ExitStack() as at_the_end:
        at_the_end.callback(progress.clear)
        quiet = replace(settings, log=False, pool="off", max_tokens=settings.max_tokens or LONGEST)
        card, store, _ = start_chat(quiet, None, at_the_end, progress.notice, progress.show)
        progress.show(f"loading {card.name}")

        from localspec import Engine  # needs torch on a GPU, which takes a second to import

        drafting = Engine.open(quiet, card, store=store, notice=progress.notice, progress=progress.show)
        if not drafting.choice.nodes:
            drafting = with_drafts(drafting)
        sampling = drafting.sampling(quiet)
        progress.show("warming up")
        lanes, streams = racers(drafting, question, quiet.system, quiet, sampling)
        progress.clear()
        steps = race(lanes, streams)
        if on_screen:
            with _alternate_screen():
                _show_live_and_replay(lanes, steps)
        else:
            deque(steps, maxlen=0)
    outcome = result(*lanes)
    summary = list(sentences(lanes, outcome))
    size = shutil.get_terminal_size() if on_screen else RECORDED
    if cast:
        title = one_line(f"localspec race: {question}")
        frames = recording(lanes, size, _folded(summary, size.columns), title, int(time.time()))
        try:
            cast.write_text("".join(frames), encoding="utf-8")
        except OSError as error:
            raise LocalspecError(f"{cast} cannot be written ({error.strerror}); name another --cast FILE.") from None
        progress.notice(f"recorded in {cast}; `asciinema play {cast}` shows it.")
    if as_json:
        print(json.dumps(_report(lanes, outcome, drafting, sampling)), flush=True)
    else:
        picture = frame(lanes, size, ends(lanes)) if on_screen else []
        print(drawable("\n".join([*picture, *_folded(summary, width())]), sys.stdout), flush=True)
    return 0


def _folded(summary: Sequence[str], columns: int | None) -> list[str]:
    return [line for sentence in summary for line in folded(sentence, columns)]


def _show_live_and_replay(lanes: Sequence[Lane], steps: Iterator[Lane]) -> None:
    drawn_at = 0.0
    for _ in steps:
        if time.monotonic() - drawn_at > PAUSE or all(lane.statistics for lane in lanes):
            drawn_at = time.monotonic()
            _draw(lanes)
    began = time.monotonic()
    for seconds in moments(lanes):
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        _draw(lanes, seconds)


def _draw(lanes: Sequence[Lane], seconds: float | None = None) -> None:
    print(drawable(whole_screen(frame(lanes, shutil.get_terminal_size(), seconds)), sys.stdout), end="", flush=True)


@contextmanager
def _alternate_screen() -> Iterator[None]:
    """Use the terminal's alternate screen without a cursor, since after resizing, frames on the normal screen could not
    be erased.

    The normal screen is restored even after an error.
    """
    with cleared_up_when_ended():
        print("\x1b[?1049h\x1b[?25l", end="", flush=True)
        try:
            yield
        finally:
            print(f"{whole_screen([])}\x1b[?1049l\x1b[?25h", end="", flush=True)


def _report(lanes: Sequence[Lane], outcome: RaceResult, engine: "Engine", sampling: "Sampling") -> dict[str, Any]:
    choice = engine.choice
    return {
        "model": choice.target.name,
        "drafter": choice.drafter,
        "device": choice.device,
        "dtype": choice.dtype,
        "quantize": choice.quantize,
        "bits_per_weight": round(choice.bits, 3) or None,
        "exactness": engine.exactness.word(sampling.rule),
        "seed": sampling.seed,
        "speedup": outcome.speedup and round(outcome.speedup, 4),
        "identical": outcome.same,
        "plain": _lane(lanes[0]),
        "speculative": _lane(lanes[1]),
    }


def _lane(lane: Lane) -> dict[str, Any]:
    assert lane.statistics is not None
    return {
        "text": lane.until()[0],
        "token_ids": list(lane.statistics.token_ids),
        "seconds": round(lane.seconds, 4),
        "tokens_per_second": round(lane.tokens_per_second, 2),
        "steps": lane.statistics.steps,
        "acceptance_length": round(lane.statistics.acceptance_length, 4),
        "sources": dict(lane.statistics.sources),
        "off_reason": lane.statistics.off_reason,
    }
