"""What each part of Ouroboros brings, as in the paper's tables 3, 4, 15 and 17: docs/ouroboros-table.md.

    python scripts/ouroboros_table.py --prompts data/eval --work build/ouroboros_table --out docs/ouroboros-table.md

Every prompt is answered once a row, the rows in turn, and each row begins every reply with an empty pool; those with
history keep theirs. All have fixed trees with the same hyper-parameters, which leave no part out, but for the row `as
chosen`: it has those that a search finds for this pair on this machine, and decides by itself what pays. What is
measured is kept in `--work`, so a run that was stopped goes on.
"""

import argparse
import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from drafter_table import figure, table

from localspec import config
from localspec.bench import comparison, peers, prompts
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Limits, Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters
from localspec.drafters.lookahead import Lookahead
from localspec.drafters.ouroboros import Pair, draft_model, ouroboros
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.engine.engine import Engine
from localspec.events import Done
from localspec.models import registry
from localspec.policy.selection import choose
from localspec.store.store import Store

TASKS = {
    "code": ("humaneval", "code"),
    "mathematics": ("gsm8k_test", "math"),
    "summarisation": ("spec_bench", "summarization"),
    "translation": ("flores_de_en", "translation"),
    "chat": ("oasst_en100", "open"),
}  # file, category
PARTS = {
    "plain": "",
    "speculative": "d",
    "+ accelerating drafting": "da",
    "+ lengthening drafts": "dal",
    "+ phrases from verification": "dalv",
    "+ history": "dalvh",
    "+ the text itself": "dalvht",
    "+ phrases beside the draft": "dalvhtb",
    "as chosen": "dalvhtb*",
    "lookahead": "w",
    "phrases": "lvt",
}  # draft model, accelerated, lengthened, verification, history, text, beside; window at the target; * auto
CHOSEN = Hyperparameters(draft=4, window=3, phrase=4, phrases=3)
LENGTHS, TEMPERATURES = (64, 128, 256, 512), (0.0, 0.5, 1.0)


@dataclass
class Bench:
    """The pair, loaded, and where phrases of earlier replies are kept."""

    engine: Engine
    chosen: Hyperparameters
    folder: Path
    at_the_end: ExitStack
    histories: dict[str, tuple[Store, int]] = field(default_factory=dict)

    def history(self, name: str) -> tuple[Store, int]:
        """A store of this name and its pool."""
        if name not in self.histories:
            file = self.folder / f"{len(self.histories)}.db"
            store = self.at_the_end.enter_context(Store.open(file, print))
            number = store.phrases.pool("table", name)
            assert number is not None
            self.histories[name] = store, number
        return self.histories[name]

    def reply(
        self, row: str, history: str, text: str, sampling: Sampling, most: int, chosen: Hyperparameters
    ) -> dict[str, Any]:
        """One reply with the parts of a row, which goes on with the `history` of that name."""
        engine, target, parts = self.engine, self.engine.target, PARTS[row]
        assert engine.draft_model is not None
        store, number = self.history(history) if "h" in parts else (None, 0)
        vocabulary, auto = target.vocab_size, "*" in parts
        pool = PhrasePool(
            target.special_tokens,
            partial(store.phrases.look_up, number) if store else None,
            vocabulary,
            text="t" in parts,
            verification="v" in parts,
        )
        pair = Pair(target.special_tokens, vocabulary, engine.draft_model.target, pool)
        costs, chosen = (engine.draft_model.costs, engine.hyperparameters) if auto else (None, chosen)
        drafter: Drafter = Autoregressive()
        if "d" in parts and "l" in parts:
            named = {"a": "accelerating", "l": "lengthening", "b": "beside"}
            drafter = ouroboros(pair, chosen, costs, False, [name for part, name in named.items() if part in parts])
        elif "d" in parts:
            drafter = draft_model(pair, chosen, "a" in parts, costs, False)
        elif parts:
            drafter = Lookahead(pool, target.special_tokens, 4, chosen.phrase) if "w" in parts else drafter
            drafter = WithPhrases(drafter, pool)
        nodes = chosen.draft + chosen.phrases * (chosen.phrase - 1) if parts else 0
        budget = Budget(engine.choice.nodes, engine.costs) if auto else Budget(nodes)
        session = Session(target, drafter, budget)
        prompt = target.encode(peers.message(text))
        *_, done = session.generate(prompt, sampling, Limits(most))
        assert isinstance(done, Done)
        if store:
            store.phrases.learn(number, *pool.harvest(len(prompt)))
        said = done.statistics
        return {
            "ids": list(said.token_ids),
            "seconds": said.decode_seconds,
            "steps": said.steps,
            "forwards": forwards(drafter),
        }


def forwards(drafter: Drafter) -> int:
    """How many the draft model made, that of the prompt among them."""
    inner = drafter.inner if isinstance(drafter, WithPhrases) else drafter
    return sum(inner.forwards.values()) if isinstance(inner, DraftModel) else 0


def asked(place: Path, task: str, count: int) -> list[prompts.Prompt]:
    """So many prompts of a task."""
    file, category = TASKS[task]
    found = [prompt for prompt in prompts.read(place / f"{file}.jsonl") if prompt.category == category]
    return [replace(prompt, category=task) for prompt in found[:count]]


def rounds(
    bench: Bench,
    rows: Sequence[str],
    questions: Sequence[prompts.Prompt],
    sampling: Sampling,
    most: int,
    work: Path,
    chosen: Hyperparameters | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """The replies of each row to all questions, the rows in turn; read again where they were made before."""
    if work.exists():
        return dict(json.loads(work.read_text("utf-8")))
    target = bench.engine.target
    fitting = [q for q in questions if len(target.encode(peers.message(q.text))) + most <= target.context]
    replies: dict[str, list[dict[str, Any]]] = {row: [] for row in rows}
    for turn, row in comparison.in_turns(rows, len(fitting)):
        question = fitting[turn]
        said = bench.reply(row, f"{work.stem} {row}", question.text, sampling, most, chosen or bench.chosen)
        replies[row].append({**said, "task": question.category})
    work.write_text(json.dumps(replies), "utf-8")
    return replies


def figures(replies: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Of one row: tokens/s, speedup, acceptance length, block efficiency (appendix C), forwards of the draft model."""
    counted = [(reply, other) for reply, other in zip(replies, plain, strict=True) if len(reply["ids"]) > 1]
    tokens = sum(len(reply["ids"]) for reply, _ in counted)
    steps, seconds = (sum(reply[key] for reply, _ in counted) for key in ("steps", "seconds"))
    return {
        "speed": (tokens - len(counted)) / seconds,
        "speedup": median(other["seconds"] / reply["seconds"] for reply, other in counted),
        "length": (tokens - len(counted)) / steps,
        "efficiency": tokens / (steps + len(counted)),  # the forward that reads the prompt gives a token, too
        "forwards": sum(reply["forwards"] for reply, _ in counted) / steps or None,
    }


def parts_table(replies: dict[str, list[dict[str, Any]]]) -> str:
    """The paper's table 4, over all tasks, and the speed-up and acceptance length of each task."""
    heads = ["", "tokens/s", "speedup", "acceptance length", "block efficiency", "draft forwards a step"]
    lines, by_task = [], []
    for row, said in replies.items():
        found = figures(said, replies["plain"])
        lines.append([row, f"{found['speed']:.0f}", *(figure(found[k]) for k in list(found)[1:])])
        cells = []
        for task in TASKS:
            own = [reply for reply in said if reply["task"] == task]
            plain = [reply for reply in replies["plain"] if reply["task"] == task]
            one = figures(own, plain)
            cells.append(f"{figure(one['speedup'])} ({figure(one['length'])})")
        by_task.append([row, *cells])
    same = all(
        reply["ids"] == other["ids"]
        for said in replies.values()
        for reply, other in zip(said, replies["plain"], strict=True)
    )
    return "\n\n".join(
        [
            table(heads, lines),
            "Speedup (acceptance length) by task:",
            table(["", *TASKS], by_task),
            f"Tokens the same as plain decoding's in every reply: {'yes' if same else 'no'}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--draft", default="", help="the draft model; by default the one the model has")
    parser.add_argument("--prompts", type=Path, required=True, help="the directory of the .jsonl files of the tasks")
    parser.add_argument("--limit", type=int, default=30, help="prompts a task")
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    card = registry.resolve(arguments.model)
    name = f"ouroboros:{arguments.draft}" if arguments.draft else "ouroboros"
    choice = choose(card, config.load(flags={"drafter": name, "temperature": 0.0}))
    with TemporaryDirectory() as place, ExitStack() as at_the_end:
        store = at_the_end.enter_context(Store.open(arguments.work / "localspec.db", print))
        engine = Engine(choice, store=store, phrases="off")
        bench = Bench(engine, CHOSEN, Path(place), at_the_end)
        arguments.out.write_text(page(bench, arguments), "utf-8")


def page(bench: Bench, arguments: argparse.Namespace) -> str:
    """The whole document."""
    work, most, greedy = arguments.work, arguments.max_tokens, Sampling()
    tasks = {task: asked(arguments.prompts, task, arguments.limit) for task in TASKS}
    mixed = [question for questions in tasks.values() for question in questions]
    assert bench.engine.draft_model is not None
    costs = [bench.engine.costs, bench.engine.draft_model.costs]
    rows = [f"{1e3 * cost.at(n, 256):.1f}" for cost in costs if cost for n in (1, 4, 8, 16)]
    parts = [
        f"# Ouroboros, part by part, with `{bench.engine.choice.target.name}`",
        f"Made by `scripts/ouroboros_table.py`: {arguments.limit} prompts a task, replies of at most {most} tokens. "
        f"{told(bench.chosen)}; as chosen: {told(bench.engine.hyperparameters)}. A forward of 1, 4, 8 and 16 rows "
        f"took {', '.join(rows[:4])} ms, one of the draft model {', '.join(rows[4:])} ms.",
        "## The parts (table 4), greedy",
        parts_table(rounds(bench, list(PARTS), mixed, greedy, most, work / "parts.json")),
        "## With sampling (table 3): speedup (acceptance length), top-p 0.8",
    ]
    some = {task: tasks[task][: arguments.limit * 2 // 3] for task in ("mathematics", "summarisation", "translation")}
    compared = ["plain", "speculative", "lookahead", "+ phrases beside the draft", "as chosen"]
    lines: dict[tuple[str, str], list[str]] = {}
    for temperature in TEMPERATURES:
        sampling = Sampling(temperature, top_p=0.8 if temperature else 1.0, seed=1)
        for task, questions in some.items():
            said = rounds(bench, compared, questions, sampling, most, work / f"sampling-{task}-{temperature}.json")
            for row in compared:
                lines.setdefault((task, row), []).append(cell(said, row))
    heads = ["task", "", *(f"temperature {temperature:g}" for temperature in TEMPERATURES)]
    parts.append(table(heads, [[*key, *cells] for key, cells in lines.items()]))
    parts.append("## Lengths of generation (table 15): speedup (acceptance length)")
    long = prompts.read(arguments.prompts / "long_continue.jsonl")[: max(arguments.limit // 3, 1)]
    lengths = {
        length: rounds(bench, compared, long, greedy, length, work / f"length-{length}.json") for length in LENGTHS
    }
    parts.append(
        table(["", *map(str, LENGTHS)], [[row, *(cell(lengths[n], row) for n in LENGTHS)] for row in compared])
    )
    parts += ["## Context locality (table 17)", locality(bench, tasks, arguments)]
    parts += ["## Phrases behind a draft (figure 6)", by_phrases(bench, tasks["code"], arguments)]
    return "\n\n".join(parts) + "\n"


def told(chosen: Hyperparameters) -> str:
    """By the letters of the paper."""
    return f"γ = {chosen.draft}, W = {chosen.window}, β = {chosen.phrase}, K = {chosen.phrases}"


def cell(replies: dict[str, list[dict[str, Any]]], row: str) -> str:
    found = figures(replies[row], replies["plain"])
    return f"{figure(found['speedup'])} ({figure(found['length'])})"


def locality(bench: Bench, tasks: dict[str, list[prompts.Prompt]], arguments: argparse.Namespace) -> str:
    """The same prompts of four tasks in another order: so many of one task one after the other."""
    four = [tasks[task][:20] for task in ("code", "mathematics", "summarisation", "translation")]
    whole = [question for questions in four for question in questions]
    orders = {
        f"{run} of a task in a row": [
            q for start in range(0, 20, run) for own in four for q in own[start : start + run]
        ]
        for run in (20, 10, 4, 1)
    }
    orders["shuffled"] = random.Random(17).sample(whole, len(whole))
    lines = []
    for name, order in orders.items():
        file = arguments.work / f"locality-{name.replace(' ', '-')}.json"
        said = rounds(bench, ["plain", "+ phrases from verification", "+ history"], order, Sampling(), 48, file)
        lines.append([name, *(cell(said, row) for row in said if row != "plain")])
    return table(["order", "without history", "with history"], lines)


def by_phrases(bench: Bench, questions: Sequence[prompts.Prompt], arguments: argparse.Namespace) -> str:
    """K from none to 5, without history, as in the paper."""
    lines = []
    for count in (1, 2, 3, 4, 5):
        chosen = replace(bench.chosen, phrases=count)
        file = arguments.work / f"phrases-{count}.json"
        rows = ["plain", "+ phrases from verification"]
        said = rounds(bench, rows, questions, Sampling(), arguments.max_tokens, file, chosen)
        lines.append([str(count), cell(said, rows[1])])
    return table(["K", "speedup (acceptance length)"], lines)


if __name__ == "__main__":
    main()
