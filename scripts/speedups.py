"""What each drafter is worth on a model, by the kind of text, beside what was predicted: docs/speedups.md.

    python scripts/speedups.py -m demo build/bench/small build/bench/large --prompts data/eval --limit 6 \
        --own build/help.jsonl --work build/speedups --out docs/speedups.md

All drafters of a model answer a prompt in turns, greedily and at temperature 0.7 with a seed; who comes first changes
from prompt to prompt, and so does the kind of text. Replies end where the plain text goes round, for loops flatter
phrases. What is measured is kept in `--work`, prompt by prompt, so a run that was stopped goes on, with the drafter that
`auto` took at its beginning; the page is written anew after each model and temperature. Half-way it is foreseen again, by
the replies so far, as in a second session; that is held against the other half of the prompts. `--own` are prompts about
what the models know: the largest model answers twice as many of them, greedily, in a table of their own. The page says of
each aim that was missed where, and with which tokens and costs.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import psutil
from experiment import DRAWS, content, figure, kept, named, positive, questions, same_settings, table, weights

from localspec import Done, Engine, Limits, config
from localspec.bench import peers, prompts
from localspec.checkpoint import inspect
from localspec.config import Settings
from localspec.decoding.going_round import until_it_goes_round
from localspec.engine.measurement_cache import MeasurementCache
from localspec.engine.recalled_measurements import RecalledMeasurements
from localspec.errors import LocalspecError
from localspec.events import Reporter
from localspec.machine.machine import this_machine
from localspec.models import registry
from localspec.models.drafter_kinds import TABLE, WITH_PHRASES
from localspec.models.model import model_of
from localspec.policy.decoding_kinds import DecodingKind, decoding_kind
from localspec.policy.ranking import AUTO_NODES, Precision, run_plans
from localspec.policy.selection import Choice, choose
from localspec.store.store import Store

PLAIN, AUTO = "none", "auto"
TEMPERATURES = (0.0, 0.7)
WARM = 2  # prompts that are answered first and do not count
LEAST = 8  # tokens of a reply that counts
NEARLY, HARMLESS = 0.95, 0.98  # of the best, and of plain decoding
KINDS = {
    "code": ("humaneval", "mbpp_test"),
    "sums": ("gsm8k_test",),
    "from the prompt": ("xquad_en", "long_continue", "flores_de_en"),
}  # files of prompts; all others are chat
OWN = "what it knows"
EVERY = ("chat", *KINDS, OWN)
# Of the largest model, the best drafter, × by the kind of text.
AIMS = {"chat": 1.8, "code": 2.2, "from the prompt": 2.2}
FORESEEN, CHOSEN = 0.8, 0.9  # the shares of predictions within 10 %, and of cells in which `auto` is nearly the best


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
        decisive |= {"prompts": content(asked.prompts)}
        own = {"own": content(asked.own)}
        for place in filter(None, (asked.prompts, asked.own)):
            questions(place, 1)
    except LocalspecError as mistake:
        parser.error(str(mistake))
    same_settings(parser, asked.work, decisive)
    parts, runs, of_largest = [], [], []
    largest = max(range(len(cards)), key=lambda index: inspect(cards[index].path).parameters)
    wanted = [(card, about_it, temperature, False) for card, about_it in zip(cards, known, strict=True)
              for temperature in asked.temperatures]  # fmt: skip
    if asked.own:
        wanted.append((cards[largest], known[largest] | own, 0.0, True))
    for card, about_it, temperature, knows in wanted:
        place = asked.work / named(f"{Path(card.name).name}-{temperature}{'-own' if knows else ''}")
        same_settings(parser, place, about_it)
        asked_of_it = partial(questions_of, asked.own if knows else asked.prompts, OWN if knows else "")
        most = 2 * asked.limit if knows else asked.limit
        with ExitStack() as at_the_end:
            make = partial(measured, card, temperature, asked, asked_of_it, most, place, at_the_end)
            run = kept(place / "run.json", make)
        how = "greedy" if temperature == 0 else f"temperature {temperature}"
        size = f"{inspect(card.path).parameters / 1e9:.2g} B parameters"
        title = f"`{Path(card.name).name}`, {size}, {how}{f', {OWN}' if knows else ''}"
        if not run["turns"]:
            parts.append(f"## {title}\n\nNo reply had {LEAST} tokens.")
            continue
        parts.append(f"## {title}\n\n{section(run)}")
        runs.append((title, run))
        if card is cards[largest]:
            of_largest.append(title)
        page = ["# What drafters are worth", about(asked), overall(runs), missed(runs, of_largest), *parts]
        asked.out.write_text("\n\n".join(page) + "\n", "utf-8")


def about(asked: argparse.Namespace) -> str:
    return (
        f"Made by `scripts/speedups.py`: at most {asked.limit} prompts of a kind of text ({2 * asked.limit} of what the "
        f"model knows), replies of at most {asked.max_tokens} tokens that end "
        f"where the text goes round, those of fewer than {LEAST} left out; pools of phrases are empty at the beginning of "
        "each. × is the time of plain decoding over that of the drafter, all replies together, each drafter beside plain "
        f"decoding at each prompt; in brackets the bounds of 95 % of {DRAWS} bootstrap samples of prompts. τ is tokens a step, "
        "M is × over relative memory. Predicted is what the choice between drafters goes by, once the machine's forwards "
        "were timed and before any reply; then, what it goes by after the first half of the prompts, beside the × of the "
        "other half. Those that switched themselves off in most replies are not counted among predictions."
    )


# -- measuring ---------------------------------------------------------------------------------------------------------


def measured(
    card: registry.TargetCard,
    temperature: float,
    asked: argparse.Namespace,
    every: Callable[[], list[prompts.Prompt]],
    most_of_a_kind: int,
    place: Path,
    at_the_end: ExitStack,
) -> dict[str, Any]:
    """All replies of all drafters of a model, and what was predicted of them; `every` gives the prompts there are."""
    store = at_the_end.enter_context(Store.open(place / "localspec.db", print))
    settings = config.load(flags={"temperature": temperature, "seed": 0})
    wanted = dict.fromkeys([PLAIN, *(asked.drafters or names())])
    choices = {name: one for name in wanted if (one := chosen(card, settings, name))}
    load = partial(Engine, store=store, phrases="off")
    first = load(choices[PLAIN])
    firsts = {name: load(choice, beside=first) if name != PLAIN else first for name, choice in choices.items()}
    known = RecalledMeasurements(MeasurementCache(store, Reporter()), False, None)
    decoding = decoding_kind(temperature, settings.accept)
    foresee = partial(predictions, card, firsts[PLAIN].choice, known, decoding)
    predicted = kept(place / "predicted.json", foresee)

    def taken() -> str:
        return getattr(chosen(card, settings, AUTO, known), "drafter", PLAIN)

    if AUTO in choices:  # as after a first load; a run that goes on has replies by now, which would tell more
        took = kept(place / "auto.json", taken)
        if again := chosen(card, settings, took, known):
            choices[AUTO], firsts[AUTO] = again, load(again, beside=first)
    engines = {name: partial(load, choice, beside=firsts[name]) for name, choice in choices.items()}
    target, sampling = first.target, first.sampling(settings)

    def reply(name: str, prompt: prompts.Prompt, most: int) -> dict[str, Any]:
        *_, done = engines[name]().chat(peers.message(prompt.text), sampling, Limits(most))
        assert isinstance(done, Done)
        said, held = done.statistics, done.statistics.memory
        return {
            "ids": said.token_ids, "tokens": max(len(said.token_ids) - 1, 0), "steps": said.steps,
            "seconds": said.decode_seconds, "draft": said.draft_seconds, "verify": said.verify_seconds,
            "bytes": held.target + held.drafter + held.cache, "off": said.off_reason,
        }  # fmt: skip

    def turn(number: int, prompt: prompts.Prompt) -> dict[str, Any]:
        plain = reply(PLAIN, prompt, asked.max_tokens)  # not by phrases: what a loop brings them would be remembered
        most = until_it_goes_round(plain["ids"])
        if most < LEAST:
            return {}
        order = list(engines)[number % len(engines) :] + list(engines)[: number % len(engines)]
        psutil.cpu_percent()
        replies = {name: reply(name, prompt, most) for name in order}
        return {"category": category(prompt), "load": psutil.getloadavg()[0], "replies": replies}

    def has_room(one: prompts.Prompt) -> bool:
        return bool(len(target.encode(peers.message(one.text))) + asked.max_tokens <= min(target.context, 1024))

    fitting = in_kinds(filter(has_room, every()), most_of_a_kind)
    if any(not (place / f"turn-{number}.json").exists() for number in range(len(fitting))):
        others = (one for one in every() if one not in fitting and has_room(one))
        for number, prompt in enumerate(islice(others, WARM)):
            turn(number, prompt)
    turns, half = [], len(fitting) // 2
    then: dict[str, Any] = {"predicted": {}, "auto": None}
    for number, prompt in enumerate(fitting):
        print(f"{card.name}, temperature {temperature}: prompt {number + 1} of {len(fitting)}", flush=True)
        if number == half:  # what the replies so far brought is known now
            then = kept(place / "then.json", lambda: {"predicted": foresee(), "auto": taken()})
        turns.append({**kept(place / f"turn-{number}.json", partial(turn, number, prompt)), "later": number >= half})
    return {
        "precision": first.choice.precision, "device": first.choice.device, "predicted": predicted,
        "auto": choices[AUTO].drafter if AUTO in choices else None, "turns": [one for one in turns if "replies" in one],
        "then": then,
        "threads": psutil.cpu_count(logical=False),
    }  # fmt: skip


def names() -> list[str]:
    """Plain decoding, what is chosen by itself, and every kind, alone and with phrases."""
    lengthened = [f"{kind.name}{WITH_PHRASES}" for kind in TABLE if kind.name != PLAIN and not kind.has_phrases]
    return [PLAIN, AUTO, *sorted([*(kind.name for kind in TABLE if kind.name != PLAIN), *lengthened])]


def chosen(
    card: registry.TargetCard, settings: Settings, name: str, known: RecalledMeasurements | None = None
) -> Choice | None:
    """How the model is run with this drafter; None where the model has none of that kind."""
    try:
        return choose(card, replace(settings, drafter=name), measurements=known)
    except LocalspecError as error:
        print(f"{name}: {error}", flush=True)
        return None


def predictions(
    card: registry.TargetCard, plain: Choice, known: RecalledMeasurements, decoding: DecodingKind
) -> dict[str, float]:
    """By drafter, how many times as fast as plain decoding it should be here."""
    device = next(one for one in this_machine().devices if one.name == plain.device)
    plans = run_plans(
        model_of(card), [Precision(device, plain.dtype, plain.quantize)], known, AUTO_NODES, decoding=decoding
    )
    speeds = {plan.candidate.drafter: plan.speed for plan in plans}
    return {name: speed / speeds[PLAIN] for name, speed in speeds.items()}


def questions_of(place: Path, kind: str) -> list[prompts.Prompt]:
    """All prompts of a place, all of one kind where that is given."""
    return [replace(one, category=kind or one.category) for one in questions(place, None)]


def category(prompt: prompts.Prompt) -> str:
    if prompt.category == OWN:
        return OWN
    return next((kind for kind, files in KINDS.items() if prompt.category in files), "chat")


def in_kinds(asked: Iterable[prompts.Prompt], most: int) -> list[prompts.Prompt]:
    """So many of each kind of text, the kinds in turn: a machine that becomes busy slows none alone."""
    by_kind: dict[str, list[prompts.Prompt]] = {kind: [] for kind in EVERY}
    for one in asked:
        if len(own := by_kind[category(one)]) < most:
            own.append(one)
        elif all(len(some) == most for some in by_kind.values()):
            break
    return [one for one in chain.from_iterable(zip_longest(*by_kind.values())) if one is not None]


# -- the page ----------------------------------------------------------------------------------------------------------

Turns = Sequence[Mapping[str, Any]]


def section(run: Mapping[str, Any]) -> str:
    """One model at one temperature."""
    turns: Turns = run["turns"]
    rows = list(turns[0]["replies"])
    differing = sum(one["ids"] != turn["replies"][PLAIN]["ids"] for turn in turns for one in turn["replies"].values())
    told = [
        f"{len(turns)} prompts, {run['precision']}, {run['device']}, {run['threads']} threads; load average "
        f"{min(turn['load'] for turn in turns):.1f} to {max(turn['load'] for turn in turns):.1f}. Replies that differ from "
        f"plain decoding: {differing}. `auto` took `{run['auto']}`."
    ]
    lines, then = [], later(run)
    for name in sorted(rows, key=lambda name: speedup(turns, name), reverse=True):
        low, high = interval(turns, name)
        predicted = run["predicted"].get(run["auto"] if name == AUTO else name)
        anew = then["predicted"].get(name)
        off = sum(bool(turn["replies"][name]["off"]) for turn in turns)
        unit = total(turns, PLAIN, "seconds") / total(turns, PLAIN, "steps") * total(turns, name, "steps")
        lines.append(
            [
                name, figure(length(turns, name)),
                f"{speedup(turns, name):.2f} [{low:.2f}, {high:.2f}]", figure(predicted), figure(anew) if name != AUTO else "",
                figure(speedup(then["turns"], name)) if then["turns"] else "", figure(worth(turns, name)),
                figure(total(turns, name, "draft") / unit), figure(total(turns, name, "verify") / unit), f"{off}",
            ]
        )  # fmt: skip
    told.append(
        table(["drafter", "τ", "×", "predicted", "then", "× then", "M", "draft", "verify", "switched off"], lines)
    )
    told.append("Draft and verify are in plain steps, of one step. By the kind of text:")
    kinds = {kind: [turn for turn in turns if turn["category"] == kind] for kind in EVERY}
    kinds = {kind: some for kind, some in kinds.items() if some}
    heads = ["×", *(f"{kind} ({len(some)})" for kind, some in kinds.items())]
    told.append(table(heads, [[name, *(figure(speedup(some, name)) for some in kinds.values())] for name in rows]))
    return "\n\n".join([*told, verdict(run)])


def overall(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """How well drafters were chosen and foreseen, over all models, temperatures and kinds of text: the cells."""
    cells = cells_of(runs)
    at_first = [error for _, run in runs for error in errors_of(run).values()]
    anew = [error for _, run in runs for error in errors_of(later(run)).values()]
    within = [within for _, run in runs for within in inside(run)]
    said = (
        f"Over all: predicted within 10 % of what was measured in {near(at_first)}, and within the bounds of what was measured "
        f"in {sum(within)}; after half of the prompts within 10 % of the other half in {near(anew)}."
    )
    if not cells:
        return said
    right = sum(nearly_best(turns, AUTO) for _, turns in cells)
    after = [close for _, run in runs for close in close_ones(later(run))]
    worst, name = min((speedup(turns, AUTO), name) for name, turns in cells)
    below = sum(speedup(turns, AUTO) < HARMLESS for _, turns in cells)
    return (
        f"{said} `auto` was the best or within 5 % of it in {right} of {len(cells)} cells (a model, a temperature and a "
        f"kind of text), below {HARMLESS} of plain decoding in {below}; the lowest was {worst:.2f} ({name}). What it takes "
        f"after half of the prompts was so in {sum(after)} of {len(after)} cells of the other half."
    )


def cells_of(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Turns]]:
    """The cells in which `auto` was tried, with their names: a model, a temperature and a kind of text each."""
    cells = [
        (f"{kind} of {title}", [turn for turn in run["turns"] if turn["category"] == kind])
        for title, run in runs for kind in EVERY
    ]  # fmt: skip
    return [(name, turns) for name, turns in cells if turns and AUTO in turns[0]["replies"]]


def missed(runs: Sequence[tuple[str, Mapping[str, Any]]], of_largest: Sequence[str]) -> str:
    """Each aim that was missed, with the arithmetic of its cells; × is tokens a step over what a step takes.

    `of_largest` are the titles of the largest model, whose best drafters have aims of their own.
    """
    lines: list[str] = []
    for kind, aim in AIMS.items():
        for title in of_largest:
            turns = [turn for turn in dict(runs)[title]["turns"] if turn["category"] == kind]
            if turns and (best := fastest(turns))[0] < aim:
                tokens, price = length(turns, best[1]), cost(turns, best[1])
                lines.append(
                    f"{aim} × on {kind} of {title}: {arithmetic(turns, best[1])} is the best. It would take "
                    f"{aim * price:.2f} tokens a step at that price, or steps of {tokens / aim:.2f} plain ones."
                )
    for title in of_largest:
        for kind in EVERY:
            turns = [turn for turn in dict(runs)[title]["turns"] if turn["category"] == kind]
            both = ("ouroboros", "phrases")
            tried = turns and all(name in turns[0]["replies"] for name in both)
            if tried and speedup(turns, both[0]) < speedup(turns, both[1]):
                lines.append(
                    f"Ouroboros ahead of phrases alone on {kind} of {title}: {arithmetic(turns, both[0])}, and "
                    f"{arithmetic(turns, both[1])}."
                )
    cells = cells_of(runs)
    for name, cell in cells:
        if speedup(cell, AUTO) < HARMLESS:
            low, high = interval(cell, AUTO)
            off = sum(bool(turn["replies"][AUTO]["off"]) for turn in cell)
            lines.append(
                f"`auto` never below {HARMLESS}, {name}: {arithmetic(cell, AUTO)}, [{low:.2f}, {high:.2f}] by "
                f"{len(cell)} prompts, in {off} of which it switched itself off."
            )
    wrong = [(name, cell) for name, cell in cells if not nearly_best(cell, AUTO)]
    if len(wrong) > (1 - CHOSEN) * len(cells):
        told = [
            f"{name} ({speedup(cell, AUTO):.2f}, and {fastest(cell)[0]:.2f} with `{fastest(cell)[1]}`)"
            for name, cell in wrong
        ]
        lines.append(
            f"`auto` the best or nearly so in {CHOSEN:.0%} of cells: in {len(cells) - len(wrong)} of {len(cells)}; not "
            f"in {'; '.join(told)}."
        )
    for when, some in (("before any reply", runs), ("after half of the prompts", [(t, later(r)) for t, r in runs])):
        errors = {title: errors_of(run) for title, run in some}
        every = [error for own in errors.values() for error in own.values()]
        if every and sum(abs(error) <= 0.1 for error in every) < FORESEEN * len(every):
            told = [
                f"{title} {near(own.values())}, median {median(own.values()):+.0%}"
                for title, own in errors.items()
                if own
            ]
            lines.append(
                f"Foreseen within 10 % in {FORESEEN:.0%} {when}: {near(every)}, median {median(every):+.0%}; of "
                f"{'; '.join(told)}."
            )
    if not lines:
        return "Every aim was reached."
    return "Aims that were missed (× is tokens a step over what a step takes, in plain steps):\n\n" + "\n".join(
        f"- {line}" for line in lines
    )


def fastest(turns: Turns) -> tuple[float, str]:
    return max((speedup(turns, name), name) for name in turns[0]["replies"])


def length(turns: Turns, name: str) -> float:
    """Tokens a step."""
    return total(turns, name, "tokens") / total(turns, name, "steps")


def cost(turns: Turns, name: str) -> float:
    """What a step takes, in the time that plain decoding has for a token."""
    return length(turns, name) / speedup(turns, name)


def arithmetic(turns: Turns, name: str) -> str:
    return f"{speedup(turns, name):.2f} with `{name}`, {length(turns, name):.2f} tokens over {cost(turns, name):.2f}"


def later(run: Mapping[str, Any]) -> dict[str, Any]:
    """The other half of a run's prompts, and what was foreseen and taken before it."""
    return {"turns": [turn for turn in run["turns"] if turn["later"]], **run["then"]}


def errors_of(run: Mapping[str, Any]) -> dict[str, float]:
    """By drafter, by how much its prediction was too high, as a share of what was measured."""
    return {name: run["predicted"][name] / speedup(run["turns"], name) - 1 for name in foreseen(run)}


def foreseen(run: Mapping[str, Any]) -> list[str]:
    """The drafters of which something was predicted, and which went on drafting."""
    turns: Turns = run["turns"]
    rows = [name for name in turns[0]["replies"] if name in run["predicted"] and name != PLAIN] if turns else []
    return [name for name in rows if 2 * sum(bool(turn["replies"][name]["off"]) for turn in turns) <= len(turns)]


def inside(run: Mapping[str, Any]) -> list[bool]:
    """Of each prediction, whether it lies within the bounds of what was measured."""
    bounds = ((run["predicted"][name], interval(run["turns"], name)) for name in foreseen(run))
    return [low <= predicted <= high for predicted, (low, high) in bounds]


def near(errors: Iterable[float]) -> str:
    """How many are small, of how many."""
    small = [abs(error) <= 0.1 for error in errors]
    return f"{sum(small)} of {len(small)}"


def nearly_best(turns: Turns, name: str) -> bool:
    best = max(speedup(turns, other) for other in turns[0]["replies"])
    return speedup(turns, name) >= NEARLY * best


def close_ones(run: Mapping[str, Any]) -> list[bool]:
    """Of each kind of text, whether what `auto` took was the best or nearly so."""
    kinds = ([turn for turn in run["turns"] if turn["category"] == kind] for kind in EVERY)
    return [nearly_best(some, run["auto"]) for some in kinds if some and run["auto"] in some[0]["replies"]]


def verdict(run: Mapping[str, Any]) -> str:
    """How far the predictions were off, and how often `auto` was the best or nearly so."""
    then = later(run)
    told = []
    for when, one in (("At first", run), ("After half of the prompts", then)):
        errors, right = errors_of(one), close_ones(one)
        said = f"{when}: predicted within 10 % of what was measured {near(errors.values())}"
        said += f", median error {median(errors.values()):+.0%}" if errors else ""
        taken = f"; `{one['auto']}`, which `auto` takes, the best or within 5 % of it in {sum(right)} of {len(right)} kinds of text."
        told.append(said + (taken if right else "."))
    return " ".join(told)


def total(turns: Turns, name: str, what: str) -> float:
    return float(sum(turn["replies"][name][what] for turn in turns))


def speedup(turns: Turns, name: str) -> float:
    return total(turns, PLAIN, "seconds") / total(turns, name, "seconds")


def worth(turns: Turns, name: str) -> float:
    """M (S3D, eq. 13)."""
    held = fmean(turn["replies"][name]["bytes"] / turn["replies"][PLAIN]["bytes"] for turn in turns)
    return speedup(turns, name) / held


def interval(turns: Turns, name: str) -> tuple[float, float]:
    seconds = np.array([[turn["replies"][one]["seconds"] for one in (PLAIN, name)] for turn in turns])
    drawn = seconds[np.random.default_rng(0).integers(len(seconds), size=(DRAWS, len(seconds)))].sum(1)
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], (2.5, 97.5))
    return float(low), float(high)


if __name__ == "__main__":
    main()
