"""Measure how soon `localspec run` answers from a shell: cold, with packed weights, and with a warm server.

    python research/first_token.py -m demo --rounds 11

Every round asks the same prompt once in each way, in turns: in a home where nothing is packed; in one with packed weights and
`--server off`; and in one where `localspec serve` has loaded the model. The time is from the start of the process to its
first token, and to its end; next to it is the engine's own time from prompt to first token. `--version` is what starting
Python costs. For Linux and macOS, on a quiet machine: the CPU time of other programs is printed. `-m FILE.gguf --ways cold`
measures a file that was never seen before, in a new home each time, though the system has it in memory.

A virtual machine's host may take back memory that is free, and giving it again can take longer than all else. With
`--touch BYTES` another process writes that much memory and ends just before each round, so that the memory is there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from localspec.bench.prompts import in_turns
from localspec.machine.hardware import OthersLoad, cpu_name
from localspec.paths import Paths

COMMAND = [sys.executable, "-m", "localspec"]
TOUCH = "import numpy, sys; numpy.empty(int(sys.argv[1]), 'u1').fill(1)"
COLD, PACKED, WARM, VERSION = "cold", "packed", "with a warm server", "--version"
WAYS = (COLD, PACKED, WARM, VERSION)


class Timed(NamedTuple):
    """Seconds from the start of a process; `engine` is what the engine took for its first token."""

    first: float
    end: float
    engine: float
    by: str  # who answered
    weights: int = 0  # bytes
    peak: int = 0  # bytes of the process that answered, at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--prompt", default="Why do leaves change their colour in autumn?")
    parser.add_argument("-n", "--max-tokens", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--touch", type=float, default=0, help="bytes of memory to write before each round")
    options = parser.parse_args()
    question = ["run", options.prompt, "-m", options.model, "-n", str(options.max_tokens)]
    question += ["--temp", "0", "--stream-json"]
    timings: dict[str, list[Timed]] = {way: [] for way in options.ways}
    if Path(options.model).is_file():
        with Path(options.model).open("rb") as file:
            while file.read(2**24):
                pass
    with tempfile.TemporaryDirectory() as folder:
        packed, served = Path(folder) / "packed", Path(folder) / "served"
        if PACKED in options.ways:
            timed(packed, question)  # packs the model, and measures what is saved for this machine
        others, began, before = OthersLoad(), time.perf_counter(), _children()
        with ExitStack() as at_the_end:
            if WARM in options.ways:
                at_the_end.enter_context(server(served, options.model))
                timed(served, question)
            for turn, way in in_turns(options.ways, options.rounds):
                print(f"\rround {turn + 1} of {options.rounds}, {way:20}", end="", file=sys.stderr, flush=True)
                cold = Path(folder) / f"cold-{turn}"
                if options.touch:
                    subprocess.run([sys.executable, "-c", TOUCH, str(int(options.touch))], check=True)
                timings[way].append(run_once(way, cold, packed, served, question))
                shutil.rmtree(cold, ignore_errors=True)
        load = others() - (_children() - before) / (time.perf_counter() - began)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    print(
        table(
            timings,
            f"{options.model}, {options.rounds} rounds, {cpu_name()}; other programs took {max(load, 0):.1f} cores",
        )
    )


def _children() -> float:
    """Return the seconds of CPU that processes took which this one started, and which have ended."""
    usage = os.times()
    return usage.children_user + usage.children_system


def run_once(way: str, cold: Path, packed: Path, served: Path, question: list[str]) -> Timed:
    """Ask once in one of the ways."""
    if way == VERSION:
        return timed(packed, ["--version"])
    if way == WARM:
        reply = timed(served, question)
        if reply.by != "server":
            raise SystemExit("The server did not answer.")
        return reply
    return timed(cold if way == COLD else packed, [*question, "--server", "off"])


def timed(home: Path, arguments: list[str]) -> Timed:
    """Run `localspec ARGUMENTS` and check its output; raise SystemExit where it fails."""
    home.mkdir(exist_ok=True)
    began, first, engine, by, memory = time.perf_counter(), 0.0, 0.0, "", {"target_bytes": 0, "peak_bytes": 0}
    with subprocess.Popen(
        [*COMMAND, *arguments], env={**os.environ, "LOCALSPEC_HOME": str(home)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            event: dict[str, Any] = json.loads(line) if line.startswith("{") else {"event": "step"}  # a version
            if event["event"] == "step" and not first:
                first = time.perf_counter() - began
            if event["event"] == "end":
                engine, by, memory = event["timings"]["first_token_s"], event["engine"], event["memory"]
        errors = process.stderr.read()
    if process.returncode:
        raise SystemExit(errors)
    end = time.perf_counter() - began
    return Timed(first, end, engine, by, memory["target_bytes"], memory["peak_bytes"])


@contextmanager
def server(home: Path, model: str) -> Iterator[None]:
    """Run `localspec serve` with this model, in a separate home."""
    home.mkdir()
    command = [*COMMAND, "serve", "-m", model]
    environment = {**os.environ, "LOCALSPEC_HOME": str(home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if not process.stdout.readline() or not Paths(home).socket.exists():
            raise SystemExit("localspec serve did not begin.")
        try:
            yield
        finally:
            process.terminate()


def table(timings: dict[str, list[Timed]], title: str) -> str:
    """Medians and quartiles in milliseconds, as a table of Markdown."""
    lines = [
        title,
        "",
        "Times are milliseconds: medians, with quartiles in brackets. *First token* and *end of the reply* count from the start of "
        "the process. *Before the prompt* ends when the engine gets the prompt, and *prompt to first token* begins there.",
        "",
        "| start | first token | end of the reply | prompt to first token | before the prompt | weights, MB | peak, MB |",
    ]
    lines.append("|---|---|---|---|---|--:|--:|")
    for way, times in timings.items():
        engine, startup = "-", "-"
        if way != VERSION:
            engine, startup = (
                cell(seconds) for seconds in zip(*((t.engine, t.first - t.engine) for t in times), strict=True)
            )
        weights, peak = (f"{max(each) / 1e6:.0f}" for each in zip(*((t.weights, t.peak) for t in times), strict=True))
        lines.append(
            f"| {way} | {cell([t.first for t in times])} | {cell([t.end for t in times])} | {engine} | {startup} | "
            f"{weights} | {peak} |"
        )
    return "\n".join(lines)


def cell(seconds: "list[float] | tuple[float, ...]") -> str:
    """Return a median with its quartiles."""
    low, _, high = quantiles(seconds, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 3
    return f"{1e3 * median(seconds):.0f} ({1e3 * low:.0f}–{1e3 * high:.0f})"


if __name__ == "__main__":
    main()
