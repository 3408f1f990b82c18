"""The seconds of forwards and steps: measured on this machine, or else estimated from the bandwidth of its memory."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.choosing import fit
from localspec.machine.machine import Device
from localspec.models.shape import Shape
from localspec.weights.packed_file import BLOCKS

CONTEXT = 512  # committed tokens before a forward when speeds are compared
# Seconds that Python takes, measured with 3.11 on servers of 2022 and 2023. They matter only for tiny models.
STEP = 8e-5  # of a step without a tree, in addition to drafting and the forward
TREE = 4e-5  # of a step with a tree, in addition to STEP
DRAFT = 5e-5  # of drafting, in addition to matrix products
OVERHEAD = 1.5  # the time of a training relative to its matrix products: losses, optimiser and checkpoints added
TRAINING_TOKENS = 10_000_000  # of text to train a drafter on: about what the S3D paper took
# Bytes per second of reads of 1 MiB from a disk, assumed if they were not measured. The disk of a cloud machine reads
# this many (docs/figures/experts.md), and an NVMe disk several times as many.
DISK = 0.75e9
PHRASES = 1e-4  # seconds of looking up phrases, whether any is found or not


class ForwardCostModel(Protocol):
    """A source of the costs of a model's forwards on a machine, either measured or predicted."""

    def at(self, rows: int, context: int) -> float:
        """Return the seconds of one forward of `rows` new tokens after `context` committed tokens."""


@dataclass(frozen=True)
class ForwardCosts:
    """A table of the seconds of one target forward, by rows (new tokens) and by the committed tokens before them.

    `seconds` [context][row] has a figure for each pair of `contexts` and `rows`, which both ascend.
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def at(self, rows: int, context: int) -> float:
        """Return the seconds of a forward, interpolated between the measured points as `linear` does."""
        return linear(self.contexts, [linear(self.rows, line, rows) for line in self.seconds], context)

    def as_list(self) -> list[object]:
        """Return these costs as lists and numbers, for `from_list`."""
        return [list(self.rows), list(self.contexts), [list(line) for line in self.seconds]]

    @classmethod
    def from_list(cls, value: Any) -> "ForwardCosts | None":
        """Return the costs that `as_list` wrote; None for an invalid value, so that the costs are measured again."""
        try:
            rows, contexts, seconds = value
            costs = cls(tuple(map(int, rows)), tuple(map(int, contexts)), tuple(tuple(map(float, s)) for s in seconds))
        except (TypeError, ValueError, OverflowError):
            return None
        ascending = all(points and sorted({*points}) == [*points] for points in (costs.rows, costs.contexts))
        whole = [len(line) for line in costs.seconds] == [len(costs.rows)] * len(costs.contexts)
        positive = all(1e-9 < figure < 1e4 for line in costs.seconds for figure in line)
        return costs if ascending and whole and positive else None


@dataclass
class CurrentCosts:
    """The costs of a model's forwards, shared by all that use them: estimates at first, later `timed` costs."""

    model: ForwardCostModel
    timed: bool

    def at(self, rows: int, context: int) -> float:
        return self.model.at(rows, context)

    def take(self, model: ForwardCostModel, timed: bool) -> None:
        """Replace the costs of forwards; `timed` says that they were measured."""
        self.model, self.timed = model, timed


@dataclass(frozen=True)
class FromDisk:
    """A cost model for a mixture of experts that does not fit in memory: `on_disk` bytes of its experts are not loaded.

    A forward reads only the chosen experts from the disk, and requests them in advance. Experts on the disk are assumed
    to be chosen as often as experts in memory.
    """

    in_memory: ForwardCostModel
    shape: Shape
    on_disk: int
    bandwidth: float = DISK

    def at(self, rows: int, context: int) -> float:
        missing = self.shape.chosen(rows) * self.on_disk
        return self.in_memory.at(rows, context) + missing / self.bandwidth


@dataclass(frozen=True)
class StepCosts:
    """A `ForwardCostModel` of whole plain steps: to the time of each forward it adds the time that Python takes."""

    forwards: ForwardCostModel

    def at(self, rows: int, context: int) -> float:
        return self.forwards.at(rows, context) + STEP


def training_hours(tokens: int, read: float, trained: float, product: float) -> float:
    """Return about how many hours a training on `tokens` tokens takes.

    Each token is multiplied by `read` weights that are not trained, and by `trained` weights in forward and backward
    passes. A weight counts once for each of these products. `product` is the seconds for one weight and one row.
    """
    return OVERHEAD * tokens * (read + trained) * product / 3600


def step_seconds(drafting: float, forward: float, nodes: int) -> float:
    """Return the seconds of a step from the seconds of drafting and of the forward, and the nodes of its draft."""
    return drafting + forward + STEP + (TREE if nodes else 0.0)


def linear(points: Sequence[float], values: Sequence[float], at: float) -> float:
    """Return the value at `at` of the polygonal line through (point, value) pairs.

    Beyond the last point the last segment is extrapolated. Before the first point the value is constant.
    """
    if len(points) == 1 or at <= points[0]:
        return values[0]
    right = min(bisect_left(points, at), len(points) - 1)
    share = (at - points[right - 1]) / (points[right] - points[right - 1])
    return values[right - 1] * (1 - share) + values[right] * share  # unlike a + (b - a) share, exact at the points


# -- estimates ---------------------------------------------------------------------------------------------------------

# The share of its memory's bandwidth that a device reaches with a packing, from published figures and our own
# measurements on other machines. On CUDA it is relative to the speed of a copy: fitted to two dense models on an H200,
# the share is 1.01, and each kernel takes 5 us in addition.
SHARES = {
    "native": {"none": 0.9, "int8": 0.9, "int4": 0.8, BLOCKS: 0.9},
    "cpu": {"none": 0.6},
    "cuda": {"none": 1.0, "int8": 1.0, "nf4": 1.0},
    "mps": {"none": 0.75, "int8": 0.65, "int4": 0.55},
}
# A recorded step on CUDA (docs/figures/gpu-figures.md, b): the least seconds of a kernel, the kernels of a layer, and
# the seconds in which a multiprocessor unpacks a weight. Faster memory does not shorten them.
_KERNEL, _KERNELS, _UNPACKED = 5e-6, {"none": 12.6, "int8": 26.6, "nf4": 10.6}, {"int8": 9.3e-12, "nf4": 3.5e-11}
_FED = 10e9  # bytes a second for each multiprocessor of usual cards; estimates their number if it is not known
# How many times longer torch takes for the products of 64 rows than for those of one row. Sources as above.
GROWTH = {
    "cpu": {"fp32": 6.0, "bf16": 4.0}, "cuda": {"nf4": 3.0, "none": 1.1, "int8": 1.3},
    "mps": {"none": 4.0, "int8": 24.0, "int4": 24.0},
}  # fmt: skip
# Seconds that a core takes in the CPU engine for one weight in int8 and one row, and how many times longer for other
# packings. We measured them on Zen 4 and Cascade Lake; those of AVX-VNNI and NEON are guesses in between.
ARITHMETIC = {"avx512_vnni": 5.5e-12, "avx_vnni": 9e-12, "avx2": 16e-12, "neon": 16e-12, "c": 1.4e-9}
_TIMES = {"int8": 1.0, "int4": 1.5, BLOCKS: 1.3, "none": 3.0}
_ATTENTION = 4.0  # the time for a number of a key or value and one row, relative to that for a weight in int8
# Reading and computing overlap, so the total is (read**p + computed**p) ** (1 / p) with these exponents p. The CPU
# engine's was fitted to SmolLM2 and Qwen2.5-Coder 0.5B and 1.5B in blocks, and to the demo model in int8.
_OVERLAP, _OVERLAP_NATIVE = 1.5, 3.0
# Seconds of a layer in addition to its matrices. In the CPU engine each row adds more: seconds on one core.
_LAYER, _LAYER_ROW = {"native": 1.5e-5, "cpu": 1e-4, "mps": 2.5e-4}, 4e-6
# Bytes a second if nothing was measured, for two channels of DDR4-3200 (of which a copy reaches 0.87), usual cards
# and usual Macs.
_BANDWIDTH = {"cpu": 44e9, "cuda": 300e9, "mps": 100e9}
_USUAL = Shape(32, 4096, 4096, 32, 32, 128, 1, 1)  # matrices with a usual share of other tensors


def bandwidth_of(device: Device) -> float:
    """Return the bytes per second that a device reads from its memory: the measured value, or the usual one for its
    type."""
    return device.bandwidth or _BANDWIDTH[device.type]


def copying(device: Device) -> float:
    """Return the estimated bandwidth of copying into newly allocated memory, in bytes/s."""
    return bandwidth_of(device) / 4


def reading(device: Device, dtype: str, quantize: str) -> float:
    """Return the seconds that a device takes to read one weight from its memory."""
    if device.backend == "cpu":  # torch unpacks weights before it multiplies by them
        quantize = "none"
    size = device.block_bits / 8
    if quantize != BLOCKS:
        size = fit.weights(_USUAL, dtype, quantize, device.backend) / _USUAL.parameters
    return size / (bandwidth_of(device) * SHARES[device.backend][quantize])


@dataclass(frozen=True)
class Rates:
    """The seconds of basic operations: reading a weight, multiplying it by one row, a layer, and each row in a layer.

    `attended` is the time for one row to attend to one number of a cached key or value; if it is 0, such a number costs
    as much as a weight. `overlap` is the exponent p in `product`: (reading^p + multiplying^p)^(1/p) seconds.
    """

    read: float
    computed: float
    layer: float
    layer_row: float = 0.0
    attended: float = 0.0
    overlap: float = _OVERLAP

    @classmethod
    def of(cls, device: Device, dtype: str, quantize: str) -> "Rates":
        """Return the rates estimated from a device's bandwidth, and on a CPU also from its instruction set."""
        read = reading(device, dtype, quantize)
        if device.backend == "cuda":
            multiprocessors = device.cores if device.cores > 1 else bandwidth_of(device) / _FED
            unpacked = _UNPACKED.get(quantize, 0.0) / multiprocessors
            read, layer = (read**_OVERLAP + unpacked**_OVERLAP) ** (1 / _OVERLAP), _KERNEL * _KERNELS[quantize]
        else:
            layer = _LAYER[device.backend]
        if device.backend == "native":
            product = ARITHMETIC.get(device.capability, ARITHMETIC["avx2"]) / device.cores
            row = _LAYER_ROW / device.cores
            return cls(read, product * _TIMES[quantize], layer, row, product * _ATTENTION, _OVERLAP_NATIVE)
        if device.backend == "cpu":
            quantize = "fp32" if dtype == "fp32" else "bf16"
        growth = GROWTH[device.backend][quantize]
        return cls(read, read * (growth**_OVERLAP - 1) ** (1 / _OVERLAP) / 64, layer)

    def product(self, weights: float, rows: int, computed: int | None = None) -> float:
        """Return the seconds of multiplying `rows` rows by a matrix.

        The product reads `weights` weights, and multiplies each row by `computed` of them (None: all).
        """
        power, by_row = self.overlap, weights if computed is None else computed
        return float(((self.read * weights) ** power + (self.computed * rows * by_row) ** power) ** (1 / power))


@dataclass(frozen=True)
class Estimate:
    """The estimated costs of a model's forwards, from its `shape` and a device's `rates`.

    `reads`, if known, is (weights that every step reads, weights of all experts). Both are numbers of bytes divided by
    the model's average bytes per weight, because `rates` are the seconds for an average weight.
    """

    shape: Shape
    rates: Rates
    reads: tuple[float, float] | None = None

    def at(self, rows: int, context: int) -> float:
        shape, rates = self.shape, self.rates
        cached = shape.cached(context, 1)
        layers = shape.num_layers * (rates.layer + rates.layer_row * rows)
        read = self.reads[0] + self.reads[1] * shape.chosen(rows) if self.reads else shape.read(rows)
        if not rates.attended:
            return rates.product(read + cached, rows, shape.read(1) + cached) + layers
        heads = shape.num_heads / shape.num_kv_heads  # heads that read the same keys
        return rates.product(read, rows, shape.read(1)) + rates.attended * cached * heads * rows + layers
