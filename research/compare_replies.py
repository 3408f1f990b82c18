"""Count the replies that differ with and without speculation, for every drafter on a CPU.

    python research/compare_replies.py --prompts data/eval --work build/replies --out replies.md

Each prompt is answered greedily and seeded, by plain decoding (without drafts) and by every drafter with draft trees of
a fixed size. This is repeated for int8 and int4 weights, 1 and 2 threads, and each instruction set of this CPU, in
separate processes. Replies are saved in `--work`, so a stopped run can continue. `--isa neon` can add the replies of
another machine to that folder.

    python research/compare_replies.py --covering 100 -m FILE --pair TARGET --drafters phrases draft_model …

Each prompt is answered once with drafts and once without, with one combination of sampling, drafter, packing, threads
and instruction set. The draw prefers combinations with pairs of values that are still rare. Drafters with a draft model
use the model of `--pair`; the others use that of `-m`.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, groupby, product
from pathlib import Path
from typing import Any, NamedTuple

from experiment import questions
from figures import table

from localspec import Done, Engine, Limits, Sampling, Statistics, config, environment
from localspec.bench.proof import TEMPERATURE
from localspec.choosing.choose import choose
from localspec.engine.importing import ready
from localspec.events import Reporter
from localspec.machine import compiled
from localspec.models import registry
from localspec.models.drafter_kinds import TABLE, WITH_PHRASES, kind_of
from localspec.store.store import Store
from localspec.weights.packed_file import BLOCKS

NODES = 8
PACKINGS = ("int8", "int4")
MODES = ("greedy", "seeded")
PLAIN = "none"
DRAWN_FROM = (BLOCKS, *PACKINGS)  # packings from which the covering is drawn
SAMPLINGS = {
    "greedy": Sampling(),
    "temperature 0.8": Sampling(temperature=TEMPERATURE),
    "temperature 1, top-p 0.9": Sampling(temperature=1.0, top_p=0.9),
    "temperature 0.7, top-k 40, min-p 0.05": Sampling(temperature=0.7, top_k=40, min_p=0.05),
}
CHARACTERS = 600  # characters of a prompt of the covering, at most
TRIES = 200  # combinations, of which the one with the most new pairs is taken


def drafters() -> list[str]:
    """Return the names of all drafters: plain decoding first, and at the end those with phrases in addition."""
    lengthened = [f"{kind.name}{WITH_PHRASES}" for kind in TABLE if kind.name != PLAIN and not kind.has_phrases]
    return [PLAIN, *(kind.name for kind in TABLE if kind.name != PLAIN), *lengthened]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--prompts", type=Path, required=True, help="a directory of .jsonl files, or one file")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", nargs="+", default=supported(), choices=compiled.ISAS)
    parser.add_argument("--drafters", nargs="+", default=drafters())
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="the table of all that is in --work")
    parser.add_argument("--covering", type=int, metavar="COUNT", help="number of prompts, one combination each")
    parser.add_argument("--pair", help="of --covering: the model that drafters with a draft model answer for")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)  # with the instruction set in use
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.run:
        answer_drawn(options) if options.covering else answer_all(options)
        return
    for isa in options.isa:
        subprocess.run([sys.executable, *sys.argv, "--run"], check=True, env={**os.environ, environment.ISA: isa})
    if options.out:
        text = covering_page(options) if options.covering else page(options.model, options.work)
        options.out.write_text(text, "utf-8")
    elif options.covering:
        print(covering_page(options))


def supported() -> list[str]:
    """Return the instruction sets that this CPU supports, the best first."""
    library = compiled.library()
    assert library is not None, compiled.missing()
    return [name for number, name in enumerate(compiled.ISAS) if library.ls_isa_supported(number)][::-1]


# -- replies -----------------------------------------------------------------------------------------------------------


def answer_all(options: argparse.Namespace) -> None:
    """Generate and save the missing replies of every drafter, with the instruction set in use."""
    isa, card = compiled.instruction_set(), registry.resolve(options.model)
    with Store.open(options.work / f"localspec-{isa}.db", print) as store:
        for packing in PACKINGS:
            files = {
                (threads, drafter): options.work / f"{isa} {packing} {threads} {drafter}.json"
                for threads in options.threads
                for drafter in options.drafters
            }
            if all(file.exists() for file in files.values()):
                continue
            plain = engine_of(card, packing, PLAIN, store, None)
            prompts = fitting(plain, options)
            for drafter in options.drafters:
                by_threads = {threads: file for (threads, name), file in files.items() if name == drafter}
                for threads, file in by_threads.items():
                    if not file.exists():
                        store.phrases.delete()  # of the run before, in which the same was said
                        engine = plain if drafter == PLAIN else engine_of(card, packing, drafter, store, plain)
                        replies = answered(engine, prompts, threads, options.max_tokens)
                        if drafter != PLAIN:
                            whole = json.loads(files[threads, PLAIN].read_text("utf-8"))
                            replies["gaps"] = gaps(plain, prompts, whole, replies)
                        file.write_text(json.dumps(replies), "utf-8")
                        print(file.stem, replies.get("gaps", ""), flush=True)


def engine_of(card: registry.TargetCard, packing: str, drafter: str, store: Store, plain: Engine | None) -> Engine:
    quantize = "auto" if packing == BLOCKS else packing
    choice = choose(card, config.load(flags={"quantize": quantize, "drafter": drafter, "device": "cpu"}))
    nodes = 0 if drafter == PLAIN else NODES
    engine = Engine(
        replace(choice, nodes=nodes, fixed=True), store=store, reporter=Reporter(print), share_with=plain, measured=True
    )
    assert engine.exactness.bitwise and choice.engine == "native" and choice.quantize == packing
    return engine


def fitting(plain: Engine, options: argparse.Namespace) -> list[str]:
    """Return the first `--limit` prompts that leave room for a reply in the context."""
    room = plain.target.context - options.max_tokens
    texts = [question.text for question in questions(options.prompts, None)]
    return [text for text in texts if len(plain.target.encode(message(text))) <= room][: options.limit]


def message(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def answered(engine: Engine, prompts: Sequence[str], threads: int, most: int) -> dict[str, Any]:
    """Answer all prompts. Return the token ids by mode (greedy, seeded), and the sums of tokens and of steps."""
    replies: dict[str, Any] = {mode: [] for mode in MODES} | {"tokens": 0, "steps": 0}
    for number, prompt in enumerate(prompts):
        for mode, sampling in zip(MODES, (Sampling(), Sampling(temperature=TEMPERATURE, seed=number)), strict=True):
            reply = answer(engine, prompt, sampling, threads, most)
            replies[mode].append(reply.token_ids)
            replies["tokens"] += len(reply.token_ids)
            replies["steps"] += reply.steps
    return replies


def answer(engine: Engine, prompt: str, sampling: Sampling, threads: int, most: int) -> Statistics:
    choose_threads = type(engine.target).set_threads
    choose_threads(engine.target, threads)
    engine.target.set_threads = lambda count: None  # type: ignore[method-assign]  # the engine takes what is idle
    engine.session.rewind(0)  # so that all have read the same
    *_, done = engine.chat(message(prompt), sampling, Limits(most))
    assert isinstance(done, Done)
    return done.statistics


def gaps(plain: Engine, prompts: Sequence[str], expected: dict[str, Any], actual: dict[str, Any]) -> list[float | None]:
    """Return, for each reply that differs, the target's logit gap between the two tokens at the first difference.

    A gap is None if one of the two replies ends there.
    """
    return [
        gap(plain, prompt, ids, list(other))
        for mode in MODES
        for prompt, ids, other in zip(prompts, expected[mode], actual[mode], strict=True)
        if ids != list(other)
    ]


def gap(plain: Engine, prompt: str, expected: list[int], actual: list[int]) -> float | None:
    index = next((i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b), None)
    if index is None:
        return None
    begin = plain.target.encode(message(prompt))
    return abs(plain.gap([*begin, *expected[:index]], expected[index], actual[index]))


# -- the covering ------------------------------------------------------------------------------------------------------


class Combination(NamedTuple):
    sampling: str
    drafter: str
    packing: str
    threads: int
    isa: str

    def pairs(self) -> set[tuple[tuple[str, Any], ...]]:
        return set(combinations(self._asdict().items(), 2))


def every(options: argparse.Namespace) -> list[Combination]:
    names = [name for name in options.drafters if name != PLAIN]
    return [Combination(*values) for values in product(SAMPLINGS, names, DRAWN_FROM, options.threads, options.isa)]


def drawn(options: argparse.Namespace) -> list[Combination]:
    """Return a combination for each prompt. The seed is fixed, so every process draws the same ones."""
    source, possible = random.Random(0), every(options)
    counts, chosen = Counter[tuple[tuple[str, Any], ...]](), list[Combination]()
    for _ in range(options.covering):
        tried = source.sample(possible, min(TRIES, len(possible)))
        chosen.append(min(tried, key=lambda combination: sorted(counts[pair] for pair in combination.pairs())))
        counts.update(chosen[-1].pairs())
    return chosen


def answer_drawn(options: argparse.Namespace) -> None:
    """Answer the prompts whose combination has the instruction set in use, if they were not answered before."""
    isa, output = compiled.instruction_set(), options.work / "covering.jsonl"
    done = {line["number"] for line in records(output)}
    texts = [question.text for question in questions(options.prompts, None) if len(question.text) <= CHARACTERS]
    todo = [
        (number, combination)
        for number, combination in enumerate(drawn(options))
        if combination.isa == isa and number not in done
    ]

    def place(item: tuple[int, Combination]) -> tuple[str, str]:
        takes_model = kind_of(item[1].drafter).takes == "draft model"
        return (options.pair if takes_model else options.model), item[1].packing

    with Store.open(options.work / f"localspec-{isa}.db", print) as store:
        for (model, packing), items in groupby(sorted(todo, key=lambda item: (*place(item), item[1].drafter)), place):
            card = ready(model, config.load(), Reporter(print))
            plain = engine_of(card, packing, PLAIN, store, None)
            for drafter, same in groupby(items, lambda item: item[1].drafter):
                drafting = engine_of(card, packing, drafter, store, plain)
                for number, combination in same:
                    sampling, prompt = replace(SAMPLINGS[combination.sampling], seed=number), texts[number]
                    replies = [
                        answer(engine, prompt, sampling, combination.threads, options.max_tokens)
                        for engine in (plain, drafting)
                    ]
                    expected, actual = ([*reply.token_ids] for reply in replies)
                    record = {"number": number, "model": card.name, **combination._asdict(), "same": actual == expected}
                    record |= {"tokens": len(actual), "steps": replies[1].steps, "drafted": replies[1].drafted}
                    with output.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
                    print(record, flush=True)


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def covering_page(options: argparse.Namespace) -> str:
    """Return a page about the replies, with a table row for each value of sampling, drafter, packing and so on."""
    lines = records(options.work / "covering.jsonl")
    fields = Combination._fields
    pairs = set().union(*(Combination(*(line[name] for name in fields)).pairs() for line in lines))
    possible = set().union(*(combination.pairs() for combination in every(options)))
    rows = [
        [
            factor, str(value), str(len(group)), f"{sum(line['tokens'] for line in group):,}",
            f"{sum(line['drafted'] for line in group):,}",
            f"{sum(line['tokens'] - 1 for line in group) / max(sum(line['steps'] for line in group), 1):.2f}",
            str(sum(not line["same"] for line in group)),
        ]
        for factor in ("model", *fields)
        for value in dict.fromkeys(line[factor] for line in sorted(lines, key=lambda line: str(line[factor])))
        for group in [[line for line in lines if line[factor] == value]]
    ]  # fmt: skip
    different = sum(not line["same"] for line in lines)
    return "\n\n".join(
        [
            f"{len(lines)} prompts, each answered with and without drafts in one combination. {len(pairs)} of {len(possible)} "
            f"pairs of values occur. {different} replies differ.",
            table(
                [
                    "factor",
                    "value",
                    "prompts",
                    "tokens of replies",
                    "drafted tokens",
                    "tokens per step",
                    "differing replies",
                ],
                rows,
            ),
        ]
    )


# -- the page ----------------------------------------------------------------------------------------------------------


def page(model: str, work: Path) -> str:
    """Return a page about all replies in the folder, with a table by drafter and one by instruction set."""
    runs = {tuple(file.stem.split(" ")): json.loads(file.read_text("utf-8")) for file in work.glob("*.json")}
    replies = sum(len(run[mode]) for run in runs.values() for mode in MODES)
    tokens = sum(run["tokens"] for run in runs.values())
    return "\n\n".join(
        [
            f"# Speculation leaves the text as it is: `{model}` on a CPU",
            "Made by `research/compare_replies.py`, without any flag that asks for exactness: every prompt is answered greedily "
            f"and at temperature {TEMPERATURE} with its own seed, with trees of {NODES} nodes where something drafts, and "
            f"phrases are kept from reply to reply. In total {replies:,} replies of {tokens:,} tokens.",
            "## Every drafter against plain decoding",
            "With the same instructions, packing and threads; all of those together.",
            table(
                ["drafter", "packing", "instructions", "threads", "replies", "tokens", "tokens a step", "differing"],
                list(by_drafter(runs)),
            ),
            "## Plain decoding with other instructions, and other threads",
            "Compared with the first line of the same packing, for the prompts that both have.",
            table(["instructions", "packing", "threads", "replies", "tokens", "differing"], list(by_isa(runs))),
        ]
    ) + "\n"  # fmt: skip


Runs = dict[tuple[str, ...], dict[str, Any]]  # (instructions, packing, threads, drafter) -> its replies


def by_drafter(runs: Runs) -> Iterator[list[str]]:
    for drafter in [name for name in drafters() if name != PLAIN]:
        for packing in PACKINGS:
            group = {key: run for key, run in runs.items() if key[1] == packing and key[3] == drafter}
            if group:
                isas, threads = ({key[index] for key in group} for index in (0, 2))
                replies, tokens, differing, steps = (
                    sum(values)
                    for values in zip(
                        *(
                            (sum(len(run[m]) for m in MODES), run["tokens"], len(run["gaps"]), run["steps"])
                            for run in group.values()
                        ),
                        strict=True,
                    )
                )
                yield [
                    drafter, packing, " ".join(isa for isa in reversed(compiled.ISAS) if isa in isas),
                    " ".join(sorted(threads)), f"{replies:,}", f"{tokens:,}", f"{(tokens - replies) / steps:.2f}",
                    str(differing),
                ]  # fmt: skip


def by_isa(runs: Runs) -> Iterator[list[str]]:
    for packing in PACKINGS:
        plain = {key: run for key, run in runs.items() if key[1] == packing and key[3] == PLAIN}
        in_order = sorted(plain, key=lambda key: (-compiled.ISAS.index(key[0]), key[2]))
        for key in in_order:
            first = in_order[0]
            pairs = [pair for mode in MODES for pair in zip(plain[key][mode], plain[first][mode], strict=False)]
            differing = str(sum(left != right for left, right in pairs)) if key != first else ""
            tokens = sum(len(ids) for ids, _ in pairs)
            yield [key[0], packing, key[2], f"{len(pairs):,}", f"{tokens:,}", differing]


if __name__ == "__main__":
    main()
