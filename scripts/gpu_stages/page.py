"""The page: machine, aims and whether each was met, and a section for each stage that has figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_stages import beside_transformers, captured, costs, demo, suite, trainings, widened
from gpu_stages.aims import aims_table
from gpu_stages.record import read

MODULES: Mapping[str, Any] = {
    "a": suite, "d": widened, "b": costs, "f": trainings, "c": captured, "e": beside_transformers, "g": demo,
}  # fmt: skip
TITLES = {
    "a": "The tests for GPUs", "b": "What rows cost", "c": "Captured steps", "d": "Drafters on a widened demo",
    "e": "Beside transformers", "f": "Steps of training", "g": "The demo, trained at full length",
}  # fmt: skip


def written(work: Path, out: Path, small: bool) -> None:
    """Writes the page anew from what all stages kept."""
    found = {stage: read(work / f"{stage}.json") for stage in sorted(MODULES)}
    known = {stage: one for stage, one in found.items() if one["figures"]}
    aims = [(stage, aim) for stage in known for aim in MODULES[stage].aims(known[stage]["figures"])]
    parts = ["# Figures of a GPU", head(list(found.values()), small)]
    parts += [f"## Aims\n\n{aims_table(aims)}"] if aims else []
    for stage, one in known.items():
        parts.append(
            f"## {stage}: {TITLES[stage]}\n\n{runs_told(one['runs'])}\n\n{MODULES[stage].section(one['figures'])}"
        )
    half = out.with_name(out.name + ".part")
    half.write_text("\n\n".join(part.strip() for part in parts) + "\n", "utf-8")
    half.replace(out)


def head(found: Sequence[Mapping[str, Any]], small: bool) -> str:
    """What was measured on, as the latest run found it."""
    runs = sorted((run for one in found for run in one["runs"]), key=lambda run: str(run["when"]))
    said = "Made by `scripts/gpu_proof.py`."
    if small:
        said += " **A rehearsal with tiny shapes: none of these figures means anything.**"
    if not runs:
        return said
    last = runs[-1]
    versions = ", ".join(f"{name} {version}" for name, version in last["versions"].items())
    return (
        f"{said}\n\n- card: {last['card']}, {last['memory'] / 2**30:.1f} GiB, driver {last['driver'] or 'none'}, CUDA "
        f"{last['cuda'] or 'none'}\n- machine: {last['cpu']}\n- versions: Python {last['python']}, {versions}; localspec at "
        f"{last['commit'] or 'an unknown commit'}"
    )


def runs_told(runs: Sequence[Mapping[str, Any]]) -> str:
    """When and how a stage ran, and how busy the machine was."""
    return "\n".join(
        f"- {run['when']}, `{run['command']}`: {run.get('seconds', 0):.0f} s, load average {run['load']:.1f}, "
        f"{run.get('ended', 'cut off')}"
        for run in runs
    )
