"""Measurements of a loaded model: forwards by rows and by context, and prefill. All contenders take turns."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from math import log
from typing import Any

from benchmarks.contenders import THEIRS, Contender, LlamaCpp, Ours, opened
from benchmarks.readings import Raw, cell, ratio, timed, turns
from benchmarks.workshop import Model

ROWS = (1, 2, 4, 8, 16, 32)
NEAR = 256  # tokens of context before the forwards by rows
CONTEXTS = (256, 2048, 8192)
CONTEXT_ROWS = (1, 8)
PROMPTS = (512, 2048)
FLASH_OR_NOT = FLASH, PLAIN_ATTENTION = "flash attention", "plain attention"
FLAG_CONTEXTS, FLAG_ROWS = (2048, 256), (1, 8)  # the longer context first, because it is then shortened


@dataclass(frozen=True)
class Wanted:
    """The request of a measurement: seconds, the programs to compare with, and a function that shows progress."""

    seconds: float
    peers: Sequence[str]
    progress: Callable[[str], None]
    prompts: Sequence[str] = ()
    max_tokens: int = 96


@dataclass
class Measured:
    """Readings by cell, as [turn, milliseconds, cores of other programs], and further facts."""

    readings: dict[str, list[list[float]]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, turn: int, value: float, others: float) -> None:
        """One more reading of a cell."""
        self.readings.setdefault(name, []).append([turn, round(value, 4), round(others, 3)])


def limit(ours: str) -> str:
    """Return the name of the contender that only reads the bytes of our forward."""
    return f"memory read of {ours}"


def rows(model: Model, wanted: Wanted) -> Measured:
    """Forward of 1 to 32 rows after 256 tokens, and the reading of their weights."""
    return _forwards(model, wanted, {str(count): (NEAR, count) for count in ROWS}, True)


def context(model: Model, wanted: Wanted) -> Measured:
    """Forward of 1 and of 8 rows after 256 to 8192 tokens."""
    columns = {f"{behind}/{count}": (behind, count) for behind in CONTEXTS for count in CONTEXT_ROWS}
    return _forwards(model, wanted, columns, False)


def _forwards(model: Model, wanted: Wanted, columns: dict[str, tuple[int, int]], with_limit: bool) -> Measured:
    measured, longest = Measured(), max(behind for behind, _ in columns.values())
    with opened(model, wanted.peers, longest) as contenders:
        _note_sizes(measured, contenders)
        for turn, order in turns(len(contenders), wanted.seconds):
            prepared = 0
            for column, (behind, count) in columns.items():
                wanted.progress(f"turn {turn + 1}, {count} rows after {behind} tokens")
                for contender in contenders if prepared != behind else ():
                    contender.prepare(behind)
                prepared = behind
                for index in order:
                    found = timed(partial(contenders[index].forward, count))
                    measured.add(cell(contenders[index].name, column), turn, *found)
            for contender in contenders if with_limit else ():
                if isinstance(contender, Ours):
                    measured.add(cell(limit(contender.name), 1), turn, *timed(contender.read_weights))
    return measured


def flags(model: Model, wanted: Wanted) -> Measured:
    """llama.cpp with and without flash attention, so that it is given the better of both everywhere else."""
    measured = Measured()
    with ExitStack() as stack:
        longest, told = max(FLAG_CONTEXTS), {way: replace(model, flash=way == FLASH) for way in FLASH_OR_NOT}
        contenders = [
            (way, stack.enter_context(closing(LlamaCpp(told[way], kind, longest)))) for kind in THEIRS for way in told
        ]
        for turn, order in turns(len(contenders), wanted.seconds):
            for index in order:
                way, contender = contenders[index]
                wanted.progress(f"turn {turn + 1}, {contender.name}, {way}")
                name = with_flags(contender.name, way)
                measured.add(cell(name, "prompt"), turn, *timed(partial(contender.prefill, longest), warm=False))
                for behind in FLAG_CONTEXTS:
                    contender.shorten(behind)
                    for count in FLAG_ROWS:
                        measured.add(cell(name, f"{behind}/{count}"), turn, *timed(partial(contender.forward, count)))
    return measured


def with_flags(contender: str, way: str) -> str:
    """Return a contender of `flags`."""
    return f"{contender}, {way}"


def flash_is_faster(readings: Raw) -> bool:
    """Return whether flash attention is faster overall: the mean of the logarithms of all ratios."""
    ratios = [
        found.value
        for name in readings
        if name.split("|")[0].endswith(FLASH)
        and (other := name.split("|")[0].removesuffix(FLASH) + PLAIN_ATTENTION)
        and (found := ratio(readings, name.split("|")[0], other, name.split("|")[1]))
    ]
    return sum(map(log, ratios)) >= 0


def prefill(model: Model, wanted: Wanted) -> Measured:
    """Prompts of 512 and 2048 tokens, read into an empty cache."""
    measured = Measured()
    with opened(model, wanted.peers, max(PROMPTS)) as contenders:
        for contender in contenders:
            contender.prefill(64)  # weights are read from the disk, and memory is allocated
        for turn, order in turns(len(contenders), wanted.seconds):
            for tokens in PROMPTS:
                for index in order:
                    wanted.progress(f"turn {turn + 1}, {tokens} tokens, {contenders[index].name}")
                    found = timed(partial(contenders[index].prefill, tokens), warm=tokens <= PROMPTS[0])
                    measured.add(cell(contenders[index].name, tokens), turn, *found)
    return measured


def _note_sizes(measured: Measured, contenders: Sequence[Contender]) -> None:
    measured.notes["read_bytes"] = {one.name: one.read_bytes for one in contenders if isinstance(one, Ours)}
