"""Measure how soon `localspec run` answers from a shell: cold, with packed weights, and with a warm server.

    python research/first_token.py -m demo --rounds 11

In each round the same prompt is answered once in each way. *Cold*: the home directory has no packed weights. *Packed*:
it has them, and the command has `--server off`. *With a warm server*: `localspec serve` has loaded the model. The times
are from the start of the process to its first token and to its end, and the engine's time from prompt to first token.
`--version` shows the time to start Python. The script runs on Linux and macOS, and prints the CPU time of other
programs: the machine should be idle. `-m FILE.gguf --ways cold` measures a file that localspec has never opened, but
that the system has in memory.

A virtual machine's host may take back free memory, and returning it can take longer than everything else. `--touch
BYTES` avoids that: just before each round, another process writes to this much memory and ends.
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
    """The times of one process, in seconds since its start. `engine` is the time from prompt to first token."""

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
    """Return the CPU seconds of all child processes that have ended."""
    usage = os.times()
    return usage.children_user + usage.children_system


def run_once(way: str, cold: Path, packed: Path, served: Path, question: list[str]) -> Timed:
    """Run the command once in one of WAYS, and return its times."""
    if way == VERSION:
        return timed(packed, ["--version"])
    if way == WARM:
        reply = timed(served, question)
        if reply.by != "server":
            raise SystemExit("The server did not answer.")
        return reply
    return timed(cold if way == COLD else packed, [*question, "--server", "off"])


def timed(home: Path, arguments: list[str]) -> Timed:
    """Run `localspec ARGUMENTS` with this home directory, and return its times. Raises SystemExit if it fails."""
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
    """Return a Markdown table with medians and quartiles in milliseconds."""
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
    """Return the median in milliseconds, with its quartiles in brackets."""
    low, _, high = quantiles(seconds, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 3
    return f"{1e3 * median(seconds):.0f} ({1e3 * low:.0f}–{1e3 * high:.0f})"


if __name__ == "__main__":
    main()
