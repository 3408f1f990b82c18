"""Test the findings of Ouroboros' paper (tables 3, 4, 10, 13, 15, 17, figure 6) on a pair of models.

    python research/paper_ouroboros.py -m qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b --prompts data/eval --limit 20 \
        --seeds 0 --out build/ouroboros > page.md

The script only counts tokens per step and forwards of the draft model; published-speedups.md has the seconds of these
drafters. Each reply begins with an empty pool of phrases, except in rows with history. Draft trees have a fixed size.
Rows that learn nothing from refused drafts are decoded again from the saved text, without the target. Their counts are
the same.
"""

import argparse
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from experiment import GREEDY, NOT_RUN, Bench, OutOfTime, Reply, Rows, always, common, page, parser, positive
from figures import difference, figure, length, table, with_interval

from localspec.bench import prompts
from localspec.bench.prompts import BenchPrompt
from localspec.choosing.fit import CHUNK
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
SMALL = Hyperparameters(draft=4, window=3, phrase=4, phrases=3)
RECIPE = Hyperparameters(
    draft=7, window=15, phrase=5, phrases=3
)  # table 11, models that agree: the lower end of each range
# d: draft model, a: accelerated, l: lengthened, v: phrases from verification, h: history, t: the text itself, b: phrases
# at the root too, w: a window at the target
PARTS = {
    "speculative": ("d", SMALL),
    "+ accelerating drafting": ("da", SMALL),
    "+ lengthening drafts": ("dal", SMALL),
    "+ phrases from verification": ("dalv", SMALL),
    "+ history": ("dalvh", SMALL),
    "+ the text itself": ("dalvht", SMALL),
    "+ phrases at the root": ("dalvhtb", SMALL),
    "speculative, γ = 7": ("d", RECIPE),
    "the paper's recipe": ("dalv", RECIPE),
    "lookahead": ("w", SMALL),
    "phrases": ("lvt", SMALL),
}
LAST = [
    "+ history",
    "+ the text itself",
    "+ phrases at the root",
    "lookahead",
    "phrases",
    "the paper's recipe",
]  # these take longest
PAPER, OURS = "+ phrases from verification", "+ phrases at the root"
COMPARED = ["speculative", "lookahead", PAPER, OURS]
DRAFTS, PHRASE = (2, 4, 7, 10), (5, 7)  # γ and β of the grid
LENGTHS, TEMPERATURES = (64, 128, 256), (0.0, 0.5, 1.0)
TERMS = """

| word | means |
|---|---|
| block efficiency | tokens per step, if the pass that reads the prompt counts as a step, too (appendix C) |
| draft passes per step | passes of the draft model in a step |
| rows per pass | tokens that one pass of the draft model computes |
| γ | tokens that the draft model writes before its draft is lengthened |
| W | columns (width) of the window |
| β | length of a phrase in tokens |
| K | phrases that are tried after a draft |

Tables and figures have the paper's numbers."""


@dataclass
class Pairing:
    """A pair of models, the prompts of each task, and the phrases of earlier replies."""

    bench: Bench
    tasks: Mapping[str, list[BenchPrompt]]
    histories: dict[str, tuple[Store, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, bench: Bench) -> "Pairing":
        """Return the pair with `--limit` prompts of each of the `--tasks`."""
        options = bench.options
        return cls(bench, {task: questions_of(options.prompts, task, options.limit) for task in options.tasks})

    def history(self, name: str) -> tuple[Store, int]:
        """Return the store with the phrases of this name, and the number of their pool."""
        if name not in self.histories:
            file = self.bench.options.out / "phrases.db"
            store = self.bench.at_the_end.enter_context(Store.open(file, print))
            number = store.phrases.pool("table", name)
            assert number is not None
            self.histories[name] = store, number
        return self.histories[name]

    def replies(
        self,
        rows: Iterable[str],
        subset: Sequence[BenchPrompt],
        title: str,
        sampling: Sampling = GREEDY,
        most: int = 0,
        chosen: Hyperparameters | None = None,
    ) -> Rows:
        """Return the replies of each row of PARTS, for the prompts that all rows have answered."""

        def answer(prompt: BenchPrompt, row: str) -> Reply:
            letters_, default = PARTS[row]
            if "h" in letters_:
                return self._reply(prompt, letters_, chosen or default, f"{title} {row}", sampling, most)
            return self._shared(prompt, letters_, chosen or default, sampling, most)

        return self.bench.rows(title, list(rows), answer, subset)

    def across(self, rows: Sequence[str], settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Rows]:
        """Return the replies of each row with each of the settings, for the prompts that have all of these replies.

        A prompt is answered with all settings before the next prompt. Settings are arguments of `replies`, by title.
        """
        results: dict[str, Rows] = {title: {row: [] for row in rows} for title in settings}
        for prompt in in_turn(self.tasks.values()):
            here = {title: self.replies(rows, [prompt], title, **setting) for title, setting in settings.items()}
            if all(replies for by_row in here.values() for replies in by_row.values()):
                for title, by_row in here.items():
                    for row, replies in by_row.items():
                        results[title][row] += replies
        return results

    def _shared(
        self, prompt: BenchPrompt, letters_: str, chosen: Hyperparameters, sampling: Sampling, most: int
    ) -> Reply:
        """Return a reply of a row without history. It is the same in every table, so it is saved once for all."""
        most = most or self.bench.options.max_tokens
        settings = f"{letters_} {letters(chosen)} {sampling.temperature} {sampling.top_p} {sampling.seed} {most}"
        key = f"reply | {settings} | {prompt.category} {prompt.id}"
        reply = self.bench.results.of(key, lambda: self._reply(prompt, letters_, chosen, "", sampling, most))
        if reply is None:
            raise OutOfTime
        return dict(reply)

    def _reply(
        self, prompt: BenchPrompt, letters_: str, chosen: Hyperparameters, history: str, sampling: Sampling, most: int
    ) -> Reply:
        """Return a reply with some of PARTS, and count the draft model's forwards and rows after the prompt."""
        bench, target = self.bench, self.bench.engine.target
        store, pool_id = self.history(history) if "h" in letters_ else (None, 0)
        pool = PhrasePool(
            target.special_tokens,
            partial(store.phrases.look_up, pool_id) if store else None,
            target.vocab_size,
            text="t" in letters_,
            verification="v" in letters_,
        )
        drafter = self._drafter(letters_, chosen, pool)
        nodes = chosen.draft + chosen.phrases * (chosen.phrase - 1)
        replay = sampling.greedy and not set(letters_) & {"v", "w"}
        reply = bench.reply(prompt, always(drafter), Budget(nodes), sampling, most, replay=replay)
        if store and reply:
            store.phrases.learn(pool_id, *pool.harvest(len(pool.tokens) - len(reply["ids"])))
        inner = drafter.inner if isinstance(drafter, WithPhrases) else drafter
        if reply and isinstance(inner, DraftModel):
            read = len(bench.text(prompt, sampling, most)["prompt"]) + 1  # the first pick is read with the prompt
            forwards = inner.forwards.total() - -(-read // CHUNK)
            rows = sum(rows * times for rows, times in inner.forwards.items()) - read
            reply |= {"forwards": forwards, "forward_rows": rows}
        return reply

    def _drafter(self, letters_: str, chosen: Hyperparameters, pool: PhrasePool) -> Drafter:
        engine = self.bench.engine
        special = engine.target.special_tokens
        assert engine.draft_model is not None
        pair = Pair(special, engine.target.vocab_size, engine.draft_model.target, pool)
        if "d" in letters_ and "l" in letters_:
            names = {"a": "accelerating", "l": "lengthening", "b": "beside"}
            return ouroboros(pair, chosen, None, False, [name for part, name in names.items() if part in letters_])
        if "d" in letters_:
            return draft_model(pair, chosen, "a" in letters_, None, False)
        inner = Lookahead(pool, special, 5, chosen.phrase) if "w" in letters_ else Autoregressive()
        return WithPhrases(inner, pool)


def questions_of(folder: Path, task: str, count: int) -> list[BenchPrompt]:
    """Return the first `count` prompts of a task."""
    file, category = TASKS[task]
    chosen = [prompt for prompt in prompts.read(folder / f"{file}.jsonl") if prompt.category == category]
    return [replace(prompt, category=task) for prompt in chosen[:count]]


def in_turn(tasks: Iterable[Sequence[BenchPrompt]], run: int = 1) -> list[BenchPrompt]:
    """Return the prompts of all tasks in turn: `run` prompts of one task, then `run` of the next."""
    parts = [[task[start : start + run] for start in range(0, len(task), run)] for task in tasks]
    return [prompt for turn in zip_longest(*parts, fillvalue=[]) for part in turn for prompt in part]


def table_4(pairing: Pairing) -> str:
    """Return the table of the parts of Ouroboros, added one by one, by task, and with block efficiency (table 13)."""
    order = in_turn(pairing.tasks.values())
    rows = pairing.replies([row for row in PARTS if row not in LAST], order, "parts")
    rows |= pairing.replies(LAST, order, "parts")
    heads = ["", "prompts", "tokens per step", "more than the row above", "block efficiency"]
    heads += ["draft passes per step", "rows per pass", *(f"tokens per step, {task}" for task in pairing.tasks)]
    lines, notes, above = [], list[str](), ""
    for row in PARTS:
        if not (replies := rows[row]):
            lines.append([row, NOT_RUN, *[""] * (len(heads) - 2)])
            continue
        ahead = ""
        if row.startswith("+") or row == "the paper's recipe":
            both = common([replies], [rows[above]])
            ahead = with_interval(difference(*both))
            if len(replies) != len(rows[above]):
                values = " and ".join(figure(length(side).value) for side in both)
                notes.append(
                    f"- *{row}*: on the {len(both[0][0])} prompts of both rows, it and the row above have {values}."
                )
        tokens, steps = (sum(reply[name] for reply in replies) for name in ("tokens", "steps"))
        # as in appendix C, the forward that reads the prompt counts, and so does its token
        line = [
            row,
            str(len(replies)),
            with_interval(length([replies])),
            ahead,
            figure((tokens + len(replies)) / (steps + len(replies))),
        ]
        line += [figure(value) for value in drafting(replies)]
        by_task = [[reply for reply in replies if reply["task"] == task] for task in pairing.tasks]
        lines.append([*line, *(figure(length([group]).value) if group else NOT_RUN for group in by_task)])
        above = row
    columns = (
        "Each row is a way of drafting. *Speculative* has the draft model without Ouroboros. *Lookahead* and *phrases* have no draft "
        "model. A row that begins with + adds one part to the row above. More tokens per step are better, and so are fewer passes and rows. "
        f"All rows have {letters(SMALL)}, except *speculative, γ = {RECIPE.draft}* and the paper's recipe ({letters(RECIPE)})."
    )
    if notes:
        columns += " *More than the row above* compares the prompts that both rows have:\n\n" + "\n".join(notes)
    return f"{columns}\n\n{table(heads, lines)}"


def drafting(replies: Sequence[Reply]) -> tuple[float | None, float | None]:
    """Return the draft model's forwards per step, and the rows (tokens) of each; None without a draft model."""
    if "forwards" not in replies[0]:
        return None, None
    forwards, rows, steps = (sum(reply[name] for reply in replies) for name in ("forwards", "forward_rows", "steps"))
    return forwards / max(steps, 1), rows / max(forwards, 1)


def cell(replies: Sequence[Reply]) -> str:
    """Return a table cell: tokens per step, with the draft model's forwards per step in brackets."""
    if not replies:
        return NOT_RUN
    forwards, _ = drafting(replies)
    return with_interval(length([replies])) + ("" if forwards is None else f" ({forwards:.2f})")


def grid(pairing: Pairing) -> str:
    """Return a table of tokens per step (draft forwards per step) by the length of drafts (γ) and of phrases (β)."""
    settings = {
        f"grid {draft} {phrase}": {"chosen": replace(SMALL, draft=draft, phrase=phrase)}
        for draft in DRAFTS
        for phrase in PHRASE
    }
    by_title = {title: rows[PAPER] for title, rows in pairing.across([PAPER], settings).items()}
    lines = [[f"γ = {draft}", *(cell(by_title[f"grid {draft} {phrase}"]) for phrase in PHRASE)] for draft in DRAFTS]
    columns = (
        "Rows are lengths of drafts (γ), columns lengths of phrases (β), with the same parts. Cells have the tokens per "
        "step, and in round brackets the draft passes per step.\n\n"
    )
    heads = ["", *(f"β = {phrase}" for phrase in PHRASE)]
    return columns + table(heads, lines) + prompts_of(next(iter(by_title.values())))


def sampled(pairing: Pairing) -> str:
    """Return a table of tokens per step by temperature, with top-p 0.8."""
    seeds = {temperature: pairing.bench.options.seeds if temperature else (0,) for temperature in TEMPERATURES}
    settings = {
        f"sampling {temperature} {seed}": {
            "sampling": Sampling(temperature, top_p=0.8, seed=seed) if temperature else GREEDY
        }
        for temperature, values in seeds.items()
        for seed in values
    }
    results = pairing.across(COMPARED, settings)
    lines = []
    for row in COMPARED:
        runs = [
            [results[f"sampling {temperature} {seed}"][row] for seed in values] for temperature, values in seeds.items()
        ]
        lines.append([row, *(with_interval(length(run)) if run[0] else NOT_RUN for run in runs)])
    heads = ["", *(f"temperature {temperature:g}" for temperature in TEMPERATURES)]
    columns = "Rows are ways of drafting, as in table 4. Cells have the tokens per step.\n\n"
    return columns + table(heads, lines) + prompts_of(next(iter(results.values()))[PAPER])


def lengths(pairing: Pairing) -> str:
    """Return a table of tokens per step by the largest number of tokens in a reply."""
    results = pairing.across(COMPARED, {f"length {most}": {"most": most} for most in LENGTHS})
    lines = [[row, *(cell(rows[row]) for rows in results.values())] for row in COMPARED]
    return table(["", *map(str, LENGTHS)], lines) + prompts_of(next(iter(results.values()))[PAPER])


def locality(pairing: Pairing) -> str:
    """Return a table that shows what the phrases of earlier replies bring, for the same prompts in several orders."""
    most = pairing.bench.options.in_order
    four = [task[:most] for task in pairing.tasks.values()]
    orders = {f"{run} of a task in a row": in_turn(four, run) for run in (most, most // 2, most // 5, 1)}
    whole = in_turn(four)
    orders["shuffled"] = random.Random(17).sample(whole, len(whole))
    lines = []
    for name, order in orders.items():
        rows = list(pairing.replies([PAPER, "+ history"], order, f"locality {most} {name}").values())
        without, with_history = ([replies] for replies in rows)
        ahead = with_interval(difference(with_history, without)) if rows[0] else ""
        lines.append([name, *map(cell, rows), ahead])
    return table(["order", "without history", "with history", "what history brings"], lines)


def by_phrases(pairing: Pairing) -> str:
    """Return a table of tokens per step by K, the phrases after a draft. As in the paper, there is no history."""
    counts = (1, 2, 3, 4, 5)
    results = pairing.across(
        [PAPER], {f"phrases {count}": {"chosen": replace(SMALL, phrases=count)} for count in counts}
    )
    rows = [by_row[PAPER] for by_row in results.values()]
    lines = [[f"K = {count}", cell(replies)] for count, replies in zip(counts, rows, strict=True)]
    columns = (
        f"The rows differ in the number of phrases (K). Drafts have all parts up to *{PAPER.removeprefix('+ ')}*.\n\n"
    )
    return columns + table(["", "tokens per step (draft passes per step)"], lines) + prompts_of(rows[0])


def prompts_of(replies: Sequence[Reply]) -> str:
    """Return a paragraph that says how many prompts a table has."""
    return f"\n\n{len(replies)} prompts." if replies else ""


def letters(chosen: Hyperparameters) -> str:
    """Return hyperparameters as text, with the letters of the paper."""
    return f"γ = {chosen.draft}, W = {chosen.window}, β = {chosen.phrase}, K = {chosen.phrases}"


def sections(bench: Bench) -> dict[str, partial[str]]:
    """Return the parts of the page by title, as functions that make them."""
    pairing = Pairing.of(bench)
    return {
        "Table 4 and table 13: the parts, greedy": partial(table_4, pairing),
        "Figure 6: phrases after a draft": partial(by_phrases, pairing),
        "Table 10: length of drafts and phrases": partial(grid, pairing),
        "Table 3: sampling, top-p 0.8": partial(sampled, pairing),
        "Table 15: length of replies": partial(lengths, pairing),
        "Table 17: context locality": partial(locality, pairing),
    }


def main(argv: Sequence[str] | None = None) -> None:
    arg_parser = parser(__doc__, trains=False)
    arg_parser.add_argument("--draft", default="", help="the draft model; by default the one that `show` names")
    arg_parser.add_argument(
        "--in-order", type=positive, default=20, help="prompts of each task for table 17, at least 5"
    )
    arg_parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["code", "mathematics"])

    def drafter(options: argparse.Namespace) -> dict[str, str]:
        return {"drafter": f"ouroboros:{options.draft}" if options.draft else "ouroboros"}

    more = f" The tasks are *code* (HumanEval) and *mathematics* (GSM8K), with at most `--limit` prompts each.{TERMS}"
    page(arg_parser, "Ouroboros, part by part", "paper_ouroboros.py", sections, argv, drafter, more)


if __name__ == "__main__":
    main()
