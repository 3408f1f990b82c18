"""Write the page on the speedups of `auto` and of each drafter on published models, from saved replies."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from statistics import fmean
from typing import Any

import numpy as np
from figures import DRAWS, figure, table
from side_by_side import DISTURBED, LEAST, PLAIN, Turns, interval, length, speedup, total, worth

AUTO = "auto"
FIRST = "auto, first reply"
LLAMA_CPP = "llama.cpp"
AIMS = {"code": 1.6, "chat": 1.4, "editing": 1.9, "JSON": 1.7}  # × plain decoding, of `auto` on the pair, greedy
BY = {"memory": "by M", "speed": "by speed"}  # the rules by which `auto` chooses
NEARLY = 0.95  # of the best: `auto` is as good
AIM_AHEAD = 2.2  # × llama.cpp's best setting, the geometric mean of all kinds of text

Line = Mapping[str, Any]
Kinds = dict[str, list[dict[str, Any]]]  # by kind of text, the turns: one for each prompt, with a reply of each variant


def page(lines: Sequence[Line], machine: str) -> str:
    """Return the page of all saved replies, which were written on this machine."""
    parts = ["# What drafting is worth on published models", about(lines, machine)]
    for model in dict.fromkeys(line["model"] for line in lines):
        for temperature in sorted({line["temperature"] for line in lines if line["model"] == model}):
            chosen = [line for line in lines if (line["model"], line["temperature"]) == (model, temperature)]
            kinds = by_kind(chosen)
            if any(kinds.values()):
                sampling = "greedy" if temperature == 0 else f"temperature {temperature}"
                parts += [f"## `{model}`, {sampling}", *section(kinds, chosen, AIMS if temperature == 0 else {})]
    return "\n\n".join(parts) + "\n"


def about(lines: Sequence[Line], machine: str) -> str:
    days = sorted({date.fromtimestamp(line["taken"]).isoformat() for line in lines})
    disturbed = sum(line["others"] > DISTURBED for line in lines)
    stolen = sum(line["stolen"] for line in lines)
    localspec_lines = [line for line in lines if not line["variant"].startswith(LLAMA_CPP)]
    return (
        f"Made by `research/pair_speedups.py` on {machine}, {' and '.join(days)}, from {len(lines):,} replies.\n\n"
        f"- **The same text.** All {len(localspec_lines):,} replies of localspec have the text of plain decoding. (The program stops at the first difference.)\n"
        f"- **Turns.** All variants answer a prompt at the same time, in turns: one computes for about a twentieth of a second, "
        f"then the next. None uses phrases of earlier replies. llama.cpp answers after them.\n"
        f"- **Left out** are replies of fewer than {LEAST} tokens, and *disturbed* replies. During these, other programs or the host of the "
        f"virtual machine took more than {DISTURBED} of a core. Disturbed replies: {disturbed or 'none'}. The host took {stolen / 100:.1f} s in all.\n"
        f"- **Variants.** `none` is plain decoding. `auto` chooses by measured times, and by how many drafted tokens were right in earlier replies. `{FIRST}` "
        f"knows neither, as just after an import. In all other variants the program names the drafter.\n"
        f"- **Tables of ×.** A row is a variant. A column is a kind of text, with the number of its prompts: `code (6)` has six. "
        f"Each cell has the × (time of plain decoding ÷ time of the variant) over all these prompts; larger is better, and below 1 drafts are a loss. "
        f"Square brackets hold 95 % bounds, from {DRAWS} bootstrap samples of prompts. Round brackets hold the tokens that a "
        f"step adds on average, and in the row `{PLAIN}` the tokens/s. The last column is the geometric mean of the kinds."
    )


# -- what was measured -------------------------------------------------------------------------------------------------


def by_kind(lines: Sequence[Line]) -> Kinds:
    """Return the undisturbed replies by kind of text. Replies that were written side by side are one turn."""
    together: dict[tuple[str, str, int], dict[str, Line]] = {}
    for line in lines:
        if line["others"] <= DISTURBED:
            together.setdefault((line["kind"], line["prompt"], line["turn"]), {})[line["variant"]] = line
    kinds: Kinds = {}
    for (kind, _, _), replies in together.items():
        if PLAIN in replies and len(replies[PLAIN]["ids"]) >= LEAST:
            kinds.setdefault(kind, []).append({"replies": replies})
    return kinds


def both(turns: Turns, *names: str) -> list[Mapping[str, Any]]:
    """Return the turns that have replies of all variants in `names`."""
    return [turn for turn in turns if all(name in turn["replies"] for name in names)]


def mean(kinds: Kinds, above: str, below: str = PLAIN) -> tuple[float, float, float]:
    """Return the speedup of `above` over `below`: the geometric mean over all kinds of text, with its 95 % bounds."""
    random, logs, drawn = np.random.default_rng(0), list[float](), list[Any]()
    for turns in kinds.values():
        if common := both(turns, above, below):
            pace = np.array([[pace_of(turn["replies"][name]) for name in (below, above)] for turn in common])
            chosen = random.integers(len(pace), size=(DRAWS, len(pace)))
            seconds, counted = pace[..., 0], pace[..., 1]
            logs.append(float(np.log(ratio(seconds, counted))))
            drawn.append(np.log(ratio(seconds[chosen], counted[chosen])))
    if not logs:
        return (float("nan"),) * 3
    low, high = np.percentile(np.mean(drawn, axis=0), (2.5, 97.5))
    return float(np.exp(np.mean(logs))), float(np.exp(low)), float(np.exp(high))


def pace_of(reply: Mapping[str, Any]) -> tuple[float, float]:
    return reply["seconds"], reply["tokens"]


def ratio(seconds: Any, counted: Any) -> Any:
    """Return the first variant's seconds per token divided by the second's. The arrays are [..., prompts, 2]."""
    each = seconds.sum(-2) / counted.sum(-2) if seconds.ndim > 2 else seconds.sum(0) / counted.sum(0)
    return each[..., 0] / each[..., 1]


# -- tables ------------------------------------------------------------------------------------------------------------


def section(kinds: Kinds, lines: Sequence[Line], aims: Mapping[str, float]) -> Iterator[str]:
    """Yield the tables of one model at one temperature. `aims` are the wanted speedups by kind of text."""
    names = list(dict.fromkeys(line["variant"] for line in lines))
    variants = [name for name in names if not name.startswith(LLAMA_CPP)]
    heads = [f"{kind} ({len(both(turns, AUTO))})" for kind, turns in kinds.items()]
    precision = next((line["precision"] for line in lines if "precision" in line), "")
    yield f"The model's weights are {'used as the GGUF file stores them' if precision == 'blocks' else f'in {precision}'}."
    rows = []
    for name in sorted(variants, key=lambda name: -mean(kinds, name)[0]):
        cells = [of_kind(both(turns, name, PLAIN), name) for turns in kinds.values()]
        rows.append([name, *cells, "{:.2f} [{:.2f}, {:.2f}]".format(*mean(kinds, name))])
    yield table(["×", *heads, "mean"], rows)
    yield choices_of_auto(lines)
    compared = any(name not in (AUTO, FIRST, PLAIN) for name in variants)
    if compared:
        yield from judged(kinds, variants, aims if "draft_model" in variants else {})
    if any(name.startswith(LLAMA_CPP) for name in names):
        yield from beside_llama_cpp(kinds, names)
    if compared and any("scarce" in line for line in lines):
        yield from scarce(kinds, variants, lines)


def of_kind(turns: Turns, name: str) -> str:
    if not turns:
        return ""
    if name == PLAIN:
        return f"1 ({total(turns, name, 'tokens') / total(turns, name, 'seconds'):.1f} tokens/s)"
    low, high = interval(turns, name)
    return f"{speedup(turns, name):.2f} [{low:.2f}, {high:.2f}] ({length(turns, name):.1f})"


def choices_of_auto(lines: Sequence[Line]) -> str:
    sentences = []
    for name in (AUTO, FIRST):
        counted = Counter(line["drafter"] for line in lines if line["variant"] == name)
        if counted:
            counts = ", ".join(f"`{drafter}` in {times}" for drafter, times in counted.most_common())
            sentences.append(f"`{name}` chose {counts} of {counted.total()} replies.")
    return " ".join(sentences)


def judged(kinds: Kinds, variants: Sequence[str], aims: Mapping[str, float]) -> Iterator[str]:
    """Yield a table that compares `auto` with the best drafter of each kind of text, and with the aims."""
    rows = []
    named = [name for name in variants if name not in (AUTO, FIRST)]
    for kind, turns in kinds.items():
        for name in (AUTO, FIRST):
            if not (common := both(turns, name, PLAIN)):
                continue
            speedups = {
                other: speedup(both(turns, other, PLAIN), other) for other in named if both(turns, other, PLAIN)
            }
            best, gain = max(speedups, key=speedups.__getitem__), speedup(common, name)
            near, aim = gain >= NEARLY * speedups[best], aims.get(kind, 0) if name == AUTO else 0
            short = gain < aim
            cells = [kind, f"`{name}`", f"{gain:.2f}", f"`{best}` {speedups[best]:.2f}", "yes" if near else "no"]
            cells += [f"{aim}, {'missed' if short else 'reached'}" if aim else ""] if aims else []
            why = f"{arithmetic(common, name)}; the best {arithmetic(both(turns, best, PLAIN), best)}"
            rows.append([*cells, "" if near and not short else why])
    if rows:
        yield (
            "The next table compares `auto` with the fastest drafter that was named. A row is a kind of text and a variant of `auto`. Where `auto` is more than 5 % slower"
            f"{' or misses an aim' if aims else ''}, the last column explains both speedups: × = tokens per step ÷ time of a step. "
            "This time is the sum of three: the model's pass over the draft, the drafting, and the rest. A plain step takes 1."
        )
        heads = [
            "text",
            "variant",
            "its ×",
            "fastest drafter, its ×",
            "at most 5 % slower",
            *(["aim for `auto`"] if aims else []),
            "why",
        ]
        yield table(heads, rows)


def arithmetic(turns: Turns, name: str) -> str:
    """Return the equation: tokens per step ÷ (forward + draft + rest of a step) = speedup. Times are in plain steps."""
    unit = total(turns, PLAIN, "seconds") / total(turns, PLAIN, "steps") * total(turns, name, "steps")
    verify, draft, whole = (total(turns, name, key) / unit for key in ("verify", "draft", "seconds"))
    rest = whole - verify - draft
    return f"{length(turns, name):.2f} ÷ ({verify:.2f} + {draft:.2f} + {rest:.2f}) = {speedup(turns, name):.2f}"


def beside_llama_cpp(kinds: Kinds, names: Sequence[str]) -> Iterator[str]:
    """Yield a table of tokens/s of llama.cpp and localspec on the same files, and of the speedup over llama.cpp."""
    theirs = [name for name in names if name.startswith(LLAMA_CPP)]
    rows = []
    for name in (*theirs, PLAIN, AUTO):
        cells = []
        for turns in kinds.values():
            common = both(turns, name)
            pace = total(common, name, "tokens") / total(common, name, "seconds") if common else None
            cells.append(f"{figure(pace, '{:.1f}')} ({length(common, name):.1f})" if common else "")
        rows.append([name, *cells, ""])
    best_of: dict[str, str] = {}
    for kind, turns in kinds.items():
        paces = {
            name: total(common, name, "tokens") / total(common, name, "seconds")
            for name in theirs
            if (common := both(turns, name))
        }
        if paces:
            best_of[kind] = max(paces, key=paces.__getitem__)
    renamed = {
        kind: [
            {"replies": turn["replies"] | {LLAMA_CPP: turn["replies"][best_of[kind]]}} if best_of[kind] in turn["replies"]
            else turn for turn in turns
        ]
        for kind, turns in kinds.items() if kind in best_of
    }  # fmt: skip
    for name in (PLAIN, AUTO):
        cells = [
            "{:.2f} [{:.2f}, {:.2f}]".format(*mean({kind: turns}, name, LLAMA_CPP)) for kind, turns in renamed.items()
        ]
        rows.append(
            [f"{name} ÷ best of llama.cpp", *cells, "{:.2f} [{:.2f}, {:.2f}]".format(*mean(renamed, name, LLAMA_CPP))]
        )
    note = "The next table has the tokens/s of localspec (`none` and `auto`) and of llama.cpp on the same files, with tokens per step in round brackets. More is better. The last two rows divide localspec's tokens/s by those of llama.cpp, with 95 % bounds. Above 1 localspec is faster. For each kind of text they take the fastest setting of llama.cpp."
    if any("draft" in name for name in theirs):
        note += " In `draft 8, 0.6` a draft model drafts at most 8 tokens, and only tokens to which it gives a probability of at least 0.6. With `any` there is no such limit."
    yield note
    yield table(["tokens/s", *kinds, "mean"], rows)
    lead = mean(renamed, AUTO, LLAMA_CPP)[0]
    yield f"We wanted `auto` to be {AIM_AHEAD} times as fast as llama.cpp, in the mean of the kinds. This was {'reached' if lead >= AIM_AHEAD else 'missed'}: {lead:.2f}."


def expected(why: str) -> str:
    """Return a sentence with the predictions that `why`, the reason for a choice, has for two drafters."""
    choice = re.search(r": (\S+ tokens/s).*?, M (\S+)", why)
    other = re.search(r"; (\S+) would reach (\S+ tokens/s), M ([0-9.]+)(?:, and takes (.+))?$", why)
    sentence = f"Before the first reply it predicted {choice[1]} and an M of {choice[2]}" if choice else ""
    if choice and other:
        memory = f", an M of {other[3]} and {other[4]}" if other[4] else f" and an M of {other[3]}"
        sentence += f". For `{other[1]}` it predicted {other[2]}{memory}"
    return f"{sentence}." if sentence else ""


def scarce(kinds: Kinds, variants: Sequence[str], lines: Sequence[Line]) -> Iterator[str]:
    """Yield a table of M (speedup ÷ relative memory) by kind of text, and the choice of `auto` with little memory."""
    rows = []
    for name in [name for name in variants if name not in (AUTO, FIRST)]:
        cells = [
            figure(worth(common, name)) if (common := both(turns, name, PLAIN)) else "" for turns in kinds.values()
        ]
        all_turns = [turn for turns in kinds.values() for turn in both(turns, name, PLAIN)]
        relative = (
            fmean(turn["replies"][name]["bytes"] / turn["replies"][PLAIN]["bytes"] for turn in all_turns)
            if all_turns
            else None
        )
        rows.append([name, *cells, figure(relative)])
    counted = Counter((line["scarce"]["drafter"], line["scarce"]["rule"]) for line in lines if "scarce" in line)
    (first, _), _ = counted.most_common(1)[0]
    cells = []
    for turns in kinds.values():
        ms = {
            name: worth(common, name)
            for name in variants
            if name not in (AUTO, FIRST)
            if (common := both(turns, name, PLAIN))
        }
        best = max(ms, key=ms.__getitem__)
        cells.append(f"{ms[first] / ms[best]:.2f} (`{best}`)" if first in ms else "")
    rows.append([f"`{first}` ÷ the best (in brackets)", *cells, ""])
    why = next(line["scarce"]["why"] for line in lines if "scarce" in line and line["scarce"]["drafter"] == first)
    counts = ", ".join(f"`{drafter}` {BY[by]} in {times}" for (drafter, by), times in counted.most_common())
    yield (
        "The next table weighs speedup against memory. *Relative memory*, in the last column, is memory ÷ memory of plain "
        "decoding. M is × ÷ relative memory; larger is better. A row is a drafter. `auto` chooses the largest M where memory is "
        "short, and otherwise the fastest drafter. If free memory were only 1.6 times the model's size (`--scarce` sets this number), `auto` would choose "
        f"{counts} of {counted.total()} replies. {expected(why)} "
        "The last row divides the M of this choice by the best M of the column; 1.00 means that the choice was the best. "
        "Brackets name the drafter with the best M."
    )
    yield table(["M", *kinds, "relative memory"], rows)
