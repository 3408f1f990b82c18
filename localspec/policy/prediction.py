"""What a model takes on a machine before it is loaded: bytes, seconds a forward, tokens a step. Pure arithmetic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from localspec.machine.machine import Device
from localspec.models.shape import Shape
from localspec.policy.forward_costs import ForwardCostModel, linear

ITEM = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of a number
CHUNK = 512  # prompt tokens a forward: bounds the memory of prefill
BUCKET = 256  # slots: caches grow by this many, and attention looks at a multiple of it, so that shapes seldom change
PROGRAM = 40 * 2**20  # bytes that a loaded model holds beside its tensors and its tokenizer: template, threads
TOKEN = 830  # bytes of each token that a tokenizer knows, as measured with 8 and 151 thousand of them
CONTEXT = 512  # tokens of text at which speeds are compared


# -- bytes -------------------------------------------------------------------------------------------------------------


def packed(weights: int, rows: int, quantize: str, backend: str) -> int:
    """Bytes of packed matrices with so many weights and output channels (`rows`) together, of a `Device.backend`."""
    if backend == "native":  # a scale in fp16 for 64 weights of int8, for 32 of int4
        return weights + weights // 64 * 2 if quantize == "int8" else weights // 2 + weights // 32 * 2
    if quantize == "int8":  # a scale for each channel, with torch on a CPU a zero point and a sum too
        return weights + rows * {"cpu": 12, "cuda": 4, "mps": 2}[backend]
    if quantize == "nf4":  # 64 weights share a scale of a byte, and 256 of those another one
        return weights // 2 + weights // 64 + weights // (64 * 256) * 4
    return weights // 2 + weights // 32 * 4  # int4: a scale and a zero for 32 weights


def weights(shape: Shape, dtype: str, quantize: str, backend: str, parameters: int | None = None) -> int:
    """Bytes of a model's weights; of an embedding that is the head too there are two where the head is packed.

    `parameters` is their true number, where it is known.
    """
    item, parameters = ITEM[dtype], parameters or shape.parameters
    known = shape.parameters - (2 * shape.num_layers + 1) * shape.hidden_size
    small = max(0, parameters - known)  # norms and biases
    if backend == "native":  # the head is in panels too, apart from the embedding
        layers, head = shape.num_layers * shape.layer, shape.embedding
        if quantize == "none":
            return (layers + 2 * head) * item + small * 4
        in_int8 = head + (shape.layer if quantize == "int4" else layers)  # in four bits the first layer loses most
        rest = packed(shape.layer, 0, quantize, backend) * (shape.num_layers - 1) if quantize == "int4" else 0
        return packed(in_int8, 0, "int8", backend) + rest + head * 2 + small * 4
    if quantize == "none":
        return parameters * item
    if backend == "cuda":  # the head stays as it is
        matrices, rows, heads = shape.num_layers * shape.layer, shape.num_layers * shape.rows, 1 if shape.tied else 2
    else:
        matrices, rows, heads = shape.matrices, shape.num_layers * shape.rows + shape.vocab_size, 1
    return packed(matrices, rows, quantize, backend) + (heads * shape.embedding + small) * item


def cache(shape: Shape, tokens: int, dtype: str) -> int:
    """Bytes of keys and values of so many tokens, tree included, in whole buckets."""
    return shape.cached(-(-tokens // BUCKET) * BUCKET, ITEM[dtype])


def tokenizer(shape: Shape, backend: str) -> int:
    """Bytes of the tokenizer while it is loaded: in main memory, so none of a GPU's."""
    return 0 if backend == "cuda" else TOKEN * shape.vocab_size


def computing(dtype: str, backend: str) -> int:
    """Bytes of an activation, and of a weight of a trained drafter beside this target."""
    return 4 if backend == "native" else ITEM[dtype]


def workspace(shape: Shape, dtype: str, backend: str, nodes: int) -> int:
    """The most bytes that a forward holds for a moment: for a chunk of a prompt, or for a tree's logits."""
    item = computing(dtype, backend)
    layer = (
        shape.head_dim * (2 * shape.num_heads + 2 * shape.num_kv_heads)
        + 4 * shape.hidden_size
        + 4 * shape.intermediate_size
    )
    return max(CHUNK * layer * item, (nodes + 1) * shape.vocab_size * (item + 4))


def loading(shape: Shape, dtype: str, quantize: str, backend: str) -> int:
    """Bytes beside the packed weights while the largest matrix is packed: itself, and its packed copy."""
    if quantize == "none" or backend == "native":  # which packs once, piece by piece, and maps
        return 0
    if backend == "cuda":  # the head is not packed
        return 2 * shape.hidden_size * shape.intermediate_size * (ITEM[dtype] + 1)
    return shape.embedding * ((0 if shape.tied else ITEM[dtype]) + 1)


# -- seconds -----------------------------------------------------------------------------------------------------------

# For a device on which nothing was measured: the share of its bandwidth that it reaches with a packing, what more rows
# cost, and the seconds that a layer takes beside its matrices. Published figures, and ours from other machines.
_SHARES = {
    "native": {"none": 0.9, "int8": 0.9, "int4": 0.85},
    "cpu": {"none": 0.6, "int8": 0.5},
    "cuda": {"none": 0.8, "int8": 0.2, "nf4": 0.5},
    "mps": {"none": 0.75, "int8": 0.65, "int4": 0.55},
}
_ROWS = (1, 8, 16, 32, 64)
_GROWTH = {
    ("native", "fp32"): (1.0, 1.2, 2.0, 4.0, 8.0), ("native", "bf16"): (1.0, 2.0, 4.0, 8.0, 16.0),
    ("native", "int8"): (1.0, 1.0, 1.6, 3.1, 6.2), ("native", "int4"): (1.0, 1.4, 2.8, 5.4, 10.8),
    ("cpu", "fp32"): (1.0, 2.4, 2.9, 4.0, 6.2), ("cpu", "bf16"): (1.0, 1.2, 1.6, 2.4, 4.0),
    ("cpu", "int8"): (1.0, 1.6, 2.5, 4.2, 7.4),
    ("cuda", "nf4"): (1.0, 1.2, 1.4, 1.8, 2.5), ("cuda", "none"): (1.0, 1.05, 1.1, 1.3, 1.6),
    ("cuda", "int8"): (1.0, 1.1, 1.1, 1.2, 1.3), ("mps", "none"): (1.0, 1.6, 1.8, 2.5, 4.0),
    ("mps", "int8"): (1.0, 3.0, 6.0, 12.0, 24.0), ("mps", "int4"): (1.0, 3.0, 6.0, 12.0, 24.0),
}  # fmt: skip
_LAYER = {"native": 1e-5, "cpu": 1e-4, "cuda": 1.5e-4, "mps": 2.5e-4}
_BANDWIDTH = {"cpu": 20e9, "cuda": 300e9, "mps": 100e9}  # bytes a second, where that was not measured either


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
        """Seconds of one forward; keys and values are read like weights."""
        read = shape.matrices + shape.cached(context, 1)
        return read * linear(self.rows, self.weight, rows) + shape.num_layers * linear(self.rows, self.layer, rows)

    def product(self, weights: int, rows: int) -> float:
        """Seconds of matrices with so many weights."""
        return weights * linear(self.rows, self.weight, rows)


def estimated_rates(device: Device, dtype: str, quantize: str) -> Rates:
    """The rates that the bandwidth of a device's memory suggests."""
    backend, bandwidth = device.backend, device.bandwidth or _BANDWIDTH[device.type]
    matrix = Shape(32, 4096, 4096, 32, 32, 128, 1, 1)  # with a usual share of what is packed otherwise
    size = weights(matrix, dtype, quantize, backend) / matrix.parameters
    share = _SHARES[backend][quantize]
    numbers = dtype if (device.type, quantize) == ("cpu", "none") else quantize
    growth = _GROWTH[backend, "bf16" if numbers == "fp16" else numbers]
    return Rates(_ROWS, tuple(size / (bandwidth * share) * times for times in growth), (_LAYER[backend],) * len(_ROWS))


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
        """Two drafters in one tree. That their gains add up is what was measured (docs/drafter-table.md)."""
        return Acceptance(tuple(sorted(self.gains + other.gains, reverse=True)), f"{self.origin} and {other.origin}")


def speed(
    costs: ForwardCostModel, acceptance: Acceptance, drafting: Callable[[int], float], most: int
) -> tuple[float, int]:
    """(tokens/s, nodes) of the draft size that gives the most tokens/s, 0 included; `drafting(nodes)` is in seconds.

    A drafter that reads weights reads all of them, whatever the size of the draft.
    """
    sizes = range(min(most, len(acceptance.gains)) + 1)
    return max((acceptance.length(nodes) / (drafting(nodes) + costs.at(nodes + 1, CONTEXT)), nodes) for nodes in sizes)
