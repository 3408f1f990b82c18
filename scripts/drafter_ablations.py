"""Does what the papers find hold for a small model? One training a variant, all alike, then acceptance side by side.

    python scripts/drafter_ablations.py --data FILE… --prompts data/eval --work build/ablations --out docs/drafter-ablations.md

All variants learn from the same texts in the same order, as many steps of 1,024 tokens. What was trained or measured is
kept in `--work`, so a run that was stopped goes on, and several may work on parts of it (`--only`). A variant that
changes the target is measured on its own target.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drafter_table import figure, questions, table

from localspec import config
from localspec.bench import comparison
from localspec.models import drafter_cards, registry
from localspec.policy.selection import choose

Variant = tuple[str, Mapping[str, object], Sequence[str]]  # kind, options, flags of `train`
NODES, DEPTHS = 16, 4
STEP = ["--batch", "1024", "--length", "512"]
RATES = {"medusa": 5e-3, "s3d": 3e-3, "parallelspec": 3e-3, "semi": 3e-3}  # of those that were tried, the best
ALWAYS: dict[str, dict[str, object]] = {"parallelspec": {"drop": 0.5}}  # else its many rows take most of the time

S3D_LAYERS = {  # four of eight, figure 4's schemes: early exit is "late skipped"
    "symmetric": "0,1,6,7",
    "late skipped": "0,1,2,3",
    "early skipped": "4,5,6,7",
    "every second": "0,2,4,6",
}
GROUPS: dict[str, dict[str, Variant]] = {
    "S3D, figure 4: which layers are skipped": {name: ("s3d", {"kept": kept}, []) for name, kept in S3D_LAYERS.items()},
    "S3D, figure 8: full against adapters": {
        "adapters on all": ("s3d", {"kept": "0,1,6,7"}, []),
        "adapters on v, k, o": ("s3d", {"kept": "0,1,6,7", "adapters": "vko"}, []),
        "rank 64": ("s3d", {"kept": "0,1,6,7", "rank": 64, "alpha": 128.0}, []),
        "full": ("s3d", {"kept": "0,1,6,7", "full": True}, ["--labels", "text"]),
    },
    "Semi-autoregressive, figure 4: the model of recent tokens": {
        "none": ("semi", {"recent": "none"}, []),
        "simplified transformer": ("semi", {"recent": "transformer"}, []),
        "LSTM": ("semi", {"recent": "lstm"}, []),
    },
    "Semi-autoregressive, figure 5: joint against separate": {
        "separate": ("semi", {"recent": "transformer"}, ["--labels", "text"]),
        "joint": ("semi", {"recent": "transformer", "joint": True}, ["--labels", "text"]),
    },
    "ParallelSpec against Medusa heads": {
        "ParallelSpec": ("parallelspec", {}, []),
        "ParallelSpec, EAGLE": ("parallelspec", {"form": "eagle"}, []),
        "Medusa": ("medusa", {"heads": 5}, []),
    },
    "ParallelSpec, figure 4: size of the group": {
        f"{masks + 1} tokens": ("parallelspec", {"masks": masks} if masks != 4 else {}, []) for masks in (1, 2, 3, 4, 5)
    },
    "ParallelSpec, table 2: labels": {
        "the target's distribution": ("parallelspec", {}, []),
        "the text": ("parallelspec", {}, ["--labels", "text"]),
        "the target's own answers": ("parallelspec", {}, ["--labels", "text", "--data", "{distilled}"]),
    },
    "Medusa: what is shared": {
        "shared head": ("medusa", {}, []),
        "private heads": ("medusa", {"private": True}, []),
        "two blocks": ("medusa", {"layers": 2}, []),
    },
    "Medusa: tree against chain": {
        "confident tree": ("medusa", {}, []),
        "static tree": ("medusa", {"tree": "static"}, []),
        "chain": ("medusa", {"tree": "chain"}, []),
    },
}


def place(work: Path, variant: Variant) -> Path:
    """The directory of a variant: the same for all groups that have it."""
    kind, options, flags = variant
    words = [kind, *(f"{name}-{value}" for name, value in sorted(options.items())), *flags]
    return work / "_".join(word.strip("-").replace(",", "").replace("{", "").replace("}", "") for word in words)


def trained(variant: Variant, arguments: argparse.Namespace) -> Path:
    """The directory of a finished training."""
    kind, options, flags = variant
    directory = place(arguments.work, variant)
    if "tree" in options:  # only drafting is another
        source = trained((kind, {name: value for name, value in options.items() if name != "tree"}, flags), arguments)
        shutil.copytree(source, directory, dirs_exist_ok=True)
        card = directory / "drafter" / "drafter.json"
        about = json.loads(card.read_text("utf-8"))
        about["options"]["tree"] = options["tree"]
        card.write_text(json.dumps(about), "utf-8")
    elif not (directory / "drafter" / "drafter.json").exists():
        given = [word.format(distilled=arguments.distilled) for word in flags]
        data = [] if "--data" in given else ["--data", *map(str, arguments.data)]
        together = {**ALWAYS.get(kind, {}), **options}
        chosen = [word for name, value in together.items() for word in ("-O", f"{name}={value}")]
        command = ["train", kind, "-m", arguments.model, "-o", str(directory), "--steps", str(arguments.steps)]
        words = [*command, "--lr", str(RATES[kind]), *STEP, *chosen, *given, *data]
        subprocess.run([sys.executable, "-m", "localspec", *words], check=True)
    return directory


def measured(group: str, directories: Mapping[str, Path], arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By variant, its row of the bench; those with the same target side by side."""
    file = arguments.work / f"{group.replace(' ', '-').replace(':', '').replace(',', '')}.json"
    if file.exists():
        return dict(json.loads(file.read_text("utf-8")))
    settings = config.load(flags={"temperature": 0.0, "seed": 0})
    found: dict[str, dict[str, Any]] = {}
    asked = questions(arguments.prompts, arguments.limit)
    own = {name: path for name, path in directories.items() if (path / "target").exists()}
    runs = [{name: path for name, path in directories.items() if name not in own}, *({n: p} for n, p in own.items())]
    for together in filter(None, runs):
        name, path = next(iter(together.items()))
        card = registry.resolve(str(path) if name in own else arguments.model)

        def row(drafter: str, size: int) -> comparison.Row:
            chosen = replace(settings, drafter=drafter, draft_max=size or "auto")
            return comparison.Row(choose(card, chosen), size)

        rows = [row("none", 0), *(row(str(path), NODES) for path in together.values())]
        compared = comparison.Comparison(rows, asked, arguments.max_tokens)
        report = comparison.bench(compared, settings, lambda _: None)
        found.update(dict(zip(together, report["rows"][1:], strict=True)))
    file.write_text(json.dumps(found), "utf-8")
    return found


def lines(directories: Mapping[str, Path], rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One table a group."""
    cells = []
    for name, path in directories.items():
        card, row = drafter_cards.read_drafter(path), rows[name]
        before, after = [*card.about["trained"].get("perplexity", []), None, None][:2]
        changed = f"{before:.2f} → {after:.2f}" if before and after else ""
        accuracy = [level[0] for level in card.about["accuracy_by_depth"]][:DEPTHS]
        cells.append(
            [
                name,
                figure(row["acceptance_length"]),
                figure(row["speedup"]),
                *(figure(share) for share in [*accuracy, *[None] * DEPTHS][:DEPTHS]),
                f"{card.parameters:,}",
                changed,
            ]
        )
    heads = ["variant", "τ", "speedup", *(f"right at depth {depth}" for depth in range(1, DEPTHS + 1)), "weights"]
    return table([*heads, "perplexity"], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument(
        "--distilled", type=Path, help="answers by `localspec distill`; without it their row is left out"
    )
    parser.add_argument("--prompts", type=Path, required=True, help="a directory of .jsonl files, or one file")
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200, help="of each training")
    parser.add_argument("--only", nargs="+", default=[""], help="groups whose titles begin so")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    parts = [
        f"# What the papers find, on `{arguments.model}`\n\nMade by `scripts/drafter_ablations.py`: {arguments.steps} steps "
        f"of 1,024 tokens each, then {arguments.limit} prompts, greedily, trees of {NODES} nodes, replies of at most "
        f"{arguments.max_tokens} tokens. τ is the acceptance length, *speedup* that of a fixed tree against plain decoding, "
        "*right at depth* how often the first guess was the target's likeliest token (or that of the text, where the text "
        "was the label) on held-out text, *perplexity* the target's own before and after."
    ]
    for group, variants in GROUPS.items():
        if not group.startswith(tuple(arguments.only)):
            continue
        possible = {n: v for n, v in variants.items() if arguments.distilled or not any("{" in f for f in v[2])}
        directories = {name: trained(variant, arguments) for name, variant in possible.items()}
        parts.append(f"## {group}\n\n{lines(directories, measured(group, directories, arguments))}")
        arguments.out.write_text("\n\n".join(parts) + "\n", "utf-8")  # so far


if __name__ == "__main__":
    main()
