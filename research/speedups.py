"""Measure the speedup of each drafter on a model by the kind of text, next to its prediction: docs/figures/speedups.md.

    python research/speedups.py -m demo build/bench/small build/bench/large --prompts data/eval --limit 6 \
        --own build/help.jsonl --work build/speedups --out docs/figures/speedups.md

All drafters of a model answer a prompt together, greedily and at temperature 0.7 with a seed: the one with the fewest
tokens works for the next twentieth of a second. Replies of less than a quarter of a second are written up to ten times, each time
with what was known before the first. The kind of text changes from prompt to prompt. Replies end where the plain text
starts to repeat itself, because loops flatter phrases. Measurements are saved in `--work`, prompt by prompt, so a run that
was stopped continues, with the drafter that `auto` chose first; the page is written again after each model and temperature.
Half-way the speed is predicted again, from the replies so far, as in a second session, and compared with the other half of
the prompts. `--own` are prompts about what the models know: the largest model answers twice as many of them, greedily, in
a separate table. For each missed aim the page says where, and with which tokens and costs.
"""

import argparse
import sqlite3
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product, zip_longest
from pathlib import Path
from typing import Any

import psutil
from experiment import content, file_name, positive, questions, same_settings, saved_json, weights
from side_by_side import side_by_side
from speedups_page import AUTO, EVERY, KINDS, LEAST, OWN, PLAIN, about, missed, overall, section

from localspec import Done, Engine, Event, Limits, Statistics, config
from localspec.bench import prompts
from localspec.bench.race import on_its_own_clock
from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.choosing.plans import Precision, run_plans
from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.events import Reporter
from localspec.machine.machine import this_machine
from localspec.models import registry
from localspec.models.drafter_kinds import TABLE, WITH_PHRASES
from localspec.models.model import model_of
from localspec.repetition import until_it_goes_round
from localspec.store.store import Store
from localspec.weights.checkpoint import inspect

TEMPERATURES = (0.0, 0.7)
WARM = 2  # prompts that are answered first and do not count
SHORT, MOST_ROUNDS = 0.25, 10  # seconds of a plain reply; shorter ones are repeated, at most this many times


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--models", nargs="+", default=["demo"])
    parser.add_argument("--prompts", type=Path, required=True, help="a directory of .jsonl files, or one file")
    parser.add_argument("--own", type=Path, help="the same, of what the models know")
    parser.add_argument("--limit", type=positive, default=6, help="prompts of each kind of text")
    parser.add_argument("-n", "--max-tokens", type=positive, default=64, help="of a reply")
    parser.add_argument("--drafters", nargs="+", help="some, instead of all that the model has")
    parser.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    parser.add_argument("--work", type=Path, required=True, help="where replies are kept; outside git")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(given)
    decisive = {name: vars(asked)[name] for name in ("limit", "max_tokens", "drafters")}
    try:
        cards = [registry.resolve(model) for model in asked.models]
        known = [weights(card) for card in cards]
        decisive |= {"prompts": content(asked.prompts), "written": "side by side"}
        for temperature in asked.temperatures:
            settings = config.load(flags={"temperature": temperature})
            for card, drafter in product(cards, asked.drafters or ()):
                choose(card, replace(settings, drafter=drafter))
        own = {"own": content(asked.own)}
        for place in filter(None, (asked.prompts, asked.own)):
            questions(place, 1)
    except LocalspecError as mistake:
        parser.error(str(mistake))
    if not asked.out.absolute().parent.is_dir():
        parser.error(f"--out {asked.out} is in a directory that does not exist; create it, or name another.")
    same_settings(parser, asked.work, decisive)
    parts, runs, of_largest = [], [], []
    largest = max(range(len(cards)), key=lambda index: inspect(cards[index].path).parameters)
    wanted = [(card, about_it, temperature, False) for card, about_it in zip(cards, known, strict=True)
              for temperature in asked.temperatures]  # fmt: skip
    if asked.own:
        wanted.append((cards[largest], known[largest] | own, 0.0, True))
    for card, about_it, temperature, knows in wanted:
        place = asked.work / file_name(f"{Path(card.name).name}-{temperature}{'-own' if knows else ''}")
        same_settings(parser, place, about_it)
        asked_of_it = partial(questions_of, asked.own if knows else asked.prompts, OWN if knows else "")
        most = 2 * asked.limit if knows else asked.limit
        with ExitStack() as at_the_end:
            make = partial(measured, card, temperature, asked, asked_of_it, most, place, at_the_end)
            run = saved_json(place / "run.json", make)
        how = "greedy" if temperature == 0 else f"temperature {temperature}"
        size = f"{inspect(card.path).parameters / 1e9:.2g} B parameters"
        title = f"`{Path(card.name).name}`, {size}, {how}{f', {OWN}' if knows else ''}"
        parts.append(f"## {title}\n\n{section(run) if run['turns'] else f'No reply had {LEAST} tokens.'}")
        if run["turns"]:
            runs.append((title, run))
            if card is cards[largest]:
                of_largest.append(title)
        page = [
            "# What drafters are worth",
            about(asked),
            *([overall(runs)] if runs else []),
            *parts,
            missed(runs, of_largest),
        ]
        asked.out.write_text("\n\n".join(filter(None, page)) + "\n", "utf-8")


# -- measuring ---------------------------------------------------------------------------------------------------------


def measured(
    card: registry.TargetCard,
    temperature: float,
    asked: argparse.Namespace,
    every: Callable[[], list[prompts.BenchPrompt]],
    most_of_a_kind: int,
    place: Path,
    at_the_end: ExitStack,
) -> dict[str, Any]:
    """Return all replies of all drafters of a model, and their predictions; `every` gives the prompts."""
    store = at_the_end.enter_context(Store.open(file := place / "localspec.db", print))
    settings = config.load(flags={"temperature": temperature, "seed": 0})
    wanted = dict.fromkeys([PLAIN, *(asked.drafters or names())])
    choices = {name: one for name in wanted if (one := chosen(card, settings, name))}
    load = partial(Engine, phrases="off")
    first = load(choices[PLAIN], store=store)
    firsts = {
        name: load(choice, store=store, share_with=first) if name != PLAIN else first
        for name, choice in choices.items()
    }
    known = Measurements(MeasurementCache(store, Reporter()), False, None)
    foresee = partial(predictions, card, firsts[PLAIN].choice, known)
    predicted = saved_json(place / "predicted.json", foresee)

    def taken() -> str:
        return getattr(chosen(card, settings, AUTO, known), "drafter", PLAIN)

    if AUTO in choices:  # as after a first load; a continued run has replies by now, which would say more
        took = saved_json(place / "auto.json", taken)
        if (choice := chosen(card, settings, took, known)) is not None:
            choices[AUTO], firsts[AUTO] = choice, load(choice, store=store, share_with=first)
    target, sampling = first.target, first.sampling(settings)

    def reply(name: str, prompt: prompts.BenchPrompt, most: int, kept_in: Store) -> Generator[Event, None, None]:
        engine = load(choices[name], store=kept_in, share_with=firsts[name])
        return on_its_own_clock(engine.session, engine.chat(prompts.message(prompt.text), sampling, Limits(most)))

    def turn(number: int, prompt: prompts.BenchPrompt) -> dict[str, Any]:
        plain = reply(PLAIN, prompt, asked.max_tokens, store)  # it would remember the phrases of a loop
        *_, done = plain
        assert isinstance(done, Done)
        most = until_it_goes_round(done.statistics.token_ids)
        if most < LEAST:
            return {}
        seconds = done.statistics.decode_seconds * most / len(done.statistics.token_ids)
        rounds = min(MOST_ROUNDS, 1 + int(SHORT / max(seconds, 1e-9)))
        written: dict[str, list[Statistics]] = {name: [] for name in choices}
        for at in reversed(range(rounds)):  # only the last one is remembered
            begin = (number + at) % len(choices)
            order = (list(choices) * 2)[begin : begin + len(choices)]
            with ExitStack() as of_round:
                kept_in = of_round.enter_context(Store.open(copy_of(file), print)) if at else store
                for name, said in side_by_side({name: reply(name, prompt, most, kept_in) for name in order}).items():
                    written[name].append(said)
        replies = {name: figures(written[name]) for name in choices}
        return {"category": category(prompt), "load": psutil.getloadavg()[0], "replies": replies}

    def has_room(one: prompts.BenchPrompt) -> bool:
        return bool(len(target.encode(prompts.message(one.text))) + asked.max_tokens <= min(target.context, 1024))

    fitting = in_kinds(filter(has_room, every()), most_of_a_kind)
    if any(not (place / f"turn-{number}.json").exists() for number in range(len(fitting))):
        others = (one for one in every() if one not in fitting and has_room(one))
        for number, prompt in enumerate(islice(others, WARM)):
            turn(number, prompt)
    turns, half = [], len(fitting) // 2
    then: dict[str, Any] = {"predicted": {}, "auto": None}
    for number, prompt in enumerate(fitting):
        print(f"{card.name}, temperature {temperature}: prompt {number + 1} of {len(fitting)}", flush=True)
        if number == half:  # from here on, the replies so far are known
            then = saved_json(place / "then.json", lambda: {"predicted": foresee(), "auto": taken()})
        turns.append(
            {**saved_json(place / f"turn-{number}.json", partial(turn, number, prompt)), "later": number >= half}
        )
    return {
        "precision": first.choice.precision, "device": first.choice.device, "predicted": predicted,
        "auto": choices[AUTO].drafter if AUTO in choices else None, "turns": [one for one in turns if "replies" in one],
        "then": then,
        "threads": psutil.cpu_count(logical=False),
    }  # fmt: skip


def copy_of(file: Path) -> Path:
    """Return a copy of a database that is open, in place of the copy before."""
    for old in file.parent.glob("round.db*"):
        old.unlink()
    copy = file.with_name("round.db")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as into:
        source.backup(into)
    return copy


def figures(written: Sequence[Statistics]) -> dict[str, Any]:
    """Return the figures of all rounds of a reply together."""
    held, off = written[0].memory, [one.off_reason for one in written if one.off_reason]
    return {
        "ids": [one.token_ids for one in written],
        "tokens": sum(max(len(one.token_ids) - 1, 0) for one in written),
        "steps": sum(one.steps for one in written),
        "seconds": sum(one.decode_seconds for one in written),
        "draft": sum(one.draft_seconds for one in written),
        "verify": sum(one.verify_seconds for one in written),
        "bytes": held.target + held.drafter + held.cache,
        "off": off[0] if 2 * len(off) >= len(written) else None,
    }


def names() -> list[str]:
    """Return plain decoding, `auto`, and every kind, with and without phrases."""
    lengthened = [f"{kind.name}{WITH_PHRASES}" for kind in TABLE if kind.name != PLAIN and not kind.has_phrases]
    return [PLAIN, AUTO, *sorted([*(kind.name for kind in TABLE if kind.name != PLAIN), *lengthened])]


def chosen(
    card: registry.TargetCard, settings: Settings, name: str, known: Measurements | None = None
) -> Choice | None:
    """Return how the model is run with this drafter; None where the model has none of that kind."""
    try:
        return choose(card, replace(settings, drafter=name), measurements=known)
    except LocalspecError as error:
        print(f"{name}: {error}", flush=True)
        return None


def predictions(card: registry.TargetCard, plain: Choice, known: Measurements) -> dict[str, float]:
    """Return the predicted speedup over plain decoding, by drafter."""
    device = next(one for one in this_machine().devices if one.name == plain.device)
    plans = run_plans(model_of(card), [Precision(device, plain.dtype, plain.quantize)], known)
    speeds = {plan.candidate.drafter: plan.speed for plan in plans}
    return {name: speed / speeds[PLAIN] for name, speed in speeds.items()}


def questions_of(place: Path, kind: str) -> list[prompts.BenchPrompt]:
    """All prompts of a place, all of one kind where that is given."""
    return [replace(one, category=kind or one.category) for one in questions(place, None)]


def category(prompt: prompts.BenchPrompt) -> str:
    if prompt.category == OWN:
        return OWN
    return next((kind for kind, files in KINDS.items() if prompt.category in files), "chat")


def in_kinds(asked: Iterable[prompts.BenchPrompt], most: int) -> list[prompts.BenchPrompt]:
    """Return `most` prompts of each kind of text, the kinds in turn, so that a busy machine slows all kinds equally."""
    by_kind: dict[str, list[prompts.BenchPrompt]] = {kind: [] for kind in EVERY}
    for one in asked:
        if len(own := by_kind[category(one)]) < most:
            own.append(one)
        elif all(len(some) == most for some in by_kind.values()):
            break
    return [one for one in chain.from_iterable(zip_longest(*by_kind.values())) if one is not None]


if __name__ == "__main__":
    main()
