"""Thousands of replies in one session: whether memory stays, and whether the pool keeps its pace.

    python research/bench_long_run.py --prompts data/eval --replies 2000

Prints a line for each tenth of the run: resident memory, phrases in the store and held in memory, and how long the
drafter's `observe` and a look-up in the pool took.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from experiment import questions

from localspec import config
from localspec.bench.prompts import message
from localspec.choosing.choose import choose
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.engine.engine import Engine
from localspec.events import Reporter
from localspec.models import registry
from localspec.store.store import Store


class Timed:
    """A function, and how long its calls took since the last look."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, [0.0]

    def __call__(self, *given: Any) -> Any:
        began = time.perf_counter()
        result = self.function(*given)
        self.seconds.append(time.perf_counter() - began)
        return result

    def microseconds(self) -> float:
        """Return the median."""
        taken, self.seconds = median(self.seconds), [0.0]
        return 1e6 * taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--drafter", default="ouroboros")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--replies", type=int, default=2000)
    parser.add_argument("-n", "--max-tokens", type=int, default=24)
    parser.add_argument("--pool", default="user", choices=("user", "readonly"))
    arguments = parser.parse_args()
    card = registry.resolve(arguments.model)
    choice = choose(card, config.load(flags={"drafter": arguments.drafter}))
    asked = [question.text for question in questions(arguments.prompts, None)]
    with TemporaryDirectory() as place, Store.open(Path(place) / "localspec.db", print) as store:
        engine = Engine(choice, store=store, phrases=arguments.pool, reporter=Reporter(print), measured=True)
        drafter, pool = engine.session.drafter, engine.pool
        observe, look_up = Timed(drafter.observe), Timed(pool.continuations)
        drafter.observe, pool.continuations = observe, look_up  # type: ignore[method-assign,assignment]
        asked = [text for text in asked if len(engine.target.encode(message(text))) < engine.context // 2]
        block = max(arguments.replies // 10, 1)
        print("replies   MiB resident  phrases stored  pool KiB  observe µs  look-up µs  tokens/step")
        tokens = steps = 0
        for number in range(1, arguments.replies + 1):
            text = asked[(number - 1) % len(asked)]
            sampling = Sampling(0.0 if number % 2 else 0.7, seed=number)
            for _ in engine.chat(message(text), sampling, Limits(arguments.max_tokens)):
                pass
            said = engine.session.statistics
            assert said is not None
            tokens, steps = tokens + len(said.token_ids) - 1, steps + said.steps
            if number % block == 0:
                resident = psutil.Process().memory_info().rss / 2**20
                stored = sum(info.phrases for info in store.phrases.pools())
                print(
                    f"{number:7} {resident:14.1f} {stored:15} {pool.nbytes / 1024:9.1f} {observe.microseconds():11.1f} "
                    f"{look_up.microseconds():11.1f} {tokens / max(steps, 1):12.2f}",
                    flush=True,
                )
                tokens = steps = 0


if __name__ == "__main__":
    main()
