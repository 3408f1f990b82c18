"""Figure 5 of the S3D paper: acceptance and speed, predicted beside measured, by share of the model (β) and tokens (γ).

    python scripts/s3d_figure5.py --data FILE… --prompts data/eval --work build/figure5 --out docs/s3d-figure5.md

One training for each number of symmetrically kept layers and each seed, for the longest draft; shorter ones are the same
weights with fewer masks. What was trained or measured is kept in `--work`, so a run that was stopped goes on. Predicted is
by eqs. 10 to 12 and 14 with the paper's constants, and with U and the discount fitted to all measurements but those of
the same β; δ is the machine's.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from drafter_ablations import measured, trained
from drafter_table import figure, table

from localspec.models.drafter_cards import read_drafter
from localspec.models.registry import resolve
from localspec.models.s3d_prediction import (
    Acceptance,
    Constants,
    acceptance,
    acceptance_length,
    fit,
    improvement,
    share,
    symmetric,
)
from localspec.models.shape import Shape

Run = tuple[int, int, int]  # layers kept, tokens a draft, seed


def drafters(kept: int, seed: int, shape: Shape, arguments: argparse.Namespace) -> dict[Run, Path]:
    """The drafters of one training, by the tokens of their drafts."""
    listed = ",".join(map(str, symmetric(shape.num_layers, kept)))
    whole = trained(("s3d", {"kept": listed, "depth": arguments.depth}, ["--seed", str(seed)]), arguments)
    found = {}
    for gamma in range(1, arguments.depth + 1):
        directory = whole.with_name(f"{whole.name}-first-{gamma}")
        shutil.copytree(whole, directory, dirs_exist_ok=True)
        card = directory / "drafter" / "drafter.json"
        about = json.loads(card.read_text("utf-8"))
        about["options"]["depth"] = gamma
        about["accuracy_by_depth"] = about["accuracy_by_depth"][:gamma]
        card.write_text(json.dumps(about), "utf-8")
        read_drafter(directory)
        found[kept, gamma, seed] = directory
    return found


def spread(values: list[float]) -> str:
    """A mean, and what seeds differ by."""
    return figure(fmean(values)) + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def lines(rows: Mapping[Run, Mapping[str, Any]], shape: Shape) -> str:
    """One line a (β, γ)."""
    head = shape.embedding / shape.layer
    beta = {kept: share(shape.num_layers, kept, head) for kept, _, _ in rows}
    seen = {
        kept: [Acceptance(beta[kept], row["acceptance_by_depth"]) for (own, _, _), row in rows.items() if own == kept]
        for kept in beta
    }
    cells = []
    for kept, gamma in sorted({(kept, gamma) for kept, gamma, _ in rows}):
        of_it = [row for (own, tokens, _), row in rows.items() if (own, tokens) == (kept, gamma)]
        others = fit([one for other, several in seen.items() if other != kept for one in several], [])
        # What an iteration takes beyond the draft and a plain step, as this run had it.
        delta = fmean(row["acceptance_length"] / row["speedup"] for row in of_it) - 1 - beta[kept]
        paper, fitted = Constants(delta=delta), Constants(others.u, others.discount, delta)
        cells.append(
            [
                figure(beta[kept]),
                str(gamma),
                *(figure(acceptance(beta[kept], one.u)) for one in (paper, fitted)),
                spread([(*row["acceptance_by_depth"], 0.0)[0] for row in of_it]),
                *(figure(acceptance_length(gamma, beta[kept], one)) for one in (paper, fitted)),
                spread([row["acceptance_length"] for row in of_it]),
                *(figure(improvement(gamma, beta[kept], one)) for one in (paper, fitted)),
                spread([row["speedup"] for row in of_it]),
            ]
        )
    names = [f"{name}, {how}" for name in ("α", "τ", "speedup") for how in ("paper", "fitted", "measured")]
    return table(["β", "γ", *names], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="a directory of .jsonl files, or one file")
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    parser.add_argument("--kept", type=int, nargs="+", help="numbers of layers; else from a quarter to all but one")
    parser.add_argument("--depth", type=int, default=5, help="tokens of the longest draft")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=500, help="of each training")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.distilled = None
    arguments.work.mkdir(parents=True, exist_ok=True)
    shape = Shape.of(json.loads((resolve(arguments.model).path / "config.json").read_text("utf-8")))
    assert shape is not None
    counts = arguments.kept or range(max(1, shape.num_layers // 4), shape.num_layers)
    rows: dict[Run, Mapping[str, Any]] = {}
    for seed in arguments.seeds:
        for kept in counts:
            made = drafters(kept, seed, shape, arguments)
            names = {f"{gamma} tokens": run for run, gamma in ((run, run[1]) for run in made)}
            found = measured(f"figure 5 {kept} {seed}", {name: made[run] for name, run in names.items()}, arguments)
            rows.update({run: found[name] for name, run in names.items()})
            arguments.out.write_text(
                f"# Figure 5 of S3D, on `{arguments.model}`\n\nMade by `scripts/s3d_figure5.py`: {arguments.steps} steps of "
                f"1,024 tokens each, then {arguments.limit} prompts, greedily, by trees of a fixed size; figures are means "
                f"over the seeds {' '.join(map(str, arguments.seeds))}. Measured acceptance is that of a tree, whose "
                f"siblings count; the paper's constants are for chains, and the fitted ones for what was measured.\n\n{lines(rows, shape)}\n",
                "utf-8",
            )


if __name__ == "__main__":
    main()
