"""Measure loading and memory, each time in a new process, `load_child.py`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf_writer import QUANTISED

from benchmarks.load_child import AT_ONCE
from benchmarks.readings import OtherPrograms, cell, turns
from benchmarks.sections import Measured, Wanted
from benchmarks.workshop import Model
from localspec.environment import home
from localspec.errors import LocalspecError
from localspec.paths import Paths
from localspec.weights.checkpoint import inspect, revision
from localspec.weights.opening import with_files
from localspec.weights.packed_file import Origin
from localspec.weights.packed_files import in_all_formats

PIECE = 4 * 2**20  # bytes that a plain read of a file requests at once


@dataclass(frozen=True)
class Loaded:
    """A contender that is loaded, and the files that it reads."""

    contender: str
    argument: str  # a packing, or the file of a kind
    files: tuple[Path, ...]


def measure(model: Model, wanted: Wanted) -> Measured:
    """Each contender with its files dropped from the page cache, and again with them in it."""
    measured, everyone = Measured(), list(_everyone(model, wanted.peers))
    measured.notes["bytes"] = {one.contender: sum(file.stat().st_size for file in one.files) for one in everyone}
    for turn, order in turns(len(everyone), wanted.seconds):
        for index in order:
            one = everyone[index]
            if turn == 0 and one.contender.startswith("localspec"):
                one.files[0].unlink()
                _take(measured, one, model, "packing", turn)
            for state in ("cold", "warm"):
                wanted.progress(f"turn {turn + 1}, {one.contender}, {state}")
                if state == "cold":
                    drop(one.files)
                _take(measured, one, model, state, turn)
            drop(one.files)
            others, began = OtherPrograms(), time.perf_counter()
            for file in one.files:
                read_through(file)
            seconds = time.perf_counter() - began
            measured.add(cell(f"plain read for {one.contender}", "cold"), turn, 1e3 * seconds, others())
    return measured


def _everyone(model: Model, peers: Sequence[str]) -> list[Loaded]:
    everyone, paths = [], Paths(home())
    for packing in ("int8", "int4"):
        file = in_all_formats(with_files(Origin("", revision(model.path)), model.path, paths), packing, paths)[0]
        one = Loaded(f"localspec {packing}", packing, (file,))
        if not file.exists():
            _child(one, model)
        everyone.append(one)
    if "llama.cpp" in peers:
        for kind in QUANTISED:
            file = model.gguf(kind)
            everyone += [Loaded(f"llama.cpp {kind.upper()}{how}", f"{file}{how}", (file,)) for how in ("", AT_ONCE)]
    if "transformers" in peers:
        everyone.append(Loaded("transformers bf16", "bf16", inspect(model.path).weight_files))
    return everyone


def drop(files: Sequence[Path]) -> None:
    """Drop these files from the page cache."""
    os.sync()
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def read_through(file: Path) -> None:
    """Read a file and do nothing with it."""
    buffer = memoryview(bytearray(PIECE))
    with file.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def _take(measured: Measured, one: Loaded, model: Model, column: str, turn: int) -> None:
    others = OtherPrograms()
    found = _child(one, model)
    share = others()
    measured.add(cell(one.contender, column), turn, 1e3 * found["seconds"], share)
    if column == "warm":  # memory in MiB, which other programs do not disturb
        measured.add(cell(one.contender, "peak"), turn, found["peak"] / 2**20, 0.0)
        measured.add(cell(one.contender, "own"), turn, found["own"] / 2**20, 0.0)


def _child(one: Loaded, model: Model) -> dict[str, Any]:
    kind = one.contender.split()[0]
    words = [sys.executable, "-m", "benchmarks.load_child", kind, str(model.path), one.argument, str(model.threads)]
    words.append("flash" if model.flash else "plain")
    folders = [str(Path(__file__).resolve().parent.parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it ended"])[-1]
        raise LocalspecError(f"{one.contender} cannot be loaded: {reason}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
