"""Compare trained drafters of a model: each of them, and two and three at once, with trees of the same size.

python research/merged_table.py -m smollm2-135m --prompts data/eval --out build/merged > page.md
"""

from collections.abc import Sequence
from functools import cache, partial
from itertools import combinations

from experiment import GREEDY, NODES, NOT_RUN, Bench, Reply, common, page, parser
from figures import difference, length, rows_a_step, table, with_interval

from localspec.bench.prompts import BenchPrompt
from localspec.decoding.budget import Budget
from localspec.decoding.calibration import Calibration
from localspec.decoding.drafter import Drafter
from localspec.decoding.sampling import Sampling
from localspec.drafters.merged import Merged
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.drafters.trained import load_drafter
from localspec.models import drafter_cards, registry
from localspec.models.drafter_kinds import MERGED

SIZES = (8, NODES, 32)


class Merging:
    """The trained drafters of a model, together: each set is loaded once, and keeps what it learns."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.cards = {card.kind: card for card in drafter_cards.trained_drafters(registry.resolve(bench.asked.model))}
        self.loaded = cache(self._load)
        names = ["+".join(some) for count in range(1, MERGED + 1) for some in combinations(sorted(self.cards), count)]
        self.names = names[:3] if bench.asked.smoke else names

    def _load(self, name: str) -> tuple[Drafter, Calibration]:
        own: list[Drafter] = [load_drafter(self.cards[kind], self.bench.engine.target) for kind in name.split("+")]
        return (Merged(own) if len(own) > 1 else own[0]), Calibration()

    def section(self, nodes: int, with_phrases: bool, temperature: float) -> str:
        """Return one table: how far each set is ahead of the best of its members."""

        def make(pool: PhrasePool, name: str) -> Drafter:
            both, learned = self.loaded(name)
            if not with_phrases:
                return both
            lengthened = WithPhrases(both, pool, anywhere=True)
            lengthened.calibration = learned
            return lengthened

        by_seed: dict[str, list[list[Reply]]] = {name: [] for name in self.names}
        for seed in self.bench.asked.seeds if temperature else self.bench.asked.seeds[:1]:
            sampling = Sampling(temperature, seed=seed) if temperature else GREEDY

            def answer(prompt: BenchPrompt, name: str, sampling: Sampling = sampling) -> Reply:
                return self.bench.reply(prompt, partial(make, name=name), Budget(nodes), sampling)

            title = f"{nodes} {with_phrases} {temperature} {seed}"
            for name, run in self.bench.rows(title, self.names, answer).items():
                by_seed[name].append(run)
        if not by_seed:
            return f"Not run: {self.bench.asked.model} has no trained drafter."
        if not all(map(all, by_seed.values())):
            return NOT_RUN.capitalize() + "."
        found = {name: common(replies)[0] for name, replies in by_seed.items()}
        lines = []
        for name, replies in sorted(found.items(), key=lambda item: -length(item[1]).value):
            kinds = name.split("+")
            best = max(kinds, key=lambda kind: length(found[kind]).value)
            ahead = f"{with_interval(difference(replies, found[best]))} of {best}" if len(kinds) > 1 else ""
            lines.append([name, with_interval(length(replies)), f"{rows_a_step(replies):.1f}", ahead])
        return table(["", "tokens a step", "nodes a step", "ahead of the best of its members"], lines)


def sections(bench: Bench) -> dict[str, partial[str]]:
    """Return the parts of the page."""
    merging = Merging(bench)
    return {
        f"{name}, {nodes} nodes{', with phrases' if with_phrases else ''}": partial(
            merging.section, nodes, with_phrases, temperature
        )
        for name, temperature in (("Greedy", 0.0), ("Temperature 0.7", 0.7))
        for with_phrases in (False, True)
        for nodes in (SIZES if not temperature and not with_phrases else (NODES,))
    }


def main(given: Sequence[str] | None = None) -> None:
    page(parser(__doc__, trains=False), "Several drafters at once", "merged_table.py", sections, given)


if __name__ == "__main__":
    main()
