"""What speculation costs on this machine where no guess is ever right: python research/bench_budget.py -m MODEL

Pairs of replies of 200 tokens, one plain and one with a drafter that is always wrong, in turns. Each pair has a new
budget, so its start-up is included every time.
"""

import argparse
from statistics import median, quantiles

from localspec import Done, Engine, Limits, Sampling, config
from localspec.choosing.choose import choose
from localspec.choosing.plans import AUTO_NODES
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.models import registry


class Wrong(Autoregressive):
    """Proposes a full tree of tokens that the target does not say: unlikely ones, a new one each time."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary, self._next = vocabulary, 0

    def draft(self, context: Context) -> DraftTree:
        """Return a chain of as many tokens as are allowed."""
        self._next += 1
        tokens = [(context.root + self._next + 101 * place) % self._vocabulary for place in range(context.nodes)]
        return DraftTree.chain([context.root, *tokens], "wrong")


def main() -> None:
    """Print the median of the pairs' ratios, and their quartiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("-n", "--tokens", type=int, default=200)
    options = parser.parse_args()
    card = registry.resolve(options.model)
    engine = Engine(choose(card, config.load()), measured=True)
    plain = Session(engine.target, Wrong(1), Budget(0))
    prompt, sampling = engine.target.encode([{"role": "user", "content": "Tell me a long story."}]), Sampling()
    engine.target.stop_tokens = frozenset()  # every reply is as long as is allowed
    ratios, accepted, off = [], 0, None
    assert engine.costs
    for pair in range(options.pairs + 1):
        speculative = Session(engine.target, Wrong(engine.target.vocab_size), Budget(AUTO_NODES, engine.costs))
        seconds = {}
        for session in (plain, speculative) if pair % 2 else (speculative, plain):
            session.rewind(0)
            *_, done = session.generate(prompt, sampling, Limits(options.tokens))
            assert isinstance(done, Done)
            seconds[session] = done.statistics.decode_seconds
            if session is speculative:
                accepted += done.statistics.accepted
                off = done.statistics.off_reason
        if pair:  # the first one warms up
            ratios.append(seconds[speculative] / seconds[plain])
    low, _, high = quantiles(ratios, n=4)
    print(
        f"{card.name}: {100 * (median(ratios) - 1):+.1f} % (quartiles {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %) "
        f"over {options.pairs} pairs of {options.tokens} tokens; {accepted} guesses were right; "
        f"rows cost {', '.join(f'{rows}: {engine.costs.at(rows, 256) / engine.costs.at(1, 256):.2f}' for rows in (2, 4, 8, 16))}"
        f"; {off}"
    )


if __name__ == "__main__":
    main()
