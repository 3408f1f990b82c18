"""Test the findings of Medusa's paper (figures 6 and 7, table 2) on published models.

    python research/paper_medusa.py -m smollm2-135m --data FILE… --prompts data/eval --out build/medusa > page.md

The figures are made with the Medusa heads that a model already has. The variants of the tables are trained.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from experiment import GREEDY, NOT_RUN, Bench, Reply, Variant, always, common, compared, page, parser
from figures import difference, figure, length, rows_a_step, table, with_interval

from localspec.bench.prompts import BenchPrompt
from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.trained import load_drafter
from localspec.models import drafter_cards, registry

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


class Heads:
    """A model's trained Medusa heads, as one drafter for each form of draft tree."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.card = drafter_cards.find_drafter("medusa", registry.resolve(bench.options.model))
        self.of = cache(self._loaded)

    def _loaded(self, tree: str) -> Any:
        options = {**self.card.options, "tree": tree}
        return load_drafter(replace(self.card, options=options), self.bench.engine.target)


def figure_6(bench: Bench) -> str:
    """Return a table of tokens per step by the form and size of draft trees."""
    heads, lines = Heads(bench), []
    for size in SIZES[:2] if bench.options.smoke else SIZES:

        def answer(prompt: BenchPrompt, tree: str, size: int = size) -> Reply:
            return bench.reply(prompt, always(heads.of(TREES[tree])), Budget(size))

        replies = bench.rows(f"figure 6 {size}", list(TREES), answer)
        for name, group in replies.items():
            if not group:
                lines.append([str(size), name, NOT_RUN, "", ""])
                continue
            ahead = "" if name == "dense" else with_interval(difference([group], [replies["dense"]]))
            lines.append([str(size), name, f"{rows_a_step([group]):.1f}", with_interval(length([group])), ahead])
    return table(["nodes at most", "tree", "nodes a step", "tokens a step", "against the dense one"], lines)


def surprise(target: Any, prompt: Sequence[int], reply: Sequence[int]) -> float:
    """Return the negative log-likelihood of a reply in nats, by the target at TEMPERATURE."""
    tokens = [*prompt, *reply]
    cache_ = target.cache(len(tokens))
    logits = target.forward(DraftTree.chain(tokens[:-1]), cache_).logits.numpy()[len(prompt) - 1 :]
    scores = logits.astype(np.float64) / TEMPERATURE
    scores -= scores.max(-1, keepdims=True)
    chosen = scores[np.arange(len(reply)), list(reply)] - np.log(np.exp(scores).sum(-1))
    return float(-chosen.sum())


def figure_7(bench: Bench) -> str:
    """Return a table of speed and two measures of quality: by ε (δ = √ε), and for greedy and random sampling."""
    heads, lines = Heads(bench), []
    epsilons = EPSILONS[:2] if bench.options.smoke else EPSILONS
    rows: dict[str, Sampling] = {"greedy": GREEDY, "random sampling": Sampling(TEMPERATURE)}
    rows |= {
        f"typical, ε = {epsilon:g}": Sampling(TEMPERATURE, rule="typical", epsilon=epsilon, delta=epsilon**0.5)
        for epsilon in epsilons
    }
    for name, sampling in rows.items():
        runs = []
        for seed in bench.options.seeds[: None if sampling.temperature else 1]:
            drawn = replace(sampling, seed=seed)

            def answer(prompt: BenchPrompt, _: str, drawn: Sampling = drawn) -> Reply:
                if not (result := bench.reply(prompt, always(heads.of("confident")), Budget(16), drawn, whole=True)):
                    return {}
                ids = bench.text(prompt)["prompt"]
                return {**result, "surprise": surprise(bench.engine.target, ids, result["ids"]) if result["ids"] else 0}

            runs.append(bench.rows(f"figure 7 {name} {seed}", [""], answer)[""])
        if not all(runs):
            lines.append([name, NOT_RUN, "", "", ""])
            continue
        flat = [reply for run in common(runs)[0] for reply in run]
        tokens = sum(len(reply["ids"]) for reply in flat)
        pairs = [list(zip(reply["ids"], reply["ids"][1:], strict=False)) for reply in flat]
        distinct = sum(len({*reply_pairs}) for reply_pairs in pairs) / max(sum(map(len, pairs)), 1)
        nats = sum(reply["surprise"] for reply in flat) / max(tokens, 1)
        lines.append([name, with_interval(length(common(runs)[0])), figure(nats), figure(distinct), str(tokens)])
    note = (
        "Replies are whole here, because each rule gives other texts. There is no judge, so two figures stand in for "
        "quality: *nats* is how unlikely the model finds a token of the text at this temperature, and *distinct* is the "
        "share of pairs of tokens that did not come before in the same reply."
    )
    return f"{table(['', 'tokens a step', 'nats', 'distinct', 'tokens'], lines)}\n\n{note}"


def sections(bench: Bench) -> dict[str, partial[str]]:
    """Return the parts of the page by title, as functions that make them."""
    return {
        "Figure 6: dense and sparse trees": partial(figure_6, bench),
        f"Figure 7: typical acceptance at temperature {TEMPERATURE}": partial(figure_7, bench),
        "Table 2: Medusa-1, Medusa-2 and direct fine-tuning": partial(compared, TABLE_2, bench),
        "What the heads share": partial(compared, SHARED, bench),
    }


def main(argv: Sequence[str] | None = None) -> None:
    page(parser(__doc__), "Medusa's figures", "paper_medusa.py", sections, argv)


if __name__ == "__main__":
    main()
