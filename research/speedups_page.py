"""Write the page of what drafters are worth: tables of measured replies, and the aims that were missed.

A run is what `speedups.py` keeps of a model at a temperature: its turns, one a prompt, with a reply of each drafter.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np
from figures import DRAWS, figure, table

PLAIN, AUTO, PHRASES = "none", "auto", "phrases"
LEAST = 8  # tokens of a reply that counts
NEARLY, HARMLESS = 0.95, 0.98  # of the best, and of plain decoding
KINDS = {
    "code": ("humaneval", "mbpp_test"),
    "sums": ("gsm8k_test",),
    "from the prompt": ("xquad_en", "long_continue", "flores_de_en"),
}  # files of prompts; all others are chat
OWN = "what it knows"
EVERY = ("chat", *KINDS, OWN)
# For the largest model and its best drafter: times the speed of plain decoding, by kind of text.
AIMS = {"chat": 1.8, "code": 2.2, "from the prompt": 2.2}
FORESEEN, CHOSEN = 0.8, 0.9  # the shares of predictions within 10 %, and of cells in which `auto` is nearly the best

Turns = Sequence[Mapping[str, Any]]

COLUMNS = f"""A *step* is one forward pass of the target; a *plain step* has no draft.

| column | is |
|---|---|
| τ | tokens per step |
| × | speedup: the time of plain decoding ÷ the time of the drafter, over all replies; in brackets the bounds of 95 % of {DRAWS} bootstrap samples of prompts |
| predicted | × that `auto` predicted before any reply, from timed forwards |
| then | × that it predicted for the second half of the prompts, after the first half |
| × then | × that was measured on the second half |
| M | × ÷ (memory ÷ memory of plain decoding) |
| draft, verify | time of the draft and of the forward in a step, in plain steps |
| switched off | replies in which the drafter stopped drafting, because it did not pay |

`none` is plain decoding, and `auto` the drafter that localspec chooses before any reply. Drafters that were switched off in most replies do not count among the predictions."""


def about(asked: argparse.Namespace) -> str:
    own = f"; {2 * asked.limit} of what the model knows" if asked.own else ""
    return (
        f"Made by `python research/speedups.py -m MODEL… --prompts DIR --limit {asked.limit} -n {asked.max_tokens} --work DIR "
        f"--out PAGE`{' with `--own FILE`' if asked.own else ''}.\n\n"
        f"- **Prompts.** At most {asked.limit} of each kind of text{own}.\n"
        "- **Kinds of text.** *Code* is HumanEval and MBPP, *sums* are the word problems of GSM8K, and *from the prompt* are "
        "XQuAD's questions about a given text, long texts to continue, and translations (FLORES, German to English). *What it "
        "knows* are held-out questions about what the model was trained for. All others are *chat*.\n"
        f"- **Replies** have at most {asked.max_tokens} tokens and end where the text repeats itself. Those of fewer than "
        f"{LEAST} tokens are left out. No phrases are known before a reply.\n"
        "- **Turns.** All drafters answer a prompt together, in turns of a twentieth of a second. Replies of less than a "
        f"quarter of a second are written up to ten times.\n\n{COLUMNS}"
    )


def section(run: Mapping[str, Any]) -> str:
    """One model at one temperature."""
    turns: Turns = run["turns"]
    rows = list(turns[0]["replies"])
    took = f" `auto` chose `{run['auto']}`." if run["auto"] else ""
    differing = sum(one["ids"] != turn["replies"][PLAIN]["ids"] for turn in turns for one in turn["replies"].values())
    told = [
        f"{len(turns)} prompts, {run['precision']}, {run['device']}, {run['threads']} threads; load average "
        f"{min(turn['load'] for turn in turns):.1f} to {max(turn['load'] for turn in turns):.1f}. Replies that differ from "
        f"plain decoding: {differing}.{took}"
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
    told.append("× by kind of text, with the number of prompts:")
    kinds = {kind: [turn for turn in turns if turn["category"] == kind] for kind in EVERY}
    kinds = {kind: some for kind, some in kinds.items() if some}
    heads = ["×", *(f"{kind} ({len(some)})" for kind, some in kinds.items())]
    told.append(table(heads, [[name, *(figure(speedup(some, name)) for some in kinds.values())] for name in rows]))
    return "\n\n".join([*told, *ahead_of_phrases(turns), verdict(run)])


def ahead_of_phrases(turns: Turns) -> Iterator[str]:
    """Yield the drafters that are faster than phrases only, at both bounds."""
    if PHRASES in turns[0]["replies"]:
        found = {name: (speedup(turns, name, PHRASES), *interval(turns, name, PHRASES)) for name in turns[0]["replies"]}
        clear = sorted(((one, name) for name, one in found.items() if round(one[1], 2) > 1), reverse=True)
        told = [f"`{name}` {ratio:.2f} [{low:.2f}, {high:.2f}]" for (ratio, low, high), name in clear]
        yield f"Faster than `{PHRASES}` with bounds above 1 (time of phrases ÷ time of the drafter, on the same prompts): {', '.join(told) or 'no drafter'}."


def overall(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return how well drafters were chosen and predicted, over all models, temperatures and kinds of text."""
    cells = cells_of(runs)
    at_first = [error for _, run in runs for error in errors_of(run).values()]
    anew = [error for _, run in runs for error in errors_of(later(run)).values()]
    within = [within for _, run in runs for within in inside(run)]
    said = (
        f"**Predictions and choices, over all tables.** Before any reply {near(at_first)} predictions are within 10 % of the "
        f"measured ×, and {sum(within)} are within its bounds. After half of the prompts {near(anew)} are within 10 % of the × of "
        f"the other half."
    )
    if not cells:
        return said
    right = sum(nearly_best(turns, AUTO) for _, turns in cells)
    after = [close for _, run in runs for close in close_ones(later(run))]
    worst, name = min((speedup(turns, AUTO), name) for name, turns in cells)
    below = sum(speedup(turns, AUTO) < HARMLESS for _, turns in cells)
    return (
        f"{said} A *cell* is a model, a temperature and a kind of text. `auto` was the best or within 5 % of the best in {right} "
        f"of {len(cells)} cells. It was slower than {HARMLESS} × in {below} of them; the lowest was {worst:.2f} ({name}). Its choice after "
        f"half of the prompts was the best or within 5 % of the best in {sum(after)} of {len(after)} cells of the other half."
    )


def cells_of(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Turns]]:
    """Return the cells in which `auto` was tried, with their names: a model, a temperature and a kind of text each."""
    cells = [
        (f"“{kind}”, {title}", [turn for turn in run["turns"] if turn["category"] == kind])
        for title, run in runs for kind in EVERY
    ]  # fmt: skip
    return [(name, turns) for name, turns in cells if turns and AUTO in turns[0]["replies"]]


def missed(runs: Sequence[tuple[str, Mapping[str, Any]]], of_largest: Sequence[str]) -> str:
    """Return a section of the missed aims with the arithmetic of their cells; empty if every aim was reached.

    `of_largest` are the titles of the largest model, whose best drafters have separate aims.
    """
    lines: list[str] = []
    for kind, aim in AIMS.items():
        for title in of_largest:
            turns = [turn for turn in dict(runs)[title]["turns"] if turn["category"] == kind]
            if turns and (best := fastest(turns))[0] < aim:
                tokens, price = length(turns, best[1]), cost(turns, best[1])
                lines.append(
                    f"{aim} × on “{kind}”, {title}: the best is {arithmetic(turns, best[1], aim)}. The aim needs "
                    f"{aim * price:.2f} tokens per step at that cost, or a cost of {tokens / aim:.2f}."
                )
    for title in of_largest:
        for kind in EVERY:
            turns = [turn for turn in dict(runs)[title]["turns"] if turn["category"] == kind]
            both = ("ouroboros", PHRASES)
            tried = turns and all(name in turns[0]["replies"] for name in both)
            if tried and speedup(turns, both[0]) < speedup(turns, both[1]):
                lines.append(
                    f"`ouroboros` faster than `phrases` on “{kind}”, {title}: {arithmetic(turns, both[0])}, and "
                    f"{arithmetic(turns, both[1])}."
                )
    cells = cells_of(runs)
    for name, cell in cells:
        if speedup(cell, AUTO) < HARMLESS:
            low, high = interval(cell, AUTO)
            off = sum(bool(turn["replies"][AUTO]["off"]) for turn in cell)
            lines.append(
                f"`auto` never below {HARMLESS} ×, {name}: {arithmetic(cell, AUTO)}, [{low:.2f}, {high:.2f}] over "
                f"{len(cell)} prompts; drafts were switched off in {off} of them."
            )
    wrong = [(name, cell) for name, cell in cells if not nearly_best(cell, AUTO)]
    if len(wrong) > (1 - CHOSEN) * len(cells):
        told = [
            f"{name} ({speedup(cell, AUTO):.2f}, and {fastest(cell)[0]:.2f} with `{fastest(cell)[1]}`)"
            for name, cell in wrong
        ]
        lines.append(
            f"`auto` the best or within 5 % of the best in {CHOSEN:.0%} of cells: it is in {len(cells) - len(wrong)} of "
            f"{len(cells)}. It is not in {'; '.join(told)}."
        )
    for when, some in (("before any reply", runs), ("after half of the prompts", [(t, later(r)) for t, r in runs])):
        errors = {title: errors_of(run) for title, run in some}
        every = [error for own in errors.values() for error in own.values()]
        if every and sum(abs(error) <= 0.1 for error in every) < FORESEEN * len(every):
            told = [
                f"{title}: {near(own.values())} (median {median(own.values()):+.0%})"
                for title, own in errors.items()
                if own
            ]
            lines.append(
                f"{FORESEEN:.0%} of predictions within 10 % {when}: {near(every)}, median error {median(every):+.0%}. By "
                f"model: {'; '.join(told)}."
            )
    if not lines:
        return ""
    head = "## Aims that were missed\n\nEach line begins with the aim. × is the tokens per step ÷ the cost of a step, in plain steps.\n\n"
    return head + "\n".join(f"- {line}" for line in lines)


def fastest(turns: Turns) -> tuple[float, str]:
    return max((speedup(turns, name), name) for name in turns[0]["replies"])


def length(turns: Turns, name: str) -> float:
    """Tokens a step."""
    return total(turns, name, "tokens") / total(turns, name, "steps")


def cost(turns: Turns, name: str) -> float:
    """Return the cost of a step, in units of plain decoding's time for a token."""
    return length(turns, name) / speedup(turns, name)


def arithmetic(turns: Turns, name: str, aim: float | None = None) -> str:
    """Return × and its parts, with a third digit where two would show a missed aim as reached."""
    found = speedup(turns, name)
    shown = f"{found:.2f}" if aim is None or f"{found:.2f}" != f"{aim:.2f}" else f"{found:.3f}"
    return f"`{name}` with {shown} ({length(turns, name):.2f} tokens per step ÷ {cost(turns, name):.2f})"


def later(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other half of a run's prompts, with the prediction and the choice before it."""
    return {"turns": [turn for turn in run["turns"] if turn["later"]], **run["then"]}


def errors_of(run: Mapping[str, Any]) -> dict[str, float]:
    """Return by how much each drafter's prediction was too high, as a share of the measurement."""
    return {name: run["predicted"][name] / speedup(run["turns"], name) - 1 for name in foreseen(run)}


def foreseen(run: Mapping[str, Any]) -> list[str]:
    """Return the drafters of which something was predicted, and which went on drafting."""
    turns: Turns = run["turns"]
    rows = [name for name in turns[0]["replies"] if name in run["predicted"] and name != PLAIN] if turns else []
    return [name for name in rows if 2 * sum(bool(turn["replies"][name]["off"]) for turn in turns) <= len(turns)]


def inside(run: Mapping[str, Any]) -> list[bool]:
    """Return, for each prediction, whether it is within the bounds of the measurement."""
    bounds = ((run["predicted"][name], interval(run["turns"], name)) for name in foreseen(run))
    return [low <= predicted <= high for predicted, (low, high) in bounds]


def near(errors: Iterable[float]) -> str:
    """Return how many of the errors are small, and how many there are, in words."""
    small = [abs(error) <= 0.1 for error in errors]
    return f"{sum(small)} of {len(small)}"


def nearly_best(turns: Turns, name: str) -> bool:
    best = max(speedup(turns, other) for other in turns[0]["replies"])
    return speedup(turns, name) >= NEARLY * best


def close_ones(run: Mapping[str, Any]) -> list[bool]:
    """Return, for each kind of text with `auto`, whether its choice was the best or nearly so."""
    kinds = ([turn for turn in run["turns"] if turn["category"] == kind] for kind in EVERY)
    return [nearly_best(some, run["auto"]) for some in kinds if some and run["auto"] in some[0]["replies"]]


def verdict(run: Mapping[str, Any]) -> str:
    """Return the errors of the predictions, and how often `auto` was the best or nearly so."""
    then = later(run)
    told = []
    for when, one in (("Before any reply", run), ("After half of the prompts", then)):
        errors, right = errors_of(one), close_ones(one)
        said = f"- **{when}**, {near(errors.values())} predictions are within 10 % of the measurement"
        said += f"; the median error is {median(errors.values()):+.0%}." if errors else "."
        if right:
            said += f" `auto` chooses `{one['auto']}`: the best or within 5 % of the best in {sum(right)} of {len(right)} kinds of text."
        told.append(said)
    return "\n".join(told)


def total(turns: Turns, name: str, what: str) -> float:
    return float(sum(turn["replies"][name][what] for turn in turns))


def speedup(turns: Turns, name: str, beside: str = PLAIN) -> float:
    return total(turns, beside, "seconds") / total(turns, name, "seconds")


def worth(turns: Turns, name: str) -> float:
    """M (S3D, eq. 13)."""
    held = fmean(turn["replies"][name]["bytes"] / turn["replies"][PLAIN]["bytes"] for turn in turns)
    return speedup(turns, name) / held


def interval(turns: Turns, name: str, beside: str = PLAIN) -> tuple[float, float]:
    """Return the bounds of a speedup by other prompts."""
    seconds = np.array([[turn["replies"][one]["seconds"] for one in (beside, name)] for turn in turns])
    drawn = seconds[np.random.default_rng(0).integers(len(seconds), size=(DRAWS, len(seconds)))].sum(1)
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], (2.5, 97.5))
    return float(low), float(high)
