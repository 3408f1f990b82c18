"""Let drafters of a model answer prompts side by side, greedily: a part of stage d of `gpu_proof.py`.

    python research/speedups.py -m build/demo-32 --prompts data/eval --limit 6 --drafters phrases medusa --work build/speedups

All drafters answer a prompt together: the one with the fewest tokens works for the next twentieth of a second. Replies
of less than a quarter of a second are repeated up to ten times. What one repetition learns is hidden from the others.
The kind of text changes from prompt to prompt. Replies end where the plain text starts to repeat itself, because loops
flatter phrases. Measurements are saved in `--work`, prompt by prompt, so a run that was stopped continues.
"""

import argparse
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import psutil
from experiment import content, positive, questions, same_settings, saved_json, weights
from side_by_side import LEAST, PLAIN, side_by_side

from localspec import Done, Engine, Event, Limits, Statistics, config
from localspec.bench import prompts
from localspec.bench.race import on_its_own_clock
from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.errors import LocalspecError
from localspec.models import registry
from localspec.repetition import until_it_goes_round
from localspec.store.store import Store

KINDS = {
    "code": ("humaneval", "mbpp_test"),
    "sums": ("gsm8k_test",),
    "from the prompt": ("xquad_en", "long_continue", "flores_de_en"),
}  # files of prompts; all others are chat
EVERY = ("chat", *KINDS)
WARM = 2  # prompts that are answered first and do not count
SHORT, MOST_ROUNDS = 0.25, 10  # seconds of a plain reply; shorter ones are repeated, at most this many times


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="a directory of .jsonl files, or one file")
    parser.add_argument("--limit", type=positive, default=6, help="prompts of each kind of text")
    parser.add_argument("-n", "--max-tokens", type=positive, default=64, help="of a reply")
    parser.add_argument("--drafters", nargs="+", required=True)
    parser.add_argument("--work", type=Path, required=True, help="where replies are kept; outside git")
    options = parser.parse_args(argv)
    decisive = {name: vars(options)[name] for name in ("limit", "max_tokens", "drafters")}
    try:
        card = registry.resolve(options.model)
        decisive |= weights(card) | {"prompts": content(options.prompts)}
        every = questions(options.prompts, None)
        settings = config.load(flags={"temperature": 0.0, "seed": 0})
        names = dict.fromkeys([PLAIN, *options.drafters])
        choices = {name: choose(card, replace(settings, drafter=name)) for name in names}
    except LocalspecError as mistake:
        parser.error(str(mistake))
    same_settings(parser, options.work, decisive)
    with ExitStack() as at_the_end:
        measure(choices, every, options, at_the_end)


def measure(
    choices: dict[str, Choice], every: Sequence[prompts.BenchPrompt], options: argparse.Namespace, at_the_end: ExitStack
) -> None:
    """Save the replies of all drafters to each prompt that was not answered before."""
    folder = options.work
    store = at_the_end.enter_context(Store.open(file := folder / "localspec.db", print))
    load = partial(Engine, phrases="off")
    first = load(choices[PLAIN], store=store)
    firsts = {
        name: load(choice, store=store, share_with=first) if name != PLAIN else first
        for name, choice in choices.items()
    }
    target, sampling = first.target, first.sampling(config.load(flags={"temperature": 0.0, "seed": 0}))

    def reply(name: str, prompt: prompts.BenchPrompt, most: int, kept_in: Store) -> Generator[Event, None, None]:
        engine = load(choices[name], store=kept_in, share_with=firsts[name])
        return on_its_own_clock(engine.session, engine.chat(prompts.message(prompt.text), sampling, Limits(most)))

    def turn(number: int, prompt: prompts.BenchPrompt) -> dict[str, Any]:
        plain = reply(PLAIN, prompt, options.max_tokens, store)  # it would remember the phrases of a loop
        *_, done = plain
        assert isinstance(done, Done)
        most = until_it_goes_round(done.statistics.token_ids)
        if most < LEAST:
            return {}
        seconds = done.statistics.decode_seconds * most / len(done.statistics.token_ids)
        rounds = min(MOST_ROUNDS, 1 + int(SHORT / max(seconds, 1e-9)))
        statistics: dict[str, list[Statistics]] = {name: [] for name in choices}
        for at in reversed(range(rounds)):  # only the last one is remembered
            begin = (number + at) % len(choices)
            order = (list(choices) * 2)[begin : begin + len(choices)]
            with ExitStack() as of_round:
                kept_in = of_round.enter_context(Store.open(copy_of(file), print)) if at else store
                for name, stats in side_by_side({name: reply(name, prompt, most, kept_in) for name in order}).items():
                    statistics[name].append(stats)
        replies = {name: figures(statistics[name]) for name in choices}
        return {"category": category(prompt), "load": psutil.getloadavg()[0], "replies": replies}

    def has_room(prompt: prompts.BenchPrompt) -> bool:
        return bool(len(target.encode(prompts.message(prompt.text))) + options.max_tokens <= min(target.context, 1024))

    fitting = in_kinds(filter(has_room, every), options.limit)
    if any(not (folder / f"turn-{number}.json").exists() for number in range(len(fitting))):
        others = (prompt for prompt in every if prompt not in fitting and has_room(prompt))
        for number, prompt in enumerate(islice(others, WARM)):
            turn(number, prompt)
    for number, prompt in enumerate(fitting):
        print(f"prompt {number + 1} of {len(fitting)}", flush=True)
        saved_json(folder / f"turn-{number}.json", partial(turn, number, prompt))


def copy_of(file: Path) -> Path:
    """Copy an open database, over the copy from the last call. Return the copy's path."""
    for old in file.parent.glob("round.db*"):
        old.unlink()
    copy = file.with_name("round.db")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as into:
        source.backup(into)
    return copy


def figures(rounds: Sequence[Statistics]) -> dict[str, Any]:
    """Return the figures of a reply, added up over its repetitions."""
    memory, off = rounds[0].memory, [stats.off_reason for stats in rounds if stats.off_reason]
    return {
        "ids": [stats.token_ids for stats in rounds],
        "tokens": sum(max(len(stats.token_ids) - 1, 0) for stats in rounds),
        "steps": sum(stats.steps for stats in rounds),
        "seconds": sum(stats.decode_seconds for stats in rounds),
        "bytes": memory.target + memory.drafter + memory.cache,
        "off": off[0] if 2 * len(off) >= len(rounds) else None,
    }


def category(prompt: prompts.BenchPrompt) -> str:
    return next((kind for kind, files in KINDS.items() if prompt.category in files), "chat")


def in_kinds(candidates: Iterable[prompts.BenchPrompt], most: int) -> list[prompts.BenchPrompt]:
    """Return `most` prompts of each kind of text. Kinds take turns, so that a busy machine slows all of them equally."""
    by_kind: dict[str, list[prompts.BenchPrompt]] = {kind: [] for kind in EVERY}
    for prompt in candidates:
        if len(group := by_kind[category(prompt)]) < most:
            group.append(prompt)
        elif all(len(group) == most for group in by_kind.values()):
            break
    return [prompt for prompt in chain.from_iterable(zip_longest(*by_kind.values())) if prompt is not None]


if __name__ == "__main__":
    main()
