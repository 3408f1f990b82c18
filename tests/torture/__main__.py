"""Torture every command for a set time: `make torture`, or `python -m torture --seconds 1800 --seed 7`.

Areas: `disk` (one change of a command fails), `signals` (it is interrupted, ended or killed at any moment), `files`
(files from outside are damaged). A seed and an area's numbers repeat a failure. `--kills 1000` kills replies, pulls and
trainings 1000 times, however long that takes, and counts what is lost. `--every run` lets each change of that command
fail once, in each way. `--turns 200` replaces the time limit by a number of moments or changes of each command.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

from torture.cage import KINDS, Fault, Signal, faults_library, open_cage
from torture.every import each_change_of
from torture.formats import FORMATS, Soil, tried
from torture.kills import kill_so_often
from torture.scenarios import SCENARIOS, Stage, open_ground

# Before a command begins: otherwise most random moments of a training would fall into the import of its libraries.
IMPORTED = (
    "torch",
    "torch._dynamo",
    "transformers",
    "accelerate",
    "localspec.training.drafters.medusa",
    "localspec.training.job",
)
EXAMPLES = 5  # of a damaged file in one turn


def disk(stage: Stage, name: str, chance: random.Random) -> Iterator[str]:
    """Yield a fault: one change fails, or all changes from one on."""
    clean = stage.clean(name)
    kind = chance.choice(sorted(KINDS))
    fault = Fault(chance.randint(1, clean.changes), kind, kind != "EINTR" and chance.random() < 0.5)
    ended = stage.ended(name, fault)
    yield from (f"{fault} ({ended.failed}): {what}" for what in stage.complaints(name, ended))


def signals(stage: Stage, name: str, chance: random.Random) -> Iterator[str]:
    """Yield a signal at any moment while the command runs."""
    clean = stage.clean(name)
    sent = Signal(chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]), chance.random() * clean.seconds * 1.1)
    ended = stage.ended(name, sent=sent)
    yield from (f"{sent}: {what}" for what in stage.complaints(name, ended, sent.number))


def turns(
    stage: Stage, seed: int, areas: list[str], only: list[str], most: int | None = None
) -> Iterator[tuple[str, str, int, Callable[[], list[str]]]]:
    """Yield every scenario and every format in turn, `most` times or without end: (area, name, number, function)."""
    soil = Soil(stage)

    def files(name: str, number: int) -> list[str]:
        try:
            tried(stage, soil, name, EXAMPLES, random.Random(f"{seed}:{name}:{number}").getrandbits(32))
        except AssertionError as error:
            return [str(error)]
        return []

    for number in islice(count(1), most):
        for area, way in (("disk", disk), ("signals", signals)):
            for name in SCENARIOS if area in areas else ():
                if not only or name in only:
                    chance = random.Random(f"{seed}:{area}:{name}:{number}")
                    yield area, name, number, lambda w=way, n=name, c=chance: list(w(stage, n, c))  # type: ignore[misc]
        for name in FORMATS if "files" in areas else ():
            if not only or name in only:
                yield "files", name, number, lambda n=name, k=number: files(n, k)  # type: ignore[misc]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=600)
    length.add_argument("--turns", type=int, help="so often each, instead of a time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randint(0, 2**31))
    parser.add_argument("--area", action="append", choices=("disk", "signals", "files"), help="only this; repeatable")
    parser.add_argument(
        "--only", action="append", default=[], choices=(*SCENARIOS, *FORMATS), help="only this; repeatable"
    )
    parser.add_argument(
        "--kills", type=int, help="SIGKILL so often during replies, pulls and trainings, and nothing else"
    )
    parser.add_argument(
        "--every", action="append", choices=SCENARIOS, help="each change of it fails, and nothing else; repeatable"
    )
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    ends, tries, found = time.monotonic() + asked.seconds, Counter[str](), 0
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        with open_ground(directory) as ground, open_cage(faults_library(directory), *IMPORTED) as cage:
            stage = Stage(cage, ground, directory / "stage")
            if asked.kills is not None:
                print(f"seed {asked.seed}: {(tally := kill_so_often(stage, asked.seed, asked.kills, asked.only))}")
                return int(bool(tally.lost or tally.left or tally.wrong))
            if asked.every:
                ground.hub.pause = 0  # faults come by number, not by time
                return int(bool(each_change_of(stage, asked.every)))
            for area, name, number, attempt in turns(
                stage, asked.seed, asked.area or ["disk", "signals", "files"], asked.only, asked.turns
            ):
                if not asked.turns and time.monotonic() > ends:
                    break
                tries[area] += EXAMPLES if area == "files" else 1
                for complaint in attempt():
                    found += 1
                    print(f"{area}, {name}, turn {number}: {complaint}", flush=True)
    told = ", ".join(f"{area} {number}" for area, number in sorted(tries.items()))
    print(f"seed {asked.seed}: {told}; {found} found")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
