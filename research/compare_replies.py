"""How many replies are the same with and without speculation, by every drafter on a CPU: docs/figures/exactness.md.

    python research/compare_replies.py --prompts data/eval --work build/replies --out docs/figures/exactness.md

Each prompt is answered greedily and seeded, by plain decoding and by every drafter with fixed trees, in both packings,
with 1 and 2 threads, and with each set of instructions that this CPU has, in a process of its own. Replies are kept in
`--work`, so a run that was stopped goes on, and `--isa neon` may add those of another machine to the same folder.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiment import questions
from figures import table

from localspec import Done, Engine, Limits, Sampling, config, environment
from localspec.bench.proof import TEMPERATURE
from localspec.choosing.choose import choose
from localspec.events import Reporter
from localspec.machine import compiled
from localspec.models import registry
from localspec.models.drafter_kinds import TABLE, WITH_PHRASES
from localspec.store.store import Store

NODES = 8
PACKINGS = ("int8", "int4")
MODES = ("greedy", "seeded")
PLAIN = "none"


def drafters() -> list[str]:
    """Every kind, and those that phrases can be added to with them, too; plain decoding first."""
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
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)  # with the instructions in use
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.run:
        answer_all(options)
        return
    for isa in options.isa:
        subprocess.run([sys.executable, *sys.argv, "--run"], check=True, env={**os.environ, environment.ISA: isa})
    if options.out:
        options.out.write_text(page(options.model, options.work), "utf-8")


def supported() -> list[str]:
    """The instructions that this CPU has, the best first."""
    library = compiled.library()
    assert library is not None, compiled.missing()
    return [name for number, name in enumerate(compiled.ISAS) if library.ls_isa_supported(number)][::-1]


# -- replies -----------------------------------------------------------------------------------------------------------


def answer_all(options: argparse.Namespace) -> None:
    """Makes the replies that are not there, with the instructions in use."""
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
                wanted = {threads: file for (threads, name), file in files.items() if name == drafter}
                for threads, file in wanted.items():
                    if not file.exists():
                        store.phrases.forget()  # of the run before, in which the same was said
                        engine = plain if drafter == PLAIN else engine_of(card, packing, drafter, store, plain)
                        found = answered(engine, prompts, threads, options.max_tokens)
                        if drafter != PLAIN:
                            whole = json.loads(files[threads, PLAIN].read_text("utf-8"))
                            found["gaps"] = gaps(plain, prompts, whole, found)
                        file.write_text(json.dumps(found), "utf-8")
                        print(file.stem, found.get("gaps", ""), flush=True)


def engine_of(card: registry.TargetCard, packing: str, drafter: str, store: Store, plain: Engine | None) -> Engine:
    choice = choose(card, config.load(flags={"quantize": packing, "drafter": drafter, "device": "cpu"}))
    nodes = 0 if drafter == PLAIN else NODES
    engine = Engine(
        replace(choice, nodes=nodes, fixed=True), store=store, reporter=Reporter(print), beside=plain, measured=True
    )
    assert engine.exactness.bitwise and choice.engine == "native"
    return engine


def fitting(plain: Engine, options: argparse.Namespace) -> list[str]:
    """The first prompts that leave room for a reply."""
    room = plain.target.context - options.max_tokens
    asked = [question.text for question in questions(options.prompts, None)]
    return [text for text in asked if len(plain.target.encode(message(text))) <= room][: options.limit]


def message(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def answered(engine: Engine, prompts: Sequence[str], threads: int, most: int) -> dict[str, Any]:
    """By mode, the tokens of every reply; and tokens and steps of all of them."""
    choose_threads = type(engine.target).set_threads
    choose_threads(engine.target, threads)
    engine.target.set_threads = lambda count: None  # type: ignore[method-assign]  # the engine takes what is idle
    found: dict[str, Any] = {mode: [] for mode in MODES} | {"tokens": 0, "steps": 0}
    for number, prompt in enumerate(prompts):
        for mode, sampling in zip(MODES, (Sampling(), Sampling(temperature=TEMPERATURE, seed=number)), strict=True):
            engine.session.rewind(0)  # all shall have read the same
            *_, done = engine.chat(message(prompt), sampling, Limits(most))
            assert isinstance(done, Done)
            found[mode].append(done.statistics.token_ids)
            found["tokens"] += len(done.statistics.token_ids)
            found["steps"] += done.statistics.steps
    return found


def gaps(plain: Engine, prompts: Sequence[str], expected: dict[str, Any], found: dict[str, Any]) -> list[float | None]:
    """Of each reply that differs, the target's logit gap of the tokens where it parts; None where one goes on."""
    return [
        gap(plain, prompt, ours, list(theirs))
        for mode in MODES
        for prompt, ours, theirs in zip(prompts, expected[mode], found[mode], strict=True)
        if ours != list(theirs)
    ]


def gap(plain: Engine, prompt: str, ours: list[int], found: list[int]) -> float | None:
    place = next((i for i, (a, b) in enumerate(zip(ours, found, strict=False)) if a != b), None)
    if place is None:
        return None
    begin = plain.target.encode(message(prompt))
    return abs(plain.gap([*begin, *ours[:place]], ours[place], found[place]))


# -- the page ----------------------------------------------------------------------------------------------------------


def page(model: str, work: Path) -> str:
    """All replies in the folder, by drafter and by instructions."""
    made = {tuple(file.stem.split(" ")): json.loads(file.read_text("utf-8")) for file in work.glob("*.json")}
    replies = sum(len(run[mode]) for run in made.values() for mode in MODES)
    tokens = sum(run["tokens"] for run in made.values())
    return "\n\n".join(
        [
            f"# Speculation leaves the text as it is: `{model}` on a CPU",
            "Made by `research/compare_replies.py`, without any flag that asks for exactness: every prompt is answered greedily "
            f"and at temperature {TEMPERATURE} with a seed of its own, with trees of {NODES} nodes where something drafts, and "
            f"phrases are kept from reply to reply. All in all {replies:,} replies of {tokens:,} tokens.",
            "## Every drafter beside plain decoding",
            "With the same instructions, packing and threads; all of those together.",
            table(
                ["drafter", "packing", "instructions", "threads", "replies", "tokens", "tokens a step", "differing"],
                list(by_drafter(made)),
            ),
            "## Plain decoding with other instructions, and other threads",
            "Beside the first line of the same packing, as far as there are as many prompts.",
            table(["instructions", "packing", "threads", "replies", "tokens", "differing"], list(by_isa(made))),
        ]
    ) + "\n"  # fmt: skip


Runs = dict[tuple[str, ...], dict[str, Any]]  # (instructions, packing, threads, drafter) -> its replies


def by_drafter(made: Runs) -> Iterator[list[str]]:
    for drafter in [name for name in drafters() if name != PLAIN]:
        for packing in PACKINGS:
            runs = {key: run for key, run in made.items() if key[1] == packing and key[3] == drafter}
            if runs:
                isas, threads = ({key[place] for key in runs} for place in (0, 2))
                replies, tokens, differing, steps = (
                    sum(values)
                    for values in zip(
                        *(
                            (sum(len(run[m]) for m in MODES), run["tokens"], len(run["gaps"]), run["steps"])
                            for run in runs.values()
                        ),
                        strict=True,
                    )
                )
                yield [
                    drafter, packing, " ".join(isa for isa in reversed(compiled.ISAS) if isa in isas),
                    " ".join(sorted(threads)), f"{replies:,}", f"{tokens:,}", f"{(tokens - replies) / steps:.2f}",
                    str(differing),
                ]  # fmt: skip


def by_isa(made: Runs) -> Iterator[list[str]]:
    for packing in PACKINGS:
        plain = {key: run for key, run in made.items() if key[1] == packing and key[3] == PLAIN}
        in_order = sorted(plain, key=lambda key: (-compiled.ISAS.index(key[0]), key[2]))
        for key in in_order:
            first = in_order[0]
            pairs = [pair for mode in MODES for pair in zip(plain[key][mode], plain[first][mode], strict=False)]
            differing = str(sum(one != other for one, other in pairs)) if key != first else ""
            tokens = sum(len(one) for one, _ in pairs)
            yield [key[0], packing, key[2], f"{len(pairs):,}", f"{tokens:,}", differing]


if __name__ == "__main__":
    main()
