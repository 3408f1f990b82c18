"""Compare the speed of programs on one GGUF file: steps of several rows, prompts, and steps after long contexts.

    python research/gguf_speed.py FILE.gguf --ours blocks --ours int4=PATH [--rounds 15] [--raw samples.json]

localspec reads PATH in that packing, or an import of FILE; llama.cpp reads FILE. All programs take turns. A sample
repeats a forward for about a twentieth of a second. A sample is disturbed if the virtual machine's host took more than
0.005 of a core, or other programs more than a tenth. Disturbed samples are counted and left out; if all are disturbed,
the figure is in brackets. *Memory's limit* is the time in which the same number of threads read the weights of a step
from memory.

Samples are added to those in the file of `--raw`, so that a measurement can be made in parts. Each part needs the same
`--room`, the longest context. llama.cpp reads a long context once and saves it in `--work`; `--rounds 0` does only
that. To compare without AVX-512, set LOCALSPEC_ISA=avx2, and LLAMA_CPP_LIB_PATH to the folder of an AVX2 build of
llama.cpp. The machine must be idle.
"""

import argparse
import ctypes
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

import checkout
import gguf_quality
import numpy as np
from llama_cpp_model import BATCH, Gguf, library

from localspec.machine import compiled
from localspec.machine.hardware import cpu_name, physical_cores
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.weights.gguf_model import GgufModel

SHORT = 64  # tokens of context of a step
SAMPLE = 0.05  # seconds
TICKS = 100  # a second
STOLEN, OTHERS = 0.005, 0.1  # cores that the host, and other programs, may take during a sample
PEER = "llama.cpp"
Seconds = list[tuple[float, int]]  # by round, with the ticks that the host took meanwhile
Readings = dict[str, dict[str, Seconds]]  # by work and program


class Contender(Protocol):
    """A program that has loaded the file. `bytes` is the size of the weights that a step reads."""

    name: str
    bytes: int

    def fill(self, context: int) -> None:
        """Fill the cache with `context` tokens."""

    def step(self, rows: int, context: int) -> None:
        """Run a forward of `rows` tokens after `context` tokens, until the likeliest next tokens are known."""

    def prompt(self, tokens: int) -> None:
        """Read a prompt of this many tokens, until the next token is known."""


def some_tokens(count: int, vocabulary: int) -> list[int]:
    return [(1000 + 31 * index) % vocabulary for index in range(count)]


class Ours:
    """A CPU engine of localspec. Its context is zeros, which take as long to read as any other numbers."""

    def __init__(self, path: Path, packing: str, room: int, threads: int) -> None:
        self._target = NativeTarget.open(path, packing=packing, context=room, threads=Threads(threads))
        self._cache = self._target.cache(room)
        self.name, self.bytes = f"localspec {packing}", self._target.read_bytes

    def fill(self, context: int) -> None:
        self._cache.assume(context)

    def step(self, rows: int, context: int) -> None:
        self._cache.assume(context)
        self._read(rows, 0)

    def prompt(self, tokens: int) -> None:
        self._cache.assume(0)
        self._read(tokens, tokens - 1)

    def _read(self, count: int, first: int) -> None:
        tokens = some_tokens(count, self._target.vocab_size)
        self._target.model.forward(tokens, None, self._cache, first)[0].numpy().argmax(-1).tolist()


class Peer:
    """A model in llama.cpp. `states` is the directory of the long contexts that it has read."""

    name = PEER

    def __init__(self, file: Path, room: int, threads: int, states: Path) -> None:
        self._states = states / f"{file.stem}-{room}"
        self._states.mkdir(parents=True, exist_ok=True)
        model = GgufModel.open(file)
        self._vocabulary = model.config.vocab_size
        self._gguf = Gguf(file, self._vocabulary, room)
        self._gguf.set_threads(threads)
        tied = "output.weight" not in model.places
        self.bytes = sum(
            place.bytes for name, (_, place) in model.places.items() if tied or name != "token_embd.weight"
        )

    def fill(self, context: int) -> None:
        tokens = some_tokens(context, self._vocabulary)
        known = max((int(file.name) for file in self._states.iterdir() if int(file.name) <= context), default=0)
        if known:
            read, count = (ctypes.c_int32 * known)(), ctypes.c_size_t()
            state = os.fsencode(self._states / str(known))
            if not library().llama_state_load_file(self._gguf.context, state, read, known, ctypes.byref(count)):
                raise SystemExit(f"llama.cpp does not read {os.fsdecode(state)}; delete it.")
        for start in range(known, context, BATCH):
            end = min(start + BATCH, context)
            self._gguf.logits(tokens[start:end], start, last=True)
            if end % (2 * BATCH) == 0:
                state = os.fsencode(self._states / str(end))
                library().llama_state_save_file(self._gguf.context, state, (ctypes.c_int32 * end)(*tokens[:end]), end)

    def step(self, rows: int, context: int) -> None:
        self._gguf.logits(some_tokens(rows, self._vocabulary), context).argmax(-1).tolist()

    def prompt(self, tokens: int) -> None:
        self._gguf.read(some_tokens(tokens, self._vocabulary)).argmax(-1).tolist()


def order(contenders: Sequence[Contender], turn: int) -> Sequence[Contender]:
    """Return the contenders in another order for each turn, so that each of them is first in some turns."""
    first = turn % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def ticks() -> tuple[int, int]:
    """Return the CPU ticks so far of the virtual machine's host and of other programs; zeros if unknown."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return 0, 0
    user, nice, system, _, _, _, _, stolen = map(int, stat.read_text().split("\n")[0].split()[1:9])
    return stolen, user + nice + system - round(TICKS * sum(os.times()[:2]))


def lost_ticks(before: tuple[int, int], seconds: float) -> int:
    """Return the CPU ticks that the host and other programs took since `before`, or 0 if they hardly matter."""
    stolen, others = (after - earlier for after, earlier in zip(ticks(), before, strict=True))
    stolen = stolen if stolen > STOLEN * TICKS * seconds else 0
    return stolen + (others if others > 2 + OTHERS * TICKS * seconds else 0)


def sample(work: Callable[[], object]) -> tuple[float, int]:
    """Return the mean seconds of `work`, and the CPU ticks that others took. A short first run is only a warm-up."""
    before, began = ticks(), time.perf_counter()
    work()
    first = time.perf_counter() - began
    if first > 1:
        return first, lost_ticks(before, first)
    times = max(1, round(SAMPLE / first))
    before, began = ticks(), time.perf_counter()
    for _ in range(times):
        work()
    seconds = time.perf_counter() - began
    return seconds / times, lost_ticks(before, seconds)


def undisturbed(samples: Seconds) -> list[float]:
    return [seconds for seconds, ticks in samples if not ticks]


def figure(clean: Sequence[float], every: Sequence[float]) -> str:
    """Return the median of the undisturbed samples; if there are none, that of all samples in brackets."""
    return f"{median(clean):.2f}" if clean else f"({median(every):.2f})"


def ratio(above: Seconds, below: Seconds) -> str:
    """Return the median over all rounds of the ratio `above` ÷ `below`."""
    pairs = [(a / b, lost or also) for (a, lost), (b, also) in zip(above, below, strict=True)]
    return figure([quotient for quotient, disturbed in pairs if not disturbed], [quotient for quotient, _ in pairs])


def medians(above: Seconds, below: Seconds) -> str:
    """Return the ratio of two medians, for samples that do not come from the same rounds."""
    clean = [median(undisturbed(samples) or [seconds for seconds, _ in samples]) for samples in (above, below)]
    return f"{clean[0] / clean[1]:.2f}"


def table(readings: Readings, limits: Readings) -> str:
    """Return a table with a row for each work and program: its speed relative to llama.cpp and to memory's limit."""
    lines = [
        "| work | program | ms | undisturbed | × llama.cpp | / one row | of the limit |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for work, by_name in readings.items():
        if not all(by_name.values()):
            continue
        for name, samples in by_name.items():
            clean = undisturbed(samples)
            speed = ratio(by_name[PEER], samples) if PEER in by_name and name != PEER else "–"
            steps = not work.startswith("prompt")
            first = readings.get("1 row", {}).get(name)
            relative = medians(samples, first) if first and steps and work != "1 row" else "–"
            share = ratio(limits[work][name], samples) if steps else "–"
            shown = figure([1e3 * seconds for seconds in clean], [1e3 * seconds for seconds, _ in samples])
            lines.append(
                f"| {work} | {name} | {shown} | {len(clean)}/{len(samples)} | {speed} | {relative} | {share} |"
            )
    return "\n".join(lines)


def measure(
    contenders: Sequence[Contender],
    rows: Sequence[int],
    prompts: int,
    contexts: Sequence[int],
    rounds: int,
    threads: int,
    until: float,
) -> tuple[Readings, Readings]:
    """Return the samples by work and program, and in the same rounds samples of only reading each program's weights.

    No round begins after `until`, on the clock of `time.perf_counter`.
    """
    memory = np.ones(max(contender.bytes for contender in contenders), np.uint8)
    readings, limits = Readings(), Readings()

    def add(works: Mapping[str, Callable[[Contender], object]], before: int, times: int) -> None:
        for contender in contenders:
            contender.fill(before)
        for name in works:
            readings[name] = {contender.name: [] for contender in contenders}
            limits[name] = {contender.name: [] for contender in contenders}
        for turn in range(times):
            if time.perf_counter() > until:
                break
            for name, work in works.items():
                for contender in order(contenders, turn):
                    readings[name][contender.name].append(sample(lambda: work(contender)))
                    reading = sample(lambda: compiled.read_seconds(memory.ctypes.data, contender.bytes, threads))
                    limits[name][contender.name].append(reading)
        print(f"{', '.join(works)}: measured, load {os.getloadavg()[0]:.1f}", flush=True)

    def steps(count: int) -> Callable[[Contender], object]:
        return lambda contender: contender.step(count, SHORT)

    if rows:
        add({f"{count} row{'s' if count > 1 else ''}": steps(count) for count in rows}, SHORT, rounds)
    if prompts:
        add({"prompt of 512": lambda contender: contender.prompt(512)}, 0, prompts)
    for context in contexts:
        add({f"1 row after {context}": lambda contender: contender.step(1, context)}, context, rounds)
    return readings, limits


def added(raw: Path, readings: Readings, limits: Readings) -> tuple[Readings, Readings]:
    """Add the samples to those in the file `raw`. Return all of them."""
    if raw.exists():
        before = json.loads(raw.read_text())
        for old, new in ((before["readings"], readings), (before["limits"], limits)):
            for work, by_name in new.items():
                for name, samples in by_name.items():
                    old.setdefault(work, {}).setdefault(name, []).extend(samples)
        readings, limits = before["readings"], before["limits"]
    raw.write_text(json.dumps({"readings": readings, "limits": limits}))
    return readings, limits


def commit() -> str:
    command = ["git", "-C", str(checkout.ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--ours", action="append", default=[], metavar="PACKING[=PATH]", help="may be repeated")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 8], help="1 first (default: 1 4 8)")
    parser.add_argument("--contexts", type=int, nargs="*", default=[4096], help="long ones, in tokens (default: 4096)")
    parser.add_argument("--room", type=int, default=4096, help="the longest context, in tokens (default: 4096)")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--rounds", type=int, default=15, help="of steps (default: 15)")
    parser.add_argument("--prompts", type=int, default=5, help="rounds of prompts (default: 5)")
    parser.add_argument("--no-peer", action="store_true", help="without llama.cpp")
    parser.add_argument("--work", type=Path, help="where packed files are kept (default: nowhere)")
    parser.add_argument("--raw", type=Path, help="a file for all samples")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no round begins later than this")
    options = parser.parse_args()
    until = time.perf_counter() + options.seconds
    room = options.room + BATCH
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCALSPEC_HOME"] = str((options.work or Path(folder)).resolve() / "home")
        contenders = list[Contender]()
        for entry in options.ours:
            packing, _, path = entry.partition("=")
            file = Path(path) if path else gguf_quality.imported(options.model, packing)
            contenders.append(Ours(file, packing, room, options.threads))
        if not options.no_peer:
            contenders.append(Peer(options.model, room, options.threads, (options.work or Path(folder)) / "states"))
        readings, limits = measure(
            contenders, options.rows, options.prompts, options.contexts, options.rounds, options.threads, until
        )
    if not options.rounds:
        return
    if options.raw:
        readings, limits = added(options.raw, readings, limits)
    print(
        f"{options.model.name}, {compiled.instruction_set()}, {options.threads} threads, {cpu_name()}, commit {commit()}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for contender in contenders:
        reading = [sampled for by_name in limits.values() for sampled in by_name[contender.name]]
        clean = [contender.bytes / seconds / 1e9 for seconds in undisturbed(reading)]
        speed = figure(clean, [contender.bytes / seconds / 1e9 for seconds, _ in reading])
        count = f"{len(clean)}/{len(reading)} undisturbed"
        print(f"{contender.name}: {contender.bytes / 1e6:.0f} MB a step, memory's limit {speed} GB/s, {count}")
    print(table(readings, limits))


if __name__ == "__main__":
    main()
