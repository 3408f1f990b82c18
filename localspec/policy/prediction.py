"""What a model takes on a machine before it is loaded: bytes, seconds a forward, tokens a step. Pure arithmetic."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from localspec.families.architecture import TransformerConfig
from localspec.machine.machine import Device
from localspec.models.shape import Shape
from localspec.policy.forward_costs import ForwardCostModel, linear
from localspec.policy.host_time import step_seconds
from localspec.weights.packed_file import BLOCKS
from localspec.weights.recipe import in_four_bits

ITEM = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of a number
CHUNK = 512  # prompt tokens a forward: bounds the memory of prefill
NOISE_BYTES = 48  # that finding a pick takes of each id of a row on a GPU, whose noise has 64 bits while it is made
# Recordings that a reply plays, and bytes that a driver is taken to keep of one: nobody has measured it.
USUAL_RECORDINGS, RECORDING = 6, 12 * 2**20
PRODUCTS = 32 * 2**20  # bytes that cuBLAS keeps for recordings, on the largest cards
STATIC_ROWS = (1, 2, 4, 8, 16, 32, 64)  # of a step on a GPU, whose rows are filled up to one of these
BUCKET = 256  # slots: caches grow by this many, and attention looks at a multiple of it, so that shapes seldom change
ROWS, MOST_PARTS = 256, 64 * 2**20  # of the CPU engine: rows that pass a layer together; bytes of parts of attention
MOST_CHAINED = 16  # rows of a static shape after states, which takes the operations of one row so many times
STATES = 8  # of a recurrent layer that are held: the latest, and earlier ones that can be gone back to
RECENT = 256  # rows of a recurrent layer that are held to be read again
PAGE = 4096  # bytes of a mapped file that come with any of them that is read
PROGRAM = 40 * 2**20  # bytes that a loaded model holds beside its tensors and its tokenizer: template, threads
NATIVE_PROGRAM, PACKING = 8 * 2**20, 24 * 2**20  # the same of the CPU engine; what packing in memory leaves behind
TOKEN = 830  # bytes of each token that a tokenizer knows, as measured with 8 and 151 thousand of them
CONTEXT = 512  # tokens of text at which speeds are compared
MOST_PARKED = 4 * 2**30  # bytes of parked texts


# -- bytes -------------------------------------------------------------------------------------------------------------


def packed(weights: int, rows: int, quantize: str, backend: str) -> int:
    """Bytes of packed matrices with so many weights and output channels (`rows`) together, of a `Device.backend`."""
    if backend in ("native", "cpu"):  # our library's: a scale in fp16 for 64 weights of int8
        return weights + weights // 64 * 2
    if quantize == "int8":  # a scale for each channel
        return weights + rows * {"cuda": 4, "mps": 2}[backend]
    if quantize == "nf4":  # 64 weights share a scale of a byte, and 256 of those another one
        return weights // 2 + weights // 64 + weights // (64 * 256) * 4
    return weights // 2 + weights // 32 * 4  # int4: a scale and a zero for 32 weights


def weights(shape: Shape, dtype: str, quantize: str, backend: str, parameters: int | None = None) -> int:
    """Return the bytes of a model's weights; `parameters` is their true number, where it is known."""
    item, parameters = ITEM[dtype], parameters or shape.parameters
    known = shape.parameters - (2 * shape.num_layers + 1) * shape.hidden_size
    small = max(0, parameters - known)  # norms and biases
    if backend == "native" or (backend == "cpu" and quantize != "none"):  # whose tables are never packed
        tables = shape.table + (0 if shape.tied else shape.embedding)
        if quantize == "none":
            return (shape.matrices + tables) * item + small * 4
        matrices = (
            in_four_bits(shape.linears, shape.num_layers)
            if quantize == "int4"
            else packed(shape.matrices, 0, quantize, backend)
        )
        dense = shape.embedding * 4 if shape.tied and backend == "cpu" else 0  # what torch makes of such a head
        return matrices + tables * 2 + dense + small * 4
    if quantize == "none":
        return parameters * item
    if backend == "cuda":  # the head stays as it is
        matrices, rows, heads = shape.layers, shape.rows, 1 if shape.tied else 2
    else:
        matrices, rows, heads = shape.matrices, shape.rows + shape.vocab_size, 1
    return packed(matrices, rows, quantize, backend) + (heads * shape.embedding + shape.table + small) * item


def cache(shape: Shape, tokens: int, dtype: str) -> int:
    """Bytes of keys and values of so many tokens, tree included, in whole buckets, and of recurrent layers."""
    return shape.cached(-(-tokens // BUCKET) * BUCKET, ITEM[dtype]) + states(shape, dtype)


def states(shape: Shape, dtype: str) -> int:
    """Bytes of the states of recurrent layers, in fp32, with the rows before each, and of the rows read lately."""
    if (sizes := shape.delta) is None:
        return 0
    rows = STATES * (sizes.taps - 1) * sizes.channels + RECENT * sizes.read
    return STATES * sizes.numbers * ITEM["fp32"] + sum(sizes.layers) * rows * ITEM[dtype]


def parking(left: int) -> int:
    """Bytes that parked texts may take of the memory that a model with a full context leaves: half, up to a limit.

    No model is chosen by them: they take what is left, and go where it becomes less.
    """
    return min(max(0, left // 2), MOST_PARKED)


def tokenizer(shape: Shape, backend: str) -> int:
    """Bytes of the tokenizer while it is loaded: in main memory, so none of a GPU's."""
    return 0 if backend == "cuda" else TOKEN * shape.vocab_size


def drafter_numbers(dtype: str, quantize: str, backend: str) -> tuple[float, int]:
    """Bytes of a trained drafter's numbers beside this target: of a matrix's weight, scale included, and of others."""
    if backend == "native":  # which packs matrices of drafters in int8 by 32, where the target's are packed
        return (ITEM[dtype] if quantize == "none" else 1 + 2 / 32), 4
    if (backend, quantize, dtype) == ("cuda", "nf4", "bf16"):  # like the target's; cards without bf16 keep them dense
        return packed(2**14, 0, "nf4", backend) / 2**14, ITEM[dtype]
    return ITEM[dtype], ITEM[dtype]


def unread(shape: Shape, quantize: str, backend: str, tokens: int) -> int:
    """Bytes of weights that need not be in memory: of a mapped file those of tables that no token asks for.

    Blocks of GGUF are in memory of their own.
    """
    if backend != "native" or quantize in ("none", BLOCKS):
        return 0
    tables = (
        (0 if shape.tied else shape.embedding, shape.hidden_size),
        (shape.table, shape.num_layers * shape.layer_inputs[0]),
    )
    return sum(max(0, numbers * 2 - tokens * (-(-row * 2 // PAGE) * PAGE)) for numbers, row in tables)


def program(quantize: str, backend: str) -> int:
    """Bytes that a loaded model holds beside its tensors and its tokenizer."""
    if backend == "native":
        return NATIVE_PROGRAM + (PACKING if quantize in ("none", BLOCKS) else 0)
    return PROGRAM


def workspace(shape: Shape, dtype: str, quantize: str, backend: str, tokens: int, nodes: int) -> int:
    """The most bytes that a forward holds for a moment: for a chunk of a prompt, or for a tree's logits."""
    if backend == "native":
        states = CHUNK * shape.hidden_size * 4
        return _native_forward(shape, dtype, quantize, tokens) + max(states, (nodes + 1) * shape.vocab_size * 4)
    item = ITEM[dtype]
    held = max(CHUNK * _row(shape) * item, (nodes + 1) * shape.vocab_size * (item + 4))
    return held + (recordings(shape, dtype, quantize, nodes) if backend == "cuda" else 0)


def _row(shape: Shape) -> int:
    """Numbers that torch holds of a row that passes a layer."""
    widest = shape.widest
    numbers = widest.head_dim * (2 * shape.num_heads + 2 * widest.num_kv_heads)
    return numbers + 4 * shape.hidden_size + 4 * widest.intermediate_size + 2 * shape.num_layers * shape.layer_inputs[0]


def recordings(shape: Shape, dtype: str, quantize: str, nodes: int) -> int:
    """Bytes of recorded steps on a GPU, and of finding picks there.

    Results have memory of their own, by their rows: 1 + 2 + 4 + … of them; all else that a step holds has one place for
    all recordings. Of NF4 prompts make a matrix dense.
    """
    item, rows = ITEM[dtype], next((rows for rows in STATIC_ROWS if rows > nodes), STATIC_ROWS[-1])
    results = 2 * rows * (shape.vocab_size + shape.hidden_size) * item
    step = rows * (_row(shape) * item + shape.vocab_size * (item + 1))
    picks = shape.vocab_size * (NOISE_BYTES + 2 * rows * 4)
    dense = 2 * shape.hidden_size * shape.widest.intermediate_size * item if quantize == "nf4" else 0
    held = 0
    if (sizes := shape.delta) is not None:  # states before and after a forward, and what recurrent layers read
        held = 2 * sizes.numbers * ITEM["fp32"] + MOST_CHAINED * sum(sizes.layers) * sizes.read * item
    return results + step + picks + dense + held + PRODUCTS + USUAL_RECORDINGS * RECORDING


def _native_forward(shape: Shape, dtype: str, quantize: str, tokens: int) -> int:
    """Bytes that the CPU engine keeps for forwards: of rows that pass a layer together, and of parts of attention."""
    most, sizes, heads = shape.widest, shape.delta, (2 if shape.gated else 1) * shape.num_heads
    qkv, padded = (heads + 2 * most.num_kv_heads) * most.head_dim, -(-most.head_dim // 16) * 16
    mixed, inner, window = shape.num_heads * most.head_dim, most.intermediate_size, 0
    if sizes is not None:  # of its rows before the convolution there is a copy
        qkv, mixed, window = max(qkv, sizes.read + sizes.values), max(mixed, sizes.values), sizes.read
    floats = shape.hidden_size + qkv + shape.num_heads * padded + mixed + inner + most.head_dim + window
    floats += (shape.num_layers + 1) * shape.layer_inputs[0]
    widest = max(shape.hidden_size, inner, mixed)
    inputs = widest * 4 if quantize == "none" else widest + widest // 32 * 4  # quantised, with scales or sums
    parts = -(-tokens // BUCKET) * ROWS * shape.num_heads * (padded + 16) * 4
    return ROWS * (floats * 4 + inputs) + (parts if parts <= MOST_PARTS else 0)


def loading(shape: Shape, dtype: str, quantize: str, backend: str) -> int:
    """Bytes beside the packed weights while the largest matrix is packed: itself, and its packed copy.

    On a CPU torch makes each matrix dense while it multiplies by it.
    """
    if quantize == "none" or backend == "native":  # which packs once, piece by piece, and maps
        return 0
    if backend == "cpu":
        return unpacked(shape)
    if backend == "cuda":  # the head is not packed
        return 2 * shape.hidden_size * shape.widest.intermediate_size * (ITEM[dtype] + 1)
    return shape.embedding * ((0 if shape.tied else ITEM[dtype]) + 1)


def unpacked(shape: Shape | TransformerConfig) -> int:
    """Bytes of the largest matrix in fp32, of which a layer makes a packed one dense."""
    return 4 * shape.hidden_size * max(shape.vocab_size, 2 * shape.intermediate_size)


# -- seconds -----------------------------------------------------------------------------------------------------------

# For a device on which nothing was measured: the share of its bandwidth that it reaches with a packing, what more rows
# cost, and the seconds that a layer takes beside its matrices. Published figures, and ours from other machines; those
# of CUDA are of recorded steps on an H200, where NF4 is held up by arithmetic and not by memory.
_SHARES = {
    "native": {"none": 0.9, "int8": 0.9, "int4": 0.8, BLOCKS: 0.8},
    "cpu": {"none": 0.6},
    "cuda": {"none": 0.8, "int8": 0.2, "nf4": 0.4},
    "mps": {"none": 0.75, "int8": 0.65, "int4": 0.55},
}
ATTENTION = 2048  # channels of the heads that layers are measured with
_ROWS = (1, 8, 16, 32, 64)
_GROWTH = {
    ("cpu", "fp32"): (1.0, 2.4, 2.9, 4.0, 6.2), ("cpu", "bf16"): (1.0, 1.2, 1.6, 2.4, 4.0),
    ("cuda", "nf4"): (1.0, 1.05, 1.3, 1.7, 2.3), ("cuda", "none"): (1.0, 1.05, 1.05, 1.1, 1.2),
    ("cuda", "int8"): (1.0, 1.05, 1.05, 1.05, 1.1), ("mps", "none"): (1.0, 1.6, 1.8, 2.5, 4.0),
    ("mps", "int8"): (1.0, 3.0, 6.0, 12.0, 24.0), ("mps", "int4"): (1.0, 3.0, 6.0, 12.0, 24.0),
}  # fmt: skip
_LAYER = {"cpu": 1e-4, "cuda": 1e-4, "mps": 2.5e-4}
# Of the CPU engine: the seconds that a core takes for a weight and a row, by its instructions and the numbers. Ours on
# Zen 4 under each of them, but for AVX-VNNI and NEON, which are taken to be in between. Those of blocks follow from how
# much longer 8 rows took than one on Cascade Lake: 1.5 times with VNNI, 2.9 times with AVX2; for
# the other instructions they are guessed.
_ARITHMETIC = {
    "avx512_vnni": {"int8": 5.5e-12, "int4": 8e-12, BLOCKS: 8e-12, "bf16": 23e-12, "fp32": 21e-12},
    "avx_vnni": {"int8": 9e-12, "int4": 13e-12, BLOCKS: 13e-12, "bf16": 27e-12, "fp32": 25e-12},
    "avx2": {"int8": 16e-12, "int4": 27e-12, BLOCKS: 27e-12, "bf16": 27e-12, "fp32": 25e-12},
    "neon": {"int8": 16e-12, "int4": 27e-12, BLOCKS: 27e-12, "bf16": 50e-12, "fp32": 50e-12},
    "c": {"int8": 1.4e-9, "int4": 1.6e-9, BLOCKS: 1.6e-9, "bf16": 1.4e-9, "fp32": 1.4e-9},
}
_MEETING = 1.5  # reading and computing overlap: their times add up as powers of this
_NATIVE_LAYER, _LAYER_ROW = 1.5e-5, 3.3e-5  # seconds of a layer beside its matrices: of any forward, a row and core
_BANDWIDTH = {"cpu": 20e9, "cuda": 300e9, "mps": 100e9}  # bytes a second, where that was not measured either


def copying(device: Device) -> float:
    """Bytes that are copied in a second: they are read, and written to memory that may be new to the process."""
    return (device.bandwidth or _BANDWIDTH[device.type]) / 4


@dataclass(frozen=True)
class Rates:
    """Seconds that a device takes by the number of rows: for a weight of a matrix, for a layer beside its matrices."""

    rows: tuple[int, ...]
    weight: tuple[float, ...]
    layer: tuple[float, ...]

    @classmethod
    def from_list(cls, value: Any) -> "Rates | None":
        """The rates that `as_list` wrote; None for anything else."""
        try:
            rows, weight, layer = value
            rates = cls(tuple(map(int, rows)), tuple(map(float, weight)), tuple(map(float, layer)))
        except (TypeError, ValueError, OverflowError):
            return None
        whole = len(rates.rows) == len(rates.weight) == len(rates.layer) > 0
        ascending = sorted({*rates.rows}) == [*rates.rows]
        return rates if whole and ascending and all(0 < one < 1 for one in rates.weight + rates.layer) else None

    def as_list(self) -> list[list[float]]:
        """What `from_list` reads."""
        return [[*self.rows], [*self.weight], [*self.layer]]

    def forward(self, shape: Shape, rows: int, context: int) -> float:
        """Seconds of one forward; keys and values are read like weights, and rows attend with the model's own heads."""
        read = shape.matrices + shape.cached(context, 1)
        one = self.layer[0]
        layer = one + (linear(self.rows, self.layer, rows) - one) * shape.attending / ATTENTION
        return read * linear(self.rows, self.weight, rows) + shape.num_layers * layer

    def product(self, weights: int, rows: int) -> float:
        """Seconds of matrices with so many weights."""
        return weights * linear(self.rows, self.weight, rows)


def reading(device: Device, dtype: str, quantize: str) -> float:
    """Seconds in which a device reads a weight; on a CPU torch makes packed ones dense, and reads those."""
    if device.backend == "cpu":
        quantize = "none"
    matrix = Shape(32, 4096, 4096, 32, 32, 128, 1, 1)  # with a usual share of what is packed otherwise
    size = device.block_bits / 8
    if quantize != BLOCKS:
        size = weights(matrix, dtype, quantize, device.backend) / matrix.parameters
    return size / ((device.bandwidth or _BANDWIDTH[device.type]) * _SHARES[device.backend][quantize])


def estimated_rates(device: Device, dtype: str, quantize: str) -> Rates:
    """The rates that the bandwidth of a device's memory suggests, and of a CPU with our library its arithmetic."""
    if device.backend == "native":
        return _native_rates(device, dtype, quantize)
    if device.backend == "cpu":
        quantize = "none"
    numbers = dtype if (device.type, quantize) == ("cpu", "none") else quantize
    growth = _GROWTH[device.backend, "bf16" if numbers == "fp16" else numbers]
    read, layer = reading(device, dtype, quantize), _LAYER[device.backend]
    return Rates(_ROWS, tuple(read * times for times in growth), (layer,) * len(_ROWS))


def _native_rates(device: Device, dtype: str, quantize: str) -> Rates:
    """The more cores, the less it matters how many rows there are; the slower their arithmetic, the more."""
    numbers = quantize if quantize != "none" else "fp32" if dtype == "fp32" else "bf16"
    arithmetic = _ARITHMETIC.get(device.capability, _ARITHMETIC["avx2"])[numbers]
    read, rows = reading(device, dtype, quantize), (1, 2, 4, *_ROWS[1:])
    computed = [arithmetic * n / device.cores for n in rows]
    weight = tuple((read**_MEETING + one**_MEETING) ** (1 / _MEETING) for one in computed)
    return Rates(rows, weight, tuple(_NATIVE_LAYER + _LAYER_ROW * n / device.cores for n in rows))


@dataclass(frozen=True)
class Estimate:
    """ForwardCostModel of a model's forwards by the rates of a device."""

    shape: Shape
    rates: Rates

    def at(self, rows: int, context: int) -> float:
        return self.rates.forward(self.shape, rows, context)


# -- tokens a step -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Acceptance:
    """The tokens that each further node of a draft should bring, the most first, and where they are known from."""

    gains: tuple[float, ...]
    origin: str

    @classmethod
    def chain(cls, chances: Sequence[float], origin: str) -> "Acceptance":
        """A chain whose token at each depth is accepted with this chance, given the one before it."""
        return cls(tuple(accumulate(chances, lambda reached, chance: reached * chance)), origin)

    @classmethod
    def tree(cls, levels: Sequence[Sequence[float]], nodes: int, origin: str) -> "Acceptance":
        """The best tree of so many nodes, where levels [depth][rank] are the chances of each depth's candidates.

        A node brings the product of the chances on its path, and the best one is added next (Medusa, §3.3.3).
        """
        ranked = [sorted(level, reverse=True) for level in levels]
        gains: list[float] = []
        waiting = [(-chance, 1.0, 0, 0) for chance in ranked[0][:1]] if ranked else []  # -worth, parent's worth, place
        while waiting and len(gains) < nodes:
            worth, above, depth, rank = heapq.heappop(waiting)
            gains.append(-worth)
            if rank + 1 < len(ranked[depth]):
                heapq.heappush(waiting, (-above * ranked[depth][rank + 1], above, depth, rank + 1))
            if depth + 1 < len(ranked) and ranked[depth + 1]:
                heapq.heappush(waiting, (worth * ranked[depth + 1][0], -worth, depth + 1, 0))
        return cls(tuple(gains), origin)

    def scaled(self, share: float) -> "Acceptance":
        """Where every node brings this share of what it should."""
        return Acceptance(tuple(share * gain for gain in self.gains), self.origin)

    @classmethod
    def of_length(cls, length: float, depth: int, origin: str) -> "Acceptance":
        """A chain of `depth` tokens with this acceptance length; the chance at each depth is taken to be the same."""
        low, high = 0.0, 1.0
        for _ in range(40):
            chance = (low + high) / 2
            low, high = (chance, high) if cls.chain([chance] * depth, "").length(depth) < length else (low, chance)
        return cls.chain([low] * depth, origin)

    def length(self, nodes: int) -> float:
        """Tokens a step with so many nodes, the bonus token counted."""
        return 1 + sum(self.gains[:nodes])

    def beside(self, other: "Acceptance") -> "Acceptance":
        """Two drafters in one tree. That their gains add up is what was measured (docs/figures/drafter-table.md)."""
        return Acceptance(tuple(sorted(self.gains + other.gains, reverse=True)), f"{self.origin} and {other.origin}")


def speed(
    costs: ForwardCostModel, acceptance: Acceptance, drafting: Callable[[int], float], most: int
) -> tuple[float, int]:
    """(tokens/s, nodes) of the draft size that gives the most tokens/s, 0 included; `drafting(nodes)` is in seconds.

    A drafter that reads weights reads all of them, whatever the size of the draft.
    """
    sizes = range(min(most, len(acceptance.gains)) + 1)

    def at(nodes: int) -> float:
        return acceptance.length(nodes) / step_seconds(drafting(nodes), costs.at(nodes + 1, CONTEXT), nodes)

    return max((at(nodes), nodes) for nodes in sizes)
