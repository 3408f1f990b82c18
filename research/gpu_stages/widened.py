"""Stage d: every drafter on a model of billions of weights: speedup, tokens a step, memory, M; then by kinds of text.

Each first writes a few replies by itself, for its peak memory; then `speedups.py` lets all write side by side, for as long
as there is time.
"""

import gc
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from experiment import saved_json
from figures import figure, table
from side_by_side import PLAIN, interval, length, speedup, worth
from speedups import EVERY

from gpu_stages.aims import FASTER, LEAN, METHODS, Aim, failed
from gpu_stages.asked import Asked
from gpu_stages.children import GRACE, last_line, run_script
from gpu_stages.papers import S3D_OVER_ALL, S3D_ROWS
from gpu_stages.record import Record, TimeUp, failure
from gpu_stages.timing import peak_bytes, watch_peak
from gpu_stages.wide import parameters, precisions, prompts_place, questions_of, settings_of, wide_demo, without_phrases
from localspec import Done, Engine, Limits, Sampling, Statistics
from localspec.bench.prompts import message
from localspec.choosing.choose import choose
from localspec.models.registry import TargetCard
from localspec.store.store import Store

DRAFTERS = (
    PLAIN, "phrases", "s3d", "medusa", "eagle3", "parallelspec", "semi", "s3d+phrases", "medusa+phrases", "eagle3+phrases",
    "lookahead", "draft_model", "ouroboros", "layers",
)  # fmt: skip
SMALL_DRAFTERS = (PLAIN, "phrases", "medusa", "s3d")
TOKENS, REPLIES = 96, 12
SMALL_TOKENS, SMALL_REPLIES = 12, 1
LEAST = 15.0  # seconds for one drafter by itself
SEARCHED = ("draft_model", "ouroboros", "layers")  # drafters that search once how to draft
LEAST_SEARCHED = 60.0
SHARED = 60.0  # seconds that replies in turns need at least


def run(record: Record, asked: Asked) -> None:
    """Measure replies one by one in all precisions, then replies side by side, which share the time that is left."""
    card = wide_demo(asked)
    if "model" not in record.figures:
        record.keep("model", {"parameters": parameters(card), "factor": asked.width})
    for precision in precisions(asked):
        alone(record, asked, card, precision)
    waiting = [precision for precision in precisions(asked) if f"{precision} side by side" not in record.figures]
    for index, precision in enumerate(waiting):
        seconds = record.left / (len(waiting) - index) - GRACE
        side_by_side(record, asked, card, precision, seconds)


def drafters(asked: Asked) -> Sequence[str]:
    return SMALL_DRAFTERS if asked.small else DRAFTERS


# -- one by one --------------------------------------------------------------------------------------------------------


def alone(record: Record, asked: Asked, card: TargetCard, precision: str) -> None:
    """Run one drafter after the other on one target, so that each peak belongs to one drafter."""
    missing = [name for name in drafters(asked) if f"{precision} {name}" not in record.figures]
    if not missing:
        return
    with Store.open(asked.work / f"measured-{precision}.db", print) as store:
        engines: list[Engine] = []

        def plain() -> Engine:
            if not engines:
                choice = choose(card, without_phrases(settings_of(asked, precision), PLAIN))
                engines.append(Engine(choice, store=store, phrases="off", measured=True))
                replies(engines[0], asked)  # the first replies load kernels
            return engines[0]

        for name in missing:
            least = LEAST_SEARCHED if name in SEARCHED else LEAST
            make = partial(one_alone, plain, asked, card, precision, name, store)
            record.measured(f"{precision} {name}", make, least)
        engines.clear()
        gc.collect()


def one_alone(plain: Any, asked: Asked, card: TargetCard, precision: str, name: str, store: Store) -> dict[str, Any]:
    """Tokens/s, tokens a step and peak memory of one drafter."""
    first = plain()
    choice = choose(card, without_phrases(settings_of(asked, precision), name))
    watch_peak(asked.device)
    engine = first if name == PLAIN else Engine(choice, store=store, phrases="off", share_with=first, measured=True)
    loaded = peak_bytes(asked.device)
    if name != PLAIN:
        replies(engine, asked)  # these take longer, because steps are recorded
    watch_peak(asked.device)
    said = replies(engine, asked)
    told, held = [one for one in said if one.tokens_per_second], said[-1].memory
    return {
        "tokens_per_second": sum(len(one.token_ids) - 1 for one in told) / sum(one.decode_seconds for one in told),
        "length": fmean(one.acceptance_length for one in told),
        "peak": peak_bytes(asked.device) or held.target + held.drafter + held.cache,
        "loading": loaded, "drafter": held.drafter, "exactness": engine.exactness.bitwise,
        "ids": [list(one.token_ids) for one in said], "off": sum(bool(one.off_reason) for one in said),
        "load_seconds": engine.load_seconds, "form": str(getattr(engine.target, "step_form", "")),
    }  # fmt: skip


def replies(engine: Engine, asked: Asked, count: int | None = None) -> list[Statistics]:
    """Greedy replies to the first prompts."""
    found = []
    most = Limits(SMALL_TOKENS if asked.small else TOKENS)
    for prompt in questions_of(asked, count or (SMALL_REPLIES if asked.small else REPLIES)):
        *_, done = engine.chat(message(prompt.text), Sampling(), most)
        assert isinstance(done, Done)
        found.append(done.statistics)
    return found


# -- side by side ------------------------------------------------------------------------------------------------------


def side_by_side(record: Record, asked: Asked, card: TargetCard, precision: str, seconds: float) -> None:
    """Run as many prompts as there is time for, with `speedups.py`; the next call continues."""
    if seconds < SHARED and not asked.small:
        raise TimeUp("side by side")
    work, log = asked.work / f"speedups-{precision}", asked.work / f"speedups-{precision}.log"
    words = [str(Path("research") / "speedups.py"), "-m", str(card.path), "--prompts", str(prompts_place(asked))]
    words += ["--limit", "1" if asked.small else "6", "-n", str(SMALL_TOKENS if asked.small else 64)]
    words += ["--drafters", *(name for name in drafters(asked) if name != PLAIN), "--work", str(work)]
    named_settings = {f"LOCALSPEC_{name.upper()}": value for name, value in precisions(asked)[precision].items()}
    # A second process writes the replies, so this process must leave nothing on the card.
    code = run_script(words, seconds, log, {**named_settings, "LOCALSPEC_DEVICE": asked.device})
    found = turns_of(work)
    record.keep(f"{precision} turns", found)
    if code is not None:
        record.keep(f"{precision} side by side", {"turns": len(found)} if code == 0 else {"failed": last_line(log)})


def turns_of(place: Path) -> list[dict[str, Any]]:
    """Return the prompts that all drafters have answered."""
    files = sorted(place.glob("turn-*.json"), key=lambda file: int(file.stem.partition("-")[2]))
    turns = (saved_json(file, dict) for file in files)
    return [without_ids(turn) for turn in turns if "replies" in turn]


def without_ids(turn: dict[str, Any]) -> dict[str, Any]:
    """Return a turn with whether each reply differs from the plain one, in place of all tokens."""
    plain = turn["replies"][PLAIN]["ids"]
    replies = {
        name: {key: value for key, value in one.items() if key != "ids"} | {"differs": one["ids"] != plain}
        for name, one in turn["replies"].items()
    }
    return {**turn, "replies": replies}


# -- the page ----------------------------------------------------------------------------------------------------------


def by_precision(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was measured one by one, by precision and drafter."""
    found: dict[str, dict[str, Any]] = {}
    for name, one in figures.items():
        precision, _, drafter = name.partition(" ")
        if drafter in DRAFTERS:
            found.setdefault(precision, {})[drafter] = one
    return found


def ratios(one: Mapping[str, Any], plain: Mapping[str, Any]) -> tuple[float, float]:
    """(speedup, M)."""
    faster = one["tokens_per_second"] / plain["tokens_per_second"]
    return faster, faster / (one["peak"] / plain["peak"])


def section(figures: dict[str, Any]) -> str:
    model = figures.get("model")
    told = []
    if model:
        told.append(
            f"The demo model was enlarged with zeros, {model['factor']} times in width: {model['parameters'] / 1e9:.2g} B parameters in 8 layers. It writes the demo's texts and drafts. "
            "A usual model of that size has four times as many layers, and so launches four times as many kernels in a step. "
            "*Peak GiB* is the most memory used, τ the tokens per step, × the speedup over plain decoding (`none`), and M is × ÷ "
            "relative peak memory. *Other texts* counts replies that differ from plain "
            "decoding, and *switched off* replies in which drafting stopped because it did not pay."
        )
    for precision, of in by_precision(figures).items():
        plain = of.get(PLAIN)
        if plain is None or failure(plain):
            told += failed({f"{precision} {name}": one for name, one in of.items()})
            continue
        lines = []
        for drafter, one in of.items():
            if failure(one):
                continue
            faster, worth = ratios(one, plain)
            differing = sum(ours != theirs for ours, theirs in zip(one["ids"], plain["ids"], strict=True))
            lines.append([
                drafter, f"{one['tokens_per_second']:.1f}", figure(one["length"]), figure(faster), f"{one['peak'] / 2**30:.2f}",
                figure(worth), figure(one["tokens_per_second"] / (one["peak"] / 2**30)), str(differing), str(one["off"]),
            ])  # fmt: skip
        heads = ["drafter", "tokens/s", "τ", "×", "peak GiB", "M", "tokens/s per GiB", "other texts", "switched off"]
        form = f" (steps of plain decoding are {plain['form']})" if plain.get("form") else ""
        told.append(f"In {precision}, {len(plain['ids'])} replies of each drafter{form}:\n\n{table(heads, lines)}")
        told += failed({f"{precision} {name}": one for name, one in of.items()})
        told += beside(figures.get(f"{precision} turns") or [], precision)
        told += failed({name: one for name, one in figures.items() if name == f"{precision} side by side"})
    papers = [[f"table {row[0]}: {row[1]}", *(figure(value) for value in row[2:])] for row in S3D_ROWS]
    heads = ["table of the S3D paper: method", "peak GiB", "tokens/s", "M", "M over all"]
    told.append(
        "For comparison: figures of the S3D paper, from an A10G with the prompts of MT-Bench. M compares with the first row. "
        f"*M over all* is for all three sets of prompts.\n\n{table(heads, papers)}"
    )
    return "\n\n".join(told)


def beside(turns: Sequence[Mapping[str, Any]], precision: str) -> list[str]:
    """× of replies that were written side by side, by the kind of text."""
    if not turns:
        return []
    kinds = {kind: [turn for turn in turns if turn["category"] == kind] for kind in EVERY}
    kinds = {kind: some for kind, some in kinds.items() if some}
    lines = []
    for name in turns[0]["replies"]:
        low, high = interval(turns, name)
        differing = sum(turn["replies"][name]["differs"] for turn in turns)
        lines.append([
            name, f"{speedup(turns, name):.2f} [{low:.2f}, {high:.2f}]", figure(length(turns, name)), figure(worth(turns, name)),
            *(figure(speedup(some, name)) for some in kinds.values()), str(differing),
        ])  # fmt: skip
    heads = ["drafter", "×", "τ", "M", *(f"{kind} ({len(some)})" for kind, some in kinds.items()), "other texts"]
    return [f"In {precision}, side by side, by `speedups.py`, {len(turns)} prompts:\n\n{table(heads, lines)}"]


def aims(figures: dict[str, Any]) -> list[Aim]:
    found = []
    for precision, of in by_precision(figures).items():
        plain = of.get(PLAIN)
        good = {
            name: ratios(one, plain) for name, one in of.items() if plain and not failure(plain) and not failure(one)
        }
        worth = max((worth for _, worth in good.values()), default=None)
        told = f"{precision}: best speedup of {', '.join(METHODS)} over recorded plain decoding, with at most {LEAN} times its memory"
        recorded = plain is not None and plain.get("form") == "captured"
        found.append(Aim(told, best_lean(good) if recorded else None, FASTER))
        found.append(
            Aim(
                f"{precision}: best *M over all* of a drafter (wanted: that of S3D in table 1 of its paper)",
                worth,
                S3D_OVER_ALL,
            )
        )
    return found or [Aim("× of the best drafter", None, FASTER)]


def best_lean(good: Mapping[str, tuple[float, float]]) -> float | None:
    """Return × of the fastest method with little memory; 0 where all need more; None without measurements."""
    known = [good[name] for name in METHODS if name in good]
    lean = [faster for faster, worth in known if faster <= LEAN * worth]  # M is × over relative memory
    return max(lean, default=0.0) if known else None
