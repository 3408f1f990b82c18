"""What speculation costs on this machine where no guess is ever right: python scripts/bench_budget.py [MODEL]

Pairs of replies of 200 tokens, one plain and one with a drafter that is always wrong, in turns; the budget is made anew
for each, so its start-up is paid every time.
"""

import sys
from statistics import median, quantiles

from localspec import Done, Engine, Limits, Sampling, config
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Step
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.models import registry
from localspec.policy.ranking import AUTO_NODES
from localspec.policy.selection import choose

PAIRS, TOKENS = 21, 200


class Wrong:
    """Proposes a full tree of tokens that the target does not say: unlikely ones, a new one each time."""

    nbytes = 0

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary, self._next = vocabulary, 0

    def observe(self, step: Step) -> None:
        """Learns nothing."""

    def rewind(self, length: int) -> None:
        """Forgets nothing."""

    def draft(self, context: Context) -> DraftTree:
        """A chain of as many tokens as are allowed."""
        self._next += 1
        tokens = [(context.root + self._next + 101 * place) % self._vocabulary for place in range(context.nodes)]
        return DraftTree.chain([context.root, *tokens], "wrong")


def main() -> None:
    """Prints the median of the pairs' ratios, and their quartiles."""
    card = registry.resolve(sys.argv[1] if len(sys.argv) > 1 else "demo")
    engine = Engine(choose(card, config.load()))
    plain = Session(engine.target, Wrong(1), Budget(0))
    prompt, sampling = engine.target.encode([{"role": "user", "content": "Tell me a long story."}]), Sampling()
    engine.target.stop_tokens = frozenset()  # every reply is as long as is allowed
    ratios, accepted = [], 0
    for pair in range(PAIRS + 1):
        speculative = Session(
            engine.target, Wrong(engine.target.transformer.config.vocab_size), Budget(AUTO_NODES, engine.costs)
        )
        seconds = {}
        for session in (plain, speculative) if pair % 2 else (speculative, plain):
            session.rewind(0)
            *_, done = session.generate(prompt, sampling, Limits(TOKENS))
            assert isinstance(done, Done)
            seconds[session] = done.statistics.decode_seconds
        accepted += speculative.statistics.accepted
        if pair:  # the first one warms up
            ratios.append(seconds[speculative] / seconds[plain])
    low, _, high = quantiles(ratios, n=4)
    print(
        f"{card.name}: {100 * (median(ratios) - 1):+.1f} % (quartiles {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %) "
        f"over {PAIRS} pairs of {TOKENS} tokens; {accepted} guesses were right; "
        f"rows cost {', '.join(f'{rows}: {engine.costs.at(rows, 256) / engine.costs.at(1, 256):.2f}' for rows in (2, 4, 8, 16))}"
        f"; {speculative.statistics.off_reason}"
    )


if __name__ == "__main__":
    main()
