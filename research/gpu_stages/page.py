"""The page of figures: the machine, the aims and whether each was met, and a section for each stage with figures."""

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
    "e": "Compared with transformers", "f": "Steps of training", "g": "The demo, trained at full length",
}  # fmt: skip


UNKNOWN = "an unknown commit"
AIMS = (
    "Each line is an aim: what was measured, the value that was *wanted*, and the value that was *found*. "
    "A share of 1.00 means all, and 0.00 none."
)
RUNS = (
    "Each stage begins with its commands. After a command come its start, the commit, its duration and the load of the CPU. "
    "Last come the words *all measured*, or the first measurement for which its time was up."
)


def write(work: Path, out: Path, small: bool) -> None:
    """Write the page from the figures of all stages."""
    stages = {stage: read(work / f"{stage}.json") for stage in sorted(MODULES)}
    known = {stage: content for stage, content in stages.items() if content["figures"]}
    aims = [(stage, aim) for stage in known for aim in MODULES[stage].aims(known[stage]["figures"])]
    parts = ["# Figures of one NVIDIA GPU", head(list(stages.values()), small)]
    parts += [f"## Aims\n\n{AIMS}\n\n{aims_table(aims)}"] if aims else []
    for stage, content in known.items():
        parts.append(
            f"## {stage}: {TITLES[stage]}\n\n{runs_told(content['runs'])}\n\n{commits_told(content)}{MODULES[stage].section(content['figures'])}"
        )
    half = out.with_name(out.name + ".part")
    half.write_text("\n\n".join(part.strip() for part in parts) + "\n", "utf-8")
    half.replace(out)


def head(stages: Sequence[Mapping[str, Any]], small: bool) -> str:
    """Return the beginning of the page, with the machine of the latest run."""
    runs = sorted((run for content in stages for run in content["runs"]), key=lambda run: str(run["when"]))
    missing = [stage for stage, content in zip(sorted(MODULES), stages, strict=True) if not content["figures"]]
    absent = f" Not run: {', '.join(missing)}." if missing else ""
    intro = (
        "For readers of [gpu.md](../gpu.md#what-the-h200-showed) who want the measurements behind it. gpu.md explains the words, and says what follows from them. "
        f"`research/gpu_proof.py` measured in *stages* a to g. {RUNS}"
        f"{absent} In an *eager* step Python starts each operation; a *captured* or *recorded* step is repeated with one call (a CUDA graph). All models except the demo "
        "have random weights."
    )
    if small:
        intro += " **A rehearsal with tiny shapes: none of these figures means anything.**"
    if not runs:
        return intro
    last = runs[-1]
    commits = list(dict.fromkeys(commit for content in stages for commit in commits_of(content)))
    if len(commits) > 1:
        commit_words = f"**figures of more than one commit**, {' and '.join(commits)}"
    else:
        commit_words = f"localspec at {commits[0] if commits else last['commit'] or UNKNOWN}"
    versions = ", ".join(f"{name} {version}" for name, version in last["versions"].items())
    return (
        f"{intro}\n\n- card: {last['card']}, {last['memory'] / 2**30:.1f} GiB, driver {last['driver'] or 'none'}, CUDA "
        f"{last['cuda'] or 'none'}\n- machine: {last['cpu']}\n- versions: Python {last['python']}, {versions}; {commit_words}"
    )


def commits_of(content: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of a stage's figures by the commit that measured them."""
    ran = list(dict.fromkeys(run.get("commit") or UNKNOWN for run in content["runs"]))
    pairs = [(run.get("commit") or UNKNOWN, name) for run in content["runs"] for name in run.get("measured", ())]
    known = {name for _, name in pairs}
    # Runs of an earlier version of this program do not list their measurements.
    pairs += [(ran[0] if len(ran) == 1 else UNKNOWN, name) for name in content["figures"] if name not in known]
    by_commit: dict[str, list[str]] = {}
    for commit, name in dict.fromkeys(pairs):
        if name in content["figures"]:
            by_commit.setdefault(commit, []).append(name)
    return by_commit


def commits_told(content: Mapping[str, Any]) -> str:
    """Return a text that says which commit measured which figures; empty if only one commit did."""
    by_commit = commits_of(content)
    lines = [f"- {commit}: {', '.join(names)}" for commit, names in by_commit.items()]
    return "Figures by commit:\n\n" + "\n".join(lines) + "\n\n" if len(by_commit) > 1 else ""


def named(commit: str | None) -> str:
    """Return the words for the commit of a run."""
    return f"commit {commit}" if commit else UNKNOWN


def runs_told(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each run of a stage: when and how it ran, and how busy the machine was."""
    return "\n".join(
        f"- `{run['command']}`: {run['when']}, {named(run.get('commit'))}, {run.get('seconds', 0):.0f} s, load average {run['load']:.1f}, "
        f"{run.get('ended', 'cut off')}"
        for run in runs
    )
