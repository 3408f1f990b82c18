"""Compare predicted with published speeds: tokens/s, and speedups over plain decoding.

python research/published_table.py

Prints the tables of docs/figures/prediction.md. No constant of the predictions comes from the numbered rows. Nothing is
measured: bandwidths are those of data sheets.
"""

import argparse
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from localspec.choosing import fit
from localspec.choosing.cost import CONTEXT, Estimate, ForwardCostModel, Rates, StepCosts
from localspec.choosing.drafters import CostInputs, DraftModelEstimate, candidates, speed
from localspec.choosing.plans import AUTO_NODES
from localspec.machine.machine import Device
from localspec.models.entries import PublishedDrafter
from localspec.models.registry import known
from localspec.models.shape import Shape
from localspec.weights.packed_file import BLOCKS

# Of a data sheet's bandwidth a copy reaches so much on the one card that was measured here, an H200 (4179 of 4800 GB/s).
COPIED = 0.87
GIB = 2**30

LLAMA_7B = Shape(32, 4096, 11008, 32, 32, 128, 32000, 4096)  # also Vicuna
LLAMA_13B = Shape(40, 5120, 13824, 40, 40, 128, 32000, 4096)
LLAMA_33B = Shape(60, 6656, 17920, 52, 52, 128, 32000, 2048)
LLAMA_70B = Shape(80, 8192, 28672, 64, 8, 128, 32000, 4096)
LLAMA3_8B = Shape(32, 4096, 14336, 32, 8, 128, 128256, 8192)
LLAMA3_1B = Shape(16, 2048, 8192, 32, 8, 64, 128256, 8192, tied=True)
LLAMA_68M = Shape(2, 768, 3072, 12, 12, 64, 32000, 2048)
YI_34B = Shape(60, 7168, 20480, 56, 8, 128, 64000, 4096)
YI_6B = Shape(32, 4096, 11008, 32, 4, 128, 64000, 4096)


def card(title: str, bandwidth: float, multiprocessors: int, dtype: str = "bf16") -> Device:
    """Return an NVIDIA GPU with the bandwidth (GB/s) and the multiprocessors of its data sheet."""
    return Device(
        "cuda:0", title, 80 * GIB, 80 * GIB, (dtype,), ("int8", "nf4"), "", COPIED * bandwidth * 1e9,
        cores=multiprocessors,
    )  # fmt: skip


def apple(title: str, bandwidth: float) -> Device:
    """Return the GPU of a Mac with the bandwidth (GB/s) of its data sheet."""
    return Device("mps", title, 64 * GIB, 64 * GIB, ("fp16",), ("int8", "int4"), "", bandwidth * 1e9)


def processor(title: str, read: float, cores: int, kernels: str, bits: float = 4.5) -> Device:
    """Return a CPU that reads `read` GB/s. `bits` is the mean number of bits per weight in a GGUF file."""
    return Device(
        "cpu", title, 64 * GIB, 64 * GIB, ("bf16",), ("int8",), kernels, read * 1e9, engine="native", cores=cores,
        block_bits=bits,
    )  # fmt: skip


DAI = "github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference, README"
SPEC_BENCH = "github.com/hemingkx/Spec-Bench, Leaderboard.md, overall"
PARALLELSPEC = "ParallelSpec (the paper), table 1, average"
OUROBOROS = "Ouroboros (the paper), table 2, median of three tasks"


class Plain(NamedTuple):
    """A published speed of plain decoding in tokens/s. `packing` is localspec's nearest to the published `form`."""

    device: Device
    model: str
    shape: Shape
    form: str
    packing: str
    published: float
    source: str
    is_known: bool = False  # known while the predictor was corrected


PLAIN = (
    Plain(card("RTX 4090", 1008, 128), "Llama 3 8B", LLAMA3_8B, "F16", "none", 54.84, DAI, is_known=True),
    Plain(card("RTX 3090", 936, 82), "Llama 3 8B", LLAMA3_8B, "Q4_K_M", "nf4", 115.42, DAI, is_known=True),
    Plain(card("RTX 3070", 448, 46), "Llama 3 8B", LLAMA3_8B, "Q4_K_M", "nf4", 72.79, DAI, is_known=True),
    Plain(card("RTX 3060", 360, 28), "Llama 3.1 8B", LLAMA3_8B, "Q8_0", "int8", 32.49, "llama.cpp #5877", is_known=True),
    Plain(card("RTX 3080", 760, 68), "Llama 3 8B", LLAMA3_8B, "Q4_K_M", "nf4", 109.57, DAI),
    Plain(card("RTX 4070 Ti", 504, 60), "Llama 3 8B", LLAMA3_8B, "Q4_K_M", "nf4", 83.50, DAI),
    Plain(card("RTX 4080", 717, 76), "Llama 13B", LLAMA_13B, "Q4_0", "nf4", 67.92, DAI),
    Plain(card("RTX A6000", 768, 84), "Llama 13B", LLAMA_13B, "F16", "none", 24.65, DAI),
    Plain(card("A100 80 GB", 2039, 108), "Llama 2 7B", LLAMA_7B, "bf16", "none", 104.9, "gpt-fast, README"),
    Plain(card("H100", 3350, 132), "Llama 3.1 8B", LLAMA3_8B, "bf16", "none", 158.34, "docs.sglang.io, speculative decoding"),
    Plain(apple("M3 Max", 400), "Llama 3 8B", LLAMA3_8B, "F16", "none", 22.04, DAI),
    Plain(apple("M3 Max", 400), "Llama 3 8B", LLAMA3_8B, "Q4_K_M", "int4", 48.97, DAI),
    Plain(processor("i5-6500", 20.0, 4, "avx2"), "Llama 7B", LLAMA_7B, "Q4_0", BLOCKS, 3.94, "llama.cpp #34, eiery, with its bandwidth"),
    Plain(processor("i9-13900K, DDR5-6400", COPIED * 102.4, 8, "avx_vnni"), "Llama 7B", LLAMA_7B, "Q4_0", BLOCKS, 18.27, "llama.cpp #34, slaren, 8 threads"),
    Plain(processor("Ryzen 7 8840U, LPDDR5-6400", COPIED * 102.4, 8, "avx512_vnni", 4.89), "Llama 3.1 8B", LLAMA3_8B, "Q4_K_M", BLOCKS, 9.63, "brand-o/normiebench #8"),
)  # fmt: skip


@dataclass(frozen=True)
class Drafted:
    """A published speedup of a drafter over plain decoding. `small` is the shape of a draft model."""

    device: Device
    target: str
    shape: Shape
    packing: str
    kind: str
    published: float
    source: str
    small: Shape | None = None
    is_known: bool = False  # an expectation was taken from it
    eager: bool = True  # operation by operation, as transformers does, on which papers build


# Seconds that transformers takes to start the operations of a layer: 33 ms for the 32 of a 7B (transformers #29651).
HOST_LAYER = 1.03e-3


@dataclass(frozen=True)
class Eager:
    """The costs of forwards if the host starts each operation. A layer takes at least HOST_LAYER seconds."""

    costs: ForwardCostModel
    layers: int

    def at(self, rows: int, context: int) -> float:
        return max(self.costs.at(rows, context), HOST_LAYER * self.layers)


DRAFTED = (
    Drafted(card("A100 40 GB", 1555, 108), "Llama 2 7B with 68M", LLAMA_7B, "none", "draft_model", 1.31, PARALLELSPEC, LLAMA_68M, is_known=True),
    Drafted(card("A100 40 GB", 1555, 108), "Llama 2 7B", LLAMA_7B, "none", "phrases", 1.33, PARALLELSPEC),
    Drafted(card("A100 40 GB", 1555, 108), "Vicuna 13B", LLAMA_13B, "none", "parallelspec", 2.52, PARALLELSPEC),
    Drafted(card("A100 80 GB", 2039, 108), "Vicuna 13B", LLAMA_13B, "none", "medusa", 1.75, SPEC_BENCH),
    Drafted(card("A100 80 GB", 2039, 108), "Vicuna 33B", LLAMA_33B, "none", "medusa", 1.79, SPEC_BENCH),
    Drafted(card("A100 80 GB", 2039, 108), "Vicuna 13B", LLAMA_13B, "none", "phrases", 1.48, SPEC_BENCH),
    Drafted(card("A100 80 GB", 2039, 108), "Vicuna 33B", LLAMA_33B, "none", "phrases", 1.42, SPEC_BENCH),
    Drafted(card("A100 80 GB", 2039, 108), "Vicuna 13B with 68M", LLAMA_13B, "none", "draft_model", 1.49, SPEC_BENCH, LLAMA_68M, is_known=True),
    Drafted(card("A100 80 GB", 2039, 108), "Vicuna 33B with 68M", LLAMA_33B, "none", "draft_model", 1.61, SPEC_BENCH, LLAMA_68M, is_known=True),
    Drafted(card("A100 80 GB", 2039, 108), "Llama 2 70B with 7B", LLAMA_70B, "none", "draft_model", 1.57, OUROBOROS, LLAMA_7B),
    Drafted(card("A100 80 GB", 2039, 108), "Yi 34B with 6B", YI_34B, "none", "draft_model", 1.18, OUROBOROS, YI_6B),
    Drafted(card("A100 80 GB", 2039, 108), "Llama 2 70B with 7B, int4", LLAMA_70B, "nf4", "draft_model", 1.92, "gpt-fast, README, code", LLAMA_7B, eager=False),
    Drafted(card("RTX 3060", 360, 28), "Llama 3.1 8B with 1B, Q8_0", LLAMA3_8B, "int8", "draft_model", 1.71, "llama.cpp #5877, one prompt", LLAMA3_1B, eager=False),
)  # fmt: skip


def tokens_a_second(device: Device, shape: Shape, packing: str) -> float:
    """Return the predicted tokens/s of plain decoding."""
    costs = Estimate(shape, Rates.of(device, device.dtypes[0], packing))
    return 1 / StepCosts(costs).at(1, CONTEXT)


def times(drafted: Drafted, eager: bool = False) -> float:
    """Return the predicted speedup of a drafter in localspec, or with `eager` in transformers."""
    device, dtype = drafted.device, drafted.device.dtypes[0]
    rates = Rates.of(device, dtype, drafted.packing)

    def costs_of(shape: Shape) -> ForwardCostModel:
        estimate = Estimate(shape, rates)
        return Eager(estimate, shape.num_layers) if eager else estimate

    costs, numbers = costs_of(drafted.shape), fit.drafter_numbers(dtype, drafted.packing, device.backend)
    inputs = CostInputs(drafted.shape, costs, Rates.of(device, dtype, "none"), dtype, numbers, 2048, {})
    registered, small = known()["mistral-7b-medusa"], None
    assert registered.entry is not None
    if drafted.small is not None:
        share = drafted.small.matrices / drafted.shape.matrices
        small = DraftModelEstimate(registered, 1, costs_of(drafted.small), share, named=False)
    target = replace(registered, entry=replace(registered.entry, drafters=(PublishedDrafter(drafted.kind),)))
    for candidate in candidates(target, inputs, (), small, True):
        if candidate.drafter == drafted.kind and candidate.acceptance is not None:
            fastest, _ = speed(costs, candidate.acceptance, candidate.draft_seconds, AUTO_NODES)
            return fastest * StepCosts(costs).at(1, CONTEXT)
    raise LookupError(drafted.kind)


def judged(predicted: float, published: float, where: list[bool]) -> str:
    """Return the relative error of a prediction, and append to `where` whether it is within 20 %."""
    off = predicted / published - 1
    where.append(abs(off) <= 0.2)
    return f"{off:+.0%}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    within: list[bool] = []
    number = count(1)
    print("| row | device | model | published packing | packing here | published | predicted | error | source |")
    print("| --- | --- | --- | --- | --- | ---: | ---: | ---: | --- |")
    for row in PLAIN:
        predicted = tokens_a_second(row.device, row.shape, row.packing)
        off = judged(predicted, row.published, [] if row.is_known else within)
        print(
            f"| {'seen' if row.is_known else next(number)} | {row.device.title} | {row.model} | {row.form} | {row.packing} | "
            f"{row.published:.1f}/s | {predicted:.1f}/s | {off} | {row.source} |"
        )
    print(f"\nWithin 20 %: {sum(within)} of the {len(within)} numbered rows.\n")
    times_within: list[bool] = []
    print("| row | target | device | drafter | published | predicted | error | predicted for transformers | source |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: | ---: | --- |")
    for drafted in DRAFTED:
        here, there = times(drafted), times(drafted, drafted.eager)
        off = judged(here, drafted.published, [] if drafted.is_known else times_within)
        print(
            f"| {'seen' if drafted.is_known else next(number)} | {drafted.target} | {drafted.device.title} | {drafted.kind} | {drafted.published:.2f} × | "
            f"{here:.2f} × | {off} | {there:.2f} × | {drafted.source} |"
        )
    print(f"\nWithin 20 %: {sum(times_within)} of the {len(times_within)} numbered rows.")


if __name__ == "__main__":
    main()
