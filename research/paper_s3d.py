"""What S3D's paper finds (figures 4, 5 and 8, table 4, overall M), tried on a model: docs/figures/paper-s3d.md.

    python research/paper_s3d.py --data FILE… --prompts data/eval --work build/s3d --out docs/figures/paper-s3d.md

Table 4 is of the drafter that the model has, by the clock: nothing else should run beside it. All else is trained: for
figure 5 once for each number of symmetrically kept layers and each seed, for the longest draft; shorter ones are the same
weights with fewer masks. What was trained or measured is kept in `--work`, so a run that was stopped goes on.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from experiment import (
    NODES,
    Bench,
    MakeDrafter,
    Variant,
    about,
    always,
    begun,
    compared,
    kept,
    parser,
    parts,
    plain,
    trained,
)
from figures import by_depth, figure, length, table, told

from localspec.bench.turns import in_turns
from localspec.choosing.plans import cost_effectiveness
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.drafters.saved import load_drafter
from localspec.errors import DoesNotFit, UsageMistake
from localspec.models.drafter_cards import find_drafter, read_drafter
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
LONGEST = 5  # tokens of a draft
PRECISIONS = (("fp32", "none"), ("bf16", "none"), ("auto", "int8"), ("auto", "int4"), ("auto", "nf4"))
DRAFTERS = ("plain", "s3d", "s3d+phrases")


def layers(shape: Shape) -> dict[str, Variant]:
    """Half of the layers, by the schemes of figure 4: early exit is "late skipped"."""
    count, half = shape.num_layers, max(1, shape.num_layers // 2)
    schemes = {
        "symmetric": symmetric(count, half),
        "late skipped": range(half),
        "early skipped": range(count - half, count),
        "every second": range(0, count, 2),
    }
    return {name: Variant("s3d", {"kept": ",".join(map(str, own))}) for name, own in schemes.items()}


ADAPTERS = {  # figure 8
    "adapters on all": Variant("s3d"),
    "adapters on v, k, o": Variant("s3d", {"adapters": "vko"}),
    "rank 64": Variant("s3d", {"rank": 64, "alpha": 128.0}),
    "full": Variant("s3d", {"full": True}, ("--labels", "text")),
}


def runs(asked: argparse.Namespace, bench: Bench, counts: list[int], shape: Shape) -> dict[Run, Any]:
    """Return the replies of every run, and those of plain decoding beside it, which ran in turn with it."""
    found: dict[Run, Any] = {}

    def measured(directory: Path) -> dict[str, Any]:
        card = read_drafter(directory)
        rows: dict[str, tuple[MakeDrafter, int]] = {"plain": (plain, 0)}
        for gamma in range(1, LONGEST + 1):
            own = load_drafter(replace(card, options={**card.options, "depth": gamma}), bench.engine.target)
            rows[str(gamma)] = (always(own), NODES)
        return bench.replies(rows)

    for seed in asked.seeds:
        for count in counts:
            listed = ",".join(map(str, symmetric(shape.num_layers, count)))
            directory = trained(Variant("s3d", {"kept": listed, "depth": LONGEST}), seed, asked)
            replies = kept(directory / "figure-5.json", partial(measured, directory))
            for gamma in range(1, LONGEST + 1):
                found[count, gamma, seed] = {"plain": replies["plain"], "own": replies[str(gamma)]}
    return found


def figure_5(asked: argparse.Namespace, bench: Bench, shape: Shape) -> str:
    """Return a table of acceptance and speed, predicted and measured, by share of the model (β) and tokens (γ)."""
    counts = list(range(max(1, shape.num_layers // 4), shape.num_layers))
    found = runs(asked, bench, counts[:2] if asked.smoke else counts, shape)
    head = shape.embedding / shape.layer
    beta = {count: share(shape.num_layers, count, head) for count, _, _ in found}
    seen = [(count, Acceptance(beta[count], tuple(by_depth([run["own"]])))) for (count, _, _), run in found.items()]
    cells = []
    for count, gamma in sorted({(count, gamma) for count, gamma, _ in found}):
        own = [run for (kept_, tokens, _), run in found.items() if (kept_, tokens) == (count, gamma)]
        replies = [run["own"] for run in own]
        others = fit([one for other, one in seen if other != count], [])
        times = [_times(run) for run in own]
        # What an iteration takes beyond the draft and a plain step, as this run had it.
        delta = length(replies).value / fmean(times) - 1 - beta[count]
        paper, fitted = Constants(delta=delta), Constants(others.u, others.discount, delta)
        first = [(*by_depth([one]), 0.0)[0] for one in replies]
        cells.append(
            [
                figure(beta[count]),
                str(gamma),
                *(figure(acceptance(beta[count], one.u)) for one in (paper, fitted)),
                _spread(first),
                *(figure(acceptance_length(gamma, beta[count], one)) for one in (paper, fitted)),
                told(length(replies)),
                *(figure(improvement(gamma, beta[count], one)) for one in (paper, fitted)),
                _spread(times),
            ]
        )
    names = [f"{name}, {how}" for name in ("α", "tokens a step", "×") for how in ("paper", "fitted", "measured")]
    note = (
        "Predicted is by eqs. 10 to 12 and 14 with the paper's constants, and with U and the discount fitted to all "
        "measurements but those of the same β; δ is the machine's. Measured acceptance is that of a tree, whose siblings "
        "count, and the paper's constants are for chains. ± is what seeds differ by."
    )
    return f"{table(['β', 'γ', *names], cells)}\n\n{note}"


def _times(run: Mapping[str, Any]) -> float:
    """How many times faster than plain decoding, which had the same texts."""
    ours, theirs = (sum(reply["seconds"] for reply in run[name]) for name in ("own", "plain"))
    return float(theirs / max(ours, 1e-9))


def _spread(values: list[float]) -> str:
    return figure(fmean(values)) + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def table_4(asked: argparse.Namespace, at_the_end: ExitStack) -> str:
    """Precision × drafter by task: tokens/s, memory, M against plain decoding in the first precision."""
    rows = kept(asked.work / "table-4.json", lambda: _by_precision(asked, at_the_end))
    tasks = sorted({reply["task"] for replies in rows.values() for reply in replies})
    base, lines = next(iter(rows.values())), []
    for name, replies in rows.items():
        cells, worth = [], []
        for task in tasks:
            (speed, size), (plain_speed, plain_size) = (
                _speed([reply for reply in own if reply["task"] == task]) for own in (replies, base)
            )
            worth.append(cost_effectiveness(speed, size, plain_speed, plain_size))
            cells.append(f"{speed:.0f} ({worth[-1]:.2f})")
        _, held = _speed(replies)
        lines.append([name, f"{held / 2**20:.1f}", *cells, figure(fmean(worth)), told(length([replies]))])
    heads = ["", "MiB", *(f"{task}: tokens/s (M)" for task in tasks), "overall M", "tokens a step"]
    return table(heads, lines)


def _speed(replies: list[Mapping[str, Any]]) -> tuple[float, int]:
    """Tokens a second, and bytes of target, drafter and cache."""
    seconds = sum(reply["seconds"] for reply in replies)
    return sum(reply["tokens"] for reply in replies) / max(seconds, 1e-9), round(
        median(reply["bytes"] for reply in replies)
    )


def _by_precision(asked: argparse.Namespace, at_the_end: ExitStack) -> dict[str, list[dict[str, Any]]]:
    """Return the replies of every drafter in every precision that this machine has, all in turns."""
    benches: dict[str, Bench] = {}
    for dtype, quantize in PRECISIONS:
        try:
            made = Bench.of(asked, at_the_end, dtype=dtype, quantize=quantize)
        except (UsageMistake, DoesNotFit):
            continue
        benches[made.engine.choice.precision] = made
    makes: dict[str, tuple[Bench, Any]] = {}
    for precision, bench in benches.items():
        own = load_drafter(find_drafter("s3d", bench.engine.choice.target), bench.engine.target)

        def lengthened(pool: PhrasePool, own: Drafter = own) -> Drafter:
            return WithPhrases(own, pool, anywhere=True)

        forms = (plain, always(own), lengthened)
        makes |= {f"{precision}, {name}": (bench, form) for name, form in zip(DRAFTERS, forms, strict=True)}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in makes}
    fewest = min(len(bench.asked) for bench in benches.values())
    for turn, name in in_turns(list(makes), fewest):
        bench, make = makes[name]
        # Trees of the size that pays are what a user has; plain decoding has none.
        budget = Budget(0) if make is plain else Budget(NODES, bench.engine.costs)
        said = bench.reply(turn, make, budget)
        found[name].append({**said, "task": bench.asked[turn].category})
    return found


def main(given: Sequence[str] | None = None) -> None:
    asked = begun(parser(__doc__), given)
    with ExitStack() as at_the_end:
        bench = Bench.of(asked, at_the_end)
        shape = Shape.of(bench.engine.target.config.content)
        assert shape is not None
        made = {
            "Figure 4: which layers are skipped": partial(compared, layers(shape), asked, at_the_end),
            "Figure 5: predicted and measured": partial(figure_5, asked, bench, shape),
            "Figure 8: full against adapters": partial(compared, ADAPTERS, asked, at_the_end),
            "Table 4: precisions and drafters by M": partial(table_4, asked, at_the_end),
        }
        parts(asked, f"# S3D's figures, on `{asked.model}`\n\n{about(asked, 'paper_s3d.py')}", made)


if __name__ == "__main__":
    main()
