"""What the screen costs within a reply: it follows the reply for one second, and not for the next, in turns.

    python research/bench_looks.py -m DIR --rounds 6

Two chats of one after the other differ by a tenth where other machines share the processor; neighbouring seconds of one
reply differ by less. The figure is the steps/s of a second with looks over those of the two around it, as a median of
all, with the bounds of 95 % of bootstrap samples. Each round has one reply for each way to look, in a separate terminal whose
drawing is not counted, hot (`--temp`) so that it goes on to its limit. Linux and macOS.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from bench_chat import LOOKS, headless, in_the_terminal, transcript
from figures import DRAWS

TURN = 1.0  # seconds with looks, and without
WHOLE = 0.75  # of a turn that must have passed between its steps: one that began or ended the reply has fewer
INSIDE = "--inside"


def with_looks(turn: int) -> bool:
    return turn % 2 == 1


def inside(file: Path, arguments: list[str]) -> None:
    """Run the program, whose chat looks in every other turn. Write the figures of each turn to `file`, by its number."""
    from localspec.cli.main import main as localspec
    from localspec.events import Done, Event, Text
    from localspec_tui.reply_buffer import SHORTEST, ReplyBuffer
    from localspec_tui.screens.xray import XRayScreen
    from localspec_tui.turns import Turns

    steps: dict[int, int] = defaultdict(int)
    seconds: dict[int, float] = defaultdict(float)
    last = (-1, 0, 0.0)  # turn, steps, seconds
    put, follow, follow_in_xray = ReplyBuffer.put, Turns._follow, XRayScreen._follow

    def turn() -> int:
        return int(time.perf_counter() / TURN)

    def count(buffer: ReplyBuffer, event: Event, live: Any) -> None:
        nonlocal last
        if isinstance(event, Text):
            before, last = last, (turn(), event.steps, time.perf_counter())
            if last[0] == before[0]:
                steps[last[0]] += last[1] - before[1]
                seconds[last[0]] += last[2] - before[2]
        elif isinstance(event, Done):
            file.write_text(json.dumps({str(one): [steps[one], seconds[one]] for one in steps}), "utf-8")
        put(buffer, event, live)

    async def look(turns: Turns) -> None:
        if with_looks(turn()) or turns._outbox.under_way is None:
            await follow(turns)
        else:
            turns._follow_after(SHORTEST)

    def look_in_xray(screen: XRayScreen) -> Any:
        return follow_in_xray(screen) if with_looks(turn()) else screen.set_timer(SHORTEST, screen._follow)

    for owner, name, instead in (
        (ReplyBuffer, "put", count),
        (Turns, "_follow", look),
        (XRayScreen, "_follow", look_in_xray),
    ):
        setattr(owner, name, instead)
    localspec(arguments)


def shares(turns: dict[int, tuple[int, float]]) -> list[float]:
    """Return the steps/s of each whole turn with looks, as a share of the turns before and after it."""
    rates = {turn: steps / passed for turn, (steps, passed) in turns.items() if passed >= WHOLE * TURN}
    return [
        2 * rates[turn] / (rates[turn - 1] + rates[turn + 1])
        for turn in rates
        if with_looks(turn) and {turn - 1, turn + 1} <= rates.keys()
    ]


def told(found: list[float]) -> str:
    """Return the median with its bounds."""
    drawn = np.random.default_rng(0).choice(found, (DRAWS, len(found)))
    low, high = np.percentile(np.median(drawn, 1), (2.5, 97.5))
    return f"{np.median(found):.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("-n", "--max-tokens", type=int, default=880)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--temp", type=float, default=2.5)
    parser.add_argument("--replies", type=int, default=0, help="that the conversation has before")
    asked = parser.parse_args()
    found: dict[str, list[float]] = {look: [] for look in LOOKS}
    drawing: dict[str, list[float]] = {look: [] for look in LOOKS}
    with tempfile.TemporaryDirectory() as place:
        home, file = Path(place), Path(place) / "turns.json"
        fixed = ["-m", asked.model, "--drafter", asked.drafter, "--pool", "off", "--temp", str(asked.temp)]
        headless([sys.executable, "-m", "localspec"], home, [*fixed, "-n", "20"])  # measures what is measured once
        for number in range(asked.rounds):
            alike = [*fixed, "-n", str(asked.max_tokens), "--seed", str(number)]
            for look, keys in LOOKS.items():
                command = [sys.executable, __file__, INSIDE, str(file)]
                before = transcript(home, asked.model, asked.replies)
                drawing[look].append(in_the_terminal(command, home, [*alike, *before], keys)[1])
                turns = json.loads(file.read_text("utf-8"))
                found[look] += shares({int(turn): (steps, passed) for turn, (steps, passed) in turns.items()})
            print(f"round {number + 1} of {asked.rounds}", file=sys.stderr, flush=True)
    for look, ratios in found.items():
        screen = f"the screen takes {np.mean(drawing[look]):.1%} of a core, half of the time without looks"
        print(f"{look}, of no looks: {told(ratios)}, {len(ratios)} turns; {screen}")


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        inside(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
