"""How many replies are the same with and without speculation, and at which logit gaps the others part.

python scripts/compare_replies.py MODEL --prompts FILE … [--exact] [--dtype] [--quantize] [--nodes 8,16] [--limit 200]
"""

import argparse
from dataclasses import replace
from pathlib import Path

from localspec import Done, Engine, Limits, Sampling, config
from localspec.bench.prompts import read, spread
from localspec.models import registry
from localspec.policy.selection import choose

TEMPERATURE = 0.8


def reply(engine: Engine, prompt: str, sampling: Sampling, tokens: int) -> tuple[int, ...]:
    """The tokens of one reply."""
    engine.session.rewind(0)  # both shall have read the same
    *_, done = engine.chat([{"role": "user", "content": prompt}], sampling, Limits(tokens))
    assert isinstance(done, Done)
    return done.statistics.token_ids


def main() -> None:
    """Prints one line for each number of nodes and each kind of sampling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--nodes", default="8,16")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize", default="auto")
    options = parser.parse_args()
    card = registry.resolve(options.model)
    flags = {"exact": options.exact, "dtype": options.dtype, "quantize": options.quantize}
    choice = choose(card, config.load(flags=flags))
    plain = Engine(replace(choice, drafter="none", nodes=0))
    prompts = spread([prompt for file in options.prompts for prompt in read(file)], None)
    room = plain.target.context - options.max_tokens
    fitting = [p.text for p in prompts if len(plain.target.encode([{"role": "user", "content": p.text}])) <= room]
    chosen = fitting[: options.limit]
    print(f"{card.name}, {choice.dtype}, quantize {choice.quantize}, {'exact' if options.exact else 'fastest'} form")
    engines = {
        nodes: Engine(replace(choice, nodes=nodes, fixed=True), beside=plain)
        for nodes in map(int, options.nodes.split(","))
    }
    for temperature in (0.0, TEMPERATURE):
        samplings = [Sampling(temperature=temperature, seed=seed) for seed in range(len(chosen))]
        expected = [reply(plain, *asked, options.max_tokens) for asked in zip(chosen, samplings, strict=True)]
        for nodes, engine in engines.items():
            gaps, tokens, steps = [], 0, 0
            for prompt, sampling, ours in zip(chosen, samplings, expected, strict=True):
                found = reply(engine, prompt, sampling, options.max_tokens)
                tokens += len(found)
                steps += engine.session.statistics.steps
                if ours != found:
                    gaps.append(gap(plain, prompt, ours, found))
            promise = "bitwise" if engine.exactness.bitwise else "numerical"
            print(
                f"temperature {temperature}, {nodes:2} nodes: {len(chosen) - len(gaps)} of {len(chosen)} the same, "
                f"{tokens} tokens, {tokens / steps:.2f} a step; said to be {promise}"
                + ("; logit gaps " + ", ".join(f"{gap:.3g}" for gap in sorted(gaps)) if gaps else ""),
                flush=True,
            )


def gap(plain: Engine, prompt: str, ours: tuple[int, ...], found: tuple[int, ...]) -> float:
    """Between the two tokens at which replies part; not a number where one ends and the other goes on."""
    place = next((i for i, (a, b) in enumerate(zip(ours, found, strict=False)) if a != b), None)
    if place is None:
        return float("nan")
    begin = plain.target.encode([{"role": "user", "content": prompt}])
    return abs(plain.gap([*begin, *ours[:place]], ours[place], found[place]))


if __name__ == "__main__":
    main()
