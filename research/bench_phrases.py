"""Measure the cost of phrases: opening a pool of 100,000, and reading and learning in each decode step.

    python research/bench_phrases.py

Ends in one JSON line. The target model is left out: its picks are read from a text, and some are changed.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from localspec.decoding.acceptance import walk
from localspec.decoding.drafter import Context, Step
from localspec.decoding.sampling import Sampling
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.store.store import Store

NODES, TOKENS = 8, 200


def text(length: int, chance: random.Random, habits: list[list[int]]) -> list[int]:
    """Tokens with the redundancy of language: runs from a stock of habits, with single tokens strewn in."""
    out: list[int] = []
    while len(out) < length:
        out += chance.choice(habits)[: chance.randrange(2, 12)] if chance.random() < 0.8 else [chance.randrange(30_000)]
    return out[:length]


def main() -> None:
    """Fill a store, then drafts and observes as a session would."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phrases", type=int, default=100_000)
    parser.add_argument("--replies", type=int, default=20)
    options = parser.parse_args()
    chance = random.Random(1)
    habits = [[chance.randrange(30_000) for _ in range(12)] for _ in range(3000)]
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "localspec.db"
        with Store.open(database, print) as store:
            number = store.phrases.pool("bench", "bench")
            assert number is not None
            while store.phrases.pools()[0].phrases < options.phrases:
                pool = PhrasePool()
                pool.extend(text(4000, chance, habits))
                store.phrases.learn(number, pool.harvest(0)[0])
        starts = []
        for _ in range(15):
            began = time.perf_counter()
            opened = Store.open(database, print)
            opened.phrases.pool("bench", "bench")
            starts.append(time.perf_counter() - began)
            opened.close()

        drafts, observations, keeps, lengths = [], [], [], []
        with Store.open(database, print) as store:
            for _ in range(options.replies):
                pool = PhrasePool(reader=partial(store.phrases.look_up, number))
                drafter, reply, done = WithPhrases(Autoregressive(), pool), text(TOKENS + 20, chance, habits), 0
                drafter.observe(Step(text(300, chance, habits), hidden=None))  # type: ignore[arg-type]
                while done < TOKENS:
                    began = time.perf_counter()
                    tree = drafter.draft(Context(pool.tokens, cache=None, nodes=NODES, sampling=Sampling()))  # type: ignore[arg-type]
                    drafts.append(time.perf_counter() - began)
                    best = [reply[done + depth] for depth in tree.depth]
                    path, bonus = walk(tree, best)
                    committed = [*(tree.tokens[node] for node in path[1:]), bonus]
                    began = time.perf_counter()
                    drafter.observe(Step(committed, None, tree, path, best))  # type: ignore[arg-type]
                    observations.append(time.perf_counter() - began)
                    done += len(committed)
                    lengths.append(len(committed))
                began = time.perf_counter()
                store.phrases.learn(number, *pool.harvest(300))
                keeps.append(time.perf_counter() - began)
    both = sorted(a + b for a, b in zip(drafts, observations, strict=True))
    figures: dict[str, Any] = {
        "phrases": options.phrases,
        "start_ms": round(1e3 * statistics.median(starts), 2),
        "draft_ms": round(1e3 * statistics.median(drafts), 4),
        "observe_ms": round(1e3 * statistics.median(observations), 4),
        "step_ms": round(1e3 * statistics.median(both), 4),
        "step_p95_ms": round(1e3 * both[len(both) * 95 // 100], 4),
        "keep_a_reply_ms": round(1e3 * statistics.median(keeps), 2),
        "acceptance_length": round(statistics.mean(lengths), 2),
    }
    for name, value in figures.items():
        print(f"{name:20} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
