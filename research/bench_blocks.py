"""Measure the linear layers of a GGUF file in its own blocks: a step of 1, 4 and 8 rows, without attention.

In turns with the same layers in int8, with a plain reading of the same bytes, and with llama.cpp's whole step on the same
file where `--peer` names a Python that has llama-cpp-python. A sample during which the host took processor time is left
out and counted. Times of a machine that does something else meanwhile say nothing; `--isa` takes other instructions.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize

from localspec.machine import compiled
from localspec.machine.library import BLOCK_TYPES, address, check, library
from localspec.native.threads import Threads
from localspec.weights.matrices import BlockMatrix, BlockStack, PackedMatrix, packed_bytes

PEER = """
import sys, time
import llama_cpp as L, numpy as np
file, threads = sys.argv[1], int(sys.argv[2])
mp, cp = L.llama_model_default_params(), L.llama_context_default_params()
mp.n_gpu_layers = 0
cp.n_ctx, cp.n_threads, cp.n_threads_batch = 512, threads, threads
quiet = L.llama_log_callback(lambda *a: None); L.llama_log_set(quiet, None)
L.llama_backend_init()
model = L.llama_model_load_from_file(file.encode(), mp)
ctx = L.llama_init_from_model(model, cp)
def decode(rows, start):
    b = L.llama_batch_init(rows, 0, 1); b.n_tokens = rows
    for i in range(rows):
        b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i], b.seq_id[i][0] = 1000 + 7 * i, start + i, 1, 1, 0
    L.llama_memory_seq_rm(L.llama_get_memory(ctx), 0, start, -1)
    began = time.perf_counter(); assert L.llama_decode(ctx, b) == 0; L.llama_synchronize(ctx)
    return time.perf_counter() - began
decode(64, 0)
for line in sys.stdin:
    print(decode(int(line), 64), flush=True)
"""


def step_tensors(file: Path) -> list:
    """Return the tensors that a step reads, in the file's order: all matrices but the embedding, unless it is the head."""
    tensors = [t for t in GGUFReader(file).tensors if len(t.shape) == 2]
    head = "output.weight" if any(t.name == "output.weight" for t in tensors) else "token_embd.weight"
    found = [t for t in tensors if t.name.startswith("blk.") or t.name == head]
    if other := {t.tensor_type.name for t in found} - set(BLOCK_TYPES):
        sys.exit(f"{file} has {', '.join(sorted(other))}, which the kernels do not read; give another file.")
    return found


def in_blocks(tensors: list) -> tuple[np.ndarray, list[BlockMatrix]]:
    """Return the matrices packed one after another, and the memory they lie in."""
    sizes = [packed_bytes(int(t.shape[1]), int(t.shape[0]), t.tensor_type.name) for t in tensors]
    room, at, matrices = np.empty(sum(sizes) + 64, np.uint8), 0, []
    room = room[-room.ctypes.data % 64 :][: sum(sizes)]
    began = time.perf_counter()
    for t, size in zip(tensors, sizes, strict=True):
        name, inputs, out = t.tensor_type.name, int(t.shape[0]), int(t.shape[1])
        to = room[at : at + size]
        matrices.append(BlockMatrix(to, out, inputs, name))
        matrices[-1].fill(t.data)
        at += size
    print(f"packed {at / 1e6:.0f} MB by one thread in {time.perf_counter() - began:.2f} s")
    return room, matrices


def stolen() -> int:
    """Return the ticks that the host took so far; 0 where the system does not say."""
    stat = Path("/proc/stat")
    return int(stat.read_text().split("\n")[0].split()[8]) if stat.is_file() else 0


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,4,8", help="numbers of rows (default: 1,4,8)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peer", help="a Python that has llama-cpp-python")
    parser.add_argument("--isa", choices=compiled.ISAS, help="other instructions than the best")
    parser.add_argument("--no-int8", action="store_true", help="without the layers in int8")
    given = parser.parse_args()
    if given.isa:
        check(library().ls_isa_use(compiled.ISAS.index(given.isa)))
    threads, tensors = Threads(given.threads), step_tensors(given.model)
    room, matrices = in_blocks(tensors)
    counts = [int(n) for n in given.rows.split(",")]
    rng = np.random.default_rng(0)
    inputs = {m.inputs: rng.standard_normal((max(counts), m.inputs), np.float32) for m in matrices}
    forms: dict[str, Callable[[int], float]] = {}

    def timed(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    outputs = {m.out: np.empty((max(counts), m.out), np.float32) for m in matrices}

    def products(some: Sequence[BlockStack | PackedMatrix], n: int) -> None:
        for m in some:
            x, y = inputs[m.inputs], outputs[m.out]
            check(library().ls_linear(threads.handle, m.struct(), n, address(x), address(y), 0))

    stacks = [BlockStack((m,)) for m in matrices]
    forms["blocks"] = lambda n: timed(lambda: products(stacks, n))
    if not given.no_int8:
        packed = [PackedMatrix.pack(dequantize(t.data, t.tensor_type), "int8", 32) for t in tensors]
        forms["int8"] = lambda n: timed(lambda: products(packed, n))
    if given.peer:
        child = subprocess.Popen(
            [given.peer, "-c", PEER, str(given.model), str(given.threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

        def peer(n: int) -> float:
            assert child.stdin and child.stdout
            print(n, file=child.stdin, flush=True)
            return float(child.stdout.readline())

        forms["llama.cpp"] = peer
    readings: dict[tuple[str, int], list[tuple[float, int]]] = {}
    reading = []
    for _ in range(given.rounds):
        reading.append(compiled.read_seconds(room.ctypes.data, room.nbytes, given.threads))
        for n in counts:
            for name, form in forms.items():
                before = stolen()
                readings.setdefault((name, n), []).append((form(n), stolen() - before))
    limit = statistics.median(reading)
    size = room.nbytes
    print(f"{compiled.ISAS[library().ls_isa_in_use()]}, {given.threads} threads, load {os.getloadavg()[0]:.1f}; "
          f"reading {size / 1e6:.0f} MB: {size / limit / 1e9:.1f} GB/s (best {size / min(reading) / 1e9:.1f})")  # fmt: skip
    for (name, n), samples in readings.items():
        clean = [seconds for seconds, taken in samples if not taken]
        some = clean or [seconds for seconds, _ in samples]
        median, first = statistics.median(some), readings[name, counts[0]]
        share = f"{limit / median:.2f} of the limit, {size / median / 1e9:.1f} GB/s" if name == "blocks" else ""
        ratio = statistics.median(a / b for (a, _), (b, _) in zip(samples, first, strict=True))
        against = statistics.median(a / b for (a, _), (b, _) in zip(samples, readings["blocks", n], strict=True))
        print(f"{name:10} {n:3} rows {median * 1e3:8.2f} ms (best {min(some) * 1e3:.2f}, {len(clean)} of {len(samples)} undisturbed)  "
              f"{ratio:.2f} x {counts[0]} row, {against:.2f} x blocks  {share}")  # fmt: skip


if __name__ == "__main__":
    main()
