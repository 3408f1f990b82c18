"""Show which models are chosen on simulated machines: docs/figures/selection.md.

Usage: python research/selection_table.py > docs/figures/selection.md
"""

import argparse
from dataclasses import replace

from localspec.choosing.measure import NoMeasurements
from localspec.choosing.plans import Precision, RunPlan, as_computed, best, run_plans
from localspec.choosing.survey import Recommendation, preferred, recommendations
from localspec.machine.machine import Device, Machine
from localspec.models.entries import PublishedDrafter
from localspec.models.model import model_of
from localspec.models.registry import known

GIB = 2**30


# Multiprocessors, by data sheets; and the share of its bandwidth that a copy reaches on the one card that we measured.
MULTIPROCESSORS = {
    "GTX 1650": 14, "RTX 2060": 30, "RTX 3060": 28, "RTX 3080": 68, "RTX 4050": 20, "RTX 4060": 24, "RTX 4080": 76,
    "RTX 4090": 128,
}  # fmt: skip
COPIED = 0.87


def gpu(name: str, gib: float, bandwidth: float, free: float | None = None, turing: bool = False) -> Device:
    """Return an NVIDIA GPU. Half a GiB of its memory is taken by the screen, unless `free` says how much is free."""
    dtypes = ("fp16", "fp32") if turing else ("bf16", "fp16", "fp32")
    capability = "compute capability 7.5" if turing else "compute capability 8.6 or newer"
    left = gib - 0.5 if free is None else free
    return Device(
        "cuda:0", name, int(gib * GIB), int(left * GIB), dtypes, ("int8", "nf4"), capability, COPIED * bandwidth * 1e9,
        cores=MULTIPROCESSORS[name],
    )  # fmt: skip


def cpu(gib: float, bandwidth: float, modern: bool = True) -> Device:
    """Return a CPU with AVX-512 VNNI, or with AVX2 if not `modern`. A third of its memory is in use."""
    kernels = "avx512_vnni" if modern else "avx2"
    return processor("processor", gib, gib * 2 / 3, kernels, bandwidth)


def processor(title: str, gib: float, free: float, kernels: str, bandwidth: float) -> Device:
    """Return a CPU for which the native library has the given kernels."""
    total, left = int(gib * GIB), int(free * GIB)
    cores = 4 if gib <= 8 else 8
    return Device(
        "cpu", title, total, left, ("bf16", "fp32"), ("int8", "int4"), kernels, bandwidth * 1e9, engine="native",
        cores=cores,
    )  # fmt: skip


APPLE_CORES = 90.0  # GB/s that eight cores read at most: an M2 Pro's read 80 (Dai's table), whatever its GPU can do


def apple(title: str, gib: float, bandwidth: float) -> Machine:
    """Return a Mac. Its GPU may use two thirds of the memory."""
    graphics = Device(
        "mps", title, int(gib * 2 / 3 * GIB), int(gib * 0.6 * GIB), ("bf16", "fp16", "fp32"), ("int8", "int4"), "",
        bandwidth * 1e9,
    )  # fmt: skip
    return Machine((graphics, processor(title, gib, gib * 0.63, "neon", min(0.8 * bandwidth, APPLE_CORES))), 8)


def card(name: str, gib: float, bandwidth: float, ram: float = 32, **more: object) -> Machine:
    """Return a machine with this GPU and a CPU of the same age: DDR4 and AVX2 for cards before the RTX 4000 series."""
    newer = name.startswith("RTX 4")
    main = cpu(ram, 50 if newer else COPIED * 51.2, modern=newer)
    return Machine((gpu(name, gib, bandwidth, **more), main), 8)  # type: ignore[arg-type]


# By machine: it, and what a user of llama.cpp or Ollama would run there, as of 2026.
MACHINES = {
    "GPU 4 GB (GTX 1650), 16 GB": (card("GTX 1650", 4, 128, 16, turing=True), "Qwen3-4B Q4_K_M, partly on the CPU"),
    "GPU 4 GB (GTX 1650), 32 GB": (card("GTX 1650", 4, 128, turing=True), "the same, or 3B Q4_K_M on the card"),
    "GPU 6 GB (RTX 2060), 16 GB": (card("RTX 2060", 6, 336, 16, turing=True), "Qwen3-4B Q4_K_M; 7B Q4_K_M with a short context"),
    "GPU 8 GB (RTX 4060), 16 GB": (card("RTX 4060", 8, 272, 16), "Qwen3-8B or Llama-3.1-8B Q4_K_M"),
    "GPU 10 GB (RTX 3080), 32 GB": (card("RTX 3080", 10, 760), "8B Q5_K_M to Q6_K"),
    "GPU 12 GB (RTX 3060), 16 GB": (card("RTX 3060", 12, 360, 16), "Phi-4 or Qwen3-14B Q4_K_M"),
    "GPU 16 GB (RTX 4080), 32 GB": (card("RTX 4080", 16, 717), "14B Q5_K_M, or 24B Q4_K_M"),
    "GPU 24 GB (RTX 4090), 32 GB": (card("RTX 4090", 24, 1008), "32B Q4_K_M, which the registry lacks"),
    "two GPUs, 8 GB and 12 GB": (
        Machine((gpu("RTX 4060", 8, 272), replace(gpu("RTX 3060", 12, 360, 11.8), name="cuda:1"), cpu(32, 50)), 8),
        "14B Q4_K_M on the larger, or 24B on both",
    ),
    "GPU 12 GB, half of it taken": (card("RTX 3060", 12, 360, free=6.0), "4B to 7B Q4_K_M"),
    "GPU 8 GB, all of it taken": (card("RTX 4060", 8, 272, free=0.8), "Qwen3-4B Q4_K_M on the CPU"),
    "laptop GPU 6 GB (RTX 4050), 16 GB": (card("RTX 4050", 6, 192, 16), "Qwen3-4B Q4_K_M"),
    "Apple M2, 8 GB": (apple("Apple M2", 8, 100), "Qwen3-4B Q4_K_M"),
    "Apple M2, 16 GB": (apple("Apple M2", 16, 100), "Qwen3-8B or 4B Q4_K_M"),
    "Apple M3 Pro, 36 GB": (apple("Apple M3 Pro", 36, 150), "14B Q4_K_M"),
    "processor, 8 GB": (Machine((cpu(8, 40),), 4), "3B to 4B Q4_K_M"),
    "processor, 8 GB, older (AVX2)": (Machine((cpu(8, 25, modern=False),), 4), "1.5B to 3B Q4_K_M"),
    "processor, 16 GB": (Machine((cpu(16, 45),), 8), "Qwen3-4B Q4_K_M"),
    "processor, 24 GB": (Machine((cpu(24, 60),), 8), "gpt-oss-20b, or 4B to 8B Q4_K_M"),
    "processor, 32 GB": (Machine((cpu(32, 60),), 8), "Qwen3-30B-A3B Q4_K_M, or gpt-oss-20b"),
    "processor, 64 GB": (Machine((cpu(64, 80),), 16), "Qwen3-30B-A3B or Qwen3.5-35B-A3B Q4_K_M"),
}  # fmt: skip

# By machine: the reason for which a user of another program would choose something else, and why this choice stays.
OBJECTIONS = {
    "GPU 4 GB": "In other programs a model of 4B in four bits takes 2.5 GB and runs on this card at about 40 tokens/s. In localspec it takes "
    "3.4 GiB and does not fit: its output layer stays in 16 bits (0.8 GB), because localspec cannot compute with a packed one there.",
    "GPU 8 GB": "The model takes all of the 6.7 GiB that localspec may use. Other programs still have a tenth of the card. If they need "
    "more, `doctor` chooses a smaller model.",
    "GPU 10 GB, GPU 12 GB half taken, GPU 4 GB with 32 GB": "From 20 tokens/s on only quality counts, and a "
    "mixture of 30B is the better model. So the processor answers with 20.6 tokens/s, although the card would "
    "answer eight times as fast with qwen3-8b (172 tokens/s on 10 GB). With `-m qwen3-8b` the card answers. The 20.6 "
    "are only [a prediction](experts.md#predicted-speed). Other programs "
    "compute a part of such a model on the card and the rest on the processor; localspec cannot.",
    "GPU 12 GB, two GPUs": "Qwen3-14B is usual there. It needs 0.2 GiB more than localspec may use. With a context of "
    "only 3,000 tokens (`--context 3000`) it would fit. localspec cannot use two cards together for one model.",
    "GPU 16 GB": "24B Q4_K_M is usual there. The registry has no model between 15B and 30B.",
    "GPU 24 GB": "Half of the card stays free: the model is in NF4 (four bits), although eight bits fit and would be fast "
    "enough. On a CPU localspec takes four bits only if eight are too slow or do not fit. For cards it does not do so yet.",
    "Apple": "The processor computes, and the GPU of the Mac is idle. Other programs use the GPU: there llama.cpp runs a 7B in Q4_0 at "
    "31 tokens/s on an M3 Pro, by a published figure. For a 4B on that GPU localspec predicts only 22, because torch "
    "starts one operation at a time, which takes longer than starting many at once. localspec has no kernels for Apple's GPUs yet, and there was no Mac to test them.",
    "processor, 8 GB, older": "A 1.5B would reach 25 tokens/s, and the chosen 4B only 9. But 9 is faster than people read, and the 4B is much better.",
    "processor, 16 GB": "Others run gpt-oss-20b in 16 GB. With 14 GB free `doctor` chooses gpt-oss-20b, too.",
    "All machines": "`doctor` may take a model whose licence forbids commercial use (qwen2.5-3b) before a freer one that is nearly as good. "
    "It names the licence in its first line.",
}

SHOWN = ("none", "phrases", "medusa", "s3d")

HEAD = """# Which model is chosen on which machine

For readers who want to know what `localspec doctor` would recommend for a machine that they do not have ([words on these pages](README.md#words-on-these-pages)). With a free graphics card of 12 GB or
more, it is a model of 12 billion parameters (12B). Otherwise, with 24 GB of main memory or more, it is a *mixture of experts* on the processor: a model that uses only some of its parts, the experts, for each token. With
less memory it is a model of 4B to 8B.

Made by `python research/selection_table.py > docs/figures/selection.md`. Nothing was measured. A model's speed is estimated from the speeds of memory and processor. The share of a drafter's guesses that are right comes from
published figures. [prediction.md](prediction.md) says how far such predictions are off. On your own machine `doctor` measures, and gives its reasons. The *registry* is localspec's list of models. All of its drafters are considered, whether they were fetched or not. Three things are chosen:

- **The model.** Each model of the registry has a *quality*: a number given by judgement. The model with the best quality, weighted by speed, is chosen. Quality counts in full from 20 tokens/s on. It counts half at 5.8 tokens/s, the speed of a reader. (For a model that thinks first, these are 30 and 8.7 tokens/s.)
  On a graphics card quality is multiplied by 1.05, because other programs need the processor.
- **Its precision and drafter.** The fastest pair is chosen, unless it takes more than half of the memory that may be used. Then the pair with the highest *M* is chosen: speedup ÷ relative memory, both compared with plain decoding (without drafts). Of drafters within 5 % of the best, the one with the least memory is taken.
- **The place of experts.** They are read from the disk if memory has no room for all of them.

| column | is |
|---|---|
| machine | the graphics card with its memory, then the main memory; *processor*: no graphics card |
| usual there | the model that users of llama.cpp or Ollama usually take. Q4_K_M and similar names are types of GGUF files; the digit is about the number of bits per weight |
| may use | the memory that localspec may use on the chosen device: what is free, less a reserve of a tenth of all its memory (at least 600 MB). Other programs are assumed to take about a third of the main memory, and 0.5 GiB of a card |
| chosen model | what `doctor` recommends, by its name in the registry. `30b-a3b` means 30 billion parameters, of which each token uses 3 billion |
| device | the processor (cpu) or a graphics card (cuda) |
| packing and drafter | the [precision](../models.md#precisions) of the weights, such as int4 or nf4 (4 bits); for a GGUF file, which keeps its precision, the average bits per weight. The drafter `phrases` copies from earlier text. Where M is 1.00, it is predicted to gain nothing, but it also costs nothing while there is nothing to copy |
| memory, tokens/s, M | predicted for this choice; a larger M is better |
| decided by | whether speed or M decided between precisions and drafters |

| machine | usual there | may use | chosen model | device | packing and drafter | memory | tokens/s | M | decided by |
| --- | --- | ---: | --- | --- | --- | ---: | ---: | ---: | --- |"""


def line(name: str, others: str, recommendation: Recommendation | None) -> str:
    if recommendation is None or recommendation.plan is None:
        return f"| {name} | {others} | | nothing fits | | | | | | |"
    plan = recommendation.plan
    device = plan.precision.device
    return (
        f"| {name} | {others} | {device.usable / GIB:.1f} GiB | {recommendation.card.name} | {device.name} | "
        f"{plan.precision}, {plan.candidate.name} | {plan.bytes / GIB:.1f} GiB | {plan.speed:.0f} | "
        f"{plan.cost_effectiveness:.2f} | {'M' if plan.rule == 'memory' else 'speed'} |"
    )


def of_cards() -> None:
    """Print which drafter is chosen for Phi-3 mini and Mistral 7B on cards of 4 to 24 GB, in 8 bits and in NF4."""
    print("\n## Phi-3 mini and Mistral 7B with each drafter\n")
    print(
        "The table shows which drafter `auto` would choose for two models of the registry, `phi3-s3d` (Phi-3 mini) and "
        "`mistral-7b-medusa`, on the cards above. (The 6 GB card has faster memory than the 8 GB card.)\nThe columns `none` "
        "(no drafts) to `s3d` are drafters. A cell has the predicted tokens/s (`26/s`), memory and M of the drafter. The drafters `medusa` and `s3d` "
        "are assumed to be trained already (`localspec train`).\nS3D's share of right guesses is computed by the formula "
        "of its paper. Medusa's share is assumed to be a little below what Spec-Bench measured for a 7B.\n"
    )
    print(
        "| card | model | packing | none | phrases | medusa | s3d | chosen drafter | decided by |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for target in ("phi3-s3d", "mistral-7b-medusa"):
        registered = known()[target]
        assert registered.entry is not None
        heads = tuple(map(PublishedDrafter, ("medusa", "s3d")))
        model = model_of(replace(registered, entry=replace(registered.entry, drafters=heads)))
        for title, name, gib, bandwidth in (
            ("4 GB", "GTX 1650", 4, 128), ("6 GB", "RTX 2060", 6, 336), ("8 GB", "RTX 4060", 8, 272),
            ("12 GB", "RTX 3060", 12, 360), ("16 GB", "RTX 4080", 16, 717), ("24 GB", "RTX 4090", 24, 1008),
        ):  # fmt: skip
            for packing in ("int8", "nf4"):
                device = as_computed(gpu(name, gib, bandwidth), model)
                plans = run_plans(model, [Precision(device, device.dtypes[0], packing)], NoMeasurements())
                available = [replace(plan, candidate=replace(plan.candidate, published=None)) for plan in plans]
                best_plan = best([plan for plan in available if plan.candidate.name in SHOWN])
                cells = [cell(plan) for kind in SHOWN for plan in plans if plan.candidate.name == kind]
                by = "M" if best_plan and best_plan.rule == "memory" else "speed"
                chosen = f"{best_plan.candidate.name} | {by}" if best_plan else "does not fit | "
                print(f"| {title} | {target} | {packing} | {' | '.join(cells)} | {chosen} |")


def cell(plan: RunPlan) -> str:
    """Return the predicted tokens/s, memory and M (speedup ÷ relative memory) of a plan."""
    fits = "" if plan.fits else ", does not fit"
    return f"{plan.speed:.0f}/s, {plan.bytes / GIB:.1f} GiB, M {plan.cost_effectiveness:.2f}{fits}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    every = {name: recommendations(machine, NoMeasurements(), here=False) for name, (machine, _) in MACHINES.items()}
    chosen = {name: preferred(rows) for name, rows in every.items()}
    print(HEAD)
    for name, recommendation in chosen.items():
        print(line(name, MACHINES[name][1], recommendation))
    print("\n## Where users of other programs would choose otherwise\n")
    for name, text in OBJECTIONS.items():
        print(f"- **{name}.** {text}")
    of_cards()
    print(
        "\n## By `--prefer`\n\nThe table has the model that `doctor` takes with `--prefer speed` (the fastest), `--prefer memory` (the smallest that is fast enough) or `--prefer quality` (the best at any speed).\n\n| machine | speed | memory | quality |\n| --- | --- | --- | --- |"
    )
    for name, rows in every.items():
        cells = [preferred(rows, prefer) for prefer in ("speed", "memory", "quality")]
        print(f"| {name} | " + " | ".join(cell.card.name if cell else "" for cell in cells) + " |")


if __name__ == "__main__":
    main()
