"""What Medusa's paper finds (figures 6 and 7, table 2), tried on a model: docs/figures/paper-medusa.md.

    python research/paper_medusa.py --data FILE… --prompts data/eval --work build/medusa --out docs/figures/paper-medusa.md

The figures are of the heads that the model has; what the table compares is trained. What was trained or measured is kept in
`--work`, so a run that was stopped goes on.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from experiment import GREEDY, Bench, Variant, about, always, begun, compared, kept, parser, parts
from figures import difference, figure, length, rows_a_step, table, told

from localspec.bench.prompts import message
from localspec.choosing.cost import CONTEXT
from localspec.choosing.drafters import MOST_NODES
from localspec.choosing.measure import COSTS
from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.saved import load_drafter
from localspec.models import drafter_cards

SIZES = (4, 8, 16, 32, 64, 128)
TREES = {"chain": "chain", "dense": "dense", "sparse": "static", "by confidence": "confident"}
EPSILONS = (0.01, 0.05, 0.09, 0.13, 0.17, 0.21, 0.25)
TEMPERATURE = 0.7
TABLE_2 = {
    "Medusa-1": Variant("medusa"),
    "Medusa-2": Variant("medusa", {"joint": True}),
    "direct fine-tuning": Variant(
        "medusa",
        {"joint": True, "warmup": 0.0, "schedule": "constant", "balance": 1.0, "rate": 1.0},
        flags=["--labels", "text"],
    ),
}
SHARED = {
    "shared matrix, each head's change of rank 32": Variant("medusa"),
    "shared matrix": Variant("medusa", {"private_rank": 0}),
    "private matrices": Variant("medusa", {"private": True}),
    "two blocks": Variant("medusa", {"layers": 2}),
}


def heads(bench: Bench, tree: str) -> Any:
    """Return the model's own heads with one form of tree."""
    card = drafter_cards.find_drafter("medusa", bench.engine.choice.target)
    return load_drafter(replace(card, options={**card.options, "tree": tree}), bench.engine.target)


def figure_6(asked: argparse.Namespace, bench: Bench) -> str:
    """Tokens a step by the form and size of trees; beside it what rows cost, where the machine was idle to tell."""
    sizes = SIZES[:2] if asked.smoke else SIZES
    made = {name: heads(bench, tree) for name, tree in TREES.items()}
    lines, costs = [], bench.engine.profile.recall(COSTS)
    for size in sizes:
        rows = {name: (always(one), size) for name, one in made.items()}
        replies = kept(asked.work / f"figure-6-{size}.json", partial(bench.replies, rows))
        dense = [replies["dense"]]
        for name in made:
            own = [replies[name]]
            times = ""
            if costs is not None and size <= MOST_NODES:  # no larger forwards are timed
                step = costs.at(1 + round(rows_a_step(own)), CONTEXT) / costs.at(1, CONTEXT)
                times = figure(length(own).value / step)
            ahead = "" if name == "dense" else told(difference(own, dense))
            lines.append([str(size), name, f"{rows_a_step(own):.1f}", told(length(own)), ahead, times])
    titles = ["nodes at most", "tree", "nodes a step", "tokens a step", "against the dense one", "× by the rows alone"]
    shown = len(titles) if costs is not None else -1
    return table(titles[:shown], [line[:shown] for line in lines])


def surprise(target: Any, prompt: Sequence[int], reply: Sequence[int]) -> float:
    """Minus the sum of log p of a reply's tokens, by the target at the temperature of the figure; in nats."""
    tokens = [*prompt, *reply]
    cache = target.cache(len(tokens))
    logits = target.forward(DraftTree.chain(tokens[:-1]), cache).logits.numpy()[len(prompt) - 1 :]
    scores = logits.astype(np.float64) / TEMPERATURE
    scores -= scores.max(-1, keepdims=True)
    chosen = scores[np.arange(len(reply)), list(reply)] - np.log(np.exp(scores).sum(-1))
    return float(-chosen.sum())


def figure_7(asked: argparse.Namespace, bench: Bench) -> str:
    """Typical acceptance by ε (δ = √ε), beside greedy and random sampling: speed, and what stands in for quality."""
    made = heads(bench, "confident")
    epsilons = asked.epsilon[:2] if asked.smoke else asked.epsilon
    rows: dict[str, Sampling] = {"greedy": GREEDY, "random sampling": Sampling(TEMPERATURE)}
    rows |= {
        f"typical, ε = {one:g}": Sampling(TEMPERATURE, rule="typical", epsilon=one, delta=one**0.5) for one in epsilons
    }

    def measured(sampling: Sampling) -> list[dict[str, Any]]:
        found = []
        for number, question in enumerate(bench.asked):
            said = bench.reply(number, always(made), Budget(16), sampling, whole=True)
            prompt = bench.engine.target.encode(message(question.text))
            found.append({**said, "surprise": surprise(bench.engine.target, prompt, said["ids"]) if said["ids"] else 0})
        return found

    lines = []
    for name, sampling in rows.items():
        replies: list[list[Mapping[str, Any]]] = []
        for seed in asked.seeds[: None if sampling.temperature else 1]:
            file = asked.work / f"figure-7-{name.replace(' ', '-')}-{seed}.json"
            replies.append(kept(file, partial(measured, replace(sampling, seed=seed))))
        flat = [reply for run in replies for reply in run]
        tokens = sum(len(reply["ids"]) for reply in flat)
        pairs = [list(zip(reply["ids"], reply["ids"][1:], strict=False)) for reply in flat]
        distinct = sum(len({*own}) for own in pairs) / max(sum(map(len, pairs)), 1)
        nats = sum(reply["surprise"] for reply in flat) / max(tokens, 1)
        lines.append([name, told(length(replies)), figure(nats), figure(distinct), str(tokens)])
    note = (
        "Replies are whole here, for each rule gives other texts. The model has no judge, so two figures stand in for quality: *nats*, how unlikely the model itself finds a "
        "token of the text at this temperature, and *distinct*, the share of pairs of tokens that did not come before "
        "in the same reply. Random sampling is what the model would say; below its nats a text is too tame."
    )
    return f"{table(['', 'tokens a step', 'nats', 'distinct', 'tokens'], lines)}\n\n{note}"


def main(given: Sequence[str] | None = None) -> None:
    made = parser(__doc__)
    made.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS, help="thresholds of figure 7")
    asked = begun(made, given)
    with ExitStack() as at_the_end:
        bench = Bench.of(asked, at_the_end)
        sections = {
            "Figure 6: dense and sparse trees": partial(figure_6, asked, bench),
            f"Figure 7: typical acceptance at temperature {TEMPERATURE}": partial(figure_7, asked, bench),
            "Table 2: Medusa-1, Medusa-2 and direct fine-tuning": partial(compared, TABLE_2, asked, at_the_end),
            "What the heads share": partial(compared, SHARED, asked, at_the_end),
        }
        parts(asked, f"# Medusa's figures, on `{asked.model}`\n\n{about(asked, 'paper_medusa.py')}", sections)


if __name__ == "__main__":
    main()
