"""What the paper of Ouroboros finds (tables 3, 4, 10, 13, 15, 17, figure 6), tried on a pair: docs/figures/paper-ouroboros.md.

    python research/paper_ouroboros.py --prompts data/eval --work build/ouroboros --out docs/figures/paper-ouroboros.md

Each row begins every reply with an empty pool; those with history keep theirs. All have fixed trees with the same
hyper-parameters, which leave no part out, but for the row `as chosen`: it has those that a search finds for this pair on this
machine, and decides by itself what pays. What is measured is kept in `--work`, so a run that was stopped goes on.
"""

import argparse
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiment import GREEDY, Bench, about, always, begun, kept, named, parser, parts
from figures import difference, figure, length, table, told

from localspec.bench import prompts
from localspec.bench.turns import in_turns
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.sampling import Sampling
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters
from localspec.drafters.lookahead import Lookahead
from localspec.drafters.ouroboros import Pair, draft_model, ouroboros
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
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
COMPARED = ["speculative", "lookahead", "+ phrases beside the draft", "as chosen"]
CHOSEN = Hyperparameters(draft=4, window=3, phrase=4, phrases=3)
DRAFTS, PHRASE = (1, 2, 4, 7), (3, 5, 7)  # γ and β of the grid
LENGTHS, TEMPERATURES = (64, 128, 256), (0.0, 0.5, 1.0)

Rows = dict[str, list[dict[str, Any]]]


@dataclass
class Pairing:
    """The pair, loaded, and where phrases of earlier replies are kept."""

    bench: Bench
    asked: argparse.Namespace
    folder: Path
    at_the_end: ExitStack
    histories: dict[str, tuple[Store, int]] = field(default_factory=dict)

    def history(self, name: str) -> tuple[Store, int]:
        """Return a store of this name and its pool."""
        if name not in self.histories:
            file = self.folder / f"{len(self.histories)}.db"
            store = self.at_the_end.enter_context(Store.open(file, print))
            number = store.phrases.pool("table", name)
            assert number is not None
            self.histories[name] = store, number
        return self.histories[name]

    def replies(
        self,
        rows: Iterable[str],
        questions: Sequence[prompts.BenchPrompt],
        title: str,
        sampling: Sampling = GREEDY,
        most: int = 0,
        chosen: Hyperparameters = CHOSEN,
    ) -> Rows:
        """Return the replies of each row to all questions, the rows in turn; kept by this title."""
        bench = replace(self.bench, max_tokens=most or self.bench.max_tokens).on(questions)

        def measured() -> Rows:
            found: Rows = {row: [] for row in rows}
            for turn, row in in_turns(list(found), len(bench.asked)):
                said = self._reply(bench, turn, row, f"{title} {row}", sampling, chosen)
                found[row].append({**said, "task": bench.asked[turn].category})
            return found

        return dict(kept(self.asked.work / f"{named(title)}.json", measured))

    def _reply(
        self, bench: Bench, number: int, row: str, history: str, sampling: Sampling, chosen: Hyperparameters
    ) -> dict[str, Any]:
        """One reply with the parts of a row, which goes on with the `history` of that name."""
        engine, parts_ = bench.engine, PARTS[row]
        store, pool_id = self.history(history) if "h" in parts_ else (None, 0)
        target = engine.target
        pool = PhrasePool(
            target.special_tokens,
            partial(store.phrases.look_up, pool_id) if store else None,
            target.vocab_size,
            text="t" in parts_,
            verification="v" in parts_,
        )
        auto = "*" in parts_
        drafter = _drafter(engine, parts_, engine.hyperparameters if auto else chosen, pool)
        nodes = chosen.draft + chosen.phrases * (chosen.phrase - 1) if parts_ else 0
        budget = Budget(engine.choice.nodes, engine.costs) if auto else Budget(nodes)
        said = bench.reply(number, always(drafter), budget, sampling)
        if store:
            prompt = len(pool.tokens) - len(said["ids"])
            store.phrases.learn(pool_id, *pool.harvest(prompt))
        return {**said, "forwards": forwards(drafter)}


def _drafter(engine: Any, parts_: str, chosen: Hyperparameters, pool: PhrasePool) -> Drafter:
    """Return what these parts make of the pair; costs are known to what is chosen for this machine alone."""
    target = engine.target
    pair = Pair(target.special_tokens, target.vocab_size, engine.draft_model.target, pool)
    costs = engine.draft_model.costs if "*" in parts_ else None
    if "d" in parts_ and "l" in parts_:
        named_ = {"a": "accelerating", "l": "lengthening", "b": "beside"}
        return ouroboros(pair, chosen, costs, False, [name for part, name in named_.items() if part in parts_])
    if "d" in parts_:
        return draft_model(pair, chosen, "a" in parts_, costs, False)
    if not parts_:
        return Autoregressive()
    inner = Lookahead(pool, target.special_tokens, 4, chosen.phrase) if "w" in parts_ else Autoregressive()
    return WithPhrases(inner, pool)


def forwards(drafter: Drafter) -> int:
    """How many the draft model made, that of the prompt among them."""
    inner = drafter.inner if isinstance(drafter, WithPhrases) else drafter
    return sum(inner.forwards.values()) if isinstance(inner, DraftModel) else 0


def questions_of(place: Path, task: str, count: int) -> list[prompts.BenchPrompt]:
    """So many prompts of a task."""
    file, category = TASKS[task]
    found = [prompt for prompt in prompts.read(place / f"{file}.jsonl") if prompt.category == category]
    return [replace(prompt, category=task) for prompt in found[:count]]


def efficiency(replies: Sequence[Mapping[str, Any]]) -> float:
    """Block efficiency (appendix C, table 13): tokens a forward, that of the prompt and its token counted."""
    return float(sum(len(reply["ids"]) for reply in replies) / sum(reply["steps"] + 1 for reply in replies))


def table_4(pairing: Pairing, tasks: Mapping[str, list[prompts.BenchPrompt]]) -> str:
    """Return the parts one by one, over all tasks and by task."""
    found = pairing.replies(PARTS, [one for own in tasks.values() for one in own], "parts")
    heads = ["", "tokens a step", "ahead of the row above", "block efficiency", "draft forwards a step"]
    lines, by_task, above = [], [], ""
    for row, replies in found.items():
        compared = row.startswith("+")
        steps = max(sum(reply["steps"] for reply in replies), 1)
        made = sum(reply["forwards"] for reply in replies)
        ahead = told(difference([replies], [found[above]])) if compared else ""
        lines.append(
            [row, told(length([replies])), ahead, figure(efficiency(replies)), figure(made / steps if made else None)]
        )
        own = {task: [reply for reply in replies if reply["task"] == task] for task in tasks}
        by_task.append([row, *(figure(length([some]).value) if some else "" for some in own.values())])
        above = row
    same = all(
        [reply["ids"] for reply in replies] == [reply["ids"] for reply in found["plain"]] for replies in found.values()
    )
    end = f"Tokens the same as plain decoding's in every reply: {'yes' if same else 'no'}."
    return "\n\n".join([table(heads, lines), "By task:", table(["", *tasks], by_task), end])


def grid(pairing: Pairing, questions: Sequence[prompts.BenchPrompt]) -> str:
    """Tokens a step (draft forwards a step) by γ and β: how long drafts and phrases should be."""
    lines = []
    for draft in DRAFTS:
        cells = []
        for phrase in PHRASE:
            chosen = replace(CHOSEN, draft=draft, phrase=phrase)
            row = "+ phrases beside the draft"
            found = pairing.replies([row], questions, f"grid-{draft}-{phrase}", chosen=chosen)[row]
            made = sum(reply["forwards"] for reply in found) / max(sum(reply["steps"] for reply in found), 1)
            cells.append(f"{told(length([found]))} ({made:.2f})")
        lines.append([f"γ = {draft}", *cells])
    return table(["", *(f"β = {phrase}" for phrase in PHRASE)], lines)


def sampled(pairing: Pairing, questions: Sequence[prompts.BenchPrompt]) -> str:
    """Tokens a step by temperature, top-p 0.8."""
    lines: dict[str, list[str]] = {row: [] for row in COMPARED}
    for temperature in TEMPERATURES:
        by_seed = []
        for seed in pairing.asked.seeds if temperature else pairing.asked.seeds[:1]:
            sampling = Sampling(temperature, top_p=0.8, seed=seed) if temperature else GREEDY
            by_seed.append(pairing.replies(COMPARED, questions, f"sampling-{temperature}-{seed}", sampling))
        for row in COMPARED:
            lines[row].append(told(length([found[row] for found in by_seed])))
    heads = ["", *(f"temperature {temperature:g}" for temperature in TEMPERATURES)]
    return table(heads, [[row, *cells] for row, cells in lines.items()])


def lengths(pairing: Pairing, asked: argparse.Namespace) -> str:
    """Tokens a step by the tokens of a reply."""
    long = prompts.read(asked.prompts / "long_continue.jsonl")[: max(asked.limit // 3, 1)]
    sizes = [asked.max_tokens, 2 * asked.max_tokens] if asked.smoke else LENGTHS
    found = {most: pairing.replies(COMPARED, long, f"length-{most}", most=most) for most in sizes}
    rows = [[row, *(told(length([found[most][row]])) for most in sizes)] for row in COMPARED]
    return table(["", *map(str, sizes)], rows)


def locality(pairing: Pairing, tasks: Mapping[str, list[prompts.BenchPrompt]]) -> str:
    """Return the same prompts of four tasks in another order: so many of one task one after the other."""
    four = [tasks[task][:20] for task in ("code", "mathematics", "summarisation", "translation")]
    whole = [question for own in four for question in own]
    most = max(map(len, four))
    orders = {
        f"{run} of a task in a row": [
            one for start in range(0, most, run) for own in four for one in own[start : start + run]
        ]
        for run in (20, 10, 4, 1)
    }
    orders["shuffled"] = random.Random(17).sample(whole, len(whole))
    rows, lines = ["+ phrases from verification", "+ history"], []
    for name, order in orders.items():
        found = pairing.replies(rows, order, f"locality {name}")
        without, with_history = ([found[row]] for row in rows)
        lines.append([name, told(length(without)), told(length(with_history)), told(difference(with_history, without))])
    return table(["order", "without history", "with history", "what history brings"], lines)


def by_phrases(pairing: Pairing, questions: Sequence[prompts.BenchPrompt]) -> str:
    """K from 1 to 5, without history, as in the paper."""
    row, lines = "+ phrases from verification", []
    for count in (1, 2, 3, 4, 5):
        chosen = replace(CHOSEN, phrases=count)
        found = pairing.replies([row], questions, f"phrases-{count}", chosen=chosen)[row]
        lines.append([str(count), told(length([found]))])
    return table(["K", "tokens a step"], lines)


def letters(chosen: Hyperparameters) -> str:
    """By the letters of the paper."""
    return f"γ = {chosen.draft}, W = {chosen.window}, β = {chosen.phrase}, K = {chosen.phrases}"


def main(given: Sequence[str] | None = None) -> None:
    made = parser(__doc__, trains=False)
    made.add_argument("--draft", default="", help="the draft model; by default the one the model has")
    asked = begun(made, given)
    with TemporaryDirectory() as place, ExitStack() as at_the_end:
        name = f"ouroboros:{asked.draft}" if asked.draft else "ouroboros"
        bench = Bench.of(asked, at_the_end, drafter=name)
        # a search goes by what forwards take at the moment: a run that goes on keeps what the first one found
        chosen = Hyperparameters.from_json(kept(asked.work / "chosen.json", bench.engine.hyperparameters.as_json))
        assert chosen is not None
        bench.engine.hyperparameters = chosen
        pairing = Pairing(bench, asked, Path(place), at_the_end)
        tasks = {task: questions_of(asked.prompts, task, asked.limit) for task in TASKS}
        some = [one for task in ("mathematics", "summarisation", "translation") for one in tasks[task]]
        sections = {
            "Table 4 and table 13: the parts, greedy": partial(table_4, pairing, tasks),
            "Table 10: how long drafts and phrases are": partial(grid, pairing, tasks["code"]),
            "Table 3: sampling, top-p 0.8": partial(sampled, pairing, some),
            "Table 15: lengths of replies": partial(lengths, pairing, asked),
            "Table 17: context locality": partial(locality, pairing, tasks),
            "Figure 6: phrases behind a draft": partial(by_phrases, pairing, tasks["code"]),
        }
        more = (
            f" Prompts are so many of each task. {letters(CHOSEN)}; as chosen: {letters(bench.engine.hyperparameters)}."
        )
        head = f"# Ouroboros, part by part, with `{asked.model}`\n\n{about(asked, 'paper_ouroboros.py', more)}"
        parts(asked, head, sections)


if __name__ == "__main__":
    main()
