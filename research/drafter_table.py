"""Compare the drafters of a model: the table of docs/figures/drafter-table.md.

    python research/drafter_table.py --prompts data/eval --work build/drafter_table --out docs/figures/drafter-table.md

Every drafter with and without phrases, greedily and at temperature 0.7, with trees of 1 to 32 nodes, on the same prompts,
taken evenly from all files of a directory. A reply counts up to where the plain one starts to repeat itself, because
loops flatter all drafters, phrases most. Each temperature and number of nodes is a separate run next to plain decoding;
measurements are saved in `--work`, so a run that was stopped continues.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiment import content, positive, questions, same_settings, saved_json, weights
from figures import figure, table

from localspec import Done, Engine, Limits, config
from localspec.bench import comparison, prompts
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.models import drafter_cards, registry
from localspec.repetition import until_it_goes_round
from localspec.weights.checkpoint import inspect

NODES, TEMPERATURES = (1, 4, 8, 16, 32), (0.0, 0.7)
FOCUS = 16  # nodes of the table by depth
DEPTHS = 5
LEAST = 8  # tokens of a reply


def measured(
    card: registry.TargetCard, names: Sequence[str], nodes: int, temperature: float, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the report of one run; read again where it was made before."""
    settings = config.load(flags={"temperature": temperature, "seed": 0})

    def row(name: str, size: int) -> comparison.ComparedRow:
        own = replace(settings, drafter=name, draft_max=size or "auto")
        return comparison.ComparedRow(choose(card, own), size)

    rows = [row("none", 0), *(row(name, nodes) for name in names)]
    asked = answered(card, arguments)
    file = arguments.work / f"{card.name}-{nodes}-{temperature}.json"
    return dict(
        saved_json(file, lambda: comparison.bench(rows, asked, arguments.max_tokens, 1, settings, lambda _: None))
    )


def answered(card: registry.TargetCard, arguments: argparse.Namespace) -> list[prompts.BenchPrompt]:
    """Return the first prompts whose greedy reply has the full length, or an end, and does not repeat itself."""
    arguments.work.mkdir(parents=True, exist_ok=True)

    def found() -> list[str]:
        engine = Engine(
            choose(card, config.load(flags={"temperature": 0.0, "drafter": "none"})), phrases="off", measured=True
        )
        sampling, most = engine.sampling(Settings(temperature=0.0)), Limits(arguments.max_tokens)
        known: list[str] = []
        for one in questions(arguments.prompts, None):
            if len(engine.target.encode(prompts.message(one.text))) + arguments.max_tokens > engine.target.context:
                continue
            *_, done = engine.chat(prompts.message(one.text), sampling, most)
            assert isinstance(done, Done)
            ids = done.statistics.token_ids
            if len(ids) > LEAST and until_it_goes_round(ids) == len(ids):
                known.append(f"{one.category} {one.id}")
            if len(known) == arguments.limit:
                break
        return known

    chosen = {*saved_json(arguments.work / f"{card.name}-prompts.json", found)}
    return [one for one in questions(arguments.prompts, None) if f"{one.category} {one.id}" in chosen]


def section(reports: dict[int, dict[str, Any]], names: Sequence[str]) -> str:
    """Return the section of one temperature: figures by nodes, then by depth."""
    by = {nodes: {row["drafter"]: row for row in report["rows"]} for nodes, report in reports.items()}
    heads = ["drafter", *(str(nodes) for nodes in reports)]
    lengths = [[name, *(figure(by[nodes][name]["acceptance_length"]) for nodes in reports)] for name in names]
    speeds = [
        [
            name,
            *(
                f"{figure(row['speedup'])} ({figure(row['speedup_quartiles'][0])}–{figure(row['speedup_quartiles'][1])})"
                for nodes in reports
                for row in [by[nodes][name]]
            ),
        ]
        for name in names
    ]
    focus = by[FOCUS if FOCUS in by else max(by)]
    depths = [
        [
            name,
            *(figure(chance) for chance in (focus[name]["acceptance_by_depth"] + [None] * DEPTHS)[:DEPTHS]),
            figure(focus[name]["draft_cost"]),
            figure(focus[name]["verify_cost"]),
        ]
        for name in names
    ]
    return "\n\n".join(
        [
            "Tokens per step (τ), by number of nodes:",
            table(heads, lengths),
            "Speedup over plain decoding, by number of nodes (median of the replies, in brackets the quartiles):",
            table(heads, speeds),
            f"With {FOCUS} nodes. *Depth 1* is the first guessed token, *depth 2* the one after it; a figure is how often a guess "
            "there is accepted, if the one before it was. *Draft* and *verify* are times in plain steps:",
            table(["drafter", *(f"depth {depth}" for depth in range(1, DEPTHS + 1)), "draft", "verify"], depths),
        ]
    )


def conditions(report: dict[str, Any]) -> str:
    """Return the number of prompts, the machine, and the number format of the weights."""
    precision = report["dtype"] if report["quantize"] == "none" else report["quantize"]
    return f"{report['prompts']} prompts, {report['device']}, {precision}."


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--prompts", type=Path, required=True, help="a directory of .jsonl files, or one file")
    parser.add_argument("--limit", type=positive, default=100)
    parser.add_argument("-n", "--max-tokens", type=positive, default=64)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(given)
    try:
        card = registry.resolve(arguments.model)
        decisive = {"limit": arguments.limit, "max_tokens": arguments.max_tokens}
        decisive |= {"prompts": content(arguments.prompts), **weights(card)}
        questions(arguments.prompts, 1)
    except LocalspecError as mistake:
        parser.error(str(mistake))
    same_settings(parser, arguments.work, decisive)
    own = drafter_cards.trained_drafters(card)
    names = ["phrases", *(f"{drafter.kind}{form}" for drafter in own for form in ("", "+phrases"))]
    parts = [f"# The drafters of `{card.name}`"]
    parameters = inspect(card.path).parameters
    parts.append(
        f"Made by `python research/drafter_table.py -m {arguments.model} --prompts DIR --limit {arguments.limit} "
        f"-n {arguments.max_tokens} --work DIR --out PAGE`. Replies have at most {arguments.max_tokens} tokens. Prompts whose "
        "reply repeats itself before that are left out. Drafts are trees with a fixed number of *nodes* (guessed tokens); a "
        "tree of one node is a single guess. The target checks a draft in one *step*, one forward pass; a *plain step* has no "
        "draft. The drafters have these sizes:"
    )
    parts.append(
        table(
            ["drafter", "parameters", "share of the target's"],
            [[d.kind, f"{d.parameters:,}", f"{d.parameters / parameters:.1%}"] for d in own],
        )
    )
    for temperature in TEMPERATURES:
        reports = {nodes: measured(card, names, nodes, temperature, arguments) for nodes in NODES}
        title = "Greedy" if temperature == 0 else f"Temperature {temperature}"
        first = next(iter(reports.values()))
        parts.append(f"## {title}\n\n{conditions(first)}")
        parts.append(section(reports, names))
    arguments.out.write_text("\n\n".join(parts) + "\n", "utf-8")


if __name__ == "__main__":
    main()
