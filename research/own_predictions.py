"""Compare predicted with measured speeds of an installed model: plain tokens/s, and the speedup of `auto`.

python research/own_predictions.py MODEL [-n 48]

Use a LOCALSPEC_HOME in which nothing was measured. The script prints the predictions before the model is loaded, and
again after its forwards were timed. Then plain decoding and `auto` answer each prompt in turn, which gives a line each.
"""

import argparse
from statistics import geometric_mean

from localspec import Engine, Limits, Sampling, config
from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.cli.store_access import user_store
from localspec.events import Reporter
from localspec.models import registry

PROMPTS = {
    "code": "Write a Python function that merges two sorted lists into one sorted list, with a docstring.",
    "chat": "Why does bread rise, and what happens if there is too much yeast?",
    "editing": "Repeat this text with every 'colour' spelt 'color', and nothing else:\nThe colour of the sky is blue. "
    "The colour of grass is green. The colour of snow is white, and the colour of coal is black.",
    "JSON": "Give me a JSON array of four people, each an object with the keys name, age, city and email. Only JSON.",
}


def pace(choice: Choice) -> str:
    """Return on one line the predictions of a choice: its drafter, tokens/s and speedup."""
    times = f"{choice.speedup:.2f}" if choice.speedup else "1.00"
    return f"{choice.drafter}, {choice.tokens_per_second or 0:.1f} tokens/s, {times} x, measured {choice.measured}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-n", "--max-tokens", type=int, default=48)
    options = parser.parse_args()
    card = registry.resolve(options.model)
    auto, plain = (config.load(flags={"drafter": drafter, "context": 2048}) for drafter in ("auto", "none"))
    with user_store(print, create=True) as store:
        cache = MeasurementCache(store, Reporter())

        def paces() -> str:
            known = Measurements(cache, False, 2048)
            return " | ".join(pace(choose(card, settings, measurements=known)) for settings in (plain, auto))

        print("before:", paces(), flush=True)
        known = Measurements(cache, False, 2048)
        drafting = Engine(choose(card, auto, measurements=known), store=store, phrases="off", measured=True)
        plainly = Engine(choose(card, plain, measurements=known), store=store, phrases="off", share_with=drafting)
        print("loaded:", paces(), flush=True)
        compare([plainly, drafting], Limits(options.max_tokens))
        print("after:", paces())


def compare(engines: list[Engine], limits: Limits) -> None:
    """Let both engines answer a prompt of each kind of text, and print a line for each."""
    gains, plains = [], []
    for kind, prompt in PROMPTS.items():
        speeds, steps = [], 0.0
        for engine in engines:
            for _ in engine.chat([{"role": "user", "content": prompt}], Sampling(), limits):
                pass
            statistics = engine.session.statistics
            assert statistics is not None
            speeds.append(statistics.tokens_per_second)
            steps = len(statistics.token_ids) / max(statistics.steps, 1)
        plains.append(speeds[0])
        gains.append(speeds[1] / speeds[0])
        print(
            f"{kind}: plain {speeds[0]:.1f}/s, auto {speeds[1]:.1f}/s, {gains[-1]:.2f} x, {steps:.1f} a step",
            flush=True,
        )
    print(f"mean: plain {geometric_mean(plains):.1f}/s, {geometric_mean(gains):.2f} x")


if __name__ == "__main__":
    main()
