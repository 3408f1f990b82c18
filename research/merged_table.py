"""Drafters of a model alone, and two and three of them at once, with trees of the same size: docs/figures/merged-table.md.

    python research/merged_table.py --prompts data/eval --work build/merged --out docs/figures/merged-table.md

What is measured is kept in `--work`, so a run that was stopped goes on.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from typing import Any

from experiment import GREEDY, NODES, Bench, about, begun, kept, named, parser, parts
from figures import difference, length, rows_a_step, table, told

from localspec.decoding.calibration import Calibration
from localspec.decoding.drafter import Drafter
from localspec.decoding.sampling import Sampling
from localspec.drafters.merged import Merged
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.drafters.saved import load_drafter
from localspec.models import drafter_cards, registry
from localspec.models.drafter_kinds import MERGED

SIZES = (8, NODES, 32)


def row(bench: Bench, kinds: tuple[str, ...], with_phrases: bool, cards: dict[str, Any]) -> Any:
    """Return what makes the drafter of some kinds: each is loaded once, and what is learned together once."""
    own: list[Drafter] = [load_drafter(cards[kind], bench.engine.target) for kind in kinds]
    both, learned = Merged(own) if len(own) > 1 else own[0], Calibration()

    def make(pool: PhrasePool) -> Drafter:
        if not with_phrases:
            return both
        lengthened = WithPhrases(both, pool, anywhere=True)
        lengthened.calibration = learned
        return lengthened

    return make


def section(asked: argparse.Namespace, bench: Bench, nodes: int, with_phrases: bool, temperature: float) -> str:
    """One table: how far each is ahead of the best of those that it is made of."""
    cards = {card.kind: card for card in drafter_cards.trained_drafters(registry.resolve(asked.model))}
    sets = [some for count in range(1, MERGED + 1) for some in combinations(sorted(cards), count)]
    if asked.smoke:
        sets = sets[:2] + sets[len(cards) : len(cards) + 1]
    seeds = asked.seeds if temperature else asked.seeds[:1]
    found: dict[tuple[str, ...], list[Any]] = {some: [] for some in sets}
    for seed in seeds:
        sampling = Sampling(temperature, seed=seed) if temperature else GREEDY
        file = asked.work / f"{named(f'{nodes}-{with_phrases}-{temperature}-{seed}')}.json"

        def measured(sampling: Sampling = sampling) -> dict[str, Any]:
            rows = {"+".join(some): (row(bench, some, with_phrases, cards), nodes) for some in sets}
            return bench.replies(rows, sampling)

        replies = kept(file, measured)
        for some in sets:
            found[some].append(replies["+".join(some)])
    lines = []
    for some, replies in sorted(found.items(), key=lambda item: -length(item[1]).value):
        alone = {kind: length(found[(kind,)]).value for kind in some if (kind,) in found}
        best = max(alone, key=alone.__getitem__)
        ahead = f"{told(difference(replies, found[(best,)]))} of {best}" if len(some) > 1 else ""
        lines.append([" + ".join(some), told(length(replies)), f"{rows_a_step(replies):.1f}", ahead])
    return table(["", "tokens a step", "nodes a step", "ahead of the best of them alone"], lines)


def main(given: Sequence[str] | None = None) -> None:
    asked = begun(parser(__doc__, trains=False), given)
    with ExitStack() as at_the_end:
        bench = Bench.of(asked, at_the_end)
        made = {
            f"{name}, {nodes} nodes{', with phrases' if with_phrases else ''}": (
                lambda nodes=nodes, with_phrases=with_phrases, temperature=temperature: section(
                    asked, bench, nodes, with_phrases, temperature
                )
            )
            for name, temperature in (("Greedy", 0.0), ("Temperature 0.7", 0.7))
            for with_phrases in (False, True)
            for nodes in (SIZES if not temperature and not with_phrases else (NODES,))
        }
        head = f"# Several drafters at once, with `{asked.model}`\n\n{about(asked, 'merged_table.py')}"
        parts(asked, head, made)


if __name__ == "__main__":
    main()
