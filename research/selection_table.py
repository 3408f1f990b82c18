"""What is chosen on machines that are not here: docs/figures/selection.md.

Usage: python research/selection_table.py > docs/figures/selection.md
"""

import argparse
from dataclasses import replace

from localspec.machine.machine import Device, Machine
from localspec.policy.measurements import NoMeasurements
from localspec.policy.survey import Recommendation, preferred, recommendations

GIB = 2**30


def gpu(name: str, gib: float, bandwidth: float, free: float | None = None, turing: bool = False) -> Device:
    """An NVIDIA card whose screen takes half a GiB, unless `free` says how much is left."""
    dtypes = ("fp16", "fp32") if turing else ("bf16", "fp16", "fp32")
    capability = "compute capability 7.5" if turing else "compute capability 8.6 or newer"
    left = gib - 0.5 if free is None else free
    return Device("cuda:0", name, int(gib * GIB), int(left * GIB), dtypes, ("int8", "nf4"), capability, bandwidth * 1e9)


def cpu(gib: float, bandwidth: float, modern: bool = True) -> Device:
    """With AVX-512 VNNI, or with AVX2 alone; a third of the memory is taken."""
    kernels = "avx512_vnni" if modern else "avx2"
    return processor("processor", gib, gib * 2 / 3, kernels, bandwidth)


def processor(title: str, gib: float, free: float, kernels: str, bandwidth: float) -> Device:
    """What our library computes on."""
    total, left = int(gib * GIB), int(free * GIB)
    cores = 4 if gib <= 8 else 8
    return Device(
        "cpu", title, total, left, ("bf16", "fp32"), ("int8", "int4"), kernels, bandwidth * 1e9, engine="native",
        cores=cores,
    )  # fmt: skip


HOST = cpu(32, 50)


MACHINES = {
    "GPU 4 GB (GTX 1650)": Machine((gpu("GTX 1650", 4, 128, turing=True), HOST), 8),
    "GPU 6 GB (RTX 2060)": Machine((gpu("RTX 2060", 6, 336, turing=True), HOST), 8),
    "GPU 8 GB (RTX 4060)": Machine((gpu("RTX 4060", 8, 272), HOST), 8),
    "GPU 12 GB (RTX 3060)": Machine((gpu("RTX 3060", 12, 360), HOST), 8),
    "GPU 16 GB (RTX 4080)": Machine((gpu("RTX 4080", 16, 717), HOST), 8),
    "GPU 24 GB (RTX 4090)": Machine((gpu("RTX 4090", 24, 1008), HOST), 8),
    "two GPUs, 8 GB and 12 GB": Machine(
        (gpu("RTX 4060", 8, 272), replace(gpu("RTX 3060", 12, 360, 11.8), name="cuda:1"), HOST), 8
    ),
    "GPU 12 GB, half of it taken": Machine((gpu("RTX 3060", 12, 360, 6.0), HOST), 8),
    "GPU 8 GB, all of it taken": Machine((gpu("RTX 4060", 8, 272, 0.8), HOST), 8),
    "Apple M2, 16 GB": Machine(
        (
            Device(
                "mps",
                "Apple M2",
                int(10.7 * GIB),
                int(9.5 * GIB),
                ("bf16", "fp16", "fp32"),
                ("int8", "int4"),
                "",
                100e9,
            ),
            processor("Apple M2", 16, 10, "neon", 80),
        ),
        8,
    ),
    "processor, 8 GB": Machine((cpu(8, 40),), 4),
    "processor, 8 GB, older (AVX2)": Machine((cpu(8, 25, modern=False),), 4),
    "processor, 24 GB": Machine((cpu(24, 60),), 8),
}

HEAD = """# What is chosen where

Made by `research/selection_table.py` with the registry's sizes and no measurement: speeds are estimated from memory
bandwidth and a processor's arithmetic, acceptance is as published or by S3D's formula, so the figures are worth what estimates are worth.
Every drafter that is registered counts, fetched or not. On a machine of yours, `localspec doctor` measures.

Between precisions and drafters of one model M decides (S3D, eq. 13); between models, the registry's order of quality
among those that fit and reach 8 tokens/s. What may be taken leaves a tenth of a device's memory or 600 MB free.

| machine | may take | chosen | where | as | memory | tokens/s | M |
| --- | ---: | --- | --- | --- | ---: | ---: | ---: |"""


def line(name: str, machine: Machine, recommendation: Recommendation | None) -> str:
    if recommendation is None or recommendation.plan is None:
        return f"| {name} | | nothing fits | | | | | |"
    plan = recommendation.plan
    return (
        f"| {name} | {plan.precision.device.usable / GIB:.1f} GiB | {recommendation.card.name} | {plan.precision.device.name} | "
        f"{plan.precision}, {plan.candidate.name} | {plan.bytes / GIB:.1f} GiB | {plan.speed:.0f} | {plan.cost_effectiveness:.2f} |"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    chosen = {
        name: preferred(recommendations(machine, NoMeasurements(), here=False)) for name, machine in MACHINES.items()
    }
    print(HEAD)
    for name, recommendation in chosen.items():
        print(line(name, MACHINES[name], recommendation))
    print("\n## Why\n")
    for name, recommendation in chosen.items():
        print(
            f"- **{name}.** {recommendation.card.name if recommendation else 'Nothing'}: {recommendation.reason if recommendation else 'nothing fits'}."
        )
    print("\n## By `--prefer`\n\n| machine | speed | memory | quality |\n| --- | --- | --- | --- |")
    for name, machine in MACHINES.items():
        found = recommendations(machine, NoMeasurements(), here=False)
        cells = [preferred(found, prefer) for prefer in ("speed", "memory", "quality")]
        print(f"| {name} | " + " | ".join(cell.card.name if cell else "" for cell in cells) + " |")


if __name__ == "__main__":
    main()
